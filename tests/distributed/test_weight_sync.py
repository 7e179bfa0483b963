"""New weights for engines with weights of their own: all of them arrive, and whatever goes wrong is found and named."""

import functools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed.ranks import start_ranks
from distributed.sync_run import BUCKET_ELEMENTS, FAULTS, NORM, SyncRun, main
from distributed.toy_run import ToyRun
from safetensors.torch import load_file
from tiny_models import tiny_causal_lm, tiny_model
from torch import nn

from agent_rl.distributed import zero
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.checksums import checksum
from agent_rl.distributed.weight_stream import WeightStream
from agent_rl.distributed.weight_verification import gap_of
from agent_rl.errors import ConfigError

KINDS = ("ddp", "zero3")
SPREAD_FAULTS = ("crash", "altered", "tied head")
SENTENCES = {
    "skipped": r"did not receive weights 7 as they were sent: \S+ has checksum none \(it is missing\) there and float",
    "pretended": r"does not sample from the trainer's weights 7: the log-probs of its probe are \(-\d\S+, .* there and",
    "old version": "samples with weights 2 after weights 7 were sent",
    "dropped": rf"{NORM} has checksum none \(it is missing\) there and float32 \[64\] \w+ \w+ at the trainer",
    "altered": rf"{NORM} has checksum float32 \[64\] \w+ \w+ there and float32 \[64\] \w+ \w+ at the trainer",
    "stale": rf"{NORM} has checksum float32 \[64\] \w+ \w+ there and float32 \[64\] \w+ \w+ at the trainer",
    "not flushed": "took 5 tokens of its prompt from a cache of older weights than 7, expected 0",
    "silently not flushed": "does not sample from the trainer's weights 7: the log-probs of its probe",
    "tied head": "does not sample from the trainer's weights 7: the log-probs of its probe",
    "crash": "^new weights failed with RuntimeError: the engine ran out of memory$",
    "empty probe": "sampled 0 tokens with 0 log-probs to verify weights 7, expected 16",
    "not a number": r"the log-probs of its probe are \(nan, nan, nan, nan, ...\) there",
    "nothing sampled": "received weights 7 and sampled nothing with them",
    "no receipt": "no engine received weights 7|^process 1 samples and received no weights 7",
}
"""The message of each fault."""


# One process


@pytest.fixture(scope="module")
def run() -> ToyRun:
    return ToyRun()


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "own"])
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_an_engine_does_wrong_is_found_and_named(run: ToyRun, fault: str, is_shared: bool) -> None:
    syncing = SyncRun(run, is_shared=is_shared)
    run.step(1)
    assert syncing.sync(2)["sync/probe_gap"] < 1e-5
    run.step(1)
    syncing.sampler.calls.clear()
    ((kind, sentence),) = syncing.sync_with(fault, 7)
    assert syncing.sampler.calls[0] == "hold"
    assert "release" not in syncing.sampler.calls
    assert re.search(SENTENCES[fault], sentence), sentence
    is_gap = "log-probs of its probe" in sentence
    assert kind == ("EngineError" if fault == "crash" else "ProbeGapError" if is_gap else "WeightSyncError")
    where = ("server 0" if fault == "nothing sampled" else "server 1") if is_shared else "process 0"
    assert sentence.startswith((where, "no engine", "new weights"))
    assert syncing.sync_with("", 8) == [("nothing", "")]


def test_a_gap_is_measured_and_may_be_as_large_as_configured(run: ToyRun) -> None:
    syncing = SyncRun(run, is_shared=False)
    syncing.sync(1)
    off = SyncRun(run, is_shared=False)
    off.trainer_offset = 0.0009
    assert off.sync(1)["sync/probe_gap"] == pytest.approx(0.0009, abs=1e-5)
    off.trainer_offset = -0.0011
    assert "further apart than vllm.max_logprob_gap = 0.001" in off.sync_with("", 2)[0][1]


def test_a_gap_after_one_sample_alone_is_rounding_and_after_two_a_fault(run: ToyRun) -> None:
    syncing = SyncRun(run, is_shared=False)
    syncing.sync(1)
    assert syncing.sync_with("rounded once", 2) == [("nothing", "")]
    assert syncing.sampler.calls.count("probe") == 3


