"""Which groups may start and be used: never too many, never too old, none lost, none used twice, always a next step."""

import json
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_rl.rollout.staleness import GroupSlot, StalenessManager


def start_all(staleness: StalenessManager) -> list[GroupSlot]:
    return [staleness.start() for _ in range(staleness.num_free)]


def ids(slots: list[GroupSlot] | None) -> list[int] | None:
    return None if slots is None else [slot.id for slot in slots]


def test_one_update_of_staleness_means_two_running_steps_and_one_while_the_trainer_updates() -> None:
    staleness = StalenessManager(groups_per_step=2, max_staleness=1)
    assert ids(start_all(staleness)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="4 groups"):
        staleness.start()
    staleness.finish(3)
    assert staleness.pop_batch() is None
    staleness.finish(1)
    assert ids(staleness.pop_batch()) == [1, 3]
    assert staleness.num_free == 0  # groups 0 and 2 are for version 1; more would be for version 2
    with pytest.raises(ValueError, match="version 0"):
        staleness.pop_batch()
    assert staleness.advance_to(1) == []
    assert start_all(staleness) == [GroupSlot(1, 4), GroupSlot(1, 5)]


def test_without_staleness_nothing_runs_while_the_trainer_updates() -> None:
    staleness = StalenessManager(groups_per_step=2, max_staleness=0)
    for slot in start_all(staleness):
        staleness.finish(slot.id)
    assert ids(staleness.pop_batch()) == [0, 1]
    assert (staleness.num_free, staleness.running) == (0, [])
    staleness.advance_to(1)
    assert staleness.num_free == 2


def test_the_oldest_are_taken_first_and_the_late_are_dropped_finished_or_running() -> None:
    staleness = StalenessManager(groups_per_step=1, max_staleness=2)
    start_all(staleness)
    staleness.finish(1)
    assert ids(staleness.pop_batch()) == [1]
    staleness.advance_to(1)
    assert ids(start_all(staleness)) == [3]
    staleness.finish(3)
    assert ids(staleness.pop_batch()) == [3]
    staleness.advance_to(2)
    start_all(staleness)
    for finished in (4, 2):
        staleness.finish(finished)
    assert ids(staleness.pop_batch()) == [2]  # of version 0, before group 4 of version 2
    assert ids(staleness.advance_to(3)) == [0]
    assert (staleness.num_dropped, ids(staleness.finished)) == (1, [4])
    assert ids(staleness.advance_to(5)) == [4]
    assert (staleness.num_started, staleness.num_finished, staleness.num_used, staleness.num_dropped) == (5, 4, 3, 2)


def test_zero_variance_groups_are_taken_beside_the_others_and_replaced() -> None:
    staleness = StalenessManager(groups_per_step=2, max_staleness=1, max_attempts=2)
    start_all(staleness)
    staleness.finish(0, is_trainable=False)
    staleness.finish(1)
    assert staleness.pop_batch() is None
    assert ids(start_all(staleness)) == [4]
    staleness.finish(3)
    assert ids(staleness.pop_batch()) == [0, 1, 3]


def test_when_the_attempts_are_used_up_a_step_is_what_there_is() -> None:
    staleness = StalenessManager(groups_per_step=2, max_staleness=1, max_attempts=2)
    start_all(staleness)
    for finished in (0, 1, 2):
        staleness.finish(finished, is_trainable=False)
    start_all(staleness)
    assert staleness.pop_batch() is None
    staleness.finish(4)
    assert ids(staleness.pop_batch()) == [0, 1, 2, 4]


def test_zero_variance_groups_do_not_pile_up() -> None:
    staleness = StalenessManager(groups_per_step=2, max_staleness=3, max_attempts=2)
    for version in range(50):
        staleness.advance_to(version)
        while staleness.num_free:
            staleness.finish(staleness.start().id, is_trainable=False)
        assert len(staleness.finished) <= 10
        assert len(staleness.pop_batch()) == 4
    assert staleness.num_dropped == 0


def test_a_version_goes_back_only_by_a_rewind_which_drops_everything() -> None:
    staleness = StalenessManager(groups_per_step=1, max_staleness=1)
    staleness.advance_to(7)
    start_all(staleness)
    staleness.finish(0)
    with pytest.raises(ValueError, match="the version went from 7 back to 4; use rewind"):
        staleness.advance_to(4)
    staleness.rewind(4)
    assert (staleness.running, staleness.finished, staleness.num_dropped) == ([], [], 2)
    assert staleness.start() == GroupSlot(4, 2)


def test_groups_that_run_again_have_the_current_version() -> None:
    staleness = StalenessManager(groups_per_step=2, max_staleness=1)
    start_all(staleness)
    staleness.finish(2)
    staleness.advance_to(1)
    assert staleness.restart() == [GroupSlot(1, 0), GroupSlot(1, 1), GroupSlot(1, 3)]
    assert staleness.finished == [GroupSlot(0, 2)]
    staleness.finish(0)
    assert ids(staleness.pop_batch()) == [2, 0]  # the older version first


