"""`code_exec` on real programs: what the model reads, what is stored for scoring, and what no program can find out."""

import os
import resource
from collections.abc import Iterator
from typing import Any

import pytest
from sandboxes import sandbox_or_skip

from agent_rl.agent.messages import ToolCall
from agent_rl.envs.code.call_tests import CallTask, parse_call_task
from agent_rl.envs.code.tool import CodeExecTool
from agent_rl.errors import SandboxError
from agent_rl.memo import Memo
from agent_rl.sandbox.freeze import Flag
from agent_rl.sandbox.limits import Limits, Status
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.tools.base import ToolRegistry, ToolResult

LIMITS = Limits(wall_s=1.0, cpu_s=1, memory_mb=128, processes=16, output_kb=16, output_hard_kb=64)
ADD = {
    "task_id": "add",
    "prompt": "Write add(a, b).",
    "tests": [
        {"function": "add", "args": [1, 2], "expected": 3},
        {"function": "add", "args": [2], "kwargs": {"b": 2}, "expected": 4},
        {"function": "add", "args": [5, 6], "expected": 11},
        {"function": "add", "args": ["hidden input", 6], "raises": "TypeError"},
    ],
    "reference_solution": "def add(a, b):\n    return a + b\n",
    "metadata": {"num_examples": 2},
}
ADD_TASK = parse_call_task(ADD, "a test")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with sandbox_or_skip(LIMITS) as opened:
        yield opened


def result_of(tool: CodeExecTool, code: str) -> ToolResult:
    return ToolRegistry([tool]).run(ToolCall(name="code_exec", arguments={"code": code}))


def task_of(tests: list[dict[str, Any]], num_examples: int = 1) -> CallTask:
    return parse_call_task({**ADD, "tests": tests, "metadata": {"num_examples": num_examples}}, "a test")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print(1 + 2)\nprint('x')", "3\nx"),
        ("x = 1", "no output"),
        ("print('a' * 25)", "a" * 20 + "..."),
        ("print(1)\nprint(x)", "1\nerror in line 2: NameError: name 'x' is not defined"),
        ("def f(:", "error in line 1: SyntaxError: invalid syntax"),
        ("def f():\n    g()\ndef g():\n    1 / 0\nf()", "error in line 4: ZeroDivisionError: division by zero"),
        ("raise ValueError('y' * 500)", f"error in line 1: ValueError: {'y' * 188}..."),
        ("input()", "error in line 1: EOFError: EOF when reading a line"),
        ("import sys\nsys.exit('bye')", "error: bye"),
        ("import os\nos._exit(3)", "error: exit code 3"),
        ("while True:\n    pass", "error: stopped after 1 s"),
        ("x = bytearray(10**9)", "error in line 1: MemoryError"),
        ("while True:\n    print('flood' * 1000)", "flood" * 4 + "...\nerror: stopped, too much output"),
    ],
)
def test_a_programs_output_and_failure_are_reported(sandbox: Sandbox, code: str, text: str) -> None:
    result = result_of(CodeExecTool(lambda: sandbox, output_chars=20), code)
    assert result.text == text
    assert result.ok == ("error" not in text) and not result.terminal


@pytest.mark.parametrize("code", ["\ud800", "'\ud800'", "x = 1\x00", "# " + "x" * 200_000, "", "(" * 300])
def test_odd_texts_are_answered_like_any_other_and_pass_no_test(sandbox: Sandbox, code: str) -> None:
    tool = CodeExecTool(lambda: sandbox, ADD_TASK)
    text = result_of(tool, code).text
    assert len(text.encode()) < 300 and text
    assert tool.attempts[0].verdict.score == 0.0


def test_a_program_that_exits_without_an_error_ends_well(sandbox: Sandbox) -> None:
    result = result_of(CodeExecTool(lambda: sandbox), "print('done')\nraise SystemExit(0)")
    assert (result.text, result.ok) == ("done", True)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("def add(a, b):\n    return a * b", "add(1, 2) gave 2, expected 3"),
        ("def add(a, b):\n    return 3", "add(2, b=2) gave 3, expected 4"),
        ("def add(a, b):\n    return str(a + b)", "add(1, 2) gave '3', expected 3"),
        ("def add(a, b):\n    return True", "add(1, 2) gave True, expected 3"),
        ("def add(a, b):\n    return [3]", "add(1, 2) gave [3], expected 3"),
        ("def add(a, b):\n    return add", "add(1, 2) gave an object of type function, expected 3"),
        ("def add(a, b):\n    return 2**60000", "add(1, 2) gave a very large number, expected 3"),
        ("def add(a, b):\n    return 2**70000", "add(1, 2) gave an answer that is too large, expected 3"),
        ("def add(a, b):\n    return 'z' * 300", f"add(1, 2) gave '{'z' * 99}..., expected 3"),
        ("def add(a, b):\n    return {}[a]", "add(1, 2) raised KeyError: 1, expected 3"),
        ("def add(a, b):\n    raise ValueError", "add(1, 2) raised ValueError, expected 3"),
        ("def add(a, b):\n    raise ValueError('\\ud800 a\\nb')", "add(1, 2) raised ValueError: ? a b, expected 3"),
        ("def add(a, b):\n    while True: pass", "add(1, 2) gave no answer in time, expected 3"),
        ("def add(a, b):\n    import os; os._exit(0)", "add(1, 2) gave no answer, expected 3"),
        ("def add(a, b):\n    return a + b if a < 5 else 0", "examples: 2 of 2 passed\nnot all hidden tests pass"),
        ("print('hm')\ndef add(a, b):\n    return 3", "hm\nadd(2, b=2) gave 3, expected 4"),
    ],
)
def test_the_report_is_about_the_first_example_that_fails(sandbox: Sandbox, code: str, text: str) -> None:
    result = result_of(CodeExecTool(lambda: sandbox, ADD_TASK), code)
    assert result.text == text
    assert result.ok and not result.terminal


