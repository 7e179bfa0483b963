"""`env.name: external`: a person's agent trains and is evaluated; what fails, hangs or gives nonsense."""

import importlib.util
import json
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from endpoint_agents import to_message
from fakes import LETTER_TASKS, ScriptedPolicy, save_tiny_model, tiny_config

from agent_rl.endpoint.agents import parse_output
from agent_rl.endpoint.external import GIVE_UP_AFTER, ExternalFactory, make_external_factory
from agent_rl.endpoint.outcome import Reward, to_reward
from agent_rl.envs.opening import open_environment
from agent_rl.errors import ConfigError, DataError
from agent_rl.records import SamplingParams, StopReason, Trajectory
from agent_rl.rollout.agents import EpisodePlan
from agent_rl.rollout.turns import EpisodeCancelledError, EpisodeLimits

TASK = {"task_id": "t0", "question": "post"}
PROGRAM = """
import json, os, urllib.request
task = json.loads(os.environ["AGENT_RL_TASK"])
body = json.dumps({"messages": [{"role": "user", "content": task["question"]}]}).encode()
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
    text = json.load(answer)["choices"][0]["message"]["content"]
"""


def ask(base_url: str, key: str, text: str = "post") -> Any:
    body = {"messages": [{"role": "user", "content": text}]}
    answer = httpx.post(f"{base_url}/chat/completions", json=body, trust_env=False, timeout=30.0)
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


# Agents, named by import path in the tests below.


async def counts_letters(task: dict[str, Any], base_url: str, api_key: str) -> Reward:
    async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=30.0) as client:
        body = {"messages": [{"role": "user", "content": task["question"]}]}
        answer = await client.post("/chat/completions", json=body, headers={"Authorization": f"Bearer {api_key}"})
    choice = answer.json()["choices"][0]
    text = to_message(choice["message"]).content
    if choice["finish_reason"] == "length":
        return Reward(value=0.0, success=False)
    share = text.count("a") / max(1, len(text))
    return Reward(value=share, parts={"share": share}, success=share == 1.0)


def says_one(task: dict[str, Any], base_url: str, api_key: str) -> float:
    ask(base_url, api_key)
    return 1.0


def fails_late(task: dict[str, Any], base_url: str, api_key: str) -> float:
    ask(base_url, api_key)
    return task["no such key"]


def fails_early(task: dict[str, Any], base_url: str, api_key: str) -> float:
    raise RuntimeError("no network")


def gives_nothing(task: dict[str, Any], base_url: str, api_key: str) -> None:
    ask(base_url, api_key)


def posts(task: dict[str, Any], base_url: str, api_key: str) -> None:
    ask(base_url, api_key)
    httpx.post(f"{base_url}/reward", json={"reward": 0.25}, trust_env=False).raise_for_status()


def posts_and_fails(task: dict[str, Any], base_url: str, api_key: str) -> None:
    posts(task, base_url, api_key)
    raise RuntimeError("no network")


def posts_and_never_ends(task: dict[str, Any], base_url: str, api_key: str) -> None:
    posts(task, base_url, api_key)
    _waiting.wait(20)


def returns_its_text(task: dict[str, Any], base_url: str, api_key: str) -> str:
    return ask(base_url, api_key)


def scores_length(task: dict[str, Any], result: str) -> float:
    return len(result) / 10


def leaves(task: dict[str, Any], result: str) -> float:
    sys.exit("no judge")


_waiting = threading.Event()


def never_ends(task: dict[str, Any], base_url: str, api_key: str) -> float:
    ask(base_url, api_key)
    _waiting.wait(20)
    return 1.0


def ignores_the_end(task: dict[str, Any], base_url: str, api_key: str) -> float:
    for number in range(9):
        ask(base_url, api_key, str(number))
    return 1.0


def factory_for(name: str, **options: Any) -> ExternalFactory:
    return make_external_factory({"agent": f"{__name__}:{name}", **options}, 0)


