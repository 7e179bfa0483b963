"""Rollouts, counts and evaluations of a mixture: groups of one environment each, apart and together."""

import json
import math
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed.async_run import VersionedPolicy, async_config, update
from fakes import EchoEnv, LetterEnv, ScriptedPolicy

from agent_rl.algorithms.advantages import has_variance
from agent_rl.core.evaluation import evaluate
from agent_rl.core.run.eval_result import EvalResult, eval_metrics, one_line
from agent_rl.distributed.processes import Processes
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult
from agent_rl.envs.mixture import MixtureFactory, MixtureMember
from agent_rl.errors import ConfigError
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import StopReason, Trajectory, TrajectoryGroup
from agent_rl.rollout.agents import AgentFactory, EpisodePlan
from agent_rl.rollout.async_source import AsyncSource
from agent_rl.rollout.outcomes import success_rates
from agent_rl.rollout.rollout import RolloutRequest, RolloutWorker
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.rollout.window import check_room, check_windows
from agent_rl.telemetry.metrics import group_metrics

LIMITS = EpisodeLimits(max_new_tokens=100, max_turns=3)
TASKS = [
    {"task_id": "e", "env": "echo", "question": "go"},
    {"task_id": "l", "env": "letters", "question": "say a"},
]


def mixture(**more: EnvFactory) -> MixtureFactory:
    factories = {"echo": EnvFactory(EchoEnv), "letters": EnvFactory(LetterEnv), **more}
    return MixtureFactory({name: MixtureMember(factory=each) for name, each in factories.items()})


def worker(factory: EnvFactory) -> RolloutWorker:
    return RolloutWorker(ScriptedPolicy(["done", "done"]), factory, limits=LIMITS, seed=0)


def episode(env: str, reward: float | None, success: float | None = None, **more: Any) -> Trajectory:
    parts = {} if success is None else {"success": success}
    more.setdefault("stop_reason", StopReason.FINISHED if reward is not None else StopReason.ENV_ERROR)
    return Trajectory(
        task_id=env,
        group_id=env,
        turns=(),
        reward=reward,
        reward_parts=parts,
        env=env,
        **more,
    )