class StalenessMachine(RuleBasedStateMachine):
    """Any order of calls, against sets maintained by hand."""

    @initialize(groups=st.integers(1, 4), staleness=st.integers(0, 4), attempts=st.integers(1, 3))
    def begin(self, groups: int, staleness: int, attempts: int) -> None:
        self.shape = {"groups_per_step": groups, "max_staleness": staleness, "max_attempts": attempts}
        self.staleness = StalenessManager(**self.shape)
        self.version_of: dict[int, int] = {}
        self.running: set[int] = set()
        self.finished: set[int] = set()
        self.empty: set[int] = set()
        self.used: set[int] = set()
        self.dropped: set[int] = set()
        self.is_popped = False

    @precondition(lambda self: self.staleness.num_free)
    @rule(num=st.integers(1, 8))
    def start(self, num: int) -> None:
        for _ in range(min(num, self.staleness.num_free)):
            slot = self.staleness.start()
            assert slot.id not in self.version_of
            self.version_of[slot.id] = slot.version
            self.running.add(slot.id)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_trainable=st.booleans())
    def finish(self, data: st.DataObject, is_trainable: bool) -> None:
        finished = data.draw(st.sampled_from(sorted(self.running)))
        self.staleness.finish(finished, is_trainable=is_trainable)
        self.running.remove(finished)
        self.finished.add(finished)
        if not is_trainable:
            self.empty.add(finished)

    @precondition(lambda self: not self.is_popped)
    @rule()
    def take(self) -> None:
        slots = self.staleness.pop_batch()
        groups, most = self.shape["groups_per_step"], self.shape["groups_per_step"] * self.shape["max_attempts"]
        num_useful = len(self.finished - self.empty)
        assert (slots is None) == (num_useful < groups and len(self.finished) < most)
        if slots is None:
            return
        self.is_popped = True
        taken = {slot.id for slot in slots}
        assert len(taken) == len(slots) <= most
        assert len(taken - self.empty) == min(groups, num_useful)
        assert taken <= self.finished
        for slot in slots:
            assert slot.version == self.version_of[slot.id]
            assert 0 <= self.staleness.version - slot.version <= self.shape["max_staleness"]
        left = self.finished - taken - self.empty
        assert all(
            (self.version_of[one], one) < (self.version_of[other], other)
            for one in taken - self.empty
            for other in left
        )
        self.finished -= taken
        self.used |= taken

    @rule(by=st.sampled_from([0, 1, 1, 1, 2]))
    def move(self, by: int) -> None:
        oldest = self.staleness.version + by - self.shape["max_staleness"]
        late = {slot for slot in self.running | self.finished if self.version_of[slot] < oldest}
        assert {slot.id for slot in self.staleness.advance_to(self.staleness.version + by)} == late
        self.drop(late)

    @rule(by=st.integers(0, 3))
    def rewind(self, by: int) -> None:
        self.staleness.rewind(max(0, self.staleness.version - by))
        self.drop(self.running | self.finished)

    def drop(self, slots: set[int]) -> None:
        self.is_popped = False
        self.running -= slots
        self.finished -= slots
        self.dropped |= slots

    @rule()
    def save_and_load(self) -> None:
        saved = json.loads(json.dumps(self.staleness.state_dict()))
        self.staleness = StalenessManager(**self.shape)
        self.staleness.load_state_dict(saved)
        assert self.staleness.state_dict() == saved

    @rule()
    def restart(self) -> None:
        assert {slot.id for slot in self.staleness.restart()} == self.running
        self.version_of |= dict.fromkeys(self.running, self.staleness.version)

    @invariant()
    def nothing_is_lost_or_used_twice(self) -> None:
        staleness = self.staleness
        assert {slot.id for slot in staleness.running} == self.running
        assert {slot.id for slot in staleness.finished} == self.finished
        assert not self.used & self.dropped
        assert len(self.version_of) == len(self.running | self.finished | self.used | self.dropped)
        assert (staleness.num_started, staleness.num_used) == (len(self.version_of), len(self.used))
        assert staleness.num_dropped == len(self.dropped)

    @invariant()
    def there_are_never_more_than_the_bound_allows(self) -> None:
        steps, groups = self.shape["max_staleness"] + 1, self.shape["groups_per_step"]
        assert len(self.running | self.finished - self.empty) <= steps * groups

    @invariant()
    def a_step_gets_its_groups_as_long_as_episodes_finish(self) -> None:
        if self.is_popped:
            return
        ahead = StalenessManager(**self.shape)
        ahead.load_state_dict(self.staleness.state_dict())
        for _ in range(self.shape["max_attempts"] * self.shape["groups_per_step"]):  # one group starts at the least
            start_all(ahead)
            for slot in ahead.running:
                ahead.finish(slot.id, is_trainable=False)
        assert ahead.pop_batch() is not None


TestStaleness = StalenessMachine.TestCase
TestStaleness.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


@pytest.mark.parametrize(("max_staleness", "seed"), [(0, 0), (1, 1), (2, 2), (4, 3)])
def test_ten_thousand_steps_with_random_delays_keep_the_bound(max_staleness: int, seed: int) -> None:
    rng = random.Random(seed)
    staleness = StalenessManager(groups_per_step=3, max_staleness=max_staleness)
    largest, now, ends = 0, 0.0, {}
    for version in range(10_000):
        for late in staleness.advance_to(version):
            ends.pop(late.id, None)
        for slot in start_all(staleness):
            ends[slot.id] = now + rng.lognormvariate(0.0, 1.0)
        while (slots := staleness.pop_batch()) is None:
            first = min(ends, key=ends.get)
            now = max(now, ends.pop(first))
            staleness.finish(first)
        assert len(slots) == 3
        largest = max(largest, version - min(slot.version for slot in slots))
        now += rng.random()
    assert largest == max_staleness
    counts = (staleness.num_used, len(staleness.running), len(staleness.finished), staleness.num_dropped)
    assert staleness.num_started == sum(counts)
    assert staleness.num_used == 30_000
    # Only with slack do long groups come too late; without any, the trainer waits for them.
    assert (staleness.num_dropped > 0) == (max_staleness > 0)