def play(factory: ExternalFactory, policy: ScriptedPolicy | None = None, **limits: Any) -> Trajectory:
    limits = {"max_new_tokens": 30} | limits
    plan = EpisodePlan(task=TASK, group_id="1/0", seed=5, temperature=1.0, case_seed=None)
    with factory:
        return factory.play_episode(
            policy or ScriptedPolicy(lambda _turn, _sampling: "hello"),
            plan,
            limits=EpisodeLimits(**limits),
            cancelled=None,
        )


def test_the_reward_is_what_the_agent_returns() -> None:
    episode = play(factory_for("says_one"))
    assert (episode.reward, episode.reward_parts, episode.stop_reason) == (1.0, {"success": 1.0}, StopReason.FINISHED)
    assert episode.turns[0].message.content == "hello"
    assert episode.initial_messages[0].content == "post"


def test_the_reward_may_be_posted_or_computed_from_what_the_agent_returns() -> None:
    assert play(factory_for("posts")).reward == 0.25
    assert play(factory_for("returns_its_text", reward=f"{__name__}:scores_length")).reward == 0.5


def test_a_reward_that_leaves_is_said_and_the_run_goes_on() -> None:
    episode = play(factory_for("returns_its_text", reward=f"{__name__}:leaves", failed_episodes="drop"))
    assert (episode.reward, episode.stop_reason) == (None, StopReason.ENV_ERROR)
    assert "SystemExit: no judge" in episode.error


@pytest.mark.parametrize(("choice", "reward"), [("zero", 0.0), ("drop", None)])
def test_an_agent_that_fails_after_a_reply_earns_nothing_or_is_dropped(choice: str, reward: float | None) -> None:
    factory = factory_for("fails_late", failed_episodes=choice)
    episode = play(factory)
    assert episode.reward == reward
    assert episode.error is not None
    assert "KeyError" in episode.error and f"{Path(__file__).name}:" in episode.error
    assert factory.worker_counters() == {"agents_failed": 1.0, "agents_late": 0.0}


@pytest.mark.parametrize(("choice", "reward"), [("zero", 0.0), ("drop", None)])
def test_what_a_failed_agent_posted_before_does_not_count(choice: str, reward: float | None) -> None:
    assert play(factory_for("posts_and_fails", failed_episodes=choice)).reward == reward


@pytest.mark.parametrize("name", ["fails_early", "gives_nothing"])
def test_without_a_reply_or_a_reward_the_episode_is_dropped(name: str) -> None:
    episode = play(factory_for(name))
    assert (episode.reward, episode.stop_reason) == (None, StopReason.ENV_ERROR)


@pytest.mark.parametrize("name", ["returns_its_text"])
def test_what_is_no_reward_is_said(name: str) -> None:
    error = play(factory_for(name)).error
    assert error is not None and "'hello'" in error


def test_an_agent_at_its_deadline_is_left_and_cut_off() -> None:
    factory = factory_for("never_ends")
    episode = play(factory, timeout_s=3.0)  # enough for its first turn on a busy machine
    _waiting.set()
    assert (episode.reward, episode.stop_reason, len(episode.turns)) == (0.0, StopReason.TIMEOUT, 1)
    assert factory.worker_counters()["agents_late"] == 1.0


def test_what_a_late_agent_posted_before_does_not_count() -> None:
    _waiting.clear()
    episode = play(factory_for("posts_and_never_ends"), timeout_s=8.0)
    _waiting.set()
    assert (episode.reward, episode.stop_reason) == (0.0, StopReason.TIMEOUT)


def test_an_agent_that_goes_on_after_the_end_is_cut_off_by_its_budget() -> None:
    factory = factory_for("ignores_the_end")
    episode = play(factory, max_turns=2)
    assert (episode.reward, episode.stop_reason, len(episode.turns)) == (0.0, StopReason.MAX_TURNS, 2)
    assert factory.worker_counters()["agents_failed"] == 0.0


