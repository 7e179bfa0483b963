"""What docs/migration.md and the table of AgentFly's options name exists, imports and runs."""

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from agent_rl.config import Config, load_config
from agent_rl.data.tasks import read_tasks
from agent_rl.envs.code.env import CodeExecEnvOptions
from agent_rl.envs.nat.env import NATEnvOptions
from agent_rl.envs.qa_env import QAEnvOptions
from agent_rl.envs.registry import make_env_factory
from agent_rl.envs.search.env import SearchEnvOptions
from agent_rl.scripts import cli, train_code_exec_agent, train_math_agent, train_search_agent

ROOT = Path(__file__).resolve().parents[2]
MIGRATION, CONFIGURATION, METRICS = (
    (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("migration", "configuration", "metrics")
)

AGENTFLY_OPTIONS = re.findall(
    r"\S+",
    """
agent.use_agent agent.init_args.model_name_or_path agent.init_args.template agent.init_args.agent_type
agent.init_args.tools agent.init_args.reward_name agent.init_args.backend agent.max_turns agent.num_chains
agent.max_tokens_per_turn agent.model_name_or_path agent.template agent.agent_type agent.tools agent.reward_name
algorithm.adv_estimator algorithm.gamma algorithm.lam algorithm.use_kl_in_reward algorithm.kl_penalty
algorithm.kl_ctrl.type algorithm.kl_ctrl.kl_coef algorithm.kl_ctrl.target_kl algorithm.kl_ctrl.horizon
trainer.project_name trainer.experiment_name trainer.logger trainer.total_training_steps trainer.total_epochs
trainer.nnodes trainer.n_gpus_per_node trainer.save_freq trainer.test_freq trainer.val_before_train
trainer.critic_warmup trainer.resume_mode trainer.resume_from_path
data.train_files data.val_files data.train_batch_size data.val_batch_size
actor_rollout_ref.actor.optim.lr actor_rollout_ref.actor.ppo_mini_batch_size
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu actor_rollout_ref.actor.use_kl_loss
actor_rollout_ref.actor.kl_loss_coef actor_rollout_ref.actor.kl_loss_type actor_rollout_ref.actor.entropy_coeff
actor_rollout_ref.actor.fsdp_config.param_offload actor_rollout_ref.actor.fsdp_config.optimizer_offload
actor_rollout_ref.model.path actor_rollout_ref.model.enable_gradient_checkpointing actor_rollout_ref.rollout.name
actor_rollout_ref.rollout.response_length actor_rollout_ref.rollout.tensor_model_parallel_size
actor_rollout_ref.rollout.gpu_memory_utilization actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu
actor_rollout_ref.ref.fsdp_config.param_offload
critic.model.path critic.ppo_mini_batch_size critic.ppo_micro_batch_size_per_gpu
WANDB_API_KEY
""",
)

MINIAGENT_PATHS = {
    "agent_rl/core/trainer_grpo.py": "GRPOTrainer",
    "agent_rl/core/rollout.py": "RolloutWorker",
    "agent_rl/core/minimind_policy.py": "MiniMindPolicy",
    "agent_rl/core/hf_policy.py": "HuggingFacePolicy",
    "agent_rl/envs/code_exec_env.py": "CodeExecEnv",
    "agent_rl/envs/search_env.py": "SearchEnv",
    "agent_rl/tools/code_exec_tool.py": "CodeExecTool",
    "agent_rl/tools/web_search_tool.py": "WebSearch",
    "agent_rl/tools/search_tool.py": "SearchTool",
    "agent_rl/agent/tool_parser.py": "parse_tool_calls",
    "model/model_minimind.py": "MiniMindForCausalLM",
}
"""Files that the README of Miniagent names, and what is looked for in each."""

SNIPPET = """\
from dataset import SearchTaskDataset
ds = SearchTaskDataset.from_path("dataset/search_tasks/train.jsonl")
sample = ds[0].to_env_task()
print(sample["question"], "->", sample["answer"])
"""

SCRIPTS = {
    f"agent_rl/scripts/{module.__name__.rpartition('.')[2]}.py": typer.main.get_command(module.app)
    for module in (train_math_agent, train_search_agent, train_code_exec_agent)
}
FLAG_KEYS = {
    "--model-path": "model.path",
    "--hf-model-name": "model.path",
    "--policy-type": "policy.type",
    "--device": "run.device",
    "--seed": "run.seed",
    "--async-rollout-workers": "rollout.async_workers",
}


def section(page: str, heading: str) -> str:
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return text


def rows(text: str) -> list[list[str]]:
    """The cells of all tables of three columns, without heads."""
    lines = [line for line in text.splitlines() if re.fullmatch(r"\|([^|]*\|){3}", line)]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("| ---")}
    return [row for number, row in enumerate(cells) if not {number, number - 1} & heads]


