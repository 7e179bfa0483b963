"""The scripts of docs/extending.md run as they stand, and show what the page shows."""

import json
import math
import re
import runpy
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from fakes import EchoEnv, ScriptedPolicy

from agent_rl import evaluate_policy
from agent_rl.agent.messages import Message, ToolCall
from agent_rl.config import ToolsConfig, load_config
from agent_rl.data.tasks import read_tasks
from agent_rl.envs import registry
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.math.env import make_math_factory
from agent_rl.envs.opening import offer_tools
from agent_rl.errors import ConfigError
from agent_rl.records import SamplingParams
from agent_rl.registry import REWARDS, TOOLS
from agent_rl.tools import calculator, toolset  # noqa: F401  (registers the calculator)
from agent_rl.tools.base import BaseTool, ToolResult

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*/own_*.py"))
LAST_NUMBER = "examples/tool_environment/own_tool_env.py:LastNumberFactory"
PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _registered_for_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (TOOLS, REWARDS, registry.ENVIRONMENTS):
        monkeypatch.setattr(table, "_entries", dict(table._entries))
    monkeypatch.chdir(ROOT)


def run(monkeypatch: pytest.MonkeyPatch, name: str, *overrides: str) -> dict[str, Any]:
    """Run a script of the page as a person does, with overrides; what it defines."""
    (script,) = (str(path.relative_to(ROOT)) for path in EXAMPLES if path.stem == name)
    assert f"`{script}`" in PAGE
    monkeypatch.setattr(sys, "argv", [script, *overrides])
    return runpy.run_path(script, run_name="__main__")