def test_a_failing_policy_ends_the_run() -> None:
    def fail(_turn: int, _sampling: SamplingParams) -> str:
        raise RuntimeError("engine down")

    with pytest.raises(RuntimeError, match="engine down"):
        play(factory_for("says_one"), ScriptedPolicy(fail))


def test_a_cancelled_rollout_ends_its_episodes() -> None:
    cancelled = threading.Event()
    threading.Timer(0.3, cancelled.set).start()
    plan = EpisodePlan(task=TASK, group_id="1/0", seed=5, temperature=1.0, case_seed=None)
    _waiting.clear()
    with factory_for("never_ends") as factory, pytest.raises(EpisodeCancelledError):
        factory.play_episode(
            ScriptedPolicy(["hello"]), plan, limits=EpisodeLimits(max_new_tokens=30), cancelled=cancelled
        )
    _waiting.set()


def test_an_agent_that_never_works_ends_the_run_with_the_place() -> None:
    plan = EpisodePlan(task=TASK, group_id="1/0", seed=5, temperature=1.0, case_seed=None)
    policy = ScriptedPolicy(lambda _turn, _sampling: "hello")
    limits = EpisodeLimits(max_new_tokens=30)
    with factory_for("fails_late") as factory:
        for _ in range(GIVE_UP_AFTER - 1):
            assert factory.play_episode(policy, plan, limits=limits, cancelled=None).reward == 0.0
        with pytest.raises(ConfigError, match=Path(__file__).name):
            factory.play_episode(policy, plan, limits=limits, cancelled=None)


# Commands


def command(tmp_path: Path, more: str) -> ExternalFactory:
    path = tmp_path / "my_agent.py"
    path.write_text(PROGRAM + more, encoding="utf-8")
    return make_external_factory({"command": [sys.executable, str(path)]}, 0)


def test_a_command_prints_its_reward_last(tmp_path: Path) -> None:
    assert play(command(tmp_path, 'print("said", text)\nprint(0.75)')).reward == 0.75
    episode = play(command(tmp_path, 'print(json.dumps({"reward": 0, "success": True, "len": len(text)}))'))
    assert (episode.reward, episode.reward_parts) == (0.0, {"len": 5.0, "success": 1.0})


def test_a_command_that_posts_its_reward_may_print_what_the_policy_says(tmp_path: Path) -> None:
    more = """
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/reward", b'{"reward": 0.25}')
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()
print(text)
"""
    for text in ("1000000", '{"reward": 1000000}', "true"):
        assert play(command(tmp_path, more), ScriptedPolicy([text])).reward == 0.25


@pytest.mark.parametrize("before", ["", "playing\n", "50 %\r", "playing\r\n"])
def test_only_ends_of_lines_end_the_last_line_of_a_command(before: str) -> None:
    said = {"reward": 1, "said": "a\u2028b\x85c\x7f"}
    assert parse_output(f"{before}{json.dumps(said, ensure_ascii=False)}\r\n") == said
    assert (parse_output(""), parse_output(f"{before}done\n")) == (None, None)


def test_a_command_that_fails_says_its_last_line(tmp_path: Path) -> None:
    episode = play(command(tmp_path, 'raise SystemExit("my own trouble")'))
    assert episode.reward == 0.0
    assert episode.error is not None and "exit code 1: my own trouble" in episode.error


def test_a_command_at_its_deadline_is_killed_with_its_children(tmp_path: Path) -> None:
    left = tmp_path / "left"
    more = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3); open({str(left)!r}, 'w')"])
