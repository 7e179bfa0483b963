"""`GRPOTrainer(model=, reward_funcs=, train_dataset=)`: equal to the long way, from any folder; what it refuses."""

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes import save_tiny_model
from tiny_models import save_tiny_causal_lm

from agent_rl import AgentEnv, GRPOTrainer, Message, StepResult, load_config
from agent_rl.config import Config, ToolsConfig, parse_config
from agent_rl.core.quick_start import free_name, quick_run
from agent_rl.errors import ConfigError, DataError, EpisodesFailedError, UserError
from agent_rl.records import StopReason
from agent_rl.tools.base import BaseTool, ToolResult
from agent_rl.tools.calculator import calculator
from agent_rl.tools.toolset import Toolset

ROOT = Path(__file__).resolve().parents[2]
ROWS = [{"prompt": "post"[: n + 1], "letter": "a"} for n in range(4)]
SMALL = {
    "run.device": "cpu",
    "policy.max_new_tokens": 16,
    "policy.max_context": 64,
    "rollout.group_size": 4,
    "rollout.groups_per_step": 4,
    "rollout.async_workers": 0,
    "train.steps": 2,
    "train.learning_rate": 3e-3,
    "log.progress": False,
    "log.trackers": [],
}


def share(completions, letter, **kwargs):
    """Of a letter in each completion."""
    return [text.count(each) / max(1, len(text)) for text, each in zip(completions, letter, strict=True)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_causal_lm(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows_of(folder: Path) -> list[dict[str, float]]:
    """The metrics of all steps that do not depend on the clock."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: row[key] for key in row if not key.startswith(("time", "perf/", "memory/", "judge/", "host/"))}
        for row in rows
    ]


def quick(model: str, functions: Any = share, rows: Any = ROWS, **more: Any) -> GRPOTrainer:
    args = more.pop("args", {})
    return GRPOTrainer(
        model=model,
        reward_funcs=functions,
        train_dataset=rows,
        args={**SMALL, **args} if isinstance(args, dict) else args,
        **more,
    )


# Wrong input


class GRPOConfig:
    """As of another library."""


def echo(text: str) -> str:
    """Say it again."""
    return text


def undescribed(text: str) -> str:
    return text


class Named(BaseTool):
    name, description, parameters = "echo", "Say it.", {"type": "object", "properties": {}, "required": []}

    def __call__(self) -> ToolResult:
        return ToolResult(text="")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": None}, "^model: got None"),
        ({"model": object()}, "^model: got <object"),
        ({"model": load_config("configs/math_grpo.yaml")}, "GRPOTrainer.from_config"),
        ({"model": "nowhere/at/all"}, "nowhere/at/all"),
        ({"args": {"model.path": "other"}}, "^args: model.path is 'other', and model is"),
        ({"model": None, "args": {"model.path": 7}}, "^args: model.path is 7"),
        ({"model": None, "args": {"model": {"path": ["a"]}}}, "^args: model.path is"),
        ({"model": None, "args": {"model.path": ""}}, "^args: model.path is"),
        ({"args": {"train.step": 3}}, "^args: unknown key 'train.step'; did you mean 'steps'"),
        ({"args": {"trian.steps": 3}}, "^args: unknown key 'trian'; did you mean 'train'"),
        ({"args": {"steps": 3}}, "^args: unknown key 'steps'"),
        ({"args": {"train": 3}}, "^args: 'train'"),
        ({"args": {"train.steps": "many"}}, "^args: train.steps = 'many': expected a whole number"),
        ({"args": {"train.steps": 0}}, "^args: train.steps = 0: input should be greater"),
        ({"args": {7: 3}}, "^args: the key 7"),
        ({"args": {"train..steps": 3}}, "^args: the key 'train..steps'"),
        ({"args": {"train.steps.x": 3, "train.steps": 3}}, "^args: "),
        ({"args": {"env.options": None}}, "^args: env.options"),
        ({"args": {"env": {"options": [1]}}}, "^args: env.options"),
        ({"args": {"tools.use": None}}, "^args: tools.use"),
        ({"args": {"tools.use": "calculator"}}, "^args: tools.use"),
        ({"args": {"run.output_dir": None}}, "^args: run.output_dir"),
        ({"args": {"run.output_dir": 7}}, "^args: run.output_dir"),
        ({"args": {"env.name": "math_qa"}}, "^args: env.name = 'math_qa'"),
        ({"args": {"env.options.reward": "exact_match_reward"}}, "^args: env.options.reward"),
        ({"args": {"env.options.sytem_prompt": "x"}}, "env.options.sytem_prompt'; did you mean 'system_prompt'"),
        ({"args": {"data.train_path": "a.jsonl"}}, "^args: data.train_path is 'a.jsonl', and train_dataset"),
        ({"args": ["train.steps=3"]}, r"^args: got \['train.steps=3'\], a list; expected a dictionary"),
        ({"args": GRPOConfig()}, "^args: got <.*, a GRPOConfig; expected a dictionary"),
        ({"train_dataset": None}, "^train_dataset: got None"),
        ({"train_dataset": 3}, "^train_dataset: got 3"),
        ({"train_dataset": []}, "^train_dataset: holds no row"),
        ({"train_dataset": "nowhere.jsonl"}, "^nowhere.jsonl: no such task file"),
        ({"train_dataset": [{"question": "x"}]}, "^train_dataset:row 1: the row has no column 'prompt'"),
        ({"train_dataset": [{"prompt": "x"}]}, "^train_dataset:row 1: the reward 'share' needs the key 'letter'"),
        ({"eval_dataset": [{"prompt": "x"}]}, "^eval_dataset:row 1: the reward 'share' needs the key 'letter'"),
        ({"eval_dataset": "nowhere.csv"}, "^nowhere.csv: no such task file"),
        ({"reward_funcs": None}, "^reward_funcs: got None"),
        ({"reward_weights": [1, 2]}, "^reward_weights: got 2 weights for 1"),
        ({"reward_weights": [0]}, "^reward_weights: all are 0"),
        ({"eval_dataset": []}, "^eval_dataset: holds no row"),
        ({"tools": echo}, "^tools: got <function echo.*expected a list"),
        ({"tools": [7]}, "^tools: got 7"),
        ({"tools": [undescribed]}, "^tools: .*undescribed: no docstring"),
        ({"tools": [echo, Named]}, "the tool name 'echo' is offered twice"),
        ({"tools": ["calculater"]}, "unknown tool 'calculater' in tools.use; did you mean 'calculator'"),
        ({"peft_config": object()}, r"^peft_config: .*model\.lora\.rank"),
        ({"max_steps": 3}, "^GRPOTrainer takes no 'max_steps'"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_written(
    model: str, tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    args = changes.get("args", {})
    given = {
        "model": model,
        "reward_funcs": share,
        "train_dataset": ROWS,
        **changes,
        "args": {**SMALL, **args} if isinstance(args, dict) else args,
    }
    with pytest.raises(UserError, match=complaint) as caught:
        GRPOTrainer(**given)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_configuration_of_another_environment_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match=r"^args: env\.name = 'math_qa', and rewards and rows given in Python"):
        quick(model, args=load_config(ROOT / "configs/math_grpo.yaml"))


def helper(word: str) -> float:
    return {"never": 1.0}[word]


def broken(completions, letter):
    return [helper(each) for each in letter]


def test_what_a_reward_function_raises_is_shown_with_its_line(model: str) -> None:
    line = helper.__code__.co_firstlineno + 1
    with quick(model, broken) as trainer, pytest.raises(EpisodesFailedError) as caught:
        trainer.train()
    assert "the reward 'broken' raised KeyError: 'a' at " in str(caught.value)
    assert str(caught.value).endswith(f"test_quick_start.py:{line} in helper")


# Right input


class LetterShare(AgentEnv):
    """The same written out as an environment."""

    def reset(self, task: dict[str, Any]) -> list[Message]:
        return [Message.user(task["prompt"])]

    def step(self, message: Message) -> StepResult:
        return self._scored(message.written or message.content, is_over=True)

    def truncate(self, reason: StopReason) -> StepResult:
        reply = self.unanswered
        return self._scored(reply.written or reply.content if reply else "", is_over=False)

    def _scored(self, text: str, *, is_over: bool) -> StepResult:
        earned = text.count("a") / max(1, len(text))
        parts = {"share": earned, "success": float(is_over and earned == 1.0)}
        return StepResult(reward=earned, reward_parts=parts, terminated=True)


def test_the_short_way_equals_a_configuration_and_an_environment_of_ones_own(model: str, tmp_path: Path) -> None:
    evaluated = {"eval.temperatures": [0.0], "run.name": "short"}
    with quick(model, eval_dataset=ROWS[:2], args=evaluated) as trainer:
        trainer.train()
    raw = {
        "run": {"name": "long", "device": "cpu"},
        "model": {"path": model},
        "policy": {"type": "huggingface", "max_new_tokens": 16, "max_context": 64},
        "env": {"name": "math_qa"},
        "rollout": {"group_size": 4, "groups_per_step": 4, "async_workers": 0},
        "train": {"steps": 2, "learning_rate": 3e-3},
        "eval": {"temperatures": [0.0]},
        "log": {"progress": False, "trackers": []},
    }
    config = parse_config(raw, source="test")
    with GRPOTrainer.from_config(config, env_factory=LetterShare, train_tasks=ROWS, eval_tasks=ROWS[:2]) as trainer:
        trainer.train()
    short, long = rows_of(tmp_path / "runs/short"), rows_of(tmp_path / "runs/long")
    assert short == long
    assert [row["step"] for row in short if "reward_parts/share/mean" in row] == [1, 2]
    assert all(row["optim/grad_norm"] > 0.0 for row in short if "optim/grad_norm" in row)


def test_a_file_of_the_same_settings_repeats_the_run(model: str, tmp_path: Path) -> None:
    functions = tmp_path / "my_rewards.py"
    functions.write_text("def share(completions, letter):\n    return [completions[0].count('a') / 9]\n")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    raw = {"name": "prompts", "options": {"reward": f"{functions}:share"}}
    sections: dict[str, Any] = {"env": raw, "data": {"train_path": "rows.jsonl"}, "model": {"path": model}}
    for key, value in {**SMALL, "policy.type": "huggingface", "eval.temperatures": [], "run.name": "file"}.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    with GRPOTrainer.from_config(parse_config(sections, source="test")) as trainer:
        trainer.train()
    with quick(model, f"{functions}:share", "rows.jsonl", args={"run.name": "python"}) as trainer:
        trainer.train()
    assert rows_of(tmp_path / "runs/python") == rows_of(tmp_path / "runs/file")


def test_a_run_records_what_it_was_made_of(model: str, tmp_path: Path) -> None:
    args = {"data.columns": {"prompt": "text"}, "env.options.system_prompt": "Be brief."}
    rows = [{"text": "post", "letter": "a"}]
    with quick(
        model, [share, "exact_match_reward"], [{**rows[0], "answer": "x"}], reward_weights=[1, 0.5], args=args
    ) as t:
        config = t.config
    assert config.env.name == "prompts"
    assert config.env.options == {
        "system_prompt": "Be brief.",
        "reward": [{"name": f"{__name__}:share", "weight": 1.0}, {"name": "exact_match_reward", "weight": 0.5}],
    }
    assert (config.run.name, config.policy.type, config.data.train_path) == ("tiny-grpo", "huggingface", None)
    again = parse_config(yaml.safe_load(config.to_yaml()), source="again")
    assert again == config
    with pytest.raises(ConfigError, match=r"^data\.train_path is missing"):
        GRPOTrainer.from_config(again)


def test_functions_are_offered_as_tools_beside_those_by_name(model: str) -> None:
    for _ in range(2):  # nothing is registered, so that a cell of a notebook may run again
        with quick(model, tools=[echo, calculator], args={}) as trainer:
            env = trainer._env_factory()
            env.reset({"task_id": "t", **ROWS[0]})
            assert [tool.name for tool in env.tools] == ["echo", "calculator"]
            assert env.registry.run(call("echo", text="x")).text == "x"
            assert trainer.config.tools.use == (f"{__name__}:echo", "calculator")


def call(name: str, **arguments: Any) -> Any:
    from agent_rl.agent.messages import ToolCall

    return ToolCall(name=name, arguments=arguments)


def test_a_class_of_tools_is_made_anew_and_names_of_tools_are_added_to_the_configuration(model: str) -> None:
    with quick(model, tools=[Named, "calculator"]) as trainer:
        envs = [trainer._env_factory() for _ in range(2)]
        for env in envs:
            env.reset({"task_id": "t", **ROWS[0]})
        assert [tool.name for tool in envs[0].tools] == ["echo", "calculator"]
        tools = [env.registry._tools["echo"] for env in envs]
        assert tools[0] is not tools[1]


def test_two_tools_of_one_class_are_offered_under_their_own_names(model: str) -> None:
    class Lookup(Named):
        def __init__(self, name: str) -> None:
            self.name = name

    with quick(model, tools=[Lookup("wiki"), Lookup("news")]) as trainer:
        env = trainer._env_factory()
        env.reset({"task_id": "t", **ROWS[0]})
        assert [tool.name for tool in env.tools] == ["wiki", "news"]
        recorded = trainer.config
    with pytest.raises(ConfigError, match="given in Python"):
        Toolset(ToolsConfig(use=recorded.tools.use[1:]))


@pytest.mark.parametrize("key", ["env.options", "env", "tools.use"])
def test_a_dictionary_of_args_stays_as_it_is_and_serves_again(key: str) -> None:
    args = {"env.options": {"env.options": {}}, "env": {"env": {"options": {}}}, "tools.use": {"tools.use": []}}[key]
    before = copy.deepcopy(args)
    for _ in range(2):
        quick_run("m", share, (ROWS, None), ["calculator"], None, args, {})
    assert args == before


def test_a_second_run_gets_a_name_of_its_own_and_a_given_name_stays(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert free_name(tmp_path, "tiny-grpo") == "tiny-grpo"
    for taken in ("tiny-grpo", "tiny-grpo-2"):
        (tmp_path / "runs" / taken).mkdir(parents=True)
        (tmp_path / "runs" / taken / "config.yaml").touch()
        (tmp_path / "runs" / taken / "metrics.jsonl").write_text('{"step": 1}\n')
    with quick(model) as trainer:
        assert trainer.config.run.name == "tiny-grpo-3"
    with pytest.raises(ConfigError, match="already holds a run"):
        quick(model, args={"run.name": "tiny-grpo"})
    monkeypatch.setenv("WORLD_SIZE", "2")  # processes must not choose apart
    assert free_name(tmp_path / "runs", "tiny-grpo") == "tiny-grpo"


def test_a_whole_configuration_is_taken_as_it_is(model: str) -> None:
    base = {"env": {"name": "prompts"}, "model": {"path": model}, "run": {"name": "whole", "device": "cpu"}}
    config = Config.model_validate(
        {
            **base,
            "policy": {"max_context": 64, "max_new_tokens": 8, "type": "huggingface"},
            "train": {"steps": 5, "learning_rate": 1e-3},
        }
    )
    with GRPOTrainer(reward_funcs=share, train_dataset=ROWS, args=config) as trainer:
        assert (trainer.config.train, trainer.config.run.name) == (config.train, "whole")
        assert trainer.config.env.options["reward"][0]["name"] == f"{__name__}:share"


def endless() -> Iterator[dict[str, Any]]:
    yield from ROWS


def test_rows_may_come_from_a_generator_and_be_conversations(model: str, tmp_path: Path) -> None:
    def chat_share(completions, letter):
        (messages,) = completions
        return [messages[-1]["content"].count(letter[0]) / 16]

    rows = ({**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in endless())
    with quick(model, chat_share, rows, args={"train.steps": 1}) as trainer:
        folder = trainer.train()["run_folder"]
    (row,) = rows_of(folder)
    assert row["rollout/env_errors"] == 0 and "reward_parts/chat_share/mean" in row


def test_five_lines_in_any_folder_train_and_end(model: str, tmp_path: Path) -> None:
    script = f"""
from agent_rl import GRPOTrainer
rows = [{{"prompt": "post"[: n + 1]}} for n in range(4)]
def share(completions, **kwargs):
    return [text.count("a") / max(1, len(text)) for text in completions]
args = {SMALL!r}
GRPOTrainer(model={model!r}, reward_funcs=share, train_dataset=rows, args=args).train()
"""
    (tmp_path / "five.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "five.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr  # of DeepSpeed, which Accelerate imports where it is installed
    assert len(rows_of(tmp_path / "runs/tiny-grpo")) == 2
    assert "config.yaml" in {path.name for path in (tmp_path / "runs/tiny-grpo").iterdir()}


def test_the_shipped_models_are_found_from_anywhere() -> None:
    with pytest.raises(DataError, match="train_dataset:row 1"):
        quick("model/math_minimind", rows=[{"prompt": 3, "letter": "a"}])


def test_a_minimind_model_works_too(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "mini")
    with quick(str(folder), args={"policy.type": "minimind", "train.steps": 1}) as trainer:
        trainer.train()
    assert len(rows_of(tmp_path / "runs/mini-grpo")) == 1


def test_values_of_the_chat_template_are_an_argument_and_a_key(model: str) -> None:
    for given in (
        {"args": SMALL, "chat_template_kwargs": {"enable_thinking": False}},
        {"args": SMALL | {"model.chat_template_kwargs": {"enable_thinking": False}}},
    ):
        with pytest.raises(ConfigError, match="enable_thinking"):  # the tiny model's template has no such variable
            GRPOTrainer(model=model, reward_funcs=share, train_dataset=ROWS, **given)
