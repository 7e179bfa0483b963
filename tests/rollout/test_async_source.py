"""Groups that run in the background: they continue during updates, are never too old, survive a restart, and end."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed.async_run import (
    NUM_STEPS,
    ORDER,
    TASKS,
    VersionedPolicy,
    async_config,
    make_async,
    question_of,
    run_failing,
    run_steps,
    text_of,
    update,
)
from distributed.ranks import start_ranks
from fakes import LetterEnv
from waiting import wait_for

from agent_rl.agent.messages import Message
from agent_rl.core.evaluation import evaluate
from agent_rl.data.tasks import Task
from agent_rl.distributed.backend import Backend
from agent_rl.envs.base import EnvFactory
from agent_rl.errors import CheckpointError, EngineError, EpisodesFailedError
from agent_rl.records import TrajectoryGroup
from agent_rl.rollout.async_source import AsyncSource
from agent_rl.rollout.rollout import SyncSource, make_rollout
from agent_rl.seeds import derive_seed


def slots(groups: list[TrajectoryGroup]) -> list[int]:
    return [int(group.trajectories[0].group_id.removeprefix("async/")) for group in groups]


def seeds_of(slot: int) -> list[int]:
    """Of the first turn of each episode, as long as the run's seed is 0."""
    task_id = TASKS[ORDER[slot]]["task_id"]
    return [derive_seed(derive_seed(0, "async", slot, task_id, sample), 0) for sample in range(3)]


@pytest.fixture
def sources() -> Iterator[list[AsyncSource]]:
    """Sources in here are closed, and nothing may be left of them."""
    made: list[AsyncSource] = []
    of_others = set(threading.enumerate())  # of tests before, in this process
    yield made
    for source in made:
        source.close()
    wait_for(lambda: not any(thread.name.startswith("episode") for thread in {*threading.enumerate()} - of_others))


@pytest.fixture
def make(sources: list[AsyncSource], tmp_path: Path) -> Callable[..., AsyncSource]:
    def make_one(policy: VersionedPolicy, tasks: list[Task] = TASKS, **rollout: Any) -> AsyncSource:
        sources.append(make_async(async_config(tmp_path, **rollout), policy, tasks=tasks))
        return sources[-1]

    return make_one


def test_episodes_run_while_the_trainer_updates(make: Callable[..., AsyncSource]) -> None:
    policy = VersionedPolicy()
    policy.held = {question_of(2), question_of(3)}
    source = make(policy)
    batch = source.collect(step=1)
    assert slots(batch.groups) == slots(batch.train_groups) == [0, 1]
    assert [group.task_id for group in batch.groups] == [TASKS[index]["task_id"] for index in ORDER[:2]]
    assert (batch.metrics["async/running_groups"], batch.metrics["async/buffered_groups"]) == (2.0, 0.0)
    assert batch.metrics["async/staleness_max"] == batch.metrics["async/old_token_share"] == 0.0
    policy.held = set()  # the trainer updates from here on, and does not call the source
    wait_for(lambda: policy.num_sampled == 4 * 3)
    update(source, policy, 1)
    policy.held = {question_of(4), question_of(5)}
    batch = source.collect(step=2)
    assert slots(batch.groups) == [2, 3]
    assert batch.metrics["async/wait_s"] == 0.0
    assert batch.metrics["async/staleness_mean"] == batch.metrics["async/staleness_max"] == 1.0
    assert batch.metrics["async/old_token_share"] == 1.0
    assert (batch.metrics["async/running_groups"], batch.metrics["async/buffered_groups"]) == (2.0, 0.0)


def test_tokens_record_the_weights_that_sampled_them(make: Callable[..., AsyncSource]) -> None:
    policy = VersionedPolicy()
    policy.held = {question_of(2)}
    source = make(policy)
    source.collect(step=1)
    wait_for(lambda: (policy.num_sampled, policy.num_running) == (3 * 3, 3))
    update(source, policy, 1)  # in the middle of the completions of group 2; those of group 3 are over
    policy.held = {question_of(4), question_of(5)}
    batch = source.collect(step=2)
    assert slots(batch.groups) == [2, 3]
    two, three = (group.trajectories[0].turns[0].completion for group in batch.groups)
    assert (two.weight_version, two.token_versions) == (0, (0, 1))
    assert (three.weight_version, three.token_versions) == (0, ())
    assert batch.metrics["async/old_token_share"] == 0.75


