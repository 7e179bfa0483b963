"""Demonstrations by level: of every family that is not held out, in terse requests and in whole sentences."""

from itertools import islice

from agent_rl.envs.nat.demonstrations import demonstrations_of_levels
from agent_rl.envs.nat.factory.generate import HELD_OUT_FAMILY, LEVELS


def test_families_of_the_levels_take_turns_and_the_teacher_writes_whole_projects() -> None:
    shown = list(islice(demonstrations_of_levels(3, faulty_share=0.0, levels=(3, 4)), 16))
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
