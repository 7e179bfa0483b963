"""`agent-rl translate`: files and commands of other libraries become configurations that run."""

from pathlib import Path

import pytest
import yaml
from commands import one_line_error, run_here

from agent_rl.config import load_config
from agent_rl.config.translate import Translation, read_foreign, translate
from agent_rl.config.yaml_text import parse_settings
from agent_rl.errors import ConfigError
from agent_rl.scripts.commands.translate import main

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
    config = load_config(tmp_path / "mine.yaml")
    assert (config.policy.type, config.model.path, config.run.name) == ("vllm", "Qwen/Qwen2.5-3B-Instruct", "mine")
    assert (config.rollout.groups_per_step, config.rollout.group_size, config.train.minibatches) == (64, 5, 2)
    assert (config.algorithm.kl.coef, config.algorithm.kl.kind) == (0.001, "low_var_kl")
    assert (config.algorithm.clip_low, config.algorithm.clip_high) == (0.2, 0.2)
    assert config.algorithm.aggregation == "seq_mean_token_mean"
    assert (config.policy.max_context, config.vllm.gpu_memory_share) == (1536, 0.6)
    assert (config.checkpoint.every, config.eval.every, config.log.trackers) == (0, 5, ("wandb",))
    assert str(config.data.eval_path) == "b.parquet"


def test_a_text_that_looks_like_a_number_is_translated_as_a_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "verl.yaml").write_text(VERL.replace("experiment_name: mine", "experiment_name: '1e4'"))
    main(tmp_path / "verl.yaml", None, None)
    assert parse_settings(capsys.readouterr().out, "translated")["run"]["name"] == "1e4"


GUIDE = Path(__file__).with_name("agentfly")
"""The commands of AgentFly's training guide."""
BASES = {"math": "math_grpo", "search": "search_qa_grpo", "code": "code_exec_grpo"}


@pytest.mark.parametrize("name", BASES)
def test_a_command_of_agentflys_guide_becomes_a_run(name: str, tmp_path: Path) -> None:
    done = run_here("translate", GUIDE / f"{name}.sh", "--base", f"configs/{BASES[name]}.yaml")
    assert done.returncode == 0 and "does not load" not in done.stderr
    settings = yaml.safe_load(done.stdout)
    assert settings["train"]["schedule"] == "constant" and settings["train"]["warmup_steps"] == 0
    assert settings["algorithm"]["kl"] == {"place": "loss", "coef": 0.001, "kind": "mse"}
    assert ("agent.template" in done.stderr) == (name == "math")
    # On this machine: its files and model, without vLLM and trackers, four groups of one step.
    del settings["vllm"], settings["log"], settings["eval"]
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(settings))
    words = [f"data.{split}_path=dataset/{name}_tasks/{file}.jsonl" for split, file in SPLITS]
    words += [f"model.path=model/{name}_minimind", "policy.type=huggingface", f"run.output_dir={tmp_path}"]
    words += ["train.steps=1", "rollout.groups_per_step=4", "eval.temperatures=[]"]
    done = run_here("train", "--config", tmp_path / "ours.yaml", *words)
    assert done.returncode == 0, done.stderr


SPLITS = (("train", "train"), ("eval", "eval"))


def of_agentfly(*words: str) -> Translation:
    return translate(read_foreign(" ".join(["python -m agentfly.cli train agent.max_turns=3", *words]), "run.sh"))


def test_a_kl_that_is_switched_off_or_has_no_room_is_not_translated() -> None:
    actor, in_reward = "actor_rollout_ref.actor.", "algorithm.use_kl_in_reward=True"
    both = [in_reward, "algorithm.kl_ctrl.kl_coef=0.5", "algorithm.kl_penalty=abs"]
    loss = [f"{actor}use_kl_loss=True", f"{actor}kl_loss_coef=0.1"]
    made = of_agentfly(*both, *loss)
    kl = {key: value for key, value in made.settings.items() if ".kl." in key}
    assert kl == {"algorithm.kl.place": "loss", "algorithm.kl.coef": 0.1}
    assert len(made.left_out) == 3 and {"algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"} < set(made.left_out)
    made = of_agentfly(*both, f"{actor}use_kl_loss=False", f"{actor}kl_loss_coef=0.1")
    kl = {key: value for key, value in made.settings.items() if ".kl." in key}
    assert kl == {"algorithm.kl.place": "reward", "algorithm.kl.coef": 0.5, "algorithm.kl.kind": "abs"}
    made = of_agentfly(f"{actor}use_kl_loss=False", f"{actor}kl_loss_coef=0.1")
    assert not any(".kl." in key for key in made.settings) and not made.left_out


def test_the_keys_below_init_args_are_known_too() -> None:
    words = "data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 trainer.total_training_steps=100 "
    words += "agent.init_args.agent_type=hf agent.init_args.tools=[google_search,answer] agent.max_tokens_per_turn=256 "
    words += "agent.init_args.reward_name=math_reward_string_equal agent.num_chains=8 trainer.nnodes=1 "
    words += "actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.actor.kl_loss_coef=0.001"
    made = of_agentfly(*words.split())
    assert made.library == "AgentFly"
    assert made.settings["tools.use"] == ["search", "answer"]
    assert made.settings["train.minibatches"] == 1 and made.settings["train.steps"] == 100
    assert made.settings["env.options.reward"] == "math_reward_string_equal"
    assert "algorithm.kl.coef" not in made.settings
    assert list(made.left_out) == ["trainer.nnodes"]


def test_what_means_something_else_here_is_a_note() -> None:
    made = of_agentfly("trainer.save_freq=-1", "trainer.test_freq=10")
    assert (made.settings["checkpoint.every"], made.settings["eval.every"]) == (0, 10)
    assert list(made.notes) == ["trainer.save_freq"]


def test_a_rate_brings_the_schedule_of_its_library() -> None:
    assert of_agentfly("actor_rollout_ref.actor.optim.lr=1.0e-6").settings["train.schedule"] == "constant"
    made = translate({"learning_rate": 1e-6, "num_generations": 8}, "trl").settings
    assert (made["train.schedule"], made["train.final_learning_rate"], made["train.warmup_steps"]) == ("linear", 0.0, 0)
    made = translate({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3, "learning_rate": 1e-6}, "trl")
    assert (made.settings["train.schedule"], made.settings["train.warmup_steps"]) == ("constant", 3)


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
    (tmp_path / "blank.yaml").write_text("\n")
    assert "blank.yaml" in one_line_error(run_here("translate", tmp_path / "blank.yaml"))
    (tmp_path / "half.json").write_text('{"max_steps": ')
    assert "half.json: not valid" in one_line_error(run_here("translate", tmp_path / "half.json"))
    (tmp_path / "verl.yaml").write_text(VERL)
    assert "'verl'" in one_line_error(run_here("translate", tmp_path / "verl.yaml", "--from", "verll"))
    with pytest.raises(ConfigError, match="no keys"):
        read_foreign("just words", "a text")
