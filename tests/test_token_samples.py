"""Whole steps kept with every token: what a file holds, which steps are kept, and that training does not notice."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config
from hypothesis import given
from hypothesis import strategies as st
from updates import make_step, make_updater

from agent_rl.agent.messages import Message
from agent_rl.agent.token_texts import token_texts
from agent_rl.core.run_folder import RunFolder
from agent_rl.core.token_samples import TokenSamples
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.distributed.backend import Backend
from agent_rl.envs.base import EnvFactory
from agent_rl.records import (
    Completion,
    FinishReason,
    LearnedSample,
    StopReason,
    TrainingSample,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from agent_rl.telemetry.token_samples import sample_records, write_token_samples

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


def turn(read: tuple[int, ...], drawn: tuple[int, ...], logprobs: tuple[float, ...], **changes: Any) -> Turn:
    completion = Completion(token_ids=drawn, logprobs=logprobs, finish_reason=FinishReason.STOP, weight_version=0)
    parts = {"message": Message.assistant("one"), "env_messages": ()} | changes
    return Turn(prompt_token_ids=read, completion=completion, **parts)


def episode(*turns: Turn, **changes: Any) -> Trajectory:
    parts = {"task_id": "t", "group_id": "1/0", "stop_reason": StopReason.FINISHED, "reward": 1.0} | changes
    return Trajectory(turns=turns, **parts)


def read_samples(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def columns_of(record: dict[str, Any], name: str) -> list[Any]:
    return [value for sample in record["samples"] for value in sample[name]]


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        (b"Hi", ["H", "i"]),
        ("é!".encode(), ["", "é", "!"]),
        ("😀".encode(), ["", "", "", "😀"]),
        (b"\xc3H", ["\ufffd", "H"]),
        (b"\xf0\x9f", ["\ufffd", "\ufffd"]),
        (b"\xff" * 5 + b"a", ["\ufffd"] * 5 + ["a"]),
        (b"", []),
    ],
)
def test_a_character_stands_on_its_last_piece(text: bytes, texts: list[str]) -> None:
    assert token_texts(list(text), of_bytes) == texts


@given(st.text())
def test_the_texts_in_a_row_are_the_text(text: str) -> None:
    texts = token_texts(list(text.encode(errors="replace")), of_bytes)
    assert "".join(texts) == text.encode(errors="replace").decode()


def test_a_space_in_front_of_a_word_stays() -> None:
    pieces = ["▁one", "▁two"]

    def decode(ids: list[int]) -> str:
        return "".join(pieces[token] for token in ids).replace("▁", " ").removeprefix(" ")

    assert token_texts([0, 1], decode) == [" one", " two"]


def test_an_episode_becomes_columns_with_the_place_that_each_token_comes_from() -> None:
    asked = turn((1, 7), (5, 2), (-0.12345, -0.5), env_messages=(Message.tool("it"),))
    played = episode(asked, turn((9,), (5,), (-1.0,)), turn((1, 8), (2,), (-2.0,), new_context=True))
    learned = [
        LearnedSample(
            episode=played,
            sample=TrainingSample(
                token_ids=(1, 7, 5, 2, 9, 5),
                loss_mask=(0, 0, 1, 1, 0, 1),
                sampling_logprobs=(0.0, 0.0, -0.12345, -0.5, 0.0, -1.0),
                advantages=(0.0, 0.0, 0.75, 0.75, 0.0, 0.75),
            ),
            trainer_logprobs=(-0.12346, -0.25, math.inf),
        ),
    ]
    first, second = sample_records(played, learned, named)
    assert first == {
        "token_ids": [1, 7, 5, 2, 9, 5],
        "texts": ["<s>", "What", "one", "</s>", "it", "one"],
        "loss_mask": [0, 0, 1, 1, 0, 1],
        "sampling_logprobs": [None, None, -0.1235, -0.5, None, -1.0],
        "trainer_logprobs": [None, None, -0.1235, -0.25, None, None],
        "advantages": [None, None, 0.75, 0.75, None, 0.75],
        "segments": [
            {"kind": "prompt", "turn": 0, "start": 0, "end": 2},
            {"kind": "assistant", "turn": 0, "start": 2, "end": 4},
            {"kind": "tool", "turn": 1, "start": 4, "end": 5},
            {"kind": "assistant", "turn": 1, "start": 5, "end": 6},
        ],
    }
    assert second["loss_mask"] == [0, 0, 0]
    assert second["sampling_logprobs"] == [None, None, -2.0]
    assert second["trainer_logprobs"] == second["advantages"] == [None, None, None]
    assert [segment["kind"] for segment in second["segments"]] == ["prompt", "assistant"]


def test_a_file_has_one_line_an_episode_and_is_the_same_again(tmp_path: Path) -> None:
    lost = episode(turn((1,), (), ()), reward=None, stop_reason=StopReason.ENV_ERROR)
    half = episode(turn((1,), (5,), (-0.5,), message=Message.assistant("half a pair \ud83d, 日本")))
    groups = [TrajectoryGroup(task_id="t", trajectories=(half, lost))]
    labels = {"t": {"family": "sums", "level": 2, "difficulty": None}}
    paths = [tmp_path / "samples" / name for name in ("a.jsonl.gz", "b.jsonl.gz")]
    for path in paths:
        write_token_samples(path, groups, [], step=3, labels=labels, token_texts=named)
    first, second = read_samples(paths[0])
    assert (first["step"], first["family"], first["level"], first["reward"]) == (3, "sums", 2, 1.0)
    assert first["messages"][0]["content"] == "half a pair \ud83d, 日本"
    assert first["samples"][0]["texts"] == ["<s>", "one"]
    assert (second["reward"], second["stop_reason"], second["num_tokens"]) == (None, "env_error", 0)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(path.name for path in paths[0].parent.iterdir()) == ["a.jsonl.gz", "b.jsonl.gz"]


def trained(folder: Path, runs: Path, **sections: dict[str, Any]) -> tuple[Path, list[torch.Tensor]]:
    """A run's folder and the weights it ends with."""
    sections["run"] = {"output_dir": str(runs)}
    sections["rollout"] = {"async_workers": 0, "group_size": 4, "groups_per_step": 2}
    sections["policy"] = {"max_new_tokens": 12}
    with GRPOTrainer.from_config(
        tiny_config(folder, **sections), env_factory=EnvFactory(LetterEnv), train_tasks=LETTER_TASKS
    ) as trainer:
        trainer.train()
        return runs / "tiny", [parameter.detach().clone() for parameter in trainer.model.module.parameters()]


