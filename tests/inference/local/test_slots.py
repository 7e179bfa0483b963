"""Slots of the key/value cache: which tokens stay, what is copied, which slot is evicted."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.inference.local.kv_cache import KeyValueCache
from agent_rl.inference.local.slots import MIN_SHARED, SlotTable


def table(num_slots: int = 4, width: int = 64) -> SlotTable:
    """A cache of one layer, in which every token's key is the token itself, as long as the table is correct."""
    cache = KeyValueCache(num_slots, width, torch.device("cpu"))
    new = torch.zeros(num_slots, 1, 1, 1)
    cache.layer(0, new, new)
    return SlotTable(cache)


def put(slots: SlotTable, row: int, tokens: list[int]) -> None:
    """Compute a prompt in a slot, what was cached of it included."""
    start = int(slots.lengths[row])
    assert slots.tokens[row, :start].tolist() == tokens[:start]
    for data in slots._cache._layers[0]:
        data[row, 0, start : len(tokens), 0] = torch.tensor(tokens[start:], dtype=torch.float32)
    slots.fill(row, np.array(tokens))


def cached(slots: SlotTable, row: int) -> list[int]:
    """What the cache itself holds of a slot's tokens."""
    return slots._cache._layers[0][0][row, 0, : slots.lengths[row], 0].int().tolist()


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


LONG = list(range(1, MIN_SHARED + 5))


def test_shared_prefixes_leave_the_last_token_out() -> None:
    slots = table()
    put(slots, 1, [5, 6, 7, 8])
    put(slots, 2, [5, 9])
    assert slots.num_shared(array([5, 6, 7, 8])).tolist() == [0, 3, 1, 0]
    assert slots.num_shared(array([5, 6, 7, 8, 1])).tolist() == [0, 4, 1, 0]
    assert slots.num_shared(array([5])).tolist() == [0, 0, 0, 0]


def test_an_episode_that_goes_on_takes_its_own_slot_in_place() -> None:
    slots = table()
    put(slots, 0, [1, 2])
    put(slots, 2, [5, 6, 7])
    assert slots.claim(1, array([5, 6, 7, 8, 9])) == 3
    assert cached(slots, 1) == [5, 6, 7]
    assert slots.lengths.tolist() == [2, 3, 0, 0]


def test_of_two_slots_that_go_on_the_one_that_holds_more_is_taken() -> None:
    slots = table()
    put(slots, 1, [5, 6])
    put(slots, 3, [5, 6, 7])
    assert slots.claim(0, array([5, 6, 7, 8])) == 3
    assert slots.lengths.tolist() == [3, 2, 0, 0]


def test_a_prompt_in_use_is_copied_and_stays_where_it_is() -> None:
    slots = table()
    put(slots, 0, LONG)
    assert slots.claim(1, array(LONG)) == len(LONG) - 1
    assert cached(slots, 0) == LONG
    assert cached(slots, 1) == LONG[:-1]


def test_a_short_common_beginning_is_not_worth_a_copy() -> None:
    slots = table()
    put(slots, 0, LONG)
    assert slots.claim(1, array([*LONG[: MIN_SHARED - 1], 99, 98])) == 0
    assert slots.lengths.tolist() == [len(LONG), 0, 0, 0]


def test_an_empty_slot_is_used_up_before_anything_is_forgotten() -> None:
    slots = table(num_slots=3)
    put(slots, 0, [1, 2])
    put(slots, 1, [3, 4])
    assert slots.claim(0, array([7, 8])) == 0
    put(slots, 0, [7, 8])
    assert sorted(cached(slots, row) for row in range(3)) == [[1, 2], [3, 4], [7, 8]]


def test_the_slot_not_used_for_longest_goes_first() -> None:
    slots = table(num_slots=3)
    for row, tokens in ((0, [1, 2]), (1, [3, 4]), (2, [5, 6])):
        put(slots, row, tokens)
    for row in (1, 0, 2):
        slots.release(row)
    assert slots.claim(0, array([7, 8])) == 0
    put(slots, 0, [7, 8])
    assert sorted(cached(slots, row) for row in range(3)) == [[1, 2], [5, 6], [7, 8]]


def test_the_only_idle_slot_is_cut_back_to_what_it_shares() -> None:
    slots = table(num_slots=2)
    put(slots, 0, [1, 2])
    put(slots, 1, LONG)
    assert slots.claim(1, array([*LONG[:-2], 99, 98])) == len(LONG) - 2
    assert cached(slots, 1) == LONG[:-2]
    assert cached(slots, 0) == [1, 2]


def test_nothing_is_shared_after_clear() -> None:
    slots = table()
    put(slots, 0, LONG)
    slots.clear()
    assert slots.num_shared(array(LONG)).tolist() == [0, 0, 0, 0]


@given(
    prompts=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 20), st.lists(st.integers(0, 9), min_size=1, max_size=5)),
        min_size=1,
        max_size=12,
    ),
    releases=st.lists(st.integers(0, 5), max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_the_cache_always_matches_the_table(prompts: list, releases: list[int]) -> None:
    """Prompts of a few families come and go; after every move each slot's keys are its tokens."""
    slots, num_active = table(num_slots=3, width=64), 0
    for family, length, tail in prompts:
        if num_active == 3:
            row = releases.pop() % 3 if releases else 0
            slots.release(row)
            slots.swap(row, 2)
            num_active = 2
        prompt = [*(10 + family + i for i in range(length)), *tail]
        slots.claim(num_active, array(prompt))
        put(slots, num_active, prompt)
        num_active += 1
        for row in range(3):
            assert cached(slots, row) == slots.tokens[row, : slots.lengths[row]].tolist()
