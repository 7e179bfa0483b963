"""The pages about algorithms, configuration and many processes match the code; their examples run."""

import importlib.util
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config

from agent_rl.agent.messages import Message
from agent_rl.algorithms.aggregation import AGGREGATIONS
from agent_rl.algorithms.corrections import CORRECTIONS
from agent_rl.algorithms.kl import KL_KINDS
from agent_rl.config import load_config
from agent_rl.config.functions import OPTION_KEYS
from agent_rl.config.help import yaml_of
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.envs.base import EnvFactory, StepResult
from agent_rl.registry import ADVANTAGE_ESTIMATORS, POLICY_LOSSES, Registry

ROOT = Path(__file__).resolve().parents[2]
ALGORITHMS, CONFIGURATION, DISTRIBUTED = (
    (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("algorithms", "configuration", "distributed")
)
pages = pytest.mark.parametrize("page", [ALGORITHMS, CONFIGURATION, DISTRIBUTED], ids=["algorithms", "keys", "spread"])


def section(page: str, heading: str) -> str:
    """What stands below a heading of second rank."""
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return text


def rows(text: str) -> list[list[str]]:
    """The cells of all tables, without heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("| ---")}
    return [row for number, row in enumerate(cells) if not {number, number - 1} & heads]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# Algorithms

RECIPES = dict(re.findall(r"### (.+?)\n.*?```yaml\n(.*?)```", section(ALGORITHMS, "Recipes"), re.DOTALL))


class PartsEnv(LetterEnv):
    """The parts of the reward that the NAT environment reports, each the share of a letter."""

    def step(self, message: Message) -> StepResult:
        text = message.content
        parts = {name: text.count(name[0]) / max(1, len(text)) for name in ("tools", "integration", "workflow")}
        return StepResult(reward=text.count("a") / max(1, len(text)), reward_parts=parts, terminated=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_tiny_model(folder / "model")
    return folder


def train_one_step(folder: Path, name: str, sections: dict[str, Any]) -> dict[str, Any]:
    run = {"name": name, "output_dir": str(folder / "runs"), "device": "cpu"}
    train = {"steps": 1, "learning_rate": 1e-3} | sections.get("train", {})
    config = tiny_config(folder, **sections | {"run": run, "train": train})
    with GRPOTrainer.from_config(config, env_factory=EnvFactory(PartsEnv), train_tasks=LETTER_TASKS) as trainer:
        trainer.train()
    return json.loads((folder / f"runs/{name}/metrics.jsonl").read_text())


def test_the_recipes_are_those_that_people_know() -> None:
    known = "GRPO, Dr. GRPO, DAPO, RLOO, REINFORCE++, REINFORCE++ with baseline, ReMax, PPO with a critic, GSPO, CISPO"
    assert ", ".join(RECIPES) == f"{known}, GDPO"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains_a_step(folder: Path, name: str) -> None:
    sections = yaml.safe_load(RECIPES[name])
    metrics = train_one_step(folder, re.sub(r"[^A-Za-z]+", "-", name).strip("-"), sections)
    assert metrics["optim/skipped"] == 0.0
    assert metrics["optim/grad_norm"] > 0.0
    assert ("loss/kl" in metrics) == ("kl" in sections["algorithm"])


@pytest.mark.parametrize(("heading", "registry"), [("Advantages", ADVANTAGE_ESTIMATORS), ("Losses", POLICY_LOSSES)])
def test_the_tables_of_estimators_and_losses_name_all_and_the_keys_they_read(
    heading: str, registry: Registry[Any]
) -> None:
    table = rows(section(ALGORITHMS, heading))
    assert {names(row[0])[0]: set(names(row[-1])) for row in table} == {
        name: registry.options_of(name) & {*OPTION_KEYS} for name in registry.builtin
    }


@pytest.mark.parametrize(
    ("heading", "known"),
    [
        ("From tokens to one number", AGGREGATIONS),
        ("KL to the starting model", KL_KINDS),
        ("Sampler and trainer", CORRECTIONS),
    ],
)
def test_the_other_tables_name_all_kinds(heading: str, known: tuple[str, ...]) -> None:
    first = 2 if heading.startswith("KL") else 1  # with other names beside the first
    found = [name for row in rows(section(ALGORITHMS, heading)) for cell in row[:first] for name in names(cell)]
    assert sorted(found) == sorted(known)


def test_the_estimator_of_a_whole_step_trains_a_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ADVANTAGE_ESTIMATORS, "_entries", dict(ADVANTAGE_ESTIMATORS._entries))
    (block,) = re.findall(r"```python\n(.*?)```", section(ALGORITHMS, "Your own"), re.DOTALL)
    exec(compile(block, "docs/algorithms.md", "exec"), {})
    metrics = train_one_step(folder, "own", {"algorithm": {"advantage": "over_the_step"}})
    assert metrics["optim/skipped"] == 0.0
    assert metrics["optim/grad_norm"] > 0.0


def test_the_script_with_ones_own_estimator_and_loss_trains_a_step(tmp_path: Path) -> None:
    script = (ROOT / "examples/algorithm/own_algorithm.py").read_text(encoding="utf-8")
    own = tmp_path / "own_algorithm.py"
    own.write_text(script.replace('"train.steps=1",', f'"train.steps=1", "run.output_dir={tmp_path}",'))
    command = [sys.executable, str(own)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert {"advantage": "over_median", "loss": "soft_gate"}.items() <= (
        yaml.safe_load((tmp_path / "own_algorithm/config.yaml").read_text())["algorithm"].items()
    )
    metrics = json.loads((tmp_path / "own_algorithm/metrics.jsonl").read_text())
    assert metrics["optim/skipped"] == 0.0
    assert metrics["optim/grad_norm"] > 0.0


# Configuration


def generator() -> ModuleType:
    """scripts/write_configuration_docs.py, which is no module of a package."""
    path = ROOT / "scripts/write_configuration_docs.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documented_keys() -> dict[str, list[str]]:
    """Dotted name of every key in the tables, with the cells beside it."""
    found = {}
    for part in section(CONFIGURATION, "All keys").split("\n### ")[1:]:
        heading = part.splitlines()[0]
        for key, *cells in rows(part):
            name = names(key)[0] if heading == "top level" else f"{heading}.{names(key)[0]}"
            assert name not in found
            found[name] = cells
    return found


def flat(tree: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of all values; an empty mapping is one."""
    found = []
    for key, value in tree.items():
        found += flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [f"{prefix}{key}"]
    return found


def test_the_tables_of_keys_are_those_of_the_classes() -> None:
    assert generator().updated(CONFIGURATION, generator().tables()) == CONFIGURATION, (
        "run python scripts/write_configuration_docs.py"
    )


@pytest.mark.parametrize("advantage", ["grpo", "gae"])
def test_giving_every_documented_default_changes_nothing(tmp_path: Path, advantage: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        f"{{model: {{path: m}}, env: {{name: math_qa}}, "
        f"algorithm: {{advantage: {advantage}}}, train: {{steps: 3, learning_rate: 0.001}}}}"
    )
    plain, documented = load_config(path), documented_keys()
    given = flat(yaml.safe_load(path.read_text()))
    defaults = {key: documented[key][0] for key in flat(plain.model_dump(mode="json"))}
    required = [key for key, default in defaults.items() if default == "must be given"]
    assert required == [key for key in defaults if key in given and key != "algorithm.advantage"]
    overrides = [f"{key}={names(default)[0]}" for key, default in defaults.items() if key not in given]
    assert len(overrides) > 40
    assert load_config(path, overrides) == plain


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-5, "1.0e-5"),
        (2.5e-7, "2.5e-7"),
        (10000, "10000"),
        (300.0, "300"),
        (None, "null"),
        (True, "true"),
        ((), "[]"),
    ],
)
def test_defaults_are_written_as_a_file_has_them(value: Any, text: str) -> None:
    assert yaml_of(value) == text
    read = yaml.safe_load(text)
    assert math.isclose(read, value) if isinstance(value, float) else read == (list(value) if value == () else value)