time.sleep(60)
"""
    episode = play(command(tmp_path, more), timeout_s=1.5)
    assert episode.stop_reason is StopReason.TIMEOUT
    threading.Event().wait(3.0)
    assert not left.exists()


def test_a_command_that_is_not_there_drops_the_episode() -> None:
    episode = play(make_external_factory({"command": ["no-such-program"]}, 0))
    assert (episode.reward, episode.stop_reason) == (None, StopReason.ENV_ERROR)


def test_a_row_too_long_for_an_environment_variable_is_refused_by_its_line() -> None:
    factory = make_external_factory({"command": ["true"]}, 0)
    with pytest.raises(DataError, match=r"tasks\.jsonl:3"):
        factory.check_task({"task_id": "t", "text": "x" * 100_000}, "tasks.jsonl:3")


# Rewards


@pytest.mark.parametrize(
    ("given", "value", "parts"),
    [
        (1, 1.0, {"success": 1.0}),
        (True, 1.0, {"success": 1.0}),
        (np.float32(0.5), 0.5, {"success": 0.0}),
        (np.array(0.5), 0.5, {"success": 0.0}),
        ({"reward": 2, "success": False}, 2.0, {"success": 0.0}),
        ({"reward": 0.5, "parts": {"a": 1}, "b": 2}, 0.5, {"a": 1.0, "b": 2.0, "success": 0.0}),
        (Reward(value=0.5, success=True), 0.5, {"success": 1.0}),
    ],
)
def test_rewards_of_many_kinds(given: Any, value: float, parts: dict[str, float]) -> None:
    reward = to_reward(given)
    assert (reward.value, reward.reward_parts()) == (value, parts)


@pytest.mark.parametrize(
    "given",
    [
        "1",
        None,
        float("nan"),
        float("inf"),
        [1],
        {},
        {"reward": "1"},
        {"reward": 1, "parts": [1]},
        {"reward": 1, "note": "good"},
        {"reward": 1, "success": "yes"},
        np.array([0.5, 0.5]),
        Reward(value=float("nan")),
        object(),
    ],
)
def test_what_is_no_reward_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        to_reward(given)


# In a run


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(ConfigError, match=rf"{package}.*requirements-endpoint\.txt"):
        factory_for("says_one")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"agent": "a:b", "command": ["x"]},
        {"agent": f"{__name__}:no_such_agent"},
        {"agent": f"{__name__}:TASK"},
        {"agent": f"{__name__}:says_one", "reward": "no_such_module:score"},
        {"agent": f"{__name__}:says_one", "failed_episodes": "keep"},
        {"agent": f"{__name__}:says_one", "port": 5},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_external_factory(options, 0)


def test_environments_beside_the_policy_do_not_run_on_other_machines(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path,
        env={"name": "external", "options": {"agent": f"{__name__}:says_one"}},
        rollout={"workers": "ray"},
    )
    with pytest.raises(ConfigError, match=r"rollout\.workers"):
        open_environment(config)


def write_tasks(path: Path) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in LETTER_TASKS), encoding="utf-8")
    return str(path)


def external_config(tmp_path: Path, **sections: Any) -> Any:
    save_tiny_model(tmp_path / "model")
    tasks = write_tasks(tmp_path / "tasks.jsonl")
    return tiny_config(
        tmp_path,
        data={"train_path": tasks, "eval_path": tasks},
        env={"name": "external", "options": {"agent": f"{__name__}:counts_letters"}},
        eval={"temperatures": [0.0]},
        **sections,
    )


def test_an_agent_trains_and_is_evaluated_as_an_environment_is(tmp_path: Path) -> None:
    from fakes import LetterEnv

    from agent_rl.core.trainer_grpo import GRPOTrainer

    results = {}
    for name, env in (("agent", None), ("environment", LetterEnv)):
        config = external_config(tmp_path, train={"steps": 3}, run={"name": name})
        more = {} if env is None else {"env_factory": env, "train_tasks": LETTER_TASKS, "eval_tasks": LETTER_TASKS}
        with GRPOTrainer.from_config(config, **more) as trainer:
            trainer.train()
        path = tmp_path / "runs" / name / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        kept = ("reward/", "loss/", "policy/", "success/", "rollout/t", "eval/", "optim/", "mismatch/")
        results[name] = [{key: value for key, value in row.items() if key.startswith(kept)} for row in rows]
    assert len(results["agent"]) >= 3
    for agent, environment in zip(results["agent"], results["environment"], strict=True):
        assert agent == pytest.approx(environment, abs=2e-6)
