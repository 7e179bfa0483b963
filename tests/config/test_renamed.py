"""Names of other libraries: ours exist, the docs agree, errors name ours, and files are translated."""

import re
from pathlib import Path

import pytest
import yaml
from commands import one_line_error, run_here

from agent_rl.config import Config, load_config
from agent_rl.config.base import flatten_keys
from agent_rl.config.translate import read_foreign, translate
from agent_rl.errors import ConfigError
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


VERL = """
data: {train_files: a.parquet, val_files: [b.parquet], train_batch_size: 64,
  max_prompt_length: 512, max_response_length: 1024}
actor_rollout_ref:
  model: {path: Qwen/Qwen2.5-3B-Instruct, enable_gradient_checkpointing: true}
  actor: {optim: {lr: 1.0e-6}, ppo_mini_batch_size: 32, use_kl_loss: true, kl_loss_coef: 0.001,
    kl_loss_type: low_var_kl, loss_agg_mode: seq-mean-token-mean, clip_ratio: 0.2}
  rollout: {name: vllm, n: 5, gpu_memory_utilization: 0.6, top_p: 1.0}
algorithm: {adv_estimator: grpo}
trainer: {logger: [console, wandb], experiment_name: mine, save_freq: -1, test_freq: 5, total_epochs: 15, strange: 1}
"""


def test_a_file_of_verl_becomes_ours(tmp_path: Path) -> None:
    (tmp_path / "verl.yaml").write_text(VERL)
    done = run_here("translate", tmp_path / "verl.yaml", "--base", "configs/hello.yaml")
    assert done.returncode == 0, done.stderr
    left_out = [line.split(":")[0].strip() for line in done.stderr.splitlines() if line.startswith("  ")]
    assert left_out == ["actor_rollout_ref.rollout.top_p", "trainer.total_epochs", "trainer.strange"]
    (tmp_path / "mine.yaml").write_text(done.stdout)
    config = load_config(tmp_path / "mine.yaml", ["train.final_learning_rate=1e-7"])
    assert (config.policy.type, config.model.path, config.run.name) == ("vllm", "Qwen/Qwen2.5-3B-Instruct", "mine")
    assert (config.rollout.groups_per_step, config.rollout.group_size, config.train.minibatches) == (64, 5, 2)
    assert (config.algorithm.kl.coef, config.algorithm.kl.kind) == (0.001, "low_var_kl")
    assert (config.algorithm.clip_low, config.algorithm.clip_high) == (0.2, 0.2)
    assert config.algorithm.aggregation == "seq_mean_token_mean"
    assert (config.policy.max_context, config.vllm.gpu_memory_share) == (1536, 0.6)
    assert (config.checkpoint.every, config.eval.every, config.log.trackers) == (0, 5, ("wandb",))
    assert str(config.data.eval_path) == "b.parquet"


AGENTFLY = """
# the guide's first command, shortened
python -m agentfly.cli train \\
    algorithm.adv_estimator=grpo \\
    data.train_files=./data/gsm8k_train.json \\
    data.train_batch_size=64 \\
    agent.init_args.agent_type=hf \\
    agent.init_args.tools=[google_search,answer] \\
    agent.init_args.reward_name=math_reward_string_equal \\
    agent.num_chains=8 agent.max_turns=3 agent.max_tokens_per_turn=256 \\
    actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 trainer.total_training_steps=100 trainer.nnodes=1
"""


def test_a_command_of_agentfly_becomes_ours() -> None:
    made = translate(read_foreign(AGENTFLY, "run.sh"))
    assert made.library == "AgentFly"
    assert made.settings["tools.use"] == ["search", "answer"]
    assert made.settings["train.minibatches"] == 1 and made.settings["train.steps"] == 100
    assert made.settings["env.options.reward"] == "math_reward_string_equal"
    assert "algorithm.kl.coef" not in made.settings
    assert list(made.left_out) == ["trainer.nnodes"]


def test_flags_of_trl_become_ours() -> None:
    text = "trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B --num_generations 8 --beta 0.04 --loss_type dr_grpo "
    text += "--epsilon 0.2 --epsilon_high 0.28 --max_steps 50 --dataset_name openai/gsm8k --load_in_4bit "
    text += "--report_to wandb"
    made = translate(read_foreign(text, "command"))
    assert made.library == "TRL"
    assert made.settings == {
        "model.path": "Qwen/Qwen2.5-0.5B",
        "rollout.group_size": 8,
        "algorithm.kl.coef": 0.04,
        "algorithm.aggregation": "seq_mean_token_sum_norm",
        "algorithm.clip_low": 0.2,
        "algorithm.clip_high": 0.28,
        "train.steps": 50,
        "data.train_path": "hf://openai/gsm8k",
        "log.trackers": ["wandb"],
        "model.load_in_4bit": True,
    }
    assert not made.left_out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("num_generations: seven", ["rollout.group_size", "'seven'"]),
        ("learning_rate: [1]", ["train.learning_rate", "[1]"]),
        ("max_steps: true", ["train.steps", "true"]),
        ("beta: -1", ["algorithm.kl.coef", "-1"]),
        ("run_name: a/b", ["run.name", "'a/b'"]),
        ("num_generations:", ["rollout.group_size", "None"]),
        ("per_device_train_batch_size: four", ["rollout.groups_per_step", "'four'"]),
        ("scale_rewards: [1]", ["algorithm.scale_by_std", "[1]"]),
    ],
)
def test_a_value_that_no_key_takes_is_left_out_with_the_reason(line: str, words: list[str]) -> None:
    made = translate(read_foreign(f"{line}\nseed: 3\n", "trl.yaml"), "trl")
    assert made.settings == {"run.seed": 3}
    (reason,) = made.left_out.values()
    assert all(word in reason for word in words)


def test_the_number_of_completions_in_a_file_may_be_0() -> None:
    made = translate(read_foreign("{num_generations: 0, per_device_train_batch_size: 8, seed: 3}", "x"), "trl")
    assert made.settings == {"run.seed": 3} and len(made.left_out) == 2


def test_a_translation_that_does_not_load_says_why(tmp_path: Path) -> None:
    (tmp_path / "trl.yaml").write_text("max_completion_length: 90000\n")  # beyond the window of the base
    done = run_here("translate", tmp_path / "trl.yaml", "--base", "configs/hello.yaml")
    assert done.returncode == 0 and "policy.max_context" in done.stderr
    (tmp_path / "trl.yaml").write_text("seed: 5\n")
    done = run_here("translate", tmp_path / "trl.yaml", "--base", "configs/hello.yaml")
    assert done.returncode == 0 and len(done.stderr.splitlines()) == 1


def test_what_is_no_configuration_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump({"colour": {"red": 1}}))
    assert "colour.red" in one_line_error(run_here("translate", tmp_path / "ours.yaml"))
    assert "cannot be read" in one_line_error(run_here("translate", tmp_path / "none.yaml"))
    assert "this library already" in one_line_error(run_here("translate", "configs/math_grpo.yaml"))
    (tmp_path / "half.json").write_text('{"max_steps": ')
    assert "half.json: not valid" in one_line_error(run_here("translate", tmp_path / "half.json"))
    (tmp_path / "verl.yaml").write_text(VERL)
    assert "'verl'" in one_line_error(run_here("translate", tmp_path / "verl.yaml", "--from", "verll"))
    with pytest.raises(ConfigError, match="no keys"):
        read_foreign("just words", "a text")
