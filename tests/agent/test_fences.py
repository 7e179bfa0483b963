"""Fenced code in what models write: one reader for the environment, the code agent and the reward."""

import pytest
from cpu_time import cpu_s
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_rl.agent.code_format import read_blocks
from agent_rl.agent.fences import last_python, read_fences
from agent_rl.envs.code.rewards import code_of

NESTED = 'def add(a, b):\n    """Add.\n\n    ```python\n    add(1, 2)\n    ```\n    """\n    return a + b\n'


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```py \nx = 1\n``` \n```json\n{}\n```", "x = 1\n"),
        ("```Python3\r\nx = 1\n```\r\n", "x = 1\n"),
        ('```python title="x"\nx = 1\n```', "x = 1\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        ("```python\nx = 1\n`````", "x = 1\n"),
        ("~~~python\nx = '```'\n```\n~~~", "x = '```'\n```\n"),
        ("Here: ```python\nx = 1\n```\nThere.", "x = 1\n"),
        ("Here: ```json\n{}\n```\n```python\nx = 1\n```", "x = 1\n"),
        ("1. so:\n   ```python\n   x = 1\n     y\n z\n   ```", "x = 1\n  y\nz\n"),
        ("10. ```python\n    x = 1\n    ```\nNext.", "x = 1\n"),
        (f"```python\n{NESTED}```", NESTED),
        ("```python\nx = 1\n```\n```python\ny = 2\n```", "y = 2\n"),
        ("```python\n```", ""),
        ("```python\n\n```", "\n"),
    ],
)
def test_all_readers_find_the_same_code(text: str, code: str) -> None:
    assert last_python(text) == code
    assert code_of(text) == code
    (call,) = read_blocks(text).tool_calls
    assert call.arguments["code"].endswith(code.removesuffix("\n"))


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        "```bash\nls\n```",
        "``` `x` ```python\nx = 1",
        "    ```python\nx = 1\n    ```",
        "\t```python\nx = 1\n\t```",
        "Use ```python x = 1``` here.",
        "a ~~~ b\nx = 1\n",
        "The sign is ```\nx = 1\n",
        "`python\nx = 1\n`",
        "",
    ],
)
def test_what_is_no_fence_of_python_is_text_to_all_readers(text: str) -> None:
    assert last_python(text, or_open=True) is None
    assert code_of(text) == text
    assert not read_blocks(text).tool_calls and not read_blocks(text).tool_errors


def test_a_fence_without_a_language_is_code_but_no_action() -> None:
    text = "```\n    return 1\n```"
    assert last_python(text) == code_of(text) == "    return 1\n"
    assert not read_blocks(text).tool_calls


@pytest.mark.parametrize(
    "text", ["```python\nx = 1", "````python\nx = 1\n```", "```python\nx = 1\n    ```", "```py\n~~~"]
)
def test_a_block_that_is_not_closed_ends_with_the_text(text: str) -> None:
    (block,) = read_fences(text)
    assert (block.is_closed, block.span) == (False, (0, len(text)))
    assert last_python(text) is None
    assert last_python(text, or_open=True) == code_of(text) == text.partition("\n")[2] + "\n"
    assert [error.kind for error in read_blocks(text).tool_errors] == ["unclosed"]


def test_what_stands_around_blocks_is_the_content() -> None:
    text = "Here: ```python\na = 1\n```\nThen\n ```json\n[]\n ```\n  ```python\n  b = 2\n  ```\n\nDone."
    message = read_blocks(text)
    assert message.content == "Here: \nThen\n ```json\n[]\n ```\n\nDone."
    assert message.tool_calls[0].arguments == {"code": "a = 1\n\nb = 2"}
    assert [text[slice(*block.span)] for block in read_fences(text)] == [
        "```python\na = 1\n```",
        " ```json\n[]\n ```",
        "  ```python\n  b = 2\n  ```",
    ]


PIECES = ["```", "````", "~~~", "python", "json", "\n", "    ", "1. ", "x", "\t", "\r"]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
@example("```python\n" * 3)
def test_blocks_of_any_text_are_in_order_and_hold_parts_of_it(text: str) -> None:
    position = 0
    for block in read_fences(text):
        start, end = block.span
        assert position <= start < end <= len(text)
        assert all(line.rstrip("\n") in text[start:end] for line in block.code.splitlines(keepends=True))
        position = end
    assert code_of(text) == text or last_python(text, or_open=True) is not None


@pytest.mark.parametrize(
    "unit", ["`" * 9, "~" * 9 + "`", "``` ", " " * 9, "1. ", "```python\n", "~~~\n```\n", "x ```x\n"]
)
def test_long_texts_are_read_in_linear_time(unit: str) -> None:
    text = unit * (400_000 // len(unit))
    assert cpu_s(lambda: read_fences(text), 2.0) < 2.0
