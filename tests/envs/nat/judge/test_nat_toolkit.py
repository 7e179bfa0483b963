"""The toolkit client, with the real toolkit in `.venv-nat` and one small project written by hand."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from nat_demo import (
    ANSWERS,
    CONFIG,
    FILES,
    INPUTS,
    LOGIC,
    REGISTER,
    SCHEMA,
    SERVER,
    TEST_FILE,
    both_ways,
    run_demo,
    run_of,
    serve_demo,
)

from agent_rl.envs.nat.errors import NatUnavailableError
from agent_rl.envs.nat.judge import toolkit
from agent_rl.envs.nat.judge.evidence import RunEvidence
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.errors import SandboxError


def test_a_complete_project_answers_through_function_and_workflow(nat_toolkit: NatToolkit) -> None:
    evidence = run_demo(nat_toolkit)
    assert (evidence.stage, evidence.error) == ("done", None)
    assert evidence.runs == (RunEvidence(applied=True, answers=ANSWERS + ANSWERS),)
    assert evidence.workflow_type == "demo_scale"
    assert evidence.schemas == {"scaler": SCHEMA}
    assert evidence.workflow_schema == SCHEMA


def test_a_function_with_one_argument_takes_the_bare_value(nat_toolkit: NatToolkit) -> None:
    register = REGISTER.replace("value: float, unit: str", "unit: str").replace("scale(value, ", "scale(3.0, ")
    one = {"unit": "km"}
    evidence = run_demo(nat_toolkit, {"src/nat_demo/register.py": register}, run_of([("scaler", one), ("", one)]))
    assert evidence.runs[0].answers == ("3000.00 m", "3000.00 m")
    assert evidence.workflow_schema == {"unit": "string"}


def test_every_run_is_a_fresh_build_and_answers_come_in_order(nat_toolkit: NatToolkit) -> None:
    counting = REGISTER.replace("    async def run", "    seen = []\n\n    async def run")
    counting = counting.replace(
        "return scale(value, unit, config.digits)", "seen.append(1)\n        return str(len(seen))"
    )
    twice = run_of([("scaler", INPUTS[0]), ("scaler", INPUTS[0])])
    evidence = run_demo(nat_toolkit, {"src/nat_demo/register.py": counting}, twice, twice)
    assert [run.answers for run in evidence.runs] == [("1", "2"), ("1", "2")]


def test_an_override_reaches_the_function_and_the_workflow_of_that_run_only(nat_toolkit: NatToolkit) -> None:
    digits = [["functions", "scaler", {"digits": 0}], ["workflow", None, {"digits": 1}]]
    changed, usual = run_demo(nat_toolkit, None, both_ways(overrides=digits), both_ways()).runs
    assert changed.applied
    assert (changed.answers[0], changed.answers[3]) == ("2000 m", "2000.0 m")
    assert usual.answers == ANSWERS + ANSWERS


def test_an_override_without_a_field_is_reported(nat_toolkit: NatToolkit) -> None:
    register = REGISTER.replace("digits: int", "places: int").replace("config.digits", "config.places")
    run = both_ways(overrides=[["functions", "scaler", {"digits": 0}]])
    evidence = run_demo(nat_toolkit, {"src/nat_demo/register.py": register}, run)
    assert not evidence.runs[0].applied
    assert evidence.runs[0].answers == ANSWERS + ANSWERS


def test_a_function_that_does_not_exist_is_missing_and_the_rest_is_answered(nat_toolkit: NatToolkit) -> None:
    evidence = run_demo(nat_toolkit, None, run_of([("other", INPUTS[0]), ("desk__add", {}), ("scaler", INPUTS[0])]))
    assert evidence.runs[0].answers == ({"missing": "other"}, {"missing": "desk__add"}, "2000.00 m")


@pytest.mark.parametrize(
    ("path", "text", "stage", "words"),
    [
        ("src/nat_demo/register.py", "import no_such_module\n", "import", "no_such_module"),
        ("src/nat_demo/register.py", "def broken(:\n", "import", "SyntaxError"),
        ("src/nat_demo/register.py", "raise SystemExit(0)\n", "import", "SystemExit"),
        ("src/nat_demo/configs/config.yml", CONFIG.replace("demo_scale", "no_such_type"), "load", "no_such_type"),
        ("src/nat_demo/configs/config.yml", "- a list\n", "load", ""),
        ("src/nat_demo/configs/config.yml", CONFIG.replace("scaler", "other"), "build", "scaler"),
        ("src/nat_demo/register.py", REGISTER.replace("async def run", "def run"), "build", ""),
    ],
)
def test_an_error_names_the_stage_it_happened_in(
    nat_toolkit: NatToolkit, path: str, text: str, stage: str, words: str
) -> None:
    evidence = run_demo(nat_toolkit, {path: text})
    assert evidence.stage == stage
    assert evidence.error is not None and words in evidence.error
    assert len(evidence.error) <= 300


def test_a_stub_runs_and_its_wrong_answers_come_back_as_they_are(nat_toolkit: NatToolkit) -> None:
    stub = "def scale(value, unit, digits=2):\n    return unit\n"
    assert run_demo(nat_toolkit, {"src/nat_demo/logic.py": stub}).runs[0].answers == ("km", "m", "mile") * 2


def test_a_function_that_raises_gives_an_exception_for_that_input_only(nat_toolkit: NatToolkit) -> None:
    raising = LOGIC.replace('return f"error: unknown unit {unit}"', "raise KeyError(unit)")
    answers = run_demo(nat_toolkit, {"src/nat_demo/logic.py": raising}).runs[0].answers
    assert answers[:2] == answers[3:5] == ANSWERS[:2]
    assert "mile" in answers[2]["exception"] and "exception" in answers[5]


def test_an_answer_keeps_its_json_type_and_equality_tricks_do_not_survive(nat_toolkit: NatToolkit) -> None:
    always = "class S(str):\n    def __eq__(self, other):\n        return True\n    __hash__ = str.__hash__\n"
    files = {"src/nat_demo/logic.py": always + "def scale(*_):\n    return S('x')\n"}
    answers = run_demo(nat_toolkit, files).runs[0].answers
    assert answers == ("x",) * 6 and {type(each) for each in answers} == {str}
    number = REGISTER.replace("-> str", "-> int").replace("return scale(value, unit, config.digits)", "return 7")
    numbers = run_demo(nat_toolkit, {"src/nat_demo/register.py": number}, run_of([("scaler", INPUTS[0])]))
    assert numbers.runs[0].answers == (7,) and type(numbers.runs[0].answers[0]) is int


@pytest.mark.parametrize("where", ["register.py", "logic.py"])
def test_leaving_without_a_word_is_evidence_and_not_a_pass(nat_toolkit: NatToolkit, where: str) -> None:
    evidence = run_demo(nat_toolkit, {f"src/nat_demo/{where}": "import os\nos._exit(0)\n"})
    assert evidence.error is not None and "exit code 0" in evidence.error
    assert evidence.runs == ()


@pytest.mark.parametrize(
    "report",
    [
        {"stage": ["done"], "runs": 5},
        {"stage": "won", "runs": []},
        {"stage": "done", "runs": [{"applied": "maybe", "answers": []}]},
        {"stage": "done", "runs": [{"applied": True, "answers": 7}]},
        "done",
        None,
    ],
)
def test_a_forged_report_of_the_wrong_shape_is_evidence(nat_toolkit: NatToolkit, report: Any) -> None:
    forge = f"import json, os\nos.write(3, json.dumps({{'result': {report!r}}}).encode() + b'\\n')\nos._exit(0)\n"
    evidence = run_demo(nat_toolkit, {"src/nat_demo/register.py": forge})
    assert evidence.error is not None and "broke off" in evidence.error
    assert evidence.runs == ()


def test_an_endless_loop_ends_at_the_deadline_and_is_not_remembered(hasty_toolkit: NatToolkit) -> None:
    loop = {"src/nat_demo/logic.py": "while True:\n    pass\n"}
    before = hasty_toolkit.memo.counters()["run"]
    for _ in range(2):
        evidence = run_demo(hasty_toolkit, loop)
        assert evidence.error is not None and "timeout" in evidence.error
        assert 1.4 < evidence.seconds < 6.0
    assert hasty_toolkit.memo.counters()["run"] == before + 2
    assert run_demo(hasty_toolkit).error is None


def test_the_mcp_server_shakes_hands_and_answers(nat_toolkit: NatToolkit) -> None:
    evidence = serve_demo(nat_toolkit, SERVER)
    assert (evidence.stage, evidence.error, evidence.server_name) == ("done", None, "nat_demo")
    assert evidence.tools == {"scaler": {"unit": "string", "value": "number"}}
    assert evidence.answers == ANSWERS
    assert evidence.is_error == (False, False, False)
    assert evidence.unknown_tool_refused


@pytest.mark.parametrize(
    ("server", "stage", "words"),
    [
        ("print('hello')\n" + SERVER, "initialize", "JSON-RPC only"),
        ("x = 1\n", "initialize", "ran to its end"),
        ("import no_such_module\n", "initialize", "no_such_module"),
        ("import os\nos._exit(3)\n", "initialize", "exit code 3"),
        ("import sys\nsys.stdout.write('x' * 2_000_000)\nsys.stdout.flush()\n", "initialize", "longer than"),
        ('print(\'{"jsonrpc": "2.0", "id": 1, "result": 5}\', flush=True)\n' + SERVER, "initialize", "malformed"),
    ],
)
def test_a_bad_mcp_server_is_evidence(nat_toolkit: NatToolkit, server: str, stage: str, words: str) -> None:
    evidence = serve_demo(nat_toolkit, server)
    assert evidence.error is not None and words in evidence.error
    assert evidence.stage == stage
    assert evidence.answers == ()


def test_a_silent_mcp_server_is_detected_by_the_request_deadline(nat_toolkit: NatToolkit) -> None:
    evidence = nat_toolkit.run_mcp(
        {"mcp_server.py": "import time\ntime.sleep(60)\n"},
        server_path="mcp_server.py",
        calls=[("scaler", INPUTS[0])],
        request_timeout_s=0.2,
    )
    assert evidence.error == "no answer to initialize within 0.2 s"


def test_a_mcp_server_cannot_write_the_report(nat_toolkit: NatToolkit) -> None:
    forge = """import json, os
