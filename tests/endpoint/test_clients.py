"""Agents written with other people's frameworks get the ids and log-probs of the project's own rollout."""

import json
import subprocess
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from endpoint_agents import to_rows, to_tools
from env_server import EnvServer
from played_twice import ROOT, assert_equal, open_all, own_episodes

from agent_rl.config import load_config
from agent_rl.data.tasks import Task
from agent_rl.endpoint.endpoint import Endpoint
from agent_rl.endpoint.session import EpisodeSession, SessionSpec
from agent_rl.envs.base import EnvFactory
from agent_rl.policies.minimind_policy import MiniMindPolicy
from agent_rl.records import Trajectory
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.seeds import derive_seed

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

PYTHON = ROOT / ".venv-clients/bin/python"
SCRIPTS = Path(__file__).resolve().parents[1] / "support/endpoint/clients"
WORLDS = {
    "math": ("configs/math_grpo.yaml", "math_minimind", 200),
    "nat": ("configs/nat_grpo.yaml", "nat_minimind", 200),
}


@cache
def opened(world: str) -> tuple[MiniMindPolicy, EnvFactory, list[Task], EpisodeLimits]:
    path, model, num_tasks = WORLDS[world]
    config = load_config(ROOT / path, [])
    return *open_all(config, model, num_tasks), EpisodeLimits.from_config(config)


@cache
def own(world: str, temperature: float) -> list[Trajectory]:
    policy, factory, tasks, limits = opened(world)
    return own_episodes(policy, factory, tasks, limits, temperature)


def play(world: str, script: str, *, temperature: float, stream: bool) -> tuple[list[EpisodeSession], dict[str, int]]:
    """The sessions of all tasks, and how the agents ended."""
    policy, factory, tasks, limits = opened(world)
    name, *words = script.split()
    with ExitStack() as stack:
        endpoint = stack.enter_context(Endpoint(policy))
        envs = [factory() for _ in tasks]
        for env in envs:
            stack.callback(env.close)
        conversations = [env.reset(task) for env, task in zip(envs, tasks, strict=True)]
        server = EnvServer(envs)
        stack.callback(server.close)
        keys, sessions, episodes = [], [], []
        for number, (task, messages) in enumerate(zip(tasks, conversations, strict=True)):
            seed = derive_seed(task["task_id"])
            spec = SessionSpec(seed=seed, group=1, temperature=temperature, limits=limits)
            key, session = endpoint.sessions.open(spec)
            keys.append(key)
            sessions.append(session)
            episodes.append(
                {
                    "base_url": endpoint.base_url(key),
                    "key": key,
                    "env_url": f"{server.address}/{number}",
                    "messages": to_rows(messages),
                    "tools": to_tools(envs[number].tools),
                    "temperature": 0.7,
                    "stream": stream,
                }
            )
        done = subprocess.run(
            [str(PYTHON), str(SCRIPTS / f"{name}.py"), *words],
            input=json.dumps(episodes),
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        for key in keys:
            endpoint.sessions.conclude(key)
    return sessions, json.loads(done.stdout.splitlines()[-1])


def cases(*scripts: str) -> pytest.MarkDecorator:
    """Plain at temperature 0 and streamed at 1; the other two are `slow`."""
    rows = []
    for script in scripts:
        for stream, temperature in ((False, 0.0), (True, 1.0), (False, 1.0), (True, 0.0)):
            is_crossed = stream != bool(temperature)
            rows.append(pytest.param(script, stream, temperature, marks=[pytest.mark.slow] if is_crossed else []))
    return pytest.mark.parametrize(("script", "stream", "temperature"), rows)


@cases("play_langgraph", "play_openai", "play_anthropic")
def test_math_agents_get_the_turns_of_the_rollout(script: str, stream: bool, temperature: float) -> None:
    sessions, ended = play("math", script, temperature=temperature, stream=stream)
    assert assert_equal(own("math", temperature), sessions) > 300
    assert ended["played"] > 150, ended


@cases("play_agents_sdk responses", "play_agents_sdk")
def test_the_agents_sdk_gets_the_turns_of_the_rollout(script: str, stream: bool, temperature: float) -> None:
    """Up to a broken call, at which the SDK takes the text for the answer."""
    sessions, ended = play("math", script, temperature=temperature, stream=stream)
    assert assert_equal(own("math", temperature), sessions, up_to_broken_calls=True) > 250
    assert ended["played"] > 150, ended


@pytest.mark.slow
@cases("play_langgraph", "play_openai", "play_agents_sdk")
def test_nat_agents_get_the_turns_of_the_rollout(script: str, stream: bool, temperature: float) -> None:
    sessions, ended = play("nat", script, temperature=temperature, stream=stream)
    is_sdk = script == "play_agents_sdk"
    assert assert_equal(own("nat", temperature), sessions, up_to_broken_calls=is_sdk) >= 200
    assert ended["played"] > 100, ended