def test_the_first_the_last_and_every_nth_step_are_kept_and_training_does_not_notice(
    folder: Path, tmp_path: Path
) -> None:
    train = {"steps": 4, "epochs": 2}
    run, weights = trained(folder, tmp_path / "with", train=train, log={"samples_every": 3})
    without, others = trained(folder, tmp_path / "without", train=train, log={"samples_every": 0})
    assert all(torch.equal(one, other) for one, other in zip(weights, others, strict=True))
    assert not (without / "samples").exists()
    names = [f"step_{step:05d}.jsonl.gz" for step in (1, 3, 4)]
    assert sorted(path.name for path in (run / "samples").iterdir()) == names

    records = read_samples(run / "samples" / names[0])
    assert [record["group_id"] for record in records] == [f"1/{group}" for group in range(2) for _ in range(4)]
    for record in records:
        (sample,) = record["samples"]
        is_drawn = [value is not None for value in sample["sampling_logprobs"]]
        assert sample["loss_mask"] == [int(drawn) for drawn in is_drawn]
        assert sum(is_drawn) == record["num_tokens"]
        assert f"user\n{record['messages'][0]['content']}<|im_end|>" in "".join(sample["texts"])
        advantages = {value for value in sample["advantages"] if value is not None}
        assert len(advantages) == 1
        if advantages != {0.0}:  # the first update's own pass, of the weights that drew
            for trainer, sampling in zip(sample["trainer_logprobs"], sample["sampling_logprobs"], strict=True):
                assert trainer == (None if sampling is None else pytest.approx(sampling, abs=2e-4))
    assert any(any(columns_of(record, "advantages")) for record in records)


@pytest.mark.parametrize("has_prox", [False, True])
def test_an_update_tells_of_every_sample_what_it_first_computed(folder: Path, has_prox: bool) -> None:
    """Four groups, one without signal; an episode was cut off, one has no score, one has two contexts."""
    algorithm = {"correction": {"kind": "token_tis"}} if has_prox else {}
    config = tiny_config(folder, algorithm=algorithm | {"mask_truncated": True}, train={"minibatches": 2, "epochs": 2})
    updater = make_updater(folder, Backend("cpu"), config)
    groups = make_step(0)
    samples: list[LearnedSample] = []
    before = updater.logprobs([sample.sample for sample in learned_from(folder, groups)])
    updater.update(groups, step=0, observe=samples.extend)
    episodes = [episode for group in groups for episode in group.trajectories if episode.reward is not None]
    assert [id(sample.episode) for sample in samples] == [
        id(episode) for episode in episodes for turn in range(1 + any(turn.new_context for turn in episode.turns))
    ]
    for sample, expected in zip(samples, before, strict=True):
        is_cut_off = sample.episode.stop_reason is StopReason.MAX_TOKENS
        is_learned = not is_cut_off and any(sample.sample.advantages)
        assert (sample.trainer_logprobs is not None) == (has_prox or is_learned)
        assert any(sample.sample.loss_mask) != is_cut_off
        if has_prox or (is_learned and sample.episode.group_id in ("g0", "g1")):  # those of the first minibatch
            assert sample.trainer_logprobs == pytest.approx(expected, abs=1e-5)
    assert {sample.trainer_logprobs is None for sample in samples} == ({False} if has_prox else {False, True})


def learned_from(folder: Path, groups: list[TrajectoryGroup]) -> list[LearnedSample]:
    """The samples of a step that nothing is masked in."""
    samples: list[LearnedSample] = []
    updater = make_updater(folder, Backend("cpu"), tiny_config(folder))
    updater.update(groups, step=0, observe=samples.extend)
    return samples


def test_only_the_main_process_keeps_samples(folder: Path, tmp_path: Path) -> None:
    run = RunFolder(path=tmp_path, resume_from=None)
    config = tiny_config(folder, log={"samples_every": 3}, train={"steps": 8})
    kept = {
        is_main: [
            step
            for step in range(1, 9)
            if TokenSamples(config, run, [], None, is_main=is_main).observer(step) is not None
        ]
        for is_main in (True, False)
    }
    assert kept == {True: [1, 3, 6, 8], False: []}