for fd in range(3, 256):
    try:
        os.write(fd, json.dumps({"result": {"stage": "done", "answers": ["forged"]}}).encode())
    except OSError:
        pass
"""
    assert serve_demo(nat_toolkit, forge).answers == ()


def test_passing_failing_and_missing_tests_are_distinguished(nat_toolkit: NatToolkit) -> None:
    good = nat_toolkit.run_tests(FILES, targets=[TEST_FILE])
    assert (good.collected, good.passed, good.exit_code, good.error) == (2, 2, 0, None)
    wrong = nat_toolkit.run_tests(
        {**FILES, "src/nat_demo/logic.py": LOGIC.replace("1000.0", "100.0")}, targets=[TEST_FILE]
    )
    assert (wrong.collected, wrong.passed, wrong.failed) == (2, 1, 1)
    assert wrong.outcomes[f"{TEST_FILE}::test_kilometres"] == "failed"
    empty = nat_toolkit.run_tests({**FILES, TEST_FILE: "x = 1\n"}, targets=[TEST_FILE])
    assert (empty.collected, empty.passed, empty.exit_code) == (0, 0, 5)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("import pytest\n@pytest.mark.skip\ndef test_a():\n    pass\n", "skipped"),
        ("import pytest\n@pytest.mark.xfail\ndef test_a():\n    assert 0\n", "skipped"),
        ("import pytest\n@pytest.mark.xfail\ndef test_a():\n    pass\n", "skipped"),
        ("def test_a(no_such_fixture):\n    pass\n", "errors"),
        ("def broken(:\n", "errors"),
        ("import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.fail()\n", "failed"),
    ],
)
def test_outcomes_that_are_not_a_pass_are_not_counted_as_one(nat_toolkit: NatToolkit, text: str, field: str) -> None:
    evidence = nat_toolkit.run_tests({**FILES, TEST_FILE: text}, targets=[TEST_FILE])
    assert (evidence.collected, evidence.passed, getattr(evidence, field)) == (1, 0, 1)


METHODS = """import unittest
class T(unittest.TestCase):
    def setUp(self):
        self.n = 1
    def test_right(self):
        self.assertEqual(self.n, 1)
    def test_wrong(self):
        self.assertEqual(self.n, 2)
    def test_parts(self):
        for n in (2, 1):
            with self.subTest(n=n):
                self.assertEqual(self.n, n)
