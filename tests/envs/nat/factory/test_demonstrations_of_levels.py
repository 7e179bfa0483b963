"""Demonstrations of a choice: by level, in terse requests and in whole sentences, and by family."""

from collections import Counter
from itertools import islice

import pytest

from agent_rl.envs.demonstrations import Choice
from agent_rl.envs.nat.demonstrations import chosen_demonstrations
from agent_rl.envs.nat.factory.generate import HELD_OUT_FAMILY, LEVELS


def test_families_of_the_levels_take_turns_and_the_teacher_writes_whole_projects() -> None:
    shown = list(islice(chosen_demonstrations(3, faulty_share=0.0, choice=Choice(levels=(3, 4))), 16))
    levels = {level for each in shown for level in each.covers["levels"]}
    families = {each.kind for each in shown}
    assert levels <= {3, 4} and HELD_OUT_FAMILY not in families and len(families) > 4  # level by level
    assert all(set(LEVELS[each.kind]) & {3, 4} for each in shown)
    for each in shown:
        paths = [call.arguments["path"] for call in each.turns[0][0].tool_calls if call.name == "file_write"]
        assert {"pyproject.toml"} < set(paths) and each.turns[-1][0].tool_calls[-1].name == "submit"
    # Pairs of requests: the second of two is told at length.
    lengths = [len(each.messages[-1].content) for each in shown]
    assert sum(lengths[1::2]) > sum(lengths[::2])


@pytest.mark.parametrize(
    ("choice", "levels"),
    [
        (Choice(families=("note_search", "calculator", "note_search")), {1, 2}),
        (Choice(families=("note_search", "calculator", "note_search"), wordings="any"), {1, 2}),
        (Choice(families=("note_search", "calculator", "note_search"), levels=(3,)), {3}),
    ],
)
def test_a_family_that_stands_twice_is_shown_twice_as_often(choice: Choice, levels: set[int]) -> None:
    shown = list(islice(chosen_demonstrations(3, faulty_share=0.0, choice=choice), 12))
    assert Counter(each.kind for each in shown) == {"note_search": 8, "calculator": 4}
    assert {level for each in shown for level in each.covers["levels"]} == levels
    assert all(("any" in each.covers["wordings"]) == (choice.wordings == "any") for each in shown)
