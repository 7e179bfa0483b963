"""Whole steps with every token: the text of each, the columns of an episode, a file, and what an update reports."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import episode, turn
from fakes import save_tiny_model, tiny_config
from hypothesis import given
from hypothesis import strategies as st
from updates import make_step, make_updater

from agent_rl.agent.messages import Message
from agent_rl.agent.token_texts import token_texts
from agent_rl.distributed.backend import Backend
from agent_rl.learning.samples import build_samples
from agent_rl.records import (
    LoggedSample,
    StopReason,
    TrainingSample,
    Trajectory,
    TrajectoryGroup,
)
from agent_rl.telemetry.episode_files import write_token_samples
from agent_rl.telemetry.trajectory_json import token_columns

NAMES = {1: "<s>", 2: "</s>", 7: "What", 8: " is", 9: "it", 5: "one"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_tiny_model(folder / "model")
    save_tiny_model(folder / "reference", seed=1)
    return folder


def of_bytes(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


def named(ids: Any) -> list[str]:
    return [NAMES[token] for token in ids]


def read_samples(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        (b"Hi", ["H", "i"]),
        ("é!".encode(), ["", "é", "!"]),
        ("😀".encode(), ["", "", "", "😀"]),
        (b"\xc3H", ["\ufffd", "H"]),
        (b"\xf0\x9f", ["", "\ufffd"]),
        (b"\xff" * 5 + b"a", ["\ufffd"] * 5 + ["a"]),
        ("a\ufffdb".encode(), ["a", "", "", "\ufffd", "b"]),
        ("\ufffd\ufffdé".encode(), ["", "", "\ufffd", "", "", "\ufffd", "", "é"]),
        ("\ufffd".encode()[:2] + b"a", ["", "\ufffd", "a"]),
        (b"", []),
    ],
)
def test_a_character_stands_on_its_last_piece(text: bytes, texts: list[str]) -> None:
    assert token_texts(list(text), of_bytes) == texts


@given(st.text() | st.text("\ufffdé"), st.binary(max_size=4))
def test_the_texts_in_a_row_are_the_text(text: str, more: bytes) -> None:
    """Of characters that UTF-8 knows, U+FFFD among them, and of bytes that are none."""
    content = text.encode(errors="replace") + more + text.encode(errors="replace")
    assert "".join(token_texts(list(content), of_bytes)) == content.decode(errors="replace")


@given(
    st.lists(st.binary(min_size=1, max_size=6) | st.text(min_size=1).map(lambda text: text.encode(errors="replace")))
)
def test_tokens_of_several_bytes_in_a_row_are_the_text(pieces: list[bytes]) -> None:
    def decode(ids: list[int]) -> str:
        return b"".join(pieces[token] for token in ids).decode(errors="replace")

    ids = list(range(len(pieces)))
    assert "".join(token_texts(ids, decode)) == decode(ids)


def test_an_id_outside_the_vocabulary_has_no_text() -> None:
    def decode(ids: list[int]) -> str:
        return "".join({0: "a", 1: "b"}.get(token, "") for token in ids)

    assert token_texts([0, 9, 1], decode) == ["a", "", "b"]


def test_a_space_in_front_of_a_word_stays() -> None:
    pieces = ["▁one", "▁two"]

    def decode(ids: list[int]) -> str:
        return "".join(pieces[token] for token in ids).replace("▁", " ").removeprefix(" ")

    assert token_texts([0, 1], decode) == [" one", " two"]


def learned(episode: Trajectory, mask: tuple[int, ...], advantage: float, logprobs: Any, num: int = 1) -> LoggedSample:
    """A sample with one advantage at all generated tokens, `mask` as it was generated."""
    sample = TrainingSample(
        token_ids=(0,) * len(mask),
        loss_mask=mask,
        sampling_logprobs=(0.0,) * len(mask),
        advantages=tuple(advantage * is_own for is_own in mask),
    )
    return LoggedSample(episode=episode, sample=sample, trainer_logprobs=logprobs, num_updates=num)


def test_an_episode_becomes_columns_with_the_place_that_each_token_comes_from() -> None:
    first = turn((1, 7), (5, 2), (-0.123456, -0.5), env_messages=(Message.tool("it"),))
    trajectory = episode(1.0, first, turn((9,), (5,), (-1.0,), token_versions=(3,)))
    logprobs = (-0.0000123456, math.nan, -math.inf)
    (columns,) = token_columns(trajectory, [learned(trajectory, (0, 0, 1, 1, 0, 1), 0.75, logprobs, num=2)], named)
    assert columns == {
        "token_ids": [1, 7, 5, 2, 9, 5],
        "texts": ["<s>", "What", "one", "</s>", "it", "one"],
        "loss_mask": [0, 0, 1, 1, 0, 1],
        "sampling_logprobs": [None, None, -0.12346, -0.5, None, -1.0],
        "trainer_logprobs": [None, None, -0.000012346, "nan", None, "-inf"],
        "advantages": [None, None, 0.75, 0.75, None, 0.75],
        "segments": [
            {"kind": "prompt", "turn": 0, "start": 0, "end": 2},
            {"kind": "assistant", "turn": 0, "start": 2, "end": 4, "weight_version": 0},
            {"kind": "tool", "turn": 1, "start": 4, "end": 5},
            {"kind": "assistant", "turn": 1, "start": 5, "end": 6, "weight_version": [3]},
        ],
        "num_updates": 2,
    }


def test_each_context_has_what_was_learned_from_it_and_one_without_a_generated_token_has_nothing() -> None:
    trajectory = episode(
        1.0,
        turn((1,), (5,), (-0.25,)),
        turn((1, 8), (), (), new_context=True),
        turn((7,), (2, 5), (-0.5, -1.0), new_context=True),
    )
    of_first, of_third = (
        learned(trajectory, (0, 1), 0.5, (-0.2,)),
        learned(trajectory, (0, 1, 1), -0.5, (-0.4, -0.9), num=0),
    )
    first, second, third = token_columns(trajectory, [of_first, of_third], named)
    assert (first["advantages"], first["trainer_logprobs"], first["num_updates"]) == ([None, 0.5], [None, -0.2], 1)
    assert (second["token_ids"], second["loss_mask"], second["advantages"]) == ([1, 8], [0, 0], [None, None])
    assert second["segments"] == [{"kind": "prompt", "turn": 1, "start": 0, "end": 2}]
    assert (third["loss_mask"], third["sampling_logprobs"]) == ([0, 1, 1], [None, -0.5, -1.0])
    assert (third["advantages"], third["num_updates"]) == ([None, -0.5, -0.5], 0)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.booleans()), max_size=6))
def test_contexts_are_those_that_are_learned_from(shapes: list[tuple[int, int, bool]]) -> None:
    turns = [
        turn((7,) * num_read, (5,) * num_generated, (-0.5,) * num_generated, new_context=is_new)
        for num_read, num_generated, is_new in shapes
    ]
    samples, _ = build_samples(episode(1.0, *turns))
    shown = [record for record in token_columns(episode(1.0, *turns), [], named) if 5 in record["token_ids"]]
    assert [record["token_ids"] for record in shown] == [list(sample.token_ids) for sample in samples]


def test_a_file_has_one_line_an_episode_and_is_the_same_again(tmp_path: Path) -> None:
    lost = episode(None, turn((1,), (), ()), error="the sandbox is gone")
    half = episode(1.0, turn((1,), (5,), (-0.5,), message=Message.assistant("half a pair \ud83d, 日本")))
    greedy = episode(0.5, turn((1,), (5,), (-0.5,)), reward_parts={"right": np.float32(0.25)})
    groups = [TrajectoryGroup(task_id="t", trajectories=(half, lost), greedy=greedy)]
    labels = {"t": {"family": "sums", "level": 2, "difficulty": None}}
    paths = [tmp_path / "samples" / name for name in ("a.jsonl.gz", "b.jsonl.gz")]
    for path in paths:
        write_token_samples(path, groups, [], step=3, labels=labels, token_texts=named)
    first, second, third = read_samples(paths[0])
    assert (first["step"], first["family"], first["level"], first["reward"]) == (3, "sums", 2, 1.0)
    assert first["messages"][0]["content"] == "half a pair \ud83d, 日本"
    assert first["samples"][0]["texts"] == ["<s>", "one"]
    assert (second["reward"], second["stop_reason"], second["num_tokens"]) == (None, "env_error", 0)
    assert (first.get("error"), second["error"]) == (None, "the sandbox is gone")
    assert (first.get("greedy"), third["greedy"], third["reward_parts"]) == (None, True, {"right": 0.25})
    assert third["samples"][0]["loss_mask"] == [0, 0]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(path.name for path in paths[0].parent.iterdir()) == ["a.jsonl.gz", "b.jsonl.gz"]


@pytest.mark.parametrize("has_old_logprobs", [False, True])
def test_an_update_returns_every_sample_with_what_it_computed_first(folder: Path, has_old_logprobs: bool) -> None:
    """Four groups, one without signal; an episode was cut off, one has no score, one has two contexts."""
    algorithm = {"correction": {"kind": "token_tis"}} if has_old_logprobs else {}
    config = tiny_config(folder, algorithm=algorithm | {"mask_truncated": True}, train={"minibatches": 2, "epochs": 2})
    updater = make_updater(folder, Backend("cpu"), config)
    groups = make_step(0)
    before = updater.logprobs([sample.sample for sample in samples_of(folder, groups)])
    samples = updater.update(groups, step=0).samples
    episodes = [episode for group in groups for episode in group.trajectories if episode.reward is not None]
    assert [id(sample.episode) for sample in samples] == [
        id(episode) for episode in episodes for turn in range(1 + any(turn.new_context for turn in episode.turns))
    ]
    for sample, expected in zip(samples, before, strict=True):
        is_cut_off = sample.episode.stop_reason is StopReason.MAX_TOKENS
        is_trained = not is_cut_off and any(sample.sample.advantages)
        assert sample.num_updates == 2 * is_trained  # one in each epoch
        assert (sample.trainer_logprobs is not None) == (has_old_logprobs or is_trained)
        assert any(sample.sample.loss_mask) != is_cut_off
        if has_old_logprobs or (is_trained and sample.episode.group_id in ("g0", "g1")):  # those of the first minibatch
            assert sample.trainer_logprobs == pytest.approx(expected, abs=1e-5)
    assert {sample.trainer_logprobs is None for sample in samples} == ({False} if has_old_logprobs else {False, True})


def test_updates_that_change_no_policy_are_not_counted(folder: Path) -> None:
    """The critic alone learns at the first step; the loss of the second is not finite."""
    algorithm, critic = {"advantage": "gae"}, {"warmup_steps": 1}
    updater = make_updater(folder, Backend("cpu"), tiny_config(folder, algorithm=algorithm, critic=critic))
    alone = updater.update(make_step(0), step=0).samples
    with torch.no_grad():
        next(updater.module.parameters()).fill_(math.nan)
    refused = updater.update(make_step(0), step=1)
    assert refused.metrics["optim/nonfinite"] == 1.0
    for samples in (alone, refused.samples):
        assert {sample.num_updates for sample in samples} == {0}
        assert all(any(sample.sample.loss_mask) for sample in samples)


def samples_of(folder: Path, groups: list[TrajectoryGroup]) -> list[LoggedSample]:
    """The samples of a step with nothing masked."""
    return make_updater(folder, Backend("cpu"), tiny_config(folder)).update(groups, step=0).samples