def names(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def ours(text: str) -> str:
    """The text without the first cells of its tables of three columns, which are the other project's."""
    return re.sub(r"^\|[^|\n]*(?=(?:\|[^|\n]*){2}\|$)", "", text, flags=re.MULTILINE)


OURS = {"migration": ours(MIGRATION), "configuration": ours(section(CONFIGURATION, "Coming from AgentFly"))}
pages = pytest.mark.parametrize("page", OURS)


def commands() -> dict[str, list[str]]:
    """The words of the commands that train, by the name of their run, else of their script."""
    found = {}
    for block in re.findall(r"```bash\n(.*?)```", MIGRATION, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            script = next(word for word in words if word.endswith(".py"))
            found[overrides_of(words).get("run.name", Path(script).stem)] = words
    return found


def overrides_of(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if re.match(r"\w+\.[\w.]+=", word))


def without_launcher(words: list[str]) -> list[str]:
    """The script and what stands behind it."""
    return words[next(number for number, word in enumerate(words) if word in SCRIPTS) :]


def flags_of(command: click.Command) -> set[str]:
    return {flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")}


def is_key(name: str) -> bool:
    """Whether it leads to a field of the configuration; below `env.options`, to one of a built-in environment."""
    inner = name.removeprefix("env.options.")
    roots = (Config,) if inner == name else (NATEnvOptions, CodeExecEnvOptions, SearchEnvOptions, QAEnvOptions)
    return any(leads_to_a_field(root, inner.split(".")) for root in roots)


def leads_to_a_field(model: Any, parts: list[str]) -> bool:
    for part in parts:
        if part not in getattr(model, "model_fields", {}):
            return False
        model = model.model_fields[part].annotation
    return True


def test_every_option_of_agentfly_is_in_the_table_once() -> None:
    table = rows(section(CONFIGURATION, "Coming from AgentFly"))
    theirs = [name.partition("=")[0] for row in table for name in names(row[0])]
    assert sorted(theirs) == sorted(AGENTFLY_OPTIONS)


# What the pages name exists


@pages
def test_keys_are_keys(page: str) -> None:
    found = re.findall(rf"[`\s\"]((?:{'|'.join(Config.model_fields)})\.[a-z_][\w.]*)(?=[`=])", OURS[page])
    assert [name for name in found if not is_key(name)] == []
    assert len(set(found)) > 30


@pages
def test_files_and_links_are_there(page: str) -> None:
    paths = re.findall(r"[`\s]((?:agent_rl|configs|dataset|docs)/[\w./-]+)", OURS[page])
    paths += re.findall(r"\brequirements[\w-]*\.txt\b", OURS[page])
    assert [path for path in paths if not (ROOT / path).exists()] == []
    links = re.findall(r"\]\(([\w.]+)(?:#([\w-]+))?\)", OURS[page])
    assert [target for target, _ in links if not (ROOT / "docs" / target).is_file()] == []
    for target, anchor in links:
        headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / target).read_text(encoding="utf-8"), re.MULTILINE)
        assert not anchor or anchor in [heading.lower().replace(" ", "-") for heading in headings]
    assert paths
    assert links


@pytest.mark.parametrize("path", MINIAGENT_PATHS)
def test_paths_of_the_readme_of_miniagent_hold_what_they_held(path: str) -> None:
    assert f"`{path}`" in MIGRATION
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    assert hasattr(module, MINIAGENT_PATHS[path])


def test_python_names_can_be_imported() -> None:
    dotted = re.findall(r"`(agent_rl(?:\.\w+)+)`", OURS["migration"])
    assert dotted
    for module, _, name in (each.rpartition(".") for each in dotted):
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
    imports = re.findall(r"`(from \w+ import [\w, ]+)`", OURS["migration"])
    assert imports
    for line in imports:
        exec(line, {})


def test_flags_are_those_of_the_scripts() -> None:
    (known,) = {frozenset(flags_of(command)) for command in SCRIPTS.values()}
    theirs = set(re.findall(r"`(--[a-z-]+)(?![\w-])", MIGRATION))
    assert theirs == set(FLAG_KEYS) | {"--config", "--dataset-dir", "--preview-tasks"}
    assert theirs <= known


@pages
def test_commands_of_agent_rl_and_their_flags_are_known(page: str) -> None:
    group = typer.main.get_command(cli.app)
    found = re.findall(r"`agent-rl ([a-z-]+)([^`]*)`", OURS[page])
    for name, rest in found:
        assert set(re.findall(r"--[a-z-]+", rest)) <= flags_of(group.commands[name]), name
    assert found


# What the pages show works


def test_the_snippet_of_the_readme_runs_as_it_is(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = re.findall(r"```python\n(.*?)```", MIGRATION, re.DOTALL)
    assert [text.replace("\n\n", "\n") for text in shown] == [SNIPPET]  # the formatter keeps imports apart
    monkeypatch.chdir(ROOT)
    exec(SNIPPET, {})
    with (ROOT / "dataset/search_tasks/train.jsonl").open(encoding="utf-8") as lines:
        row = json.loads(next(lines))
    assert capsys.readouterr().out == f"{row['question']} -> {row['answer']}\n"


def config_of(words: list[str], *more: str) -> Config:
    """The configuration of a command that trains. Whatever stands there is an override, or a flag and its value."""
    script, *rest = without_launcher(words)
    flags = {word: rest[number + 1] for number, word in enumerate(rest) if word.startswith("--")}
    overrides = overrides_of(rest)
    assert 2 * len(flags) + len(overrides) == len(rest)
    assert set(flags) <= flags_of(SCRIPTS[script])
    settings = [f"{FLAG_KEYS[flag]}={value}" for flag, value in flags.items() if flag in FLAG_KEYS]
    settings += [f"{key}={value}" for key, value in overrides.items()]
    return load_config(ROOT / flags["--config"], [*settings, *more])


@pytest.mark.parametrize("name", commands())
@pytest.mark.parametrize("engine", ["as it is", "vllm"])
def test_commands_are_of_flags_and_keys_that_are_accepted(name: str, engine: str) -> None:
    more = ["policy.type=vllm", "vllm.gpu_memory_share=0.5"] if engine == "vllm" else []
    config = config_of(commands()[name], *more)
    make_env_factory(config.env.name, config.env.options)


AGENTFLY_COMMANDS = {
    "test_gsm8k": ("grpo", 64, 8, 3, 256, 5e-7, 100, "hf"),
    "react_search_agent": ("reinforce_plus_plus", 128, 1, 4, 512, 5e-7, 200, "react"),
    "code_agent": ("grpo", 64, 4, 5, 512, 4e-7, 300, "code"),
}


@pytest.mark.parametrize("name", AGENTFLY_COMMANDS)
def test_the_commands_of_agentfly_keep_their_numbers(name: str) -> None:
    config = config_of(commands()[name])
    estimator, tasks, episodes, turns, tokens, learning_rate, steps, agent = AGENTFLY_COMMANDS[name]
    assert (config.algorithm.advantage, config.agent.type) == (estimator, agent)
    assert (config.rollout.groups_per_step, config.rollout.group_size) == (tasks, episodes)
    assert (config.rollout.max_turns, config.policy.max_new_tokens) == (turns, tokens)
    assert (config.train.steps, config.checkpoint.every, config.eval.every) == (steps, 50, 10)
    assert (config.train.learning_rate, config.train.final_learning_rate) == (learning_rate, learning_rate)
    assert (config.algorithm.kl.coef, config.algorithm.kl.kind) == (1e-3, "mse")
    assert (config.algorithm.entropy_coef, config.model.path) == (1e-3, "Qwen/Qwen2.5-3B-Instruct")


DATA = [{"question": "What is 6 times 8?", "answer": "6 * 8 = 48 #### 48"}, {"question": "Who?", "answer": "Velm"}]


@pytest.mark.parametrize("env", ["math_qa", "search_qa"])
def test_agentflys_data_are_tasks(tmp_path: Path, env: str) -> None:
    (tmp_path / "train.json").write_text(json.dumps(DATA))
    factory = make_env_factory(env, {}, seed=0)
    tasks = read_tasks(tmp_path / "train.json", factory.check_task)
    assert all(task.pop("task_id").startswith("train/") for task in tasks)
    assert tasks == DATA


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTFLY_COMMANDS)
def test_the_commands_of_agentfly_train_a_step_with_all_their_keys(name: str, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps(DATA))
    small = ["model.path=model/nat_minimind", "policy.max_context=1024", "policy.max_new_tokens=16", "log.trackers=[]"]
    small += ["policy.max_batch_size=4", "rollout.groups_per_step=2", "train.steps=1", "eval.temperatures=[]"]
    small += [f"run.output_dir={tmp_path}", "run.device=cpu", "checkpoint.every=0"]
    small += [] if name == "code_agent" else [f"data.train_path={data}", f"data.eval_path={data}"]
    small += ["tools.search={mode: corpus, corpus_path: dataset/search_tasks/corpus.jsonl}"] if "search" in name else []
    # Without evaluations neither of them has an effect; the last one of a key that is given twice counts.
    words = [word for word in without_launcher(commands()[name]) if not word.startswith("eval.every=")]
    done = subprocess.run([sys.executable, *words, *small], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / name / "metrics.jsonl").read_text(encoding="utf-8"))
    assert metrics["optim/learning_rate"] == AGENTFLY_COMMANDS[name][5]
    assert "loss/kl" in metrics or metrics["optim/skipped"] == 1.0