def test_a_gap_is_the_mean_or_a_tenth_of_the_largest_difference() -> None:
    assert gap_of([-1.0, -2.0, -3.0, -4.0], [-1.0, -2.0, -3.0, -3.2]) == pytest.approx(0.2)
    assert gap_of([-1.0] * 16, [-1.0] * 15 + [-5.0]) == pytest.approx(0.4)
    assert math.isnan(gap_of([-1.0, math.nan], [-1.0, -1.0]))


# The stream


MODELS = {
    "minimind": lambda: tiny_model("minimind"),
    "llama with tied embeddings": lambda: tiny_causal_lm("Llama", tie_word_embeddings=True),
    "llama": lambda: tiny_causal_lm("Llama", tie_word_embeddings=False),
    "gpt2": lambda: tiny_model("gpt2"),
    "experts": lambda: tiny_causal_lm("Mixtral", num_local_experts=4),
    "many experts": lambda: tiny_causal_lm(
        "Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, tie_word_embeddings=True
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_stream_has_the_names_and_tensors_of_the_checkpoint(kind: str, tmp_path: Path) -> None:
    model = MODELS[kind]()
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    stream = WeightStream(Backend("cpu"), model, dtype=torch.float32)
    announced = [(name, empty.dtype, tuple(empty.shape)) for name, empty in stream.kinds]
    arrived = [(name, tensor.clone()) for name, tensor in stream]
    assert announced == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in arrived]
    assert len(arrived) == len(saved)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in arrived)
    assert stream.checksums == {name: checksum(tensor) for name, tensor in saved.items()}
    assert stream.num_bytes == sum(tensor.nbytes for tensor in saved.values())


def test_number_format_is_the_samplers_but_for_integers() -> None:
    model = nn.Linear(2, 1, bias=False)
    model.register_buffer("counts", torch.tensor([1, 2]))
    model.register_buffer("table", torch.ones(3), persistent=False)
    stream = WeightStream(Backend("cpu"), model, dtype=torch.bfloat16)
    arrived = dict(stream)
    assert {name: tensor.dtype for name, tensor in arrived.items()} == {"weight": torch.bfloat16, "counts": torch.int64}
    assert torch.equal(arrived["weight"], model.weight.bfloat16())
    assert stream.checksums["weight"] == checksum(arrived["weight"])
    assert not any(tensor.requires_grad for tensor in arrived.values())
    assert stream.num_bytes == 2 * 2 + 2 * 8


def test_tied_weights_are_sent_under_the_name_that_is_read() -> None:
    model = nn.ModuleDict({"head": nn.Linear(2, 3, bias=False), "embed": nn.Embedding(3, 2)})
    model["embed"].weight = model["head"].weight
    assert [name for name, _ in WeightStream(Backend("cpu"), model, dtype=torch.float32)] == ["head.weight"]
    model.all_tied_weights_keys = {"head.weight": "embed.weight"}
    assert [name for name, _ in WeightStream(Backend("cpu"), model, dtype=torch.float32)] == ["embed.weight"]
    model._keys_to_ignore_on_save = {"embed.weight"}
    assert [name for name, _ in WeightStream(Backend("cpu"), model, dtype=torch.float32)] == ["head.weight"]


def test_buckets_go_by_elements_and_whole_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero, "BUCKET_ELEMENTS", 10)
    model = nn.ParameterList([torch.ones(6), torch.ones(4), torch.ones(1), torch.ones(30)])
    stream = WeightStream(Backend("cpu"), model, dtype=torch.float32)
    stream.drain()
    assert stream.num_buckets == 3
    assert [*stream] == []


def test_a_checkpoint_that_joins_weights_cannot_be_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    def join(_module: nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"joined": torch.cat(list(state.values()))}

    monkeypatch.setattr("agent_rl.distributed.weight_stream._revert", join)
    model = nn.ParameterList([torch.ones(1), torch.ones(2)])
    with pytest.raises(ConfigError, match="ParameterList: a checkpoint joins weights"):
        WeightStream(Backend("cpu"), model, dtype=torch.float32)


# Several processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("syncs")


