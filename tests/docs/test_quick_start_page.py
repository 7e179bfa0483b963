"""docs/quick_start.md: the script it shows trains, its functions and rows are taken, its keys exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_rl.agent.messages import Message
from agent_rl.config import DataConfig
from agent_rl.core.quick_start import DEFAULTS
from agent_rl.envs.prompt_env import PromptEnvFactory, PromptEnvOptions
from agent_rl.rewards import reward_of
from agent_rl.tools.decorator import make_tool

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/quick_start.md").read_text(encoding="utf-8")
SCRIPT = (ROOT / "docs/quick_start.py").read_text(encoding="utf-8")
KEYS = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")


def block(heading: str, language: str = "python") -> str:
    """The first block of a section."""
    return re.search(rf"^## {heading}\n.*?```{language}\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)[1]


def defined(heading: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(block(heading), "docs/quick_start.md", "exec"), names)
    return names


def test_the_script_trains_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    smaller = {'"train.steps": 20': '"train.steps": 1', "rows[1::2]": "rows[:2]", "range(3, 20)": "range(3, 6)"}
    script = SCRIPT
    for old, new in smaller.items():
        assert old in script
        script = script.replace(old, new)
    exec(compile(script, "docs/quick_start.py", "exec"), {"__name__": "shown"})
    rows = [json.loads(line) for line in (tmp_path / "runs/math_minimind-grpo/metrics.jsonl").read_text().splitlines()]
    (step,) = (row for row in rows if "reward/mean" in row)
    assert step["rollout/env_errors"] == 0.0 and step["rollout/tool_calls_mean"] > 0.0
    assert 0.0 < step["reward_parts/is_right/mean"] == step["success/mean"] < 1.0
    assert [row["eval/t0/num_scored"] for row in rows if "eval/t0/num_scored" in row] == [2, 2]


def test_the_lines_of_the_readme_train_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (lines,) = (each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "GRPOTrainer(model=" in each)
    small = '{"train.steps": 1, "rollout.groups_per_step": 2, "policy.max_new_tokens": 16}'
    assert '{"train.steps": 5}' in lines
    exec(compile(lines.replace('{"train.steps": 5}', small), "README.md", "exec"), {"__name__": "shown"})
    step = json.loads((tmp_path / "runs/math_minimind-grpo/metrics.jsonl").read_text().splitlines()[-1])
    assert step["rollout/env_errors"] == 0.0 and "reward_parts/brief/mean" in step


def test_the_functions_are_of_the_three_styles() -> None:
    made = defined("Reward functions")
    reward = reward_of([made[name] for name in ("boxed", "polite", "short")])
    row = {"task_id": "t", "prompt": "2 + 2?", "answer": "4"}

    def score(text: str) -> tuple[float | None, dict[str, float]]:
        trajectory = (Message.user("2 + 2?"), Message.assistant(text))
        return reward(prediction=text, trajectory=trajectory, task=row, num_opening=1)

    logged = {"short/num_messages": 2.0}
    assert score(r"\boxed{4}") == (2.0, {"boxed": 1.0, "polite": 0.0, "short": 1.0, **logged, "success": 1.0})
    assert score("4, please") == (1.1, {"polite": 0.1, "short": 1.0, **logged, "success": 0.0})


def test_the_rows_are_taken() -> None:
    made = defined("Rows")
    factory = PromptEnvFactory(PromptEnvOptions(reward="unused"), reward_of(lambda completions: [1.0]))
    openings = []
    for name in ("rows_of_texts", "rows_of_messages"):
        (row,) = made[name]
        factory.check_task(row, name)
        openings.append([message.role for message in factory().reset(row)])
    assert openings == [["user"], ["system", "user"]]


def test_the_section_of_data_and_the_tool_are_taken() -> None:
    data = DataConfig.model_validate(yaml.safe_load(block("Rows", "yaml"))["data"])
    assert (data.train_path, data.columns) == ("hf://openai/gsm8k/main:train", {"prompt": "question"})
    tool = make_tool(defined("Tools")["multiply"])
    assert tool(a=6, b=7).text == "42"
    assert tool.parameters["properties"]["a"]["description"] == "The first one."


def test_the_defaults_are_those_of_the_code() -> None:
    arguments = PAGE.split("## Arguments")[1].split("## Rows")[0]
    table = dict(re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \|", arguments, re.MULTILINE))
    assert {key: yaml.safe_load(value) for key, value in table.items()} == dict(DEFAULTS)


def test_what_becomes_of_names_of_trl_are_keys() -> None:
    rows = re.findall(r"^\| .+ \| (.+) \|$", PAGE.split("## Coming from TRL")[1], re.MULTILINE)[2:]
    named = {key for cell in rows for key in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", cell)}
    assert len(named) > 15
    for key in named:
        section, _, name = key.rpartition(".")
        part = KEYS.split(f"\n### {section}\n")[1].split("\n### ")[0]
        assert f"| `{name}` |" in part, key