def test_an_example_may_expect_an_exception(sandbox: Sandbox) -> None:
    task = task_of(
        [{"function": "half", "args": [3], "raises": "ValueError"}, {"function": "half", "args": [4], "expected": 2}]
    )
    assert task.request.endswith("Examples:\nhalf(3) raises ValueError")
    result = result_of(CodeExecTool(lambda: sandbox, task), "def half(n):\n    return n // 2")
    assert result.text == "half(3) gave 1, expected ValueError"


def test_without_examples_the_report_hides_the_tests(sandbox: Sandbox) -> None:
    task = task_of([{"function": "f", "args": [], "expected": 7}], num_examples=0)
    assert task.request == "Write add(a, b)."
    assert result_of(CodeExecTool(lambda: sandbox, task), "def f():\n    return 8").text == "not all hidden tests pass"


@pytest.mark.parametrize(
    ("expected", "answer", "is_right"),
    [
        (0.3, "0.1 + 0.2", True),
        (3, "3.0", True),
        (0.3, "0.300001", False),
        (10**10, "1e10 + 9", False),
        (10**10, "10**10 + 1", False),
        (1e10, "1e10 + 9", True),
        ([{"a": [0.3, 10**10]}], "[{'a': [0.1 + 0.2, 10**10]}]", True),
        ([{"a": [0.3, 10**10]}], "[{'a': [0.3, 1e10 + 9]}]", False),
        ({"a": 1}, "{'a': 1, 'b': 2}", False),
        ({"a": 1, "b": 2}, "{'a': 1}", False),
        ([1, 2], "[1]", False),
        ([1, 2], "(1, 2)", False),
        (1, "True", False),
        (None, "None", True),
        ({}, "[]", False),
    ],
)
def test_rounding_is_allowed_for_only_where_a_float_is_expected(
    sandbox: Sandbox, expected: Any, answer: str, is_right: bool
) -> None:
    task = task_of([{"function": "f", "args": [], "expected": expected}], num_examples=0)
    assert result_of(CodeExecTool(lambda: sandbox, task), f"def f():\n    return {answer}").terminal == is_right


@pytest.mark.parametrize(
    ("raises", "kind", "is_right"),
    [
        ("ValueError", "ValueError", True),
        ("LookupError", "KeyError", True),
        ("KeyError", "LookupError", False),
        ("IOError", "FileNotFoundError", True),
        ("ValueError", "type('E', (ValueError,), {})", True),
        ("ValueError", "type('E', (ValueError, KeyError), {})", True),
        ("LookupError", "type('E', (ValueError, KeyError), {})", False),
        ("ValueError", "type('E', (Exception,), {'__module__': 'builtins'})", False),
    ],
)
def test_an_exception_is_one_answer_however_many_it_is_derived_from(
    sandbox: Sandbox, raises: str, kind: str, is_right: bool
) -> None:
    task = task_of([{"function": "f", "args": [], "raises": raises}], num_examples=0)
    assert result_of(CodeExecTool(lambda: sandbox, task), f"def f():\n    raise {kind}").terminal == is_right


def test_numbers_are_compared_by_value_and_up_to_rounding(sandbox: Sandbox) -> None:
    task = task_of([{"function": "f", "args": [], "expected": 0.3}, {"function": "f", "args": [], "expected": 0.3}])
    assert result_of(CodeExecTool(lambda: sandbox, task), "def f():\n    return 0.1 + 0.2").terminal
    assert not result_of(CodeExecTool(lambda: sandbox, task), "def f():\n    return 0.300001").terminal


def test_a_program_that_passes_all_tests_is_terminal_and_every_program_is_stored(sandbox: Sandbox) -> None:
    tool = CodeExecTool(lambda: sandbox, ADD_TASK)
    wrong = "def add(a, b):\n    return a - b if isinstance(a, int) else [][0]\n"
    texts = [result_of(tool, code).text for code in (wrong, "1 / 0", ADD["reference_solution"])]
    assert texts[2] == "all tests pass"
    assert [attempt.code for attempt in tool.attempts] == [wrong, "1 / 0", ADD["reference_solution"]]
    assert [(a.verdict.passed, a.verdict.total, a.verdict.full) for a in tool.attempts] == [
        (0, 4, False),
        (0, 0, False),
        (4, 4, True),
    ]