"""


def test_each_method_of_a_test_case_has_its_outcome_and_fails_with_any_of_its_parts(nat_toolkit: NatToolkit) -> None:
    outcomes = nat_toolkit.run_tests({**FILES, TEST_FILE: METHODS}, targets=[TEST_FILE]).outcomes
    found = {name.rpartition("::")[2]: outcome for name, outcome in outcomes.items()}
    assert found == {"test_right": "passed", "test_wrong": "failed", "test_parts": "failed"}


def test_files_that_would_configure_pytest_are_ignored(nat_toolkit: NatToolkit) -> None:
    hook = """import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
    files = {
        **FILES,
        TEST_FILE: "def test_a():\n    assert 0\n",
        "conftest.py": hook,
        "tests/conftest.py": hook,
        "pytest.ini": "[pytest]\naddopts = --co\n",
    }
    assert nat_toolkit.run_tests(files, targets=[TEST_FILE]).failed == 1


def test_leaving_during_the_tests_is_an_error_whatever_the_exit_code(nat_toolkit: NatToolkit) -> None:
    evidence = nat_toolkit.run_tests({**FILES, TEST_FILE: "import os\nos._exit(0)\n"}, targets=[TEST_FILE])
    assert evidence.error is not None and evidence.passed == 0


def test_equal_calls_run_once_even_at_the_same_time(nat_toolkit: NatToolkit) -> None:
    before = nat_toolkit.memo.counters()
    files = {**FILES, "src/nat_demo/logic.py": LOGIC + "# for the cache\n"}
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda _: nat_toolkit.run_tests(files, targets=[TEST_FILE]), range(6)))
    after = nat_toolkit.memo.counters()
    assert after["asked"] - before["asked"] == 6
    assert after["run"] - before["run"] == 1
    assert all(result is results[0] for result in results)


