"""The validator on real projects: what it checks, what a fault costs, and what a hostile folder cannot do."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nat_projects import spec_of

from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.factory.user_test_cases import UserTestCase, judge, read_cases, read_spec
from agent_rl.envs.nat.judge.checker import check_project
from agent_rl.envs.nat.judge.report import ValidationReport
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.judge.validator.folder import MAX_ENTRIES, read_folder
from agent_rl.envs.nat.judge.validator.validate import validate_folder
from agent_rl.envs.nat.judge.validator.validate_texts import MergedModules
from agent_rl.errors import DataError, UserError
from agent_rl.sandbox.limits import Limits
from agent_rl.sandbox.workspace import MAX_FILES

ROOT = Path(__file__).resolve().parents[4]

UNITS = '''"""Units of length."""

METRES = {"m": 1.0, "km": 1000.0}


def metres(value: float, unit: str) -> float:
    """Return a length in metres."""
    return value * METRES[unit]
'''
TEXTS = '''"""Texts of answers."""


def answer(value: float) -> str:
    """Word a length for the person who asked."""
    return f"{value:.1f} m"
'''
COMPONENTS = '''"""What the toolkit builds."""

from collections.abc import AsyncGenerator

from nat.plugin_api import Builder, FunctionBaseConfig, FunctionInfo, FunctionRef, register_function
from pydantic import Field

from .texts import answer
from .units import metres


class ScaleConfig(FunctionBaseConfig, name="scale"):
    """Configuration of the converter to metres."""


@register_function(config_type=ScaleConfig)
async def scale(config: ScaleConfig, _builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    """Register the converter to metres."""

    async def run(value: float, unit: str) -> str:
        """Convert a length to metres."""
        return answer(metres(value, unit))

    yield FunctionInfo.from_fn(run, description=run.__doc__)


class AskConfig(FunctionBaseConfig, name="ask"):
    """Configuration of the workflow that reads a line."""

    converter: FunctionRef = Field(description="The function that converts.")


@register_function(config_type=AskConfig)
async def ask(config: AskConfig, builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    """Register the workflow that reads a line."""
    converter = await builder.get_function(config.converter)

    async def read(line: str) -> str:
        """Read a value and a unit and convert them."""
        value, unit = line.split()
        return str(await converter.acall_invoke(value=float(value), unit=unit))

    yield FunctionInfo.from_fn(read, description=read.__doc__)
'''
CONFIG = """functions:
  scaler:
    _type: scale
workflow:
  _type: ask
  converter: scaler
"""
SERVER = '''"""The converter over MCP."""

from mcp.server.fastmcp import FastMCP

from my_agent.texts import answer
from my_agent.units import metres

server = FastMCP("my_agent")


@server.tool()
def scaler(value: float, unit: str) -> str:
    """Convert a length to metres."""
    return answer(metres(value, unit))


if __name__ == "__main__":
    server.run()
'''
TESTS = """from my_agent.units import metres


def test_kilometres() -> None:
    assert metres(2.0, "km") == 2000.0


async def test_metres() -> None:
    assert metres(2.0, "m") == 2.0
"""
PYPROJECT = """[project]
name = "my-agent"
version = "1"

