"""A user's own environments, rewards, tools, estimators, losses, chat formats and trackers, by path and name."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agent_rl.agent.chat_format import make_chat_format
from agent_rl.config import Config, load_config
from agent_rl.envs.registry import ENVIRONMENTS
from agent_rl.errors import ConfigError
from agent_rl.registry import (
    ADVANTAGE_ESTIMATORS,
    CHAT_FORMATS,
    POLICY_LOSSES,
    REWARDS,
    TOOLS,
    TRACKERS,
)
from agent_rl.reports.episodes import failure_modes_of
from agent_rl.rewards import make_reward
from agent_rl.telemetry.trackers import open_trackers
from agent_rl.tools.toolset import Toolset

MINIMAL = (
    "data: {train_path: a, eval_path: b}\nmodel: {path: m}\ntrain: {steps: 3, learning_rate: 0.001}\n"
    "env: {name: math_qa}\n"
)
MODULE = "config_test_plugin"
PLUGIN = '''
from agent_rl import BaseTool, EnvFactory, ToolResult, group_advantages, policy_loss_function, reward, tool
from agent_rl import register_env, register_tool
from agent_rl.envs.failure_modes import FailureRule
from agent_rl.registry import CHAT_FORMATS, TRACKERS

@reward("plugin_reward")
def own_reward(prediction): return 0.25

def plain_reward(prediction): return 0.5

@tool
def plugin_tool(text: str) -> str:
    """Repeat a text."""
    return text

class CountingTool(BaseTool):
    name, description, parameters = "count", "Count.", {"type": "object", "properties": {}}
    def __call__(self): return ToolResult(text="1")

register_tool("plugin_counter", lambda config: lambda task: CountingTool())

@group_advantages("plugin_median")
def over_median(rewards_G, *, scale: float = 1.0, gamma: float): return scale * (rewards_G - rewards_G.median())

@policy_loss_function("plugin_loss")
def own_loss(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, *, slope: float, at: tuple[int, ...] = ()):
    return -slope * logprobs_BT

@CHAT_FORMATS.register("plugin_format")
class OwnFormat:
    def __init__(self, tokenizer): self.tokenizer = tokenizer

@TRACKERS.register("plugin_tracker")
class OwnTracker:
    name = "own"
    def __init__(self, *, run_name, folder, config, project, resume_from_step): self.run_name = run_name
    def close(self): pass

@register_env("plugin_env")
class OwnFactory(EnvFactory):
    failure_rules = (FailureRule("plugin failure", "of this environment", lambda episode: True),)
    def __init__(self): super().__init__(lambda: None)

def not_a_tool(a, b): return a
'''


@pytest.fixture(autouse=True)
def _plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / f"{MODULE}.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    for registry in (REWARDS, TOOLS, ADVANTAGE_ESTIMATORS, POLICY_LOSSES, CHAT_FORMATS, TRACKERS, ENVIRONMENTS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    yield
    sys.modules.pop(MODULE, None)


def load(folder: Path, *overrides: str) -> Config:
    path = folder / "c.yaml"
    path.write_text(MINIMAL)
    return load_config(path, overrides)


def test_plugged_in_names_are_known_once_the_configuration_is_open(tmp_path: Path) -> None:
    names = [
        "algorithm.advantage=plugin_median",
        "algorithm.loss=plugin_loss",
        "algorithm.options={slope: 2.0, scale: 3}",
        "algorithm.gamma=0.5",
        "agent.type=plugin_format",
        "log.trackers=[plugin_tracker]",
        "tools.use=[plugin_tool, plugin_counter]",
    ]
    with pytest.raises(ConfigError, match="plugin_format"):
        load(tmp_path, *names)
    config = load(tmp_path, f"plugins=[{MODULE}]", *names)
    assert config.algorithm.estimator_options() == {"scale": 3, "gamma": 0.5}
    assert config.algorithm.loss_options() == {"slope": 2.0}
    config.check_functions()
    assert make_chat_format("tokenizer", config.agent.type).tokenizer == "tokenizer"
    (tracker,) = open_trackers(config.log.trackers, run_name="r", folder=tmp_path / "run", config={}, project="p")
    assert tracker.run_name == "r"
    tools = Toolset(config.tools)
    tools.start()
    assert [tool.name for tool in tools.make({})] == ["plugin_tool", "count"]
    assert make_reward("plugin_reward")(prediction="", trajectory=(), task={})[0] == 0.25
    again = tmp_path / "again.yaml"
    again.write_text(config.to_yaml())
    assert load_config(again) == config


def test_options_reach_a_function_as_the_types_that_it_declares(tmp_path: Path) -> None:
    names = ["algorithm.advantage=plugin_median", "algorithm.loss=plugin_loss", "algorithm.gamma=0.5"]
    options = "algorithm.options={slope: 1e-4, scale: 3, at: [1, '2']}"
    config = load(tmp_path, f"plugins=[{MODULE}]", *names, options)
    assert config.algorithm.loss_options() == {"slope": 1e-4, "at": (1, 2)}
    assert [type(each) for each in config.algorithm.estimator_options().values()] == [float, float]


def test_a_report_names_failures_by_the_environment_of_a_runs_plugins() -> None:
    notes: list[str] = []
    failed = {"reward": 0.0, "reward_parts": {"success": 0.0}, "stop_reason": "finished"}
    of_the_run = failure_modes_of({"plugins": [MODULE], "env": {"name": "plugin_env"}}, notes)
    assert (of_the_run.label(failed), notes) == ("plugin failure", [])
    failure_modes_of({"plugins": ["no_such_module"], "env": {"name": "plugin_env"}}, notes)
    assert len(notes) == 1 and "no_such_module" in notes[0]


def test_import_paths_need_no_plugins(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        f"algorithm.advantage={MODULE}:over_median",
        f"algorithm.loss={MODULE}:own_loss",
        "algorithm.options={slope: 2.0}",
        f"agent.type={MODULE}:OwnFormat",
        f"log.trackers=[{tmp_path}/{MODULE}.py:OwnTracker]",
        f"tools.use=[{MODULE}:plugin_tool, {MODULE}:CountingTool]",
    )
    config.check_functions()
    rewards = torch.tensor([1.0, 0.0, 0.0])
    assert ADVANTAGE_ESTIMATORS.get(config.algorithm.advantage) is ADVANTAGE_ESTIMATORS.get("plugin_median")
    assert POLICY_LOSSES.get(config.algorithm.loss)(rewards, rewards, rewards, rewards, slope=2.0).tolist() == [
        -2,
        0,
        0,
    ]
    tools = Toolset(config.tools)
    tools.start()
    assert tools.names == ("plugin_tool", "count")
    first, second = tools.make({}), tools.make({})
    assert [tool is other for tool, other in zip(first, second, strict=True)] == [True, False]
    both = make_reward([f"{MODULE}:own_reward", {"name": f"{MODULE}:plain_reward", "weight": 2.0}])
    assert both.names == ("plugin_reward", "plain_reward")
    assert both(prediction="", trajectory=(), task={})[0] == 1.25


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["plugins=[no_such_module]"], "plugins: 'no_such_module': there is no module"),
        (["plugins=3"], "plugins"),
        (["algorithm.options={epss: 1}"], "algorithm.options.epss is an option neither of advantage 'grpo' nor of"),
        (["algorithm.options={epss: 1}"], "did you mean 'eps'"),
        (["algorithm.options={eps: small}"], "algorithm.options.eps = 'small': input should be a valid number"),
        (["algorithm.options={clip_low: 0.1}"], "write algorithm.clip_low"),
        ([f"algorithm.loss={MODULE}:own_loss", "algorithm.options={}"], "algorithm.options has no 'slope'"),
        ([f"algorithm.advantage={MODULE}:over_median", "rollout.group_size=1"], "rollout.group_size is 1"),
        (["algorithm.advantage=remax", "rollout.max_attempts=2"], "rollout.max_attempts has no effect with"),
    ],
)
def test_what_does_not_fit_is_one_sentence(tmp_path: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        load(tmp_path, *overrides)
    assert "\n" not in str(caught.value)
    source = "override of plugins: " if overrides == ["plugins=3"] else str(tmp_path / "c.yaml")
    assert source in str(caught.value)


def test_names_that_are_registered_later_are_checked_at_the_start(tmp_path: Path) -> None:
    config = load(tmp_path, "algorithm.advantage=later", "algorithm.gamma=0.5")
    with pytest.raises(ConfigError, match=r"'later' in algorithm\.advantage"):
        config.check_functions()


def test_an_error_in_a_plugin_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / f"{MODULE}.py").write_text("\n1 / 0")
    with pytest.raises(ConfigError, match=rf"plugins: .*ZeroDivisionError.*{MODULE}\.py:2"):
        load(tmp_path, f"plugins=[{MODULE}]")


def test_what_is_no_tool_is_refused(tmp_path: Path) -> None:
    tools = Toolset(load(tmp_path, f"tools.use=[{MODULE}:not_a_tool]").tools)
    with pytest.raises(ConfigError, match="decorate a function with @tool"):
        tools.start()