def test_a_program_that_fails_by_itself_passes_no_test(sandbox: Sandbox) -> None:
    tool = CodeExecTool(lambda: sandbox, ADD_TASK)
    result = result_of(tool, ADD["reference_solution"] + "if __name__ == '__main__':\n    print(add(1))\n")
    assert result.text.startswith("error in line 4: TypeError: add() missing 1 required")
    assert not result.ok and not result.terminal
    (attempt,) = tool.attempts
    assert (attempt.verdict.status, attempt.verdict.score) == (Status.NONZERO, 0.0)


def test_what_looks_like_an_attempt_on_the_verdict_is_flagged_also_where_nothing_was_judged(sandbox: Sandbox) -> None:
    tool = CodeExecTool(lambda: sandbox, ADD_TASK)
    for code in ("import os\nos._exit(1)", "import os\ndef add(a, b):\n    os._exit(0)", ADD["reference_solution"]):
        result_of(tool, code)
    flags = [attempt.verdict.flags for attempt in tool.attempts]
    assert flags == [(Flag.SOURCE_EXIT,), (Flag.SOURCE_EXIT, Flag.CANDIDATE_LOST), ()]


SNOOPER = """
import sys

def add(a, b):
    frame, seen = sys._getframe(), ""
    while frame:
        seen += repr(frame.f_locals)
        frame = frame.f_back
    return "hidden" + " " + "input" in seen
"""


def test_what_an_example_gave_comes_from_a_process_without_hidden_inputs(sandbox: Sandbox) -> None:
    tool = CodeExecTool(lambda: sandbox, ADD_TASK)
    assert result_of(tool, SNOOPER).text == "add(1, 2) gave False, expected 3"
    assert "'value': True" in tool.attempts[0].verdict.evidence  # where all tests are run, inputs can be seen


def test_examples_reveal_no_hidden_inputs(sandbox: Sandbox) -> None:
    signals = SNOOPER.replace('return "hidden"', 'return a - b if "hidden"').rstrip() + " else a + b\n"
    tool = CodeExecTool(lambda: sandbox, ADD_TASK)
    assert result_of(tool, signals).text == "examples: 2 of 2 passed\nnot all hidden tests pass"
    assert tool.attempts[0].verdict.passed == 1  # the examples fail where the hidden input can be seen; it raises there


HANGS_IN_THE_SECOND = "def add(a, b):\n    while a == 2: pass\n    return a + b\n"


def test_a_program_that_hangs_in_an_example_is_not_waited_for_twice(sandbox: Sandbox) -> None:
    jobs = []

    class Watched:
        limits, memo = sandbox.limits, Memo(is_on=False)
        run_python = sandbox.run_python

        def call(self, job: str, *args: Any, **request: Any) -> Any:
            jobs.append((job, len(request["cases"])))
            return sandbox.call(job, *args, **request)

    tool = CodeExecTool(Watched, ADD_TASK)  # type: ignore[arg-type, return-value]
    text = result_of(tool, HANGS_IN_THE_SECOND).text
    assert (text, jobs) == ("add(2, b=2) gave no answer in time, expected 4", [("call_cases", 2)])
    verdict = tool.attempts[0].verdict
    assert (verdict.status, verdict.passed, verdict.total) == (Status.TIMEOUT, 1, 4)
    jobs.clear()
    assert result_of(tool, "def add(a, b):\n    while a == 5: pass\n    return a + b").text.startswith(
        "examples: 2 of 2"
    )
    assert jobs == [("call_cases", 2), ("call_cases", 4)]
    assert (tool.attempts[1].verdict.status, tool.attempts[1].verdict.passed) == (Status.TIMEOUT, 2)


def test_a_sandbox_without_descriptors_is_no_fault_of_the_program(sandbox: Sandbox) -> None:
    tool = CodeExecTool(lambda: sandbox, ADD_TASK)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(SandboxError, match="Too many open files"):
            result_of(tool, ADD["reference_solution"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert tool.attempts == []
    assert result_of(tool, ADD["reference_solution"]).terminal


COUNTER = """
calls = []

def add(a, b):
    calls.append(a)
    return len(calls) + 2
"""


def test_an_example_is_shown_after_those_before_it_as_it_was_judged(sandbox: Sandbox) -> None:
    task = task_of([{"function": "add", "args": [1, 1], "expected": n} for n in (3, 5, 9)], num_examples=2)
    assert result_of(CodeExecTool(lambda: sandbox, task), COUNTER).text == "add(1, 1) gave 4, expected 5"


def test_the_code_must_be_text(sandbox: Sandbox) -> None:
    result = ToolRegistry([CodeExecTool(lambda: sandbox)]).run(ToolCall(name="code_exec", arguments={"code": 3}))
    assert (result.text, result.ok) == ("error: code_exec: argument 'code' must be a JSON string, got int", False)