def test_a_group_that_takes_too_long_is_cancelled_and_counted(make: Callable[..., AsyncSource]) -> None:
    policy = VersionedPolicy()
    policy.held = {question_of(0), question_of(4)}
    source = make(policy, groups_per_step=1)
    late = []
    for step in (1, 2, 3, 4):
        if step == 4:
            policy.held = {question_of(5)}
        batch = source.collect(step=step)
        assert slots(batch.groups) == [step]
        late.append(batch.metrics["async/late_groups"])
        assert policy.num_cancelled == (3 if step > 2 else 0)
        update(source, policy, step)
        if step == 2:  # at version 2 a group of version 0 is too old for one update of staleness
            wait_for(lambda: policy.num_cancelled == 3)
    assert late == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_nothing_learned_from_is_older_than_the_bound(make: Callable[..., AsyncSource], max_attempts: int) -> None:
    # An episode of twenty takes as long as many updates.
    policy = VersionedPolicy(lambda seed: 0.5 if seed % 20 == 0 else seed % 7 / 1000)
    source = make(policy, max_staleness=2, groups_per_step=3, group_size=2, max_attempts=max_attempts)
    rng, staleness, seen, num_late = random.Random(0), [], [], 0.0
    for step in range(1, 41):
        batch = source.collect(step=step)
        version = step - 1
        completions = [e.turns[0].completion for g in batch.groups for e in g.trajectories]
        staleness += [version - c.weight_version for c in completions]
        assert all(version - v <= 2 for c in completions for v in c.token_versions)
        seen += slots(batch.groups)
        num_late += batch.metrics["async/late_groups"]
        assert batch.metrics["async/staleness_max"] <= 2
        assert len(batch.train_groups) <= 3 <= len(batch.groups) <= 3 * max_attempts
        time.sleep(rng.random() * 0.02)
        update(source, policy, step)
    assert min(staleness) == 0
    assert max(staleness) >= 1
    assert num_late > 0
    assert len(seen) == len(set(seen))


def test_what_is_sampled_depends_on_ticket_task_and_sample_alone(make: Callable[..., AsyncSource]) -> None:
    policy = VersionedPolicy()
    policy.held = {question_of(2), question_of(3)}
    group = make(policy).collect(step=1).groups[1]
    assert text_of(group) == "".join("ab"[seed % 2] for seed in seeds_of(1))
    assert set(seeds_of(1)) <= set(policy.seeds)


def test_groups_without_signal_are_counted_and_replaced(make: Callable[..., AsyncSource]) -> None:
    policy = VersionedPolicy()
    policy.always = {question_of(0): "a"}
    policy.held = {question_of(slot) for slot in range(1, 20)}
    source = make(policy, max_attempts=3, group_size=8, async_workers=64)

    def release() -> None:
        wait_for(lambda: policy.num_running == 4 * 8)  # 1, 2, 3, and 4 in the place of 0
        policy.held = {question_of(slot) for slot in range(3, 20)}

    threading.Thread(target=release).start()
    batch = source.collect(step=1)
    assert slots(batch.groups) == [0, 1, 2]
    assert slots(batch.train_groups) == [1, 2]
    assert batch.metrics["async/running_groups"] == 2.0  # as many as the next step has
    assert (batch.metrics["rollout/num_attempts"], batch.metrics["rollout/num_groups"]) == (2.0, 3.0)


def test_when_the_attempts_are_used_up_the_step_has_what_there_is(make: Callable[..., AsyncSource]) -> None:
    policy = VersionedPolicy()
    policy.always = {task["question"]: "a" for task in TASKS}
    source = make(policy, max_attempts=2)
    batch = source.collect(step=1)
    assert (len(batch.groups), batch.train_groups) == (4, [])
    assert (batch.metrics["rollout/num_attempts"], batch.metrics["rollout/num_groups"]) == (2.0, 4.0)


def test_a_greedy_episode_is_added_where_a_baseline_needs_one(sources: list[AsyncSource], tmp_path: Path) -> None:
    config = async_config(tmp_path)
    algorithm = config.algorithm.model_copy(update={"advantage": "remax"})
    policy = VersionedPolicy()
    sources.append(make_async(config.model_copy(update={"algorithm": algorithm}), policy))
    group = sources[0].collect(step=1).groups[0]
    assert len(group.trajectories) == 3
    assert group.greedy is not None
    assert group.greedy.group_id == group.trajectories[0].group_id