[project.entry-points.'nat.components']
my_agent = "my_agent.components"
"""
FILES = {
    "pyproject.toml": PYPROJECT,
    "src/my_agent/__init__.py": "",
    "src/my_agent/components.py": COMPONENTS,
    "src/my_agent/texts.py": TEXTS,
    "src/my_agent/units.py": UNITS,
    "src/my_agent/configs/config.yml": CONFIG,
    "mcp_server.py": SERVER,
    "tests/test_my_agent.py": TESTS,
}
CONFIG_PATH, COMPONENTS_PATH = "src/my_agent/configs/config.yml", "src/my_agent/components.py"


@pytest.fixture(scope="module")
def toolkit() -> Iterator[NatToolkit]:
    with NatToolkit.open(limits=Limits(wall_s=6.0, cpu_s=2, memory_mb=512, output_kb=16)) as opened:
        yield opened


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def project_with(root: Path, **changes: str | None) -> Path:
    """The project with some files (by the last part of their name) replaced, or left out."""
    files = {path: changes.get(path.rpartition("/")[2].replace(".", "_"), text) for path, text in FILES.items()}
    return write(root, {path: text for path, text in files.items() if text is not None})


def lost(report: ValidationReport) -> dict[str, str]:
    """`stage, name` -> evidence of every point that is not full."""
    return {f"{each.stage}, {each.name}": each.evidence for each in report.points if each.score < 1.0}


def evidence(report: ValidationReport, stage: str, name: str) -> str:
    return next(each.evidence for each in report.points if (each.stage, each.name) == (stage, name))


# ---------------------------------------------------------------- whole projects


def test_a_project_with_modules_of_its_own_loses_nothing_and_cases_not_given_are_not_counted(
    toolkit: NatToolkit, tmp_path: Path
) -> None:
    report = validate_folder(toolkit, write(tmp_path, FILES))
    assert lost(report) == {}
    assert report.skipped == ("behaviour", "workflow")
    assert not report.complete
    assert evidence(report, "build", "workflow") == "config.yml: ask(line: string)"
    assert evidence(report, "build", "functions") == "config.yml: scaler(unit: string, value: number)"
    assert evidence(report, "mcp", "tools") == "scaler(unit: string, value: number)"
    assert evidence(report, "tests", "all pass") == "2 of 2 passed, 0 skipped"


def test_the_flat_layout_is_found_too(toolkit: NatToolkit, tmp_path: Path) -> None:
    flat = {path.removeprefix("src/"): text for path, text in FILES.items()}
    assert lost(validate_folder(toolkit, write(tmp_path, flat))) == {}


def test_what_is_left_out_by_a_flag_is_skipped_and_costs_nothing(toolkit: NatToolkit, tmp_path: Path) -> None:
    root = project_with(tmp_path, mcp_server_py=None, test_my_agent_py=None)
    report = validate_folder(toolkit, root, with_mcp=False, with_tests=False)
    assert lost(report) == {}
    assert report.skipped == ("behaviour", "workflow", "mcp", "tests")
    both = lost(validate_folder(toolkit, root))
    assert both["files, all parts"].startswith("no mcp_server.py") and "no tests/test_*.py" in both["files, all parts"]
    assert {"mcp, handshake", "tests, all pass"} <= set(both)


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_reference_projects_lose_nothing_with_their_spec_or_without(
    toolkit: NatToolkit, tmp_path: Path, level: int
) -> None:
    spec = spec_of("unit_converter", level)
    root = write(tmp_path, render_project(spec))
    assert lost(validate_folder(toolkit, root)) == {}
    assert validate_folder(toolkit, root, spec=spec).complete


def test_with_a_spec_the_report_is_the_checkers(toolkit: NatToolkit, tmp_path: Path) -> None:
    spec = spec_of("unit_converter", 1)
    files = {**render_project(spec), spec.logic_path: "def nothing() -> None:\n    pass\n"}
    report = validate_folder(toolkit, write(tmp_path, files), spec=spec)
    theirs = check_project(toolkit, spec, files, seed=0)
    assert report.points == theirs.points and report.gates == theirs.gates
    assert report.shares["behaviour"] == 0.0


# ---------------------------------------------------------------- faults

YIELD = "    yield FunctionInfo.from_fn(run, "


@pytest.mark.parametrize(
    ("changes", "point", "words"),
    [
        ({"config_yml": "functions: [\n"}, "config, mapping", "config.yml: not YAML"),
        ({"config_yml": CONFIG + "workflow:\n  _type: ask\n"}, "config, mapping", "twice"),
        ({"config_yml": "functions: [\n"}, "build, loads and builds", "not loaded"),
        ({"config_yml": CONFIG + "# ${HOME}\n"}, "build, loads and builds", "config.yml is not loaded"),
        ({"config_yml": CONFIG.replace("converter: scaler", "converter: other")}, "config, references", "'other'"),
        ({"config_yml": CONFIG.replace("converter: scaler", "converter: other")}, "build, functions", "not built"),
        ({"config_yml": None}, "files, all parts", "no YAML file"),
        ({"config_yml": None}, "build, loads and builds", "no configuration"),
        (
            {"components_py": COMPONENTS.replace(YIELD, YIELD.replace("yield", "return"))},
            "code, builder",
            "components.py:17: scale does not yield",
        ),
        (
            {"components_py": COMPONENTS.replace(YIELD, YIELD.replace("yield", "return"))},
            "build, loads and builds",
            "at ",
        ),
        ({"units_py": "def broken(:\n"}, "code, valid Python", "src/my_agent/units.py: SyntaxError"),
        ({"units_py": UNITS.replace('    """Return a length in metres."""\n', "")}, "code, docstrings", "units.py:6: "),
        ({"texts_py": TEXTS.replace("value: float", "value")}, "code, type hints", "src/my_agent/texts.py:4: answer"),
        ({"mcp_server_py": "print('hello')\n" + SERVER}, "mcp, handshake", "JSON-RPC only"),
        ({"test_my_agent_py": TESTS.replace("2000.0", "2.0")}, "tests, all pass", "1 of 2 passed, 0 skipped; tests"),
        ({"test_my_agent_py": TESTS.replace("== 2.0", "== 3.0")}, "tests, all pass", "test_metres: failed"),
        ({"test_my_agent_py": "import os\nos._exit(0)\n"}, "tests, all pass", "exit code 0"),
        ({"test_my_agent_py": "x = 1\n"}, "tests, all pass", "no test was run"),
        ({"pyproject_toml": PYPROJECT + 'other = "os.path"\n'}, "config, entry points", "'os.path' is no module"),
    ],
)
def test_a_fault_costs_its_point_and_names_the_place(
    toolkit: NatToolkit, tmp_path: Path, changes: dict[str, str | None], point: str, words: str
) -> None:
    assert words in lost(validate_folder(toolkit, project_with(tmp_path, **changes)))[point]


def test_a_silent_server_costs_its_points_at_the_deadline(toolkit: NatToolkit, tmp_path: Path) -> None:
    root = project_with(tmp_path, mcp_server_py="import time\ntime.sleep(60)  # FastMCP\n")
    report = validate_folder(toolkit, root, with_tests=False)
    assert "no answer to initialize within 3 s" in lost(report)["mcp, handshake"]
    assert report.seconds["mcp"] < 5.0


def test_a_configuration_that_is_only_a_base_is_looked_at_with_what_it_is_the_base_of(
    toolkit: NatToolkit, tmp_path: Path
) -> None:
    functions, workflow = CONFIG.split("workflow:")
    files = {"base.yml": functions, "config.yml": f"base: base.yml\nworkflow:{workflow}", "second.yml": CONFIG}
    folder = "src/my_agent/configs/"
    root = write(tmp_path, {**FILES, **{folder + name: text for name, text in files.items()}})
    report = validate_folder(toolkit, root, with_mcp=False, with_tests=False)
    built = [each.evidence for each in report.points if (each.stage, each.name) == ("build", "loads and builds")]
    assert lost(report) == {} and built == ["config.yml: built", "second.yml: built"]
    write(root, {folder + "base.yml": functions + "# ${X}\n"})
    refused = validate_folder(toolkit, root, with_mcp=False, with_tests=False)
    assert "base.yml is not loaded" in lost(refused)["build, loads and builds"]
    only = validate_folder(toolkit, root, config=f"{folder}second.yml", with_mcp=False, with_tests=False)
    assert lost(only) == {}
    with pytest.raises(UserError, match=r"'nothing.yml' is no YAML file .*config.yml"):
        validate_folder(toolkit, root, config="nothing.yml")


def test_nothing_that_a_project_prints_reaches_the_terminal_raw(toolkit: NatToolkit, tmp_path: Path) -> None:
    root = project_with(tmp_path, components_py="raise ValueError('\\x1b[2J\\nall is well\\ud800')\n")
    message = evidence(validate_folder(toolkit, root, with_mcp=False, with_tests=False), "build", "loads and builds")
    assert "all is well" in message and message.isprintable()


@given(st.lists(st.text("a\n", max_size=20), min_size=1, max_size=5), st.data())
@settings(max_examples=50, deadline=None)
def test_a_line_of_joined_modules_is_found_in_its_own(texts: list[str], data: st.DataObject) -> None:
    files = {f"{number}.py": text for number, text in enumerate(texts)}
    index = data.draw(st.integers(0, len(texts) - 1))
    line = data.draw(st.integers(1, texts[index].count("\n") + 1))
    before = sum(text.count("\n") + 1 for text in texts[:index])
    assert MergedModules(list(files), files).place(before + line) == f"{index}.py:{line}"


# ---------------------------------------------------------------- folders


def test_links_pipes_binaries_and_hostile_names_are_left_out_with_the_reason(
    toolkit: NatToolkit, tmp_path: Path
) -> None:
    root, secret = tmp_path / "project", tmp_path / "secret.py"
    secret.write_text("SECRET = 1\n")
    write(root, FILES)
    (root / "src/my_agent/link.py").symlink_to(secret)
    (root / "linked").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    (root / "logo.png").write_bytes(b"\x89PNG\0")
    (root / "new\nline.txt").write_text("x")
    (root / os.fsdecode(b"\xff.txt")).write_text("x")
    (root / "large.txt").write_text("x" * 200_000)
    write(root, {".env": "KEY=1", ".git/config": "x", "__pycache__/x.py": "x", "my_agent.egg-info/x.py": "x"})
    folder = read_folder(root)
    assert set(folder.files) == set(FILES)
    assert folder.left_out == {
        "src/my_agent/link.py": "a link",
        "linked": "a link",
        "pipe": "not an ordinary file",
        "logo.png": "not UTF-8 text",
        "new\\nline.txt": "the sandbox takes no file of such a name",
        "\\udcff.txt": "the sandbox takes no file of such a name",
        "large.txt": "larger than 131072 bytes",
    }
    report = validate_folder(toolkit, root, with_mcp=False, with_tests=False)
    assert lost(report)["files, all sources read"].startswith("left out: src/my_agent/link.py (a link), ")
    (root / "src/my_agent/link.py").unlink()
    assert lost(validate_folder(toolkit, root, with_mcp=False, with_tests=False)) == {}


def test_sources_come_first_where_the_sandbox_has_not_room_for_all(tmp_path: Path) -> None:
    write(tmp_path, {**FILES, **{f"data/{number}.txt": "x" for number in range(MAX_FILES)}})
    folder = read_folder(tmp_path)
    assert len(folder.files) == MAX_FILES and set(FILES) <= set(folder.files)
    assert len(folder.left_out) == len(FILES)
    write(tmp_path, {f"a/{number}.py": "" for number in range(MAX_FILES)})
    assert next(iter(read_folder(tmp_path).files)) == "pyproject.toml"


def test_a_folder_that_is_far_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(MAX_ENTRIES + 1):
        (tmp_path / "many" / str(number)).touch()
    with pytest.raises(UserError, match="more than 5000 files"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pyproject_toml": None}, "no readable pyproject.toml"),
        ({"pyproject_toml": "[project\n"}, "cannot be read"),
        ({"pyproject_toml": "[project]\nname = 'x'\n"}, "no entry point"),
        ({"pyproject_toml": PYPROJECT.replace("nat.components'", "console_scripts'")}, "no entry point"),
        ({"pyproject_toml": PYPROJECT.replace('"my_agent.comp', '"other.comp')}, "'other.components' is no module"),
        ({"pyproject_toml": PYPROJECT.replace('"my_agent.comp', '"../x')}, "is no module"),
        ({"pyproject_toml": "project = 5\n"}, "no entry point"),
    ],
)
def test_a_folder_that_is_no_project_is_one_sentence(
    toolkit: NatToolkit, tmp_path: Path, changes: dict[str, str | None], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        validate_folder(toolkit, project_with(tmp_path, **changes))


# ---------------------------------------------------------------- cases

GOOD_CASES = [
    {"input": "2 km", "expected": "2000.0 m"},
    {"input": {"line": "2 m"}, "expected": "2.0 m"},
    {"target": "scaler", "input": {"value": 1.5, "unit": "km"}, "expected": "1500.0 m"},
]


def write_cases(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_cases_run_on_the_workflow_and_on_its_functions(toolkit: NatToolkit, tmp_path: Path) -> None:
    root = write(tmp_path / "project", FILES)
    cases = read_cases(write_cases(tmp_path / "cases.jsonl", GOOD_CASES))
    report = validate_folder(toolkit, root, cases=cases)
    assert report.complete and report.skipped == ()
    assert evidence(report, "workflow", "cases") == "2 of 2 right"
    wrong = [
        *GOOD_CASES,
        {"input": "1 km", "expected": "1 m"},
        {"target": "scaler", "input": {"value": 1, "unit": "x"}, "expected": "?"},
        {"target": "no_one", "input": {}, "expected": "?"},
    ]
    cases = read_cases(write_cases(tmp_path / "cases.jsonl", wrong))
    bad = lost(validate_folder(toolkit, root, cases=cases, with_mcp=False, with_tests=False))
    assert bad == {
        "workflow, cases": "2 of 3 right; cases.jsonl:4 gave '1000.0 m', expected '1 m'",
        "behaviour, scaler, cases": "1 of 2 right; cases.jsonl:5 raised KeyError('x'), expected '?'",
        "behaviour, no_one, cases": "0 of 1 right; cases.jsonl:6 gave nothing: there is no function no_one, "
        "expected '?'",
    }


def test_a_case_that_hangs_costs_no_point_of_the_build(toolkit: NatToolkit, tmp_path: Path) -> None:
    loop = UNITS.replace("    return value", "    while value == 13.0:\n        pass\n    return value")
    root = project_with(tmp_path, units_py=loop)
    cases = [
        UserTestCase(where="c:1", target="", inputs={"input": "13 km"}, expected="?"),
        UserTestCase(where="c:2", target="", inputs={"input": "2 km"}, expected="2000.0 m"),
    ]
    report = validate_folder(toolkit, root, cases=cases, with_mcp=False, with_tests=False)
    assert set(lost(report)) == {"workflow, cases"}
    assert lost(report)["workflow, cases"].startswith("0 of 2 right; c:1 gave nothing (")


def test_answers_that_are_no_text_are_compared_as_json() -> None:
    rows = [("68.0", 68.0), ("true", True), ('{"a": 1}', {"a": 1}), ("é", "é"), ("68", 68.0), ('"x"', "x")]
    cases = [
        UserTestCase(where=f"c:{n}", target="f", inputs={}, expected=expected) for n, (expected, _) in enumerate(rows)
    ]
    (found,) = judge(cases, [answer for _, answer in rows], None)
    assert found.score == pytest.approx(4 / 6)
    assert found.evidence == "4 of 6 right; c:4 gave '68.0', expected '68'"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "got a list.*a line of its own"),
        ("7", "'the line': input should be an object; expected"),
        ('{"input": "x"}', "'expected': field required"),
        ('{"input": 5, "expected": "x"}', "'input'"),
        ('{"input": "x", "expected": 5}', "'expected'"),
        ('{"input": "x", "expected": "x", "tool": "y"}', "'tool'"),
        ('{"input": {}, "expected": "x"}', "'input' is empty"),
        ('{"input": "x", "expected": "x", "target": "f"}', "a function takes arguments"),
    ],
)
def test_a_bad_case_is_named_by_file_and_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(f"{json.dumps(GOOD_CASES[0])}\n\n{line}\n")
    with pytest.raises(DataError, match=f"cases.jsonl:3: .*{words}") as caught:
        read_cases(path)
    assert "caserow" not in str(caught.value).lower()


def test_files_without_a_case_or_with_more_than_one_task_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n")
    with pytest.raises(DataError, match="holds no case"):
        read_cases(path)
    row = spec_of("unit_converter", 1).model_dump_json()
    path.write_text(f"{row}\n")
    assert read_spec(path).package == spec_of("unit_converter", 1).package
    path.write_text(f"{row}\n{row}\n")
    with pytest.raises(DataError, match="Extra data"):
        read_spec(path)
    path.write_text("[]")
    with pytest.raises(DataError, match="got a list"):
        read_spec(path)


def test_a_case_for_a_workflow_with_an_llm_is_refused(toolkit: NatToolkit, tmp_path: Path) -> None:
    config = CONFIG + "llms:\n  main:\n    _type: openai\n    model_name: x\n"
    root = project_with(tmp_path, config_yml=config)
    with pytest.raises(DataError, match=r"c:7: the workflow of .* has an LLM"):
        validate_folder(
            toolkit, root, cases=[UserTestCase(where="c:7", target="", inputs={"input": "x"}, expected="x")]
        )


# ---------------------------------------------------------------- the command


def run_command(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agent_rl.scripts.cli", "nat", "validate", *map(str, words)]
    env = {**os.environ, "COLUMNS": "100", **environment}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False, env=env)


def test_the_command_prints_json_alone_or_a_table_and_exits_by_the_points(tmp_path: Path) -> None:
    done = run_command(write(tmp_path / "good", FILES), "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["skipped"] == ["behaviour", "workflow"] and report["shares"]["tests"] == 1.0
    root = project_with(tmp_path / "bad", units_py=UNITS.replace("1000.0", "100.0"))
    done = run_command(root, "--no-mcp", "--json", tmp_path / "report.json")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "1 point lost: tests, all pass"
    assert any("mcp" in line and "not run" in line and "--no-mcp" in line for line in done.stdout.splitlines())
    assert json.loads((tmp_path / "report.json").read_text())["shares"]["mcp"] == 0.0


def test_mistakes_of_the_person_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    root = write(tmp_path / "project", FILES)
    spec = tmp_path / "spec.json"
    spec.write_text(spec_of("unit_converter", 1).model_dump_json())
    for words, message in (
        ((tmp_path / "nowhere",), "nowhere"),
        ((root, "--colour"), "--colour"),
        ((root, "--spec", spec, "--no-mcp"), "leave out"),
    ):
        done = run_command(*words)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    done = run_command(root, AGENT_RL_NAT_PYTHON="/nowhere/python")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: the NAT toolkit is not usable") and done.stderr.count("\n") == 1
