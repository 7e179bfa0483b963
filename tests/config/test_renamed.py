"""Names of other libraries: ours exist, the docs agree, errors name ours."""

import re
from pathlib import Path

import pytest
from commands import one_line_error, run_here

from agent_rl.config import Config
from agent_rl.config.base import flatten_keys
from agent_rl.registry import REWARDS, TOOLS
from agent_rl.renamed import LIBRARIES, OTHERS, REWARD_HINTS, TOOL_ALIASES, TOOL_HINTS, hint

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
SFT = ["sft", "--data", "x.jsonl", "--model-path", "m", "--output-dir", "o"]
KEYS = set(flatten_keys(Config))
TRAIN = ["train", "--config", "configs/math_grpo.yaml", "--preview-tasks", "1"]


@pytest.mark.parametrize("library", [*LIBRARIES, "none"])
def test_our_names_exist_and_a_key_that_is_not_taken_has_a_reason(library: str) -> None:
    table = LIBRARIES.get(library, OTHERS)
    assert [
        to for to in table.values() if to.ours not in KEYS and not to.ours.startswith("env.options.") and to.ours
    ] == []
    assert [key for key, to in table.items() if not to.ours and not to.note] == []
    assert [key for key in table if key in KEYS and table[key].ours != key and library != "Miniagent"] == []


def test_our_tools_and_rewards_exist() -> None:
    assert {*TOOL_ALIASES.values(), *TOOL_HINTS.values()} <= set(TOOLS.names())
    assert set(REWARD_HINTS.values()) <= set(REWARDS.names())
    assert not {*TOOL_ALIASES, *TOOL_HINTS} & set(TOOLS.names())
    assert not set(REWARD_HINTS) & set(REWARDS.names())


def named(cell: str) -> list[str]:
    return [name.partition("=")[0] for name in re.findall(r"`([^`]+)`", cell)]


def tables(heading: str) -> list[list[str]]:
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_the_table_of_agentfly_agrees() -> None:
    table = LIBRARIES["AgentFly"]
    wrong = []
    for theirs, ours, _note in tables("Coming from AgentFly"):
        allowed = {*named(ours), ""} | ({"env.options.reward"} if "env.options" in ours else set())
        wrong += [key for key in named(theirs) if key in table and table[key].ours not in allowed]
        wrong += [key for key in named(theirs) if "." in key and key not in table and key not in KEYS]
    assert wrong == []


def test_the_table_of_skyrl_and_verl_agrees() -> None:
    wrong = []
    checked = 0
    for ours, skyrl, verl, _note in tables("Coming from SkyRL or verl"):
        for library, cell in (("SkyRL", skyrl), ("verl", verl)):
            for key in named(cell):
                full = re.sub(r"^(actor|rollout)\.", r"actor_rollout_ref.\1.", key)
                if full in LIBRARIES[library]:
                    checked += 1
                    wrong += [] if LIBRARIES[library][full].ours in named(ours) else [(key, named(ours))]
    assert wrong == []
    assert checked > 50


def test_the_table_of_trl_is_the_table() -> None:
    page = (ROOT / "docs/migration.md").read_text(encoding="utf-8")
    for theirs, to in LIBRARIES["TRL"].items():
        assert f"| `{theirs}` | {f'`{to.ours}`' if to.ours else '-'} | {to.note} |\n" in page


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("train.total_epochs=10", ["train.steps", "epochs * rows"]),
        ("trainer.total_epochs=10", ["verl and AgentFly", "train.steps"]),
        ("data.train_batch_size=64", ["rollout.groups_per_step"]),
        ("env.max_turns=3", ["Miniagent", "rollout.max_turns"]),
        ("env.system_prompt=x", ["env.options.system_prompt"]),
        ("policy.top_p=0.9", ["another distribution"]),
        ("actor_rollout_ref.rollout.n=8", ["rollout.group_size"]),
        ("generator.n_samples_per_prompt=8", ["SkyRL", "rollout.group_size"]),
        ("train.num_generations=8", ["rollout.group_size"]),
        ("tools.search.timeout=3", ["tools.search.timeout_s"]),
        ("model.load_in_8bit=true", ["load_in_4bit"]),
        ("model.quantization=nf4", ["model.load_in_4bit"]),
        ("run.imports=[x]", ["plugins"]),
        ("tools.use=[web_search]", ["'search'"]),
        ("env.options.reward=accuracy_reward", ["'math_reward_string_equal'"]),
        ("steps=3", ["train.steps"]),
        ("eval.temperature=0", ["did you mean 'temperatures'"]),
    ],
)
def test_a_key_of_another_library_is_answered_with_ours(override: str, parts: list[str]) -> None:
    line = one_line_error(run_here(*TRAIN, override))
    assert all(part in line for part in parts), line
    assert "'epochs'" not in line and "'train_path'" not in line


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--steps", "3"], "train.steps=3"),
        (["--train.steps", "3"], "train.steps=3"),
        (["--train.steps=3"], "train.steps=3"),
        (["--group-size", "4"], "rollout.group_size=4"),
        (["--num_generations", "4"], "rollout.group_size"),
        (["--max_steps", "4"], "train.steps"),
    ],
)
def test_a_key_given_as_a_flag_is_answered_with_the_override(words: list[str], part: str) -> None:
    assert part in one_line_error(run_here(*TRAIN, *words))


@pytest.mark.parametrize(
    ("words", "said", "unsaid"),
    [
        ([*TRAIN, "--learning-rate", "1"], "train.learning_rate=1 or critic.learning_rate=1", None),
        ([*TRAIN, "learning_rate=1"], "train.learning_rate or critic.learning_rate", None),
        ([*SFT, "--learning-rate", "1"], "train.learning_rate=1", "critic"),
        ([*SFT, "--steps", "1"], "--steps", "train.steps"),
        ([*SFT, "--group-size", "4"], "--group-size", "rollout"),
        (["report", "run", "--learning-rate", "1"], "--learning-rate", "train."),
        (["check-data", "x.jsonl", "--num-generations", "1"], "--num-generations", "rollout"),
        (["create", "Convert km", "--learning-rate", "1"], "--learning-rate", "train."),
        (["create", "Convert km", "--temperature", "1"], "--temperature", "policy."),
        (["nat", "plan", "Convert km", "--learning-rate", "1"], "--learning-rate", "train."),
        (["tools", "try", "search", "--max-results", "1"], "tools.search.max_results=1", None),
        (["tools", "try", "search", "--learning-rate", "1"], "--learning-rate", "train."),
    ],
)
def test_a_flag_is_answered_with_keys_that_its_command_reads(words: list[str], said: str, unsaid: str | None) -> None:
    line = one_line_error(run_here(*words))
    assert said in line
    assert unsaid is None or unsaid not in line


def test_an_unknown_flag_and_an_unknown_key_are_answered_without_a_guess() -> None:
    assert "; here it is" not in one_line_error(run_here(*TRAIN, "--colour", "red"))
    assert hint("run.output_dir") == hint("run", {"output_dir": "x"}) == ""
    assert hint("model.colour") == "" and hint("trainer.unknown") == ""
