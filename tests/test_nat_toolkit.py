"""The toolkit client, with the real toolkit in `.venv-nat` and one small project written by hand."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_rl.errors import NatUnavailableError, SandboxError
from agent_rl.nat.toolkit import AgentEvidence, McpEvidence, NatToolkit
from agent_rl.sandbox.limits import Limits

LOGIC = '''"""Logic."""


def scale(value: float, unit: str, digits: int = 2) -> str:
    if unit not in ("m", "km"):
        return f"error: unknown unit {unit}"
    return f"{value * (1000.0 if unit == 'km' else 1.0):.{digits}f} m"
'''
REGISTER = '''"""Components."""

from collections.abc import AsyncGenerator

from pydantic import Field

from nat.plugin_api import Builder, FunctionBaseConfig, FunctionInfo, register_function

from nat_demo.logic import scale


class ToolConfig(FunctionBaseConfig, name="demo_scale"):
    """Configuration."""

    digits: int = Field(default=2, ge=0, le=6, description="Digits kept.")


@register_function(config_type=ToolConfig)
async def tool(config: ToolConfig, _builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    """Register the tool."""

    async def run(value: float, unit: str) -> str:
        """Convert a length to metres."""
        return scale(value, unit, config.digits)

    yield FunctionInfo.from_fn(run, description=run.__doc__)
'''
CONFIG = """functions:
  scaler:
    _type: demo_scale
workflow:
  _type: demo_scale
"""
SERVER = '''"""MCP server."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "src"))

from mcp.server.fastmcp import FastMCP

from nat_demo.logic import scale

server = FastMCP("nat_demo")


@server.tool()
def scaler(value: float, unit: str) -> str:
    """Convert a length to metres."""
    return scale(value, unit)


if __name__ == "__main__":
    server.run()