def test_eight_threads_get_each_their_own_answers(nat_toolkit: NatToolkit) -> None:
    start = threading.Barrier(8)

    def work(index: int) -> None:
        start.wait()
        logic = LOGIC.replace(' m"', f' m{index}"')
        assert run_demo(nat_toolkit, {"src/nat_demo/logic.py": logic}).runs[0].answers[0] == f"2000.00 m{index}"
        tests = f"def test_{index}():\n    pass\n"
        evidence = nat_toolkit.run_tests({**FILES, TEST_FILE: tests}, targets=[TEST_FILE])
        assert evidence.outcomes == {f"{TEST_FILE}::test_{index}": "passed"}
        assert serve_demo(nat_toolkit, SERVER.replace('"nat_demo"', f'"demo{index}"')).server_name == f"demo{index}"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_a_missing_interpreter_is_one_sentence_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NatUnavailableError, match="run `make setup`"):
        NatToolkit.open(python=tmp_path / "python")
    monkeypatch.setenv("AGENT_RL_NAT_PYTHON", str(tmp_path / "other"))
    with pytest.raises(NatUnavailableError, match="other"):
        NatToolkit.open()


def test_an_interpreter_without_the_toolkit_is_refused() -> None:
    with pytest.raises(NatUnavailableError, match=r"No module named '(mcp|nat)"):
        NatToolkit.open(python="/usr/bin/python3")


def test_a_closed_toolkit_raises_instead_of_scoring() -> None:
    toolkit = NatToolkit.open()
    assert toolkit.version() == toolkit.describe()["nat"] == "1.9.0"
    toolkit.close()
    with pytest.raises(SandboxError, match="closed"):
        toolkit.run_tests(FILES, targets=[TEST_FILE])


def test_tests_may_use_the_toolkit_itself(nat_toolkit: NatToolkit) -> None:
    text = """from nat.runtime.loader import load_config
import nat_demo.register
def test_config():
    assert load_config("src/nat_demo/configs/config.yml").workflow.type == "demo_scale"
"""
    evidence = nat_toolkit.run_tests({**FILES, TEST_FILE: text}, targets=[TEST_FILE])
    assert (evidence.passed, evidence.outcomes) == (1, {f"{TEST_FILE}::test_config": "passed"})


def test_the_interpreter_of_the_working_directory_comes_before_that_of_the_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert toolkit._find_python(".venv-nat/bin/python").parents[2] == Path(toolkit.__file__).parents[4]
    python = tmp_path / ".venv-nat/bin/python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert toolkit._find_python(".venv-nat/bin/python") == python
