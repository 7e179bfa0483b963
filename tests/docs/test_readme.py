"""README, design.md, glossary and pages: their examples run, their commands parse, the files that they name exist."""

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from agent_rl.config import load_config
from agent_rl.envs.nat.create.settings import load_serve_config
from agent_rl.scripts import cli, sft_chats, train_sft

ROOT = Path(__file__).resolve().parents[2]
README, DESIGN, GLOSSARY = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "design.md", "docs/glossary.md")
)
PAGES = [ROOT / "README.md", ROOT / "design.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = ROOT / "agent_rl"
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pytest.mark.parametrize(
    ("script", "page"),
    [("hello.py", "README.md"), ("quick_start.py", "docs/quick_start.md"), ("grade_code.py", "docs/sandbox.md")],
)
def test_a_page_shows_the_script_that_is_tested(script: str, page: str) -> None:
    shown = (ROOT / "docs" / script).read_text(encoding="utf-8").split('"""\n\n', 1)[1]
    assert shown in (ROOT / page).read_text(encoding="utf-8")


def test_hello_world_runs_a_step_of_a_hugging_face_model(tmp_path: Path) -> None:
    small = ["model.path=model/math_minimind", "train.steps=1", "rollout.groups_per_step=2", "policy.max_new_tokens=16"]
    command = [sys.executable, "docs/hello.py", *small, f"run.output_dir={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "hello/metrics.jsonl").read_text(encoding="utf-8"))
    assert metrics["rollout/env_errors"] == 0.0
    assert 0.0 <= metrics["reward_parts/brief_reward/mean"] <= 1.0


def test_the_file_tree_names_the_folders_of_the_package() -> None:
    tree = re.search(r"```text\nagent_rl/\n(.*?)```", README, re.DOTALL)[1]
    named = set(re.findall(r"^  (\w+)/ ", tree, re.MULTILINE))
    assert named == {path.parent.name for path in CODE.glob("*/__init__.py")}


def commands(page: Path) -> list[list[str]]:
    """The words of every `agent-rl` command in the page's blocks."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line, comments=True) for line in lines if re.match(r"(\S*/)?agent-rl ", line)]
    return [each[1:] for each in words]


@pages
def test_commands_are_known_with_their_flags_and_keys(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for words in commands(page):
        command, rest = typer.main.get_command(cli.app).commands[words[0]], words[1:]
        if rest[0] in getattr(command, "commands", ()):
            command, rest = command.commands[rest[0]], rest[1:]
        if words[0] == "sft":  # two commands behind one name
            command = typer.main.get_command(sft_chats.app if "--data" in rest else train_sft.app)
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in rest if word.startswith("--")} <= known, words
        overrides = [word for word in rest if re.match(r"\w+\.[\w.]+=", word)]
        if "--config" in rest and (config := Path(rest[rest.index("--config") + 1])).is_file():
            read = load_serve_config if config.name == "serve.yaml" else load_config
            read(config, overrides)


def test_the_readme_shows_commands_and_targets_of_make_that_exist() -> None:
    assert {words[0] for words in commands(ROOT / "README.md")} >= {"train", "report", "view", "eval"}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"^make ([\w-]+)|`make ([\w-]+)", text, re.MULTILINE)) <= {
            pair for target in targets for pair in ((target, ""), ("", target))
        }, page


@pages
def test_links_and_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([\w./-]+)(?:#[\w-]+)?\)", text)
    assert [target for target in links if not (page.parent / target).exists()] == []
    text = re.sub(r"^\| .*agent_rl/configs/.*$", "", text, flags=re.MULTILINE)  # another project's paths
    named = re.findall(r"`((?:tests|configs|docs|agent_rl|scripts|benchmarks)/[\w/.-]+\.(?:py|yaml|md|sh))`", text)
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_the_glossary_names_files_that_exist_and_classes_that_are_in_them() -> None:
    terms = GLOSSARY.split("## Names of the previous version")[0]
    rows = [line for line in terms.splitlines() if line.startswith("| ") and "`" in line.split("|")[3]]
    for row in rows:
        where = row.split("|")[3]
        assert [path for path in re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", where) if not (CODE / path).exists()] == [], (
            row
        )
        for path, found in re.findall(r"`([\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", where):
            module = importlib.import_module(f"agent_rl.{path.removesuffix('.py').replace('/', '.')}")
            assert [name for name in re.findall(r"\w+", found) if not hasattr(module, name)] == [], row


def test_design_names_rooms_and_files_that_exist() -> None:
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", DESIGN)
    assert [path for path in paths if not (CODE / path).exists() and not (ROOT / path).exists()] == []