def group(*episodes: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(task_id=episodes[0].task_id, trajectories=episodes)


def test_every_episode_says_whose_it_is_and_groups_are_of_one_environment() -> None:
    request = RolloutRequest(tasks=TASKS, group_size=2, step=1, temperature=1.0)
    groups = worker(mixture()).collect(request)
    assert [[(e.env, e.reward) for e in each.trajectories] for each in groups] == [
        [("echo", 1.0)] * 2,
        [("letters", 0.0)] * 2,
    ]
    alone = worker(EnvFactory(EchoEnv)).collect(RolloutRequest(tasks=TASKS[:1], group_size=1, step=1, temperature=1.0))
    assert alone[0].trajectories[0].env == ""  # a column of one's own means nothing elsewhere


def test_metrics_are_counted_for_all_and_for_each() -> None:
    groups = [
        group(episode("code", 1.0, 1.0), episode("code", 0.0, 0.0)),
        group(episode("code", 0.5, 0.0), episode("code", None)),
        group(episode("chat", 0.2), episode("chat", 0.2)),
    ]
    metrics = group_metrics(groups, has_variance=has_variance)
    assert metrics["reward/mean"] == pytest.approx((1.0 + 0.0 + 0.5 + 0.2 + 0.2) / 5)
    assert metrics["success/mean"] == pytest.approx(1 / 3)  # of the episodes of code, as chat has no success
    assert (metrics["env/code/reward/mean"], metrics["env/chat/reward/mean"]) == (0.5, pytest.approx(0.2))
    assert metrics["env/code/success/mean"] == pytest.approx(1 / 3)
    assert "env/chat/success/mean" not in metrics
    assert (metrics["env/code/rollout/num_episodes"], metrics["env/chat/rollout/num_episodes"]) == (4, 2)
    assert (metrics["env/code/rollout/env_errors"], metrics["env/chat/rollout/env_errors"]) == (1, 0)
    assert (metrics["env/code/group/frac_no_signal"], metrics["env/chat/group/frac_no_signal"]) == (0.5, 1.0)
    assert (metrics["group/frac_all_bad"], metrics["group/frac_mixed"]) == (0.5, 0.5)
    apart = group_metrics(groups[2:], has_variance=has_variance)
    assert apart["env/chat/reward/mean"] == apart["reward/mean"]


def test_a_small_difference_is_small_beside_its_own_environments_rewards() -> None:
    wide = [group(episode("a", 0.0, 0.0)), group(episode("a", 100.0, 1.0))]
    narrow = [group(episode("b", 0.0, 0.0), episode("b", 0.5, 0.0)), group(episode("b", 1.0, 1.0))]
    assert group_metrics([*wide, *narrow], has_variance=has_variance)["group/frac_minor_signal"] == 0.0


def test_success_rates_are_unknown_where_an_environment_reports_none() -> None:
    rates = success_rates(
        [
            group(episode("a", 1.0, 1.0), episode("a", 0.0, 0.0)),
            group(episode("b", 1.0), episode("b", 0.0)),
            group(episode("a", None)),
            group(episode("a", 0.0, stop_reason=StopReason.MAX_TURNS)),
        ]
    )
    assert rates[0] == 0.5 and rates[1] is not None and math.isnan(rates[1])
    assert rates[2:] == [None, 0.0]


def test_an_evaluation_counts_each_environment_and_comes_back_from_json() -> None:
    result, _ = evaluate(worker(mixture()), [*TASKS, {**TASKS[0], "task_id": "e2"}], temperature=0.0, step=3)
    assert (result.num_successes, result.num_scored) == (2, 3)
    assert {name: (each.num_successes, each.num_scored) for name, each in result.by_env.items()} == {
        "echo": (2, 2),
        "letters": (0, 1),
    }
    metrics = eval_metrics(result)
    assert (metrics["env/echo/eval/t0/success"], metrics["env/letters/eval/t0/success"]) == (1.0, 0.0)
    assert "echo 2/2, letters 0/1" in one_line(result)
    assert EvalResult.from_dict(json.loads(json.dumps(asdict(result)))) == result


def test_an_agent_that_plays_its_episodes_itself_may_be_one_of_the_environments() -> None:
    class Player(AgentFactory):
        def play_episode(
            self, policy: BasePolicy, plan: EpisodePlan, *, limits: EpisodeLimits, cancelled: threading.Event | None
        ) -> Trajectory:
            assert plan.task == {"task_id": "p"}
            return Trajectory(
                task_id="p", group_id=plan.group_id, turns=(), stop_reason=StopReason.FINISHED, reward=0.75
            )

    tasks = [{"task_id": "p", "env": "player"}, TASKS[0]]
    groups = worker(mixture(player=Player())).collect(
        RolloutRequest(tasks=tasks, group_size=1, step=1, temperature=1.0)
    )
    assert [(g.trajectories[0].env, g.trajectories[0].reward) for g in groups] == [("player", 0.75), ("echo", 1.0)]


def test_prompts_that_no_window_holds_are_refused_before_training_by_name() -> None:
    class LongEnv(LetterEnv):
        def reset(self, task: dict[str, Any]) -> list:
            return super().reset({"question": 50 * "a"})

    class BrokenEnv(AgentEnv):
        def reset(self, task: dict[str, Any]) -> list:
            raise ValueError("the episodes tell of this")

        def step(self, message: Any) -> StepResult:
            raise NotImplementedError

    tasks = [*TASKS, {"task_id": "b", "env": "broken"}]
    check_windows(mixture(broken=EnvFactory(BrokenEnv)), tasks, ScriptedPolicy([], max_context=20))
    long = mixture(long=EnvFactory(LongEnv))
    with pytest.raises(ConfigError, match="environment 'long': its first prompts have 53 tokens"):
        check_windows(long, [*TASKS, {"task_id": "x", "env": "long"}], ScriptedPolicy([], max_context=53))
    check_windows(long, [*TASKS, {"task_id": "x", "env": "long"}], ScriptedPolicy([], max_context=54))


def test_a_first_step_without_room_for_any_reply_is_refused() -> None:
    policy = ScriptedPolicy(["done", "done"], max_context=1)
    task = {"task_id": "l", "question": "say a"}
    request = RolloutRequest(tasks=[task, task], group_size=1, step=1, temperature=1.0)
    groups = RolloutWorker(policy, EnvFactory(LetterEnv), limits=LIMITS, seed=0).collect(request)
    length = len(policy.chat_format.render_prompt(groups[0].trajectories[0].initial_messages))
    for max_context in (1, length):
        policy.max_context = max_context
        with pytest.raises(ConfigError, match=rf"has {length} tokens .* policy.max_context is {max_context}"):
            check_room(groups, policy, "the first step")
    # One that had room, or failed for another reason, is enough.
    for reason, turns in ((StopReason.FINISHED, ()), (StopReason.ENV_ERROR, ())):
        fits = replace(groups[1].trajectories[0], stop_reason=reason, turns=turns)
        check_room([groups[0], TrajectoryGroup(task_id="l", trajectories=(fits,))], policy, "the first step")


def test_rollouts_in_the_background_keep_the_shares_and_go_on_where_they_were(tmp_path: Path) -> None:
    factory = MixtureFactory(
        {name: MixtureMember(factory=EnvFactory(LetterEnv), weight=weight) for name, weight in (("a", 3.0), ("b", 1.0))}
    )
    tasks = [{"task_id": f"{env}{i}", "env": env, "question": f"{env}{i}"} for env in "ab" for i in range(20)]
    config = async_config(tmp_path, groups_per_step=4)

    def run(state: dict[str, Any] | None, steps: range) -> tuple[dict[int, str], list[dict[str, Any]]]:
        """The tasks of the slots that these steps used or left running, and the state after each step."""
        policy = VersionedPolicy()
        source = AsyncSource(
            config,
            tasks,
            policy=policy,
            env_factory=factory,
            processes=Processes(device=torch.device("cpu"), timeout_s=60),
        )
        found, states = {}, []
        try:
            if state is not None:
                source.load_state_dict(state)
                policy.refresh_weights(steps[0] - 1)
            for step in steps:
                for each in source.collect(step=step).groups:
                    found[int(each.trajectories[0].group_id.removeprefix("async/"))] = each.task_id
                update(source, policy, step)
                states.append(source.state_dict())
        finally:
            source.close()
        left = {slot: tasks[index]["task_id"] for slot, index in states[-1]["tasks"].items()}
        return found | left, states

    straight, states = run(None, range(1, 3))
    resumed, _ = run(states[0], range(2, 3))
    assert "".join(straight[slot][0] for slot in range(12)) == 3 * "aaba"
    assert resumed == {slot: task for slot, task in straight.items() if slot in resumed}
    assert set(range(8, 12)) < set(resumed)