def trained(folder: Path) -> dict[str, float]:
    """The metrics of the only step, which must have learned something."""
    (line,) = (folder / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(line)
    assert metrics["optim/skipped"] == 0.0
    assert metrics["optim/grad_norm"] > 0.0
    return metrics


def section(heading: str) -> str:
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return text


def shown(heading: str) -> list[str]:
    """The lines of a section's first block of output."""
    return re.findall(r"```text\n(.*?)```", section(heading), re.DOTALL)[0].splitlines()


def test_own_tools_answer_as_the_page_shows_and_only_the_class_is_new_for_each_episode(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "own_tool", f"run.output_dir={tmp_path}")
    assert capsys.readouterr().out.splitlines()[:4] == shown("A tool")[:4]
    assert trained(tmp_path / "own_tool")["rollout/tool_calls_mean"] > 0.0
    offered = re.findall(r"`(tools\.use=\[.*, .*\])`", section("A tool"))
    tools = toolset.Toolset(load_config("configs/math_grpo.yaml", offered).tools)
    tools.start()
    first, second = tools.make({}), tools.make({})
    assert [tool.name for tool in first] == ["calculator", "percent_of"]
    assert [tool is other for tool, other in zip(first, second, strict=True)] == [False, True]


def test_own_rewards_are_logged_and_scored_as_the_page_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = run(monkeypatch, "own_reward", f"run.output_dir={tmp_path}")
    metrics = trained(tmp_path / "own_reward")
    printed = [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert [name for name in printed if "/" in name and name in metrics] == [
        line.split(" ")[0] for line in shown("A reward")
    ]
    parts = [f"reward_parts/{name}/mean" for name in ("math_reward_string_equal", "near_reward", "read_off_reward")]
    assert sum(metrics[part] for part in parts) == pytest.approx(metrics["reward/mean"])
    assert 0.0 < metrics[parts[1]] <= 0.5
    assert metrics["success/mean"] == pytest.approx(metrics[parts[0]])
    near = {"40": 1.0, "30": 0.75, "90": 0.0, "nan": 0.0, "inf": 0.0, "many": 0.0, "": 0.0}
    assert {text: made["near_reward"](text, "40")["reward"] for text in near} == near
    trajectory = (Message.user("7"), Message.tool("70", name="calculator"))
    assert [made["read_off_reward"](text, trajectory) for text in ("70", "7", "")] == [1.0, 0.0, 0.0]


def test_an_own_environment_trains_a_step_on_its_own_tasks_and_refuses_wrong_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = run(monkeypatch, "own_tool_env", f"run.output_dir={tmp_path}")
    assert made["tasks"][0]["answer"] == "42"  # 3 books for 11 dollars, and 9 for the delivery
    metrics = trained(tmp_path / "own_tool_env")
    assert metrics["reward/mean"] == pytest.approx(metrics["success/mean"] + metrics["reward_parts/cost/mean"])
    with pytest.raises(ConfigError, match=r"unknown key 'env\.options\.call_costs'.*; did you mean 'call_cost'\?"):
        registry.make_env_factory(LAST_NUMBER, {"call_costs": 1}, seed=0)
    with pytest.raises(ConfigError, match="needs the tool 'calculator'"):
        offer_tools(registry.make_env_factory(LAST_NUMBER), ToolsConfig())


def test_the_own_environment_scores_the_last_result_and_makes_calls_before_it_cost() -> None:
    factory = offer_tools(registry.make_env_factory(LAST_NUMBER, {"call_cost": 0.2}), ToolsConfig(use=["calculator"]))
    factory.start()

    def reward_of(*expressions: str) -> float | None:
        env = factory()
        env.reset({"task_id": "t", "question": "", "answer": "42"})
        for expression in expressions:
            call = ToolCall(name="calculator", arguments={"expression": expression})
            assert not env.step(Message.assistant("", (call,))).terminated
        return env.step(Message.assistant("Answer: 42")).reward

    assert [reward_of(), reward_of("6*7"), reward_of("6*7", "1+1"), reward_of("1+1", "6*7")] == [0.0, 1.0, -0.2, 0.8]


def test_an_own_policy_is_measured_on_the_held_out_tasks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = run(monkeypatch, "own_policy")
    tasks = read_tasks("dataset/math_tasks/eval.jsonl")
    products = [math.prod(map(int, re.findall(r"\d+", task["question"]))) for task in tasks]
    num_right = sum(str(product) == task["answer"] for product, task in zip(products, tasks, strict=True))
    assert (made["result"].num_successes, made["result"].num_scored) == (num_right, len(tasks))
    assert capsys.readouterr().out.splitlines() == shown("A policy")
    assert [episode.task_id for episode in made["episodes"]] == [task["task_id"] for task in tasks]
    policy = made["FunctionPolicy"](lambda prompt: "1 2 3 4 5 6 7 8 9", made["policy"].tokenizer, max_context=64)
    prompt = policy.chat_format.render_prompt([Message.user("Count.")])
    cancelled = threading.Event()
    cancelled.set()
    completions = [
        policy.generate(prompt, SamplingParams(max_new_tokens=64)),
        policy.generate(prompt, SamplingParams(max_new_tokens=3)),
        policy.generate(prompt, SamplingParams(max_new_tokens=64), cancelled),
    ]
    assert [completion.finish_reason.value for completion in completions] == ["stop", "length", "cancelled"]
    assert [len(completion.token_ids) for completion in completions[1:]] == [3, 0]


class Instrument(BaseTool):
    """Not named as it is registered."""

    description = "Measure something."
    parameters = {"type": "object", "properties": {}}

    def __init__(self, name: str) -> None:
        self.name = name
        self.threads: list[str] = []

    def __call__(self, **arguments: Any) -> ToolResult:
        self.threads.append(threading.current_thread().name.split("_")[0])
        return ToolResult(text="7")


def measured_math(policy: ScriptedPolicy, *overrides: str) -> tuple[Any, list]:
    settings = ["data.max_eval_tasks=3", "policy.max_new_tokens=500", *overrides]
    return evaluate_policy(load_config("configs/math_grpo.yaml", settings), policy)


@pytest.mark.parametrize(("workers", "thread"), [(0, "MainThread"), (2, "episode")])
def test_any_policy_is_measured_with_the_tools_and_budgets_of_a_configuration(workers: int, thread: str) -> None:
    class OpenPolicy(ScriptedPolicy):
        def close(self) -> None:
            pytest.fail("the policy is its owner's to close")

    instrument = Instrument("ruler")
    toolset.register_tool("instrument", lambda config: lambda task: instrument)
    policy = OpenPolicy(['<tool_call>{"name": "ruler", "arguments": {}}</tool_call>', "Answer: nothing"])
    result, episodes = measured_math(policy, "tools.use=[instrument]", f"rollout.async_workers={workers}")
    assert (result.num_scored, result.num_successes, result.step, result.temperature) == (3, 0, 0, 0.0)
    assert [len(episode.turns) for episode in episodes] == [2, 2, 2]
    assert instrument.threads == [thread] * 3
    assert {(sampling.max_new_tokens, sampling.temperature) for sampling in policy.samplings} == {(500, 0.0)}


def test_the_environment_is_started_once_and_closed_after_a_policys_error_too() -> None:
    log: list[str] = []

    class LoggingFactory(EnvFactory):
        def start(self) -> None:
            log.append("start")

        def close(self) -> None:
            log.append("close")

    registry.register_env("logged")(lambda options, seed: LoggingFactory(EchoEnv))
    result, _ = measured_math(ScriptedPolicy(["done"]), "env.name=logged", "tools.use=[]")
    assert (result.num_successes, log) == (3, ["start", "close"])
    with pytest.raises(IndexError):
        measured_math(ScriptedPolicy([]), "env.name=logged", "tools.use=[]")
    assert log == ["start", "close"] * 2


@pytest.mark.parametrize(
    ("names", "overrides", "twice"),
    [
        (["ruler", "ruler"], ["tools.use=[tool_0, tool_1]"], "ruler"),
        (["answer"], ["tools.use=[tool_0]", "env.options.answer_tool=true"], "answer"),
    ],
)
def test_a_name_that_the_model_would_be_offered_twice_ends_the_run(
    names: list[str], overrides: list[str], twice: str
) -> None:
    for number, name in enumerate(names):
        toolset.register_tool(f"tool_{number}", lambda config, name=name: lambda task: Instrument(name))
    with pytest.raises(ConfigError, match=f"section tools: the tool name '{twice}' is offered twice"):
        measured_math(ScriptedPolicy(["Answer: 1"]), *overrides)


def test_the_script_of_the_page_knows_its_reward_and_names_mistakes_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "my_agent.py"
    (block,) = re.findall(r"```python\n(.*?)```", section("A script for training"), re.DOTALL)
    script.write_text(block)
    flags = ["--config", "configs/math_grpo.yaml", "--preview-tasks", "1"]
    weighted = "env.options.reward=[math_reward_string_equal, {name: short_reward, weight: 0.1}]"
    assert f'"{weighted}"' in PAGE
    for override, code, expected in [
        (weighted, 0, "nothing was trained"),
        ("env.options.reward=shorter_reward", 2, "error: unknown reward 'shorter_reward' in env.options.reward"),
    ]:
        monkeypatch.setattr(sys, "argv", [str(script), *flags, override])
        with monkeypatch.context() as again, pytest.raises(SystemExit) as ended:
            again.setattr(REWARDS, "_entries", dict(REWARDS._entries))
            runpy.run_path(str(script), run_name="__main__")
        assert ended.value.code == code
        written = capsys.readouterr()
        assert expected in written.out + written.err
        assert len(written.err.splitlines()) <= 1


def test_what_the_page_names_is_there() -> None:
    named = re.findall(r"\b(?:configs|docs|examples|agent_rl)/[\w/]+\.(?:py|yaml|md)\b", PAGE)
    linked = [f"docs/{target}" for target in re.findall(r"\]\(([\w.]+\.md)\)", PAGE)]
    assert [path for path in named + linked if not (ROOT / path).is_file()] == []
    assert {str(path.relative_to(ROOT)) for path in EXAMPLES} <= set(named)
    assert make_math_factory({}, 0).reward.names == ("math_reward_string_equal",)


def test_an_own_agent_trains_a_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smaller = ["rollout.groups_per_step=2", "rollout.group_size=4", "eval.temperatures=[]"]
    run(monkeypatch, "own_agent", *smaller, f"run.output_dir={tmp_path}")
    (line,) = (tmp_path / "own-agent/metrics.jsonl").read_text().splitlines()
    metrics = json.loads(line)
    assert metrics["workers/agents_failed"] == 0.0
    assert metrics["rollout/env_errors"] == 0.0