@pytest.mark.parametrize(("heading", "ours"), [("Coming from AgentFly", 1), ("Coming from SkyRL or verl", 0)])
def test_what_other_projects_keys_become_are_keys(heading: str, ours: int) -> None:
    keys = documented_keys()
    found = [name.partition("=")[0] for row in rows(section(CONFIGURATION, heading)) for name in names(row[ours])]
    assert [name for name in found if name not in keys] == []
    assert len(found) > 25


# Many processes


def test_the_table_of_launcher_files_names_all_and_their_processes() -> None:
    table = {names(row[0])[0]: row[1] for row in rows(section(DISTRIBUTED, "Start"))}
    shipped = sorted((ROOT / "configs/accelerate").glob("*.yaml"))
    assert sorted(table) == [path.name for path in shipped]
    for path in shipped:
        numbers = [int(number) for number in re.findall(r"\d+", table[path.name])]
        assert math.prod(numbers) == yaml.safe_load(path.read_text())["num_processes"], path.name


def test_the_commands_name_files_that_are_there_and_keys_that_exist() -> None:
    blocks = re.findall(r"```bash\n(.*?)```", DISTRIBUTED, re.DOTALL)
    commands = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if "--config " in line]
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command)
        overrides = [word for word in words if re.match(r"\w+\.\w+=", word)]
        load_config(ROOT / words[words.index("--config") + 1], overrides)


@pages
def test_files_that_a_page_names_are_there(page: str) -> None:
    named = re.findall(r"\b(?:tests|configs|docs|agent_rl|scripts)/[\w/]+\.(?:py|yaml|md)\b", page)
    linked = [f"docs/{target}" for target in re.findall(r"\]\((\w+\.md)\)", page)]
    assert [path for path in named + linked if not (ROOT / path).is_file()] == []
    assert named
