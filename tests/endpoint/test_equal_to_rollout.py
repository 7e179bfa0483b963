"""An agent outside is an agent inside: the same ids and log-probs, turn by turn, as in the project's own rollout."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from endpoint_agents import ask_by_http, play
from played_twice import NUM_WORKERS, ROOT, assert_equal, open_all, own_episodes

from agent_rl.config import load_config
from agent_rl.data.tasks import Task
from agent_rl.endpoint.endpoint import Endpoint
from agent_rl.endpoint.session import EpisodeSession, SessionSpec
from agent_rl.envs.base import EnvFactory
from agent_rl.policies.policy import BasePolicy
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.seeds import derive_seed


def agent_episodes(
    policy: BasePolicy,
    factory: EnvFactory,
    tasks: Sequence[Task],
    limits: EpisodeLimits,
    temperature: float,
    *,
    stream: bool,
) -> list[EpisodeSession]:
    with Endpoint(policy) as endpoint:

        def run(task: Task) -> EpisodeSession:
            seed = derive_seed(task["task_id"])
            spec = SessionSpec(seed=seed, group=1, temperature=temperature, limits=limits)
            key, session = endpoint.sessions.open(spec)
            try:
                play(factory(), task, ask_by_http(endpoint.base_url(key), key, stream=stream, temperature=0.3))
            except Exception:  # a budget: the next request is refused
                assert session.stop_reason is not None
            finally:
                endpoint.sessions.conclude(key)
            return session

        with ThreadPoolExecutor(NUM_WORKERS) as pool:
            return list(pool.map(run, tasks))


def num_equal_turns(config_file: str, model: str, temperature: float, *, stream: bool) -> int:
    """Of 200 tasks; fails at the first turn that differs."""
    config = load_config(ROOT / config_file, [])
    policy, factory, tasks = open_all(config, model, 200)
    limits = EpisodeLimits.from_config(config)
    with factory, closing(policy):
        own = own_episodes(policy, factory, tasks, limits, temperature)
        others = agent_episodes(policy, factory, tasks, limits, temperature, stream=stream)
    return assert_equal(own, others)


@pytest.mark.parametrize(("temperature", "stream"), [(0.0, False), (1.0, True)])
def test_math_episodes_are_those_of_the_rollout(temperature: float, stream: bool) -> None:
    assert num_equal_turns("configs/math_grpo.yaml", "math_minimind", temperature, stream=stream) > 300


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("temperature", "stream"),
    [pytest.param(0.0, True, marks=pytest.mark.long), pytest.param(1.0, False, marks=pytest.mark.slow)],
)
def test_nat_episodes_are_those_of_the_rollout(temperature: float, stream: bool) -> None:
    assert num_equal_turns("configs/nat_grpo.yaml", "nat_minimind", temperature, stream=stream) >= 200