'''
TESTS = """from nat_demo.logic import scale


def test_kilometres() -> None:
    assert scale(2.0, "km") == "2000.00 m"


def test_unknown_unit() -> None:
    assert scale(2.0, "x") == "error: unknown unit x"
"""
TEST_FILE = "tests/test_nat_demo.py"
FILES = {
    "src/nat_demo/__init__.py": "",
    "src/nat_demo/logic.py": LOGIC,
    "src/nat_demo/register.py": REGISTER,
    "src/nat_demo/configs/config.yml": CONFIG,
    "mcp_server.py": SERVER,
    TEST_FILE: TESTS,
}
INPUTS = [{"value": 2.0, "unit": "km"}, {"value": 1.5, "unit": "m"}, {"value": 1.0, "unit": "mile"}]
ANSWERS = ("2000.00 m", "1.50 m", "error: unknown unit mile")


@pytest.fixture(scope="module")
def toolkit() -> Iterator[NatToolkit]:
    # A missing `.venv-nat` must fail these tests, not skip them: nothing may be scored without the toolkit.
    with NatToolkit.open(processes=2, limits=Limits(wall_s=1.5, cpu_s=3, memory_mb=512, output_kb=16)) as opened:
        yield opened


def ask(toolkit: NatToolkit, changes: dict[str, str] | None = None, **overrides: int) -> AgentEvidence:
    return toolkit.run_agent(
        {**FILES, **(changes or {})},
        package="nat_demo",
        config_path="src/nat_demo/configs/config.yml",
        instance="scaler",
        runs=[{"overrides": overrides, "inputs": INPUTS}],
    )


def ask_mcp(toolkit: NatToolkit, server: str) -> McpEvidence:
    return toolkit.run_mcp(
        {**FILES, "mcp_server.py": server}, server_path="mcp_server.py", tool="scaler", inputs=INPUTS
    )


def test_a_complete_project_answers_through_function_and_workflow(toolkit: NatToolkit) -> None:
    evidence = ask(toolkit)
    assert (evidence.stage, evidence.error) == ("done", None)
    assert evidence.runs[0].workflow == ANSWERS
    assert evidence.runs[0].function == ANSWERS
    assert evidence.workflow_type == "demo_scale"
    assert evidence.function_schemas == {"scaler": {"unit": "string", "value": "number"}}
    assert evidence.function_schema == {"unit": "string", "value": "number"}


def test_a_function_with_one_argument_takes_the_bare_value(toolkit: NatToolkit) -> None:
    register = REGISTER.replace("value: float, unit: str", "unit: str").replace("scale(value, ", "scale(3.0, ")
    evidence = toolkit.run_agent(
        {**FILES, "src/nat_demo/register.py": register},
        package="nat_demo",
        config_path="src/nat_demo/configs/config.yml",
        instance="scaler",
        runs=[{"overrides": {}, "inputs": [{"unit": "km"}]}],
    )
    assert evidence.runs[0].workflow == evidence.runs[0].function == ("3000.00 m",)
    assert evidence.function_schema == {"unit": "string"}


def test_an_override_reaches_the_code(toolkit: NatToolkit) -> None:
    evidence = ask(toolkit, digits=0)
    assert evidence.runs[0].override_applied
    assert evidence.runs[0].workflow[0] == evidence.runs[0].function[0] == "2000 m"


def test_an_override_without_a_field_is_reported(toolkit: NatToolkit) -> None:
    register = REGISTER.replace("digits: int", "places: int").replace("config.digits", "config.places")
    evidence = ask(toolkit, {"src/nat_demo/register.py": register}, digits=0)
    assert not evidence.runs[0].override_applied
    assert evidence.runs[0].workflow[0] == "2000.00 m"


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
    toolkit: NatToolkit, path: str, text: str, stage: str, words: str
) -> None:
    evidence = ask(toolkit, {path: text})
    assert evidence.stage == stage
    assert evidence.error is not None and words in evidence.error
    assert len(evidence.error) <= 300


def test_a_stub_runs_and_its_wrong_answers_come_back_as_they_are(toolkit: NatToolkit) -> None:
    stub = "def scale(value, unit, digits=2):\n    return unit\n"
    assert ask(toolkit, {"src/nat_demo/logic.py": stub}).runs[0].workflow == ("km", "m", "mile")


def test_a_function_that_raises_gives_an_exception_for_that_input_only(toolkit: NatToolkit) -> None:
    raising = LOGIC.replace('return f"error: unknown unit {unit}"', "raise KeyError(unit)")
    run = ask(toolkit, {"src/nat_demo/logic.py": raising}).runs[0]
    assert run.workflow[:2] == run.function[:2] == ANSWERS[:2]
    assert "mile" in run.function[2]["exception"] and "exception" in run.workflow[2]


def test_an_answer_keeps_its_json_type_and_equality_tricks_do_not_survive(toolkit: NatToolkit) -> None:
    always = "class S(str):\n    def __eq__(self, other):\n        return True\n    __hash__ = str.__hash__\n"
    answers = ask(toolkit, {"src/nat_demo/logic.py": always + "def scale(*_):\n    return S('x')\n"}).runs[0]
    assert answers.workflow == ("x",) * 3 and type(answers.workflow[0]) is str
    number = REGISTER.replace("-> str", "-> int").replace("return scale(value, unit, config.digits)", "return 7")
    assert ask(toolkit, {"src/nat_demo/register.py": number}).runs[0].function == (7, 7, 7)


@pytest.mark.parametrize("where", ["register.py", "logic.py"])
def test_leaving_without_a_word_is_evidence_and_not_a_pass(toolkit: NatToolkit, where: str) -> None:
    evidence = ask(toolkit, {f"src/nat_demo/{where}": "import os\nos._exit(0)\n"})
    assert evidence.error is not None and "exit code 0" in evidence.error
    assert evidence.runs == ()


def test_a_forged_report_of_the_wrong_shape_is_evidence(toolkit: NatToolkit) -> None:
    forge = """import json, os
os.write(3, json.dumps({"result": {"stage": ["done"], "runs": 5}}).encode())
os._exit(0)
"""
    evidence = ask(toolkit, {"src/nat_demo/register.py": forge})
    assert evidence.error is not None and "wrong shape" in evidence.error


def test_an_endless_loop_ends_at_the_deadline_and_is_not_remembered(toolkit: NatToolkit) -> None:
    loop = {"src/nat_demo/logic.py": "while True:\n    pass\n"}
    hits = toolkit.counters()["cache_hits"]
    for _ in range(2):
        evidence = ask(toolkit, loop)
        assert evidence.error is not None and "timeout" in evidence.error
        assert 1.4 < evidence.seconds < 4.0
    assert toolkit.counters()["cache_hits"] == hits
    assert ask(toolkit).error is None


def test_the_mcp_server_shakes_hands_and_answers(toolkit: NatToolkit) -> None:
    evidence = ask_mcp(toolkit, SERVER)
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
def test_a_bad_mcp_server_is_evidence(toolkit: NatToolkit, server: str, stage: str, words: str) -> None:
    evidence = ask_mcp(toolkit, server)
    assert evidence.error is not None and words in evidence.error
    assert evidence.stage == stage
    assert evidence.answers == ()


def test_a_silent_mcp_server_is_told_by_the_request_deadline(toolkit: NatToolkit) -> None:
    evidence = toolkit.run_mcp(
        {"mcp_server.py": "import time\ntime.sleep(60)\n"},
        server_path="mcp_server.py",
        tool="scaler",
        inputs=INPUTS,
        request_timeout_s=0.2,
    )
    assert evidence.error == "no answer to initialize within 0.2 s"


def test_a_mcp_server_cannot_write_the_report(toolkit: NatToolkit) -> None:
    forge = """import json, os
for fd in range(3, 256):
    try:
        os.write(fd, json.dumps({"result": {"stage": "done", "answers": ["forged"]}}).encode())
    except OSError:
        pass
"""
    assert ask_mcp(toolkit, forge).answers == ()


def test_passing_failing_and_missing_tests_are_told_apart(toolkit: NatToolkit) -> None:
    good = toolkit.run_tests(FILES, targets=[TEST_FILE])
    assert (good.collected, good.passed, good.exit_code, good.error) == (2, 2, 0, None)
    wrong = toolkit.run_tests({**FILES, "src/nat_demo/logic.py": LOGIC.replace("1000.0", "100.0")}, targets=[TEST_FILE])
    assert (wrong.collected, wrong.passed, wrong.failed) == (2, 1, 1)
    assert wrong.outcomes[f"{TEST_FILE}::test_kilometres"] == "failed"
    empty = toolkit.run_tests({**FILES, TEST_FILE: "x = 1\n"}, targets=[TEST_FILE])
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
def test_outcomes_that_are_not_a_pass_are_not_counted_as_one(toolkit: NatToolkit, text: str, field: str) -> None:
    evidence = toolkit.run_tests({**FILES, TEST_FILE: text}, targets=[TEST_FILE])
    assert (evidence.collected, evidence.passed, getattr(evidence, field)) == (1, 0, 1)


def test_files_that_would_configure_pytest_are_ignored(toolkit: NatToolkit) -> None:
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
    assert toolkit.run_tests(files, targets=[TEST_FILE]).failed == 1


def test_leaving_during_the_tests_is_an_error_whatever_the_exit_code(toolkit: NatToolkit) -> None:
    evidence = toolkit.run_tests({**FILES, TEST_FILE: "import os\nos._exit(0)\n"}, targets=[TEST_FILE])
    assert evidence.error is not None and evidence.passed == 0


def test_equal_calls_run_once_even_at_the_same_time(toolkit: NatToolkit) -> None:
    before = toolkit.counters()
    files = {**FILES, "src/nat_demo/logic.py": LOGIC + "# for the cache\n"}
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda _: toolkit.run_tests(files, targets=[TEST_FILE]), range(6)))
    after = toolkit.counters()
    assert after["calls"] - before["calls"] == 6
    assert after["cache_hits"] - before["cache_hits"] == 5
    assert all(result is results[0] for result in results)


def test_eight_threads_get_each_their_own_answers(toolkit: NatToolkit) -> None:
    start = threading.Barrier(8)

    def work(index: int) -> None:
        start.wait()
        logic = LOGIC.replace(' m"', f' m{index}"')
        assert ask(toolkit, {"src/nat_demo/logic.py": logic}).runs[0].workflow[0] == f"2000.00 m{index}"
        tests = f"def test_{index}():\n    pass\n"
        evidence = toolkit.run_tests({**FILES, TEST_FILE: tests}, targets=[TEST_FILE])
        assert evidence.outcomes == {f"{TEST_FILE}::test_{index}": "passed"}
        assert ask_mcp(toolkit, SERVER.replace('"nat_demo"', f'"demo{index}"')).server_name == f"demo{index}"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_a_missing_interpreter_is_one_sentence_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_tests_may_use_the_toolkit_itself(toolkit: NatToolkit) -> None:
    text = """from nat.runtime.loader import load_config
import nat_demo.register
def test_config():
    assert load_config("src/nat_demo/configs/config.yml").workflow.type == "demo_scale"
"""
    evidence = toolkit.run_tests({**FILES, TEST_FILE: text}, targets=[TEST_FILE])
    assert (evidence.passed, evidence.outcomes) == (1, {f"{TEST_FILE}::test_config": "passed"})