def saved_and_loaded(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    torch.save(state, folder / "state.pt")
    return torch.load(folder / "state.pt", weights_only=True)


def test_a_restart_has_the_finished_groups_and_runs_the_others_again(
    make: Callable[..., AsyncSource], tmp_path: Path
) -> None:
    policy, shape = VersionedPolicy(), {"max_staleness": 2, "groups_per_step": 1}
    policy.held = {question_of(0), question_of(1)}
    source = make(policy, **shape)  # three groups: 0 and 1 run on
    assert slots(source.collect(step=1).groups) == [2]
    update(source, policy, 1)
    policy.held = {question_of(0), question_of(3)}
    assert slots(source.collect(step=2).groups) == [1]
    wait_for(lambda: policy.num_running == 2 * 3)
    update(source, policy, 2)
    policy.held = {question_of(4)}
    wait_for(lambda: (policy.num_sampled, policy.num_running) == (4 * 3, 0))
    assert slots(source.collect(step=3).groups) == [0]
    wait_for(lambda: policy.num_running == 3)
    update(source, policy, 3)
    state = saved_and_loaded(source.state_dict(), tmp_path)
    assert (state["staleness"]["finished"], state["staleness"]["running"]) == ([[1, 3]], [[2, 4]])

    resumed_policy = VersionedPolicy()
    resumed_policy.refresh_weights(3)
    resumed_policy.held = {question_of(4), question_of(5)}
    resumed = make(resumed_policy, **shape)
    resumed.load_state_dict(state)
    assert resumed.state_dict()["groups"] == state["groups"]
    assert resumed_policy.seeds == []  # no episode runs before the first request
    third = resumed.collect(step=4)
    assert third.groups == source.collect(step=4).groups
    assert third.groups[0].trajectories[0].turns[0].completion.token_versions == (1, 2)
    wait_for(lambda: resumed_policy.num_running == 2 * 3)
    update(resumed, resumed_policy, 4)
    resumed_policy.held = {question_of(5), question_of(6)}
    again = resumed.collect(step=5)
    assert slots(again.groups) == [4]
    assert again.metrics["async/staleness_max"] == 1.0  # of version 3 now, not of 2
    assert text_of(again.groups[0]) == "".join("ab"[seed % 2] for seed in seeds_of(4))


def test_after_the_last_step_no_episode_runs_on(make: Callable[..., AsyncSource]) -> None:
    policy = VersionedPolicy()
    policy.held = {question_of(2)}
    source = make(policy)
    source.collect(step=1)
    wait_for(lambda: policy.num_running > 0)
    update(source, policy, NUM_STEPS - 1)
    policy.held = set()
    batch = source.collect(step=NUM_STEPS)
    assert (batch.metrics["async/running_groups"], batch.metrics["async/late_groups"]) == (0.0, 2.0)
    wait_for(lambda: policy.num_running == 0)
    source.commit()
    assert source.state_dict()["staleness"]["running"] == []


def test_an_interrupted_step_is_not_in_the_checkpoint(make: Callable[..., AsyncSource], tmp_path: Path) -> None:
    policy = VersionedPolicy()
    source = make(policy)
    source.collect(step=1)
    update(source, policy, 1)
    before = saved_and_loaded(source.state_dict(), tmp_path)
    source.collect(step=2)
    assert source.state_dict() == before


def test_states_of_synchronous_runs_can_be_gone_on_from_and_the_other_way_round(
    make: Callable[..., AsyncSource], tmp_path: Path
) -> None:
    policy = VersionedPolicy()
    config = async_config(tmp_path)
    rollout = make_rollout(config, policy, EnvFactory(LetterEnv), Backend("cpu"))
    synchronous = SyncSource(config, TASKS, rollout)
    synchronous.collect(step=1)
    synchronous.commit()
    source = make(policy)
    source.load_state_dict(synchronous.state_dict())
    policy.refresh_weights(1)
    policy.held = {question_of(4), question_of(5)}
    batch = source.collect(step=2)
    assert [group.task_id for group in batch.groups] == [TASKS[index]["task_id"] for index in ORDER[2:4]]
    assert batch.metrics["async/staleness_max"] == 0.0
    update(source, policy, 2)
    synchronous.load_state_dict(source.state_dict())  # six tasks were started since
    assert synchronous.collect(step=3).groups[0].task_id == TASKS[ORDER[6]]["task_id"]
    with pytest.raises(CheckpointError, match="num_tasks 100, this run has 7"):
        make(policy, TASKS[:7]).load_state_dict(source.state_dict())


def test_a_rollback_cancels_what_later_weights_sampled(make: Callable[..., AsyncSource]) -> None:
    policy = VersionedPolicy()
    policy.held = {question_of(6), question_of(7)}
    source = make(policy)
    for step in (1, 2, 3):
        source.collect(step=step)
        update(source, policy, step)
    wait_for(lambda: policy.num_running == 2 * 3)
    with pytest.raises(ValueError, match="from 3 back to 1; use rewind"):
        source.collect(step=2)
    source.rewind(1)
    assert policy.num_running == 0
    policy.refresh_weights(1)
    policy.held = {question_of(10), question_of(11)}
    batch = source.collect(step=2)
    assert slots(batch.groups) == [8, 9]  # 4 + 2 + 2 were started before
    assert {e.turns[0].completion.weight_version for g in batch.groups for e in g.trajectories} == {1}


def test_a_failing_policy_reaches_the_trainer(make: Callable[..., AsyncSource]) -> None:
    policy = VersionedPolicy()
    policy.failing_question = question_of(3)
    policy.held = {question_of(0), question_of(1), question_of(2)}
    with pytest.raises(EngineError, match=f"no memory for {question_of(3)}"):
        make(policy).collect(step=1)


def test_a_policy_that_fails_during_an_update_reaches_the_trainer_at_the_next_step(
    make: Callable[..., AsyncSource],
) -> None:
    policy = VersionedPolicy()
    policy.held = {question_of(2), question_of(3)}
    source = make(policy)
    source.collect(step=1)
    wait_for(lambda: policy.num_running == 2 * 3)
    policy.failing_question = question_of(2)
    policy.held = {question_of(4), question_of(5)}
    wait_for(lambda: policy.num_running == 0)
    update(source, policy, 1)
    with pytest.raises(EngineError, match="no memory"):
        source.collect(step=2)


class BrokenEnv(LetterEnv):
    def step(self, message: Message) -> Any:
        raise OSError("no disk")


def test_a_step_without_any_scored_episode_is_an_error(sources: list[AsyncSource], tmp_path: Path) -> None:
    sources.append(make_async(async_config(tmp_path), VersionedPolicy(), env=BrokenEnv))
    with pytest.raises(EpisodesFailedError, match=r"all 6 episodes failed .*, the first with: OSError"):
        sources[0].collect(step=1)


def test_a_sampler_without_the_weights_it_was_sent_is_found_out(make: Callable[..., AsyncSource]) -> None:
    policy = VersionedPolicy()
    source = make(policy)
    source.collect(step=1)
    complaint = "started after 1 updates.* weights of 0"
    with pytest.raises(EngineError, match=complaint):
        for step in (2, 3):
            source.commit()  # the policy goes on sampling with version 0
            source.collect(step=step)


def test_an_evaluation_beside_running_groups_equals_that_of_an_idle_policy(
    make: Callable[..., AsyncSource], tmp_path: Path
) -> None:
    config = async_config(tmp_path)
    policy = VersionedPolicy()
    rollout = make_rollout(config, policy, EnvFactory(LetterEnv), Backend("cpu"))
    quiet, _ = evaluate(rollout, TASKS[50:60], temperature=1.0, step=1)
    policy.held = {question_of(2), question_of(3)}
    source = make(policy)
    source.collect(step=1)
    wait_for(lambda: policy.num_running == 2 * 3)
    beside, _ = evaluate(rollout, TASKS[50:60], temperature=1.0, step=1)
    assert beside == quiet
    assert policy.num_running == 2 * 3
    update(source, policy, 1)
    policy.held = {question_of(4), question_of(5)}
    assert slots(source.collect(step=2).groups) == [2, 3]


def test_nothing_runs_on_after_close(make: Callable[..., AsyncSource]) -> None:
    policy = VersionedPolicy()
    source = make(policy, async_workers=4)
    policy.held = {question_of(slot) for slot in range(2, 20)}
    source.collect(step=1)
    wait_for(lambda: policy.num_running == 4)
    source.close()
    assert (policy.num_running, policy.num_cancelled) == (0, 4)
    assert len(policy.seeds) == 2 * 3 + 4


def test_two_processes_decide_alike_and_know_the_same(tmp_path: Path) -> None:
    ranks = start_ranks(run_steps, tmp_path, 12, folder=tmp_path, num=2)
    assert ranks.wait(timeout_s=100) == [0, 0], ranks.log(0) + ranks.log(1)
    zero, one = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert zero["rows"] == one["rows"]
    assert len(zero["rows"]) == 12
    assert all(row["metrics"]["async/staleness_max"] <= 2 for row in zero["rows"])
    assert max(row["metrics"]["async/staleness_max"] for row in zero["rows"]) >= 1
    # Each runs about half of the episodes.
    assert min(zero["num_seeds"], one["num_seeds"]) > 12 * 3 * 3 / 2 - 10


def test_a_failure_on_one_process_ends_all(tmp_path: Path) -> None:
    ranks = start_ranks(run_failing, tmp_path, folder=tmp_path, num=2)
    assert ranks.wait(timeout_s=100) == [0, 0], ranks.log(0) + ranks.log(1)
    zero, one = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert one == ["EngineError", f"no memory for {question_of(1)}"]
    assert zero == ["EngineError", f"an episode of process 1 failed with EngineError: no memory for {question_of(1)}"]