@functools.cache
def report_of(folder: Path, kind: str) -> dict[str, Any]:
    own = folder / kind
    own.mkdir()
    settings = None
    if kind == "zero3":
        settings = own / "deepspeed.json"
        zero = {"stage": 3, "overlap_comm": False, "stage3_param_persistence_threshold": 0}
        settings.write_text(json.dumps({"zero_optimization": zero}))
    ranks = start_ranks(main, own, SPREAD_FAULTS, folder=own, num=2, deepspeed_config=settings)
    codes = ranks.wait(60)
    assert codes == [0, 0], ranks.log(0) + ranks.log(1)
    return torch.load(own / "sync.pt", weights_only=False)


CASES = [(kind, sampler) for kind in KINDS for sampler in ("shared", "own")]


@pytest.mark.parametrize(("kind", "sampler"), CASES)
def test_every_engine_of_two_processes_has_the_trained_weights(folder: Path, kind: str, sampler: str) -> None:
    report = report_of(folder, kind)[sampler]
    assert report["differing"] == [[], []]
    assert all(metrics["sync/probe_gap"] < 1e-5 for metrics in report["metrics"])
    assert report["after"] == [("nothing", "")] * 2


@pytest.mark.parametrize(("kind", "sampler"), CASES)
def test_processes_whose_own_scores_lie_on_both_sides_of_the_limit_go_on_alike(
    folder: Path, kind: str, sampler: str
) -> None:
    assert report_of(folder, kind)[sampler]["apart"] == [("nothing", "")] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_process_0_directs_shared_engines_and_the_others_gather_and_take_note(folder: Path, kind: str) -> None:
    everything = ["hold", "pause", "load", "flush", "resume", "probe", "release"]
    noted = ["hold", "load", "resume", "release"]
    assert report_of(folder, kind)["shared"]["calls"] == [everything * 2, noted * 2]
    assert report_of(folder, kind)["own"]["calls"] == [everything * 2] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_all_engines_sampled_are_scored_once(folder: Path, kind: str) -> None:
    assert report_of(folder, kind)["shared"]["num_scored"] == 2


def test_shards_are_gathered_in_the_buckets_of_whole_weights(
    folder: Path, run: ToyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zero, "BUCKET_ELEMENTS", BUCKET_ELEMENTS)
    syncing = SyncRun(run, is_shared=True)
    metrics = syncing.sync(1)
    sizes = [parameter.numel() for parameter in syncing.model.parameters()]
    assert 1 < metrics["sync/num_buckets"] < len(sizes)
    assert max(sizes) > BUCKET_ELEMENTS
    for kind in KINDS:
        for theirs in report_of(folder, kind)["shared"]["metrics"]:
            assert theirs["sync/num_buckets"] == metrics["sync/num_buckets"]
            assert theirs["sync/gigabytes"] == metrics["sync/gigabytes"] == 4e-9 * sum(sizes)


@pytest.mark.parametrize(("kind", "sampler"), CASES)
def test_all_processes_raise_the_error_of_one(folder: Path, kind: str, sampler: str) -> None:
    errors = report_of(folder, kind)[sampler]["errors"]
    assert set(errors) >= set(SPREAD_FAULTS)
    for fault, (first, second) in errors.items():
        assert first == second
        assert first[0] in ("WeightSyncError", "ProbeGapError", "EngineError"), fault
        sentence = SENTENCES[fault.removesuffix(" at the last")].replace("weights 7", r"weights \d+")
        assert re.search(sentence, first[1]), first


@pytest.mark.parametrize(("kind", "sampler"), CASES)
def test_adapters_travel_as_files_and_old_ones_are_removed(folder: Path, kind: str, sampler: str) -> None:
    report = report_of(folder, kind)[sampler]["adapters"]
    assert report["calls"] == ["hold", "pause", "load_adapter", "flush", "resume", "probe", "release"] * 2
    assert report["folders"] == ["adapter_2"]
    assert report["called"] == [["adapter_1", "adapter_2", "adapter_3"]] * 2
    assert report["metrics"]["sync/gigabytes"] == 24e-9
    assert "did not receive weights 3 as they were sent: lora has checksum float32 [2, 3]" in report["error"]


@pytest.mark.parametrize(("kind", "sampler"), CASES)
def test_all_processes_end_where_one_cannot_make_the_folder(folder: Path, kind: str, sampler: str) -> None:
    first, second = report_of(folder, kind)[sampler]["adapters"]["unwritable"]
    assert first == second
    assert re.search(r"^the adapter of version 4 could not be written to .*/file/adapter_4 \(.*\); free space", first)
