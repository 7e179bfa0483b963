"""Groups of episodes in a checkpoint: everything that is learned from comes back as it was."""

import math
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.agent.messages import Message, ToolCall, ToolCallError
from agent_rl.records import Completion, FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn
from agent_rl.telemetry.trajectory_json import decode_group, encode_group

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=8)  # halves of surrogate pairs too
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(ANY_TEXT, JSON_VALUES, max_size=3)
FLOATS = st.floats(allow_nan=False)


def tuples(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(values, max_size=3).map(tuple)


SPANS = st.tuples(st.integers(), st.integers())
CALLS = st.builds(ToolCall, name=ANY_TEXT, arguments=OBJECTS, span=SPANS)
ERRORS = st.builds(ToolCallError, kind=st.just("bad_json"), message=ANY_TEXT, span=SPANS)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool"]),
    content=ANY_TEXT,
    tool_calls=tuples(CALLS),
    tool_errors=tuples(ERRORS),
    name=st.none() | ANY_TEXT,
    reasoning=ANY_TEXT,
)
COMPLETIONS = st.builds(
    Completion,
    token_ids=tuples(st.integers()),
    logprobs=tuples(FLOATS),
    finish_reason=st.sampled_from(FinishReason),
    weight_version=st.integers(),
    token_versions=tuples(st.integers()),
)
TURNS = st.builds(
    Turn,
    prompt_token_ids=tuples(st.integers()),
    completion=COMPLETIONS,
    message=MESSAGES,
    env_messages=tuples(MESSAGES),
    new_context=st.booleans(),
    info=OBJECTS,
)
TRAJECTORIES = st.builds(
    Trajectory,
    task_id=ANY_TEXT,
    group_id=ANY_TEXT,
    turns=tuples(TURNS),
    stop_reason=st.sampled_from(StopReason),
    reward=st.none() | FLOATS,
    reward_parts=st.dictionaries(ANY_TEXT, FLOATS, max_size=3),
    flags=tuples(ANY_TEXT),
    initial_messages=tuples(MESSAGES),
    duration_s=FLOATS,
    error=st.none() | ANY_TEXT,
)
GROUPS = st.builds(
    TrajectoryGroup, task_id=ANY_TEXT, trajectories=tuples(TRAJECTORIES), greedy=st.none() | TRAJECTORIES
)


@settings(deadline=None, derandomize=True)
@given(GROUPS)
def test_any_group_comes_back_equal(group: TrajectoryGroup) -> None:
    decoded = decode_group(encode_group(group))
    assert decoded == group
    assert repr(decoded) == repr(group)  # 1 and 1.0, a text and an enum's member are equal too


def group_of(info: dict[str, Any], logprobs: tuple[float, ...] = (), reward: Any = 1.0) -> TrajectoryGroup:
    completion = Completion(
        token_ids=(5,) * len(logprobs), logprobs=logprobs, finish_reason=FinishReason.STOP, weight_version=3
    )
    turn = Turn(
        prompt_token_ids=(1,), completion=completion, message=Message.assistant("x"), env_messages=(), info=info
    )
    episode = Trajectory(task_id="t", group_id="0", turns=(turn,), stop_reason=StopReason.FINISHED, reward=reward)
    return TrajectoryGroup(task_id="t", trajectories=(episode,))


def test_logprobs_come_back_to_the_last_bit_those_that_are_no_numbers_too() -> None:
    logprobs = (-0.1, -1e-300, -0.0, -math.inf, math.nan, -0.30000000000000004)
    decoded = decode_group(encode_group(group_of({}, logprobs)))
    back = decoded.trajectories[0].turns[0].completion.logprobs
    assert [struct.pack("d", number) for number in back] == [struct.pack("d", number) for number in logprobs]


def test_what_an_environment_reports_cannot_break_a_checkpoint() -> None:
    info = {"a": (1, 2), "b": math.nan, "c": Fraction(1, 2), "d": {3}, "e": {"f": Path("g"), ("no", "key"): 1}, 7: True}
    back = decode_group(encode_group(group_of(info))).trajectories[0].turns[0].info
    assert math.isnan(back.pop("b"))
    assert back == {"a": [1, 2], "c": 0.5, "d": "{3}", "e": {"f": "g"}, "7": True}


def test_a_reward_of_numpy_stays_a_number() -> None:
    decoded = decode_group(encode_group(group_of({"n": np.int64(4)}, reward=np.float32(0.1))))
    assert (type(decoded.trajectories[0].reward), decoded.trajectories[0].reward) == (float, float(np.float32(0.1)))
    assert decoded.trajectories[0].turns[0].info == {"n": 4}


def test_a_checkpoint_reads_it_without_running_code(tmp_path: Path) -> None:
    text = encode_group(group_of({"half": "\ud800"}, (-0.5,)))
    torch.save({"groups": {3: text}}, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert decode_group(loaded["groups"][3]) == group_of({"half": "\ud800"}, (-0.5,))


def test_a_token_takes_about_thirty_bytes() -> None:
    logprobs = tuple(math.log(n / 1001) for n in range(1, 1001))
    num_bytes = len(encode_group(group_of({}, logprobs))) - len(encode_group(group_of({})))
    assert 20_000 < num_bytes < 30_000
