"""Weights sent to engines that are replicas of the trained model and can fail in every way that is known of vLLM.

Started as one or several processes. Rank 0 writes `FOLDER/sync.pt`: what every process reported.
"""

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from distributed.toy_run import Scorer, ToyRun
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from agent_rl.distributed import zero
from agent_rl.distributed.checksums import checksum
from agent_rl.distributed.weight_sync import ProbeSample, WeightSync, WeightSyncError
from agent_rl.errors import AgentRLError
from agent_rl.inference.base import Probe, Receipt
from agent_rl.modeling.minimind import MiniMindForCausalLM

PROBE_IDS = (3, 1, 4, 1, 5)
BUCKET_ELEMENTS = 5000
EMBEDDINGS, NORM = "model.embed_tokens.weight", "model.norm.weight"
FAULTS = (
    "skipped",  # no weight is loaded, and the engine reports it
    "pretended",  # no weight is loaded, and the engine reports all as loaded
    "old version",
    "dropped",
    "altered",
    "stale",  # one tensor stays as it was
    "not flushed",
    "silently not flushed",
    "tied head",
    "crash",
    "empty probe",
    "not a number",
    "nothing sampled",
    "no receipt",
)
"""What an engine does wrong in one sync."""


class FakeEngine:
    """A replica of the model, with a cache of one prompt."""

    def __init__(self, model: MiniMindForCausalLM, where: str) -> None:
        self.model = copy.deepcopy(model)
        self.where = where
        self.version = 0
        self.fault = ""
        self.cached: nn.Module | None = None
        """What computed the keys and values of the prompt."""
        self.head: Tensor | None = None
        """A copy of the head that was made earlier."""

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> Receipt:
        checksums, taken = {}, {}
        own = self.model.state_dict()
        if self.fault == "tied head":
            self.head = self.model.lm_head.weight.detach().clone()
        for name, tensor in tensors:
            if self.fault == "skipped" or (self.fault == "dropped" and name == NORM):
                continue
            if self.fault == "crash" and len(checksums) == 3:
                raise RuntimeError("the engine ran out of memory")
            arrived = own[name].clone() if self.fault == "stale" and name == NORM else tensor.clone()
            if self.fault == "altered" and name == NORM:
                arrived[0] += 0.01
            checksums[name], taken[name] = checksum(arrived), arrived
        if self.fault not in ("pretended", "skipped"):
            self.model.load_state_dict(taken, strict=False)
        return Receipt(where=self.where, checksums=checksums)

    def flush(self) -> None:
        if self.fault not in ("not flushed", "silently not flushed"):
            self.cached = None

    def probe(self, prompt_ids: tuple[int, ...], num_tokens: int, temperature: float) -> Probe:
        model = self.cached or self.model
        num_cached = len(prompt_ids) if self.cached is not None and self.fault != "silently not flushed" else 0
        if self.fault != "silently not flushed":
            self.cached = copy.deepcopy(self.model)
        ids, logprobs = list(prompt_ids), []
        for _ in range(0 if self.fault == "empty probe" else num_tokens):
            with torch.no_grad():
                hidden = model.hidden_states(torch.tensor([ids]))[0, -1]
                head = model.lm_head.weight if self.head is None else self.head
                scores = (hidden @ head.T / temperature).log_softmax(-1)
            ids.append(int(scores.argmax()))
            logprobs.append(float("nan") if self.fault == "not a number" else float(scores[ids[-1]]))
        if self.fault == "rounded once":
            logprobs, self.fault = [logprob - 0.01 for logprob in logprobs], ""
        token_ids = tuple(ids[len(prompt_ids) :])
        return Probe(
            where=self.where, version=self.version, num_cached=num_cached, token_ids=token_ids, logprobs=tuple(logprobs)
        )


class FakeSampler:
    """Several engines that process 0 directs for all, or one engine in every process."""

    def __init__(self, engines: list[FakeEngine], *, is_shared: bool, is_main: bool) -> None:
        self.is_shared = is_shared
        self.weight_version = 0
        self.engines = engines
        self.directs = is_main or not is_shared
        self.calls: list[str] = []

    def hold(self) -> None:
        self.calls.append("hold")

    def release(self) -> None:
        self.calls.append("release")

    def pause(self) -> None:
        assert self.directs
        self.calls.append("pause")

    def load(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> list[Receipt]:
        self.calls.append("load")
        if not self.directs:
            for _ in tensors:
                pass
            return []
        if self.is_shared:  # files, as it were
            tensors = [(name, tensor.clone()) for name, tensor in tensors]
        receipts = [engine.load(tensors) for engine in self.engines]
        return [] if self.engines[-1].fault == "no receipt" else receipts

    def load_adapter(self, folder: Path, version: int) -> list[Receipt]:
        self.calls.append("load_adapter")
        if not self.directs:
            return []
        arrived = load_file(folder / "adapter_model.safetensors")
        if self.engines[-1].fault == "altered":
            arrived["lora"] += 1
        return [Receipt(where=e.where, checksums={n: checksum(t) for n, t in arrived.items()}) for e in self.engines]

    def flush(self) -> None:
        self.calls.append("flush")
        for engine in self.engines:
            engine.flush()

    def resume(self, version: int) -> None:
        self.calls.append("resume")
        self.weight_version = version
        for engine in self.engines:
            if engine.fault not in ("skipped", "old version"):
                engine.version = version

    def probe(self, prompt_ids: tuple[int, ...], *, num_tokens: int, temperature: float, seed: int) -> list[Probe]:
        self.calls.append("probe")
        probes = [engine.probe(prompt_ids, num_tokens, temperature) for engine in self.engines]
        return [] if self.engines[-1].fault == "nothing sampled" else probes


class SyncRun:
    """A toy run and a sampler of its model; `is_shared`: two engines that process 0 directs."""

    def __init__(self, run: ToyRun, *, is_shared: bool) -> None:
        self.run = run
        self.backend = run.backend
        self.model = self.backend.unwrap(run.module).model
        replica = Scorer()
        self.backend.copy_weights(run.module, replica)
        names = ["server 0", "server 1"] if is_shared else [f"process {self.backend.rank}"]
        is_main = self.backend.is_main_process
        engines = [FakeEngine(replica.model, name) for name in names] if is_main or not is_shared else []
        self.sampler = FakeSampler(engines, is_shared=is_shared, is_main=is_main)
        self.num_scored = 0
        self.trainer_offset = 0.0
        """Added to the trainer's log-probs."""
        self.syncing = WeightSync(
            self.backend,
            self.sampler,
            dtype=torch.float32,
            probe_ids=PROBE_IDS,
            temperature=1.0,
            max_gap=1e-3,
        )

    def trainer_logprobs(self, samples: Sequence[ProbeSample]) -> list[list[float]]:
        self.num_scored += len(samples)
        with torch.no_grad():
            rows = [self.run.module(torch.tensor([[*prompt, *sampled]])).logprobs[0] for prompt, sampled in samples]
        ours = [row[len(prompt) - 1 :] for row, (prompt, _) in zip(rows, samples, strict=True)]
        return [(row + self.trainer_offset).tolist() for row in ours]

    def sync(self, version: int) -> dict[str, float]:
        return self.syncing.sync(self.model, version, trainer_logprobs=self.trainer_logprobs)

    def sync_with(self, fault: str, version: int, *, at: int = 0) -> list[tuple[str, str]]:
        """The error of every process, when the last engine that process `at` directs has this fault."""
        if self.backend.rank == at:
            self.sampler.engines[-1].fault = fault
        try:
            self.sync(version)
            error = ("nothing", "")
        except AgentRLError as caught:
            error = (type(caught).__name__, str(caught))
        for engine in self.sampler.engines:
            engine.fault, engine.head = "", None
        return self.backend.all_gather_object(error)


def report_on(run: ToyRun, folder: Path, *, is_shared: bool, faults: Sequence[str]) -> dict[str, Any]:
    """Two syncs that must succeed, one for each fault, and one that must succeed again; then adapters."""
    syncing = SyncRun(run, is_shared=is_shared)
    backend = run.backend
    metrics = []
    for version in (1, 2):
        run.step(version)
        metrics.append(syncing.sync(version))
    report: dict[str, Any] = {"metrics": metrics, "num_scored": syncing.num_scored}
    report["calls"] = backend.all_gather_object(syncing.sampler.calls.copy())
    expected = backend.broadcast_object(run.weights())
    differing = [
        name
        for engine in syncing.sampler.engines
        for name, weight in engine.model.state_dict().items()
        if not torch.equal(weight, expected[f"model.{name}"])
    ]
    report["differing"] = backend.all_gather_object(differing)
    report["errors"] = {}
    for version, fault in enumerate(faults, start=3):
        run.step(version)
        report["errors"][fault] = syncing.sync_with(fault, version)
    if not is_shared:
        last = backend.num_processes - 1
        for fault in ("crash", "nothing sampled", "no receipt"):
            report["errors"][f"{fault} at the last"] = syncing.sync_with(fault, 50, at=last)
    report["after"] = syncing.sync_with("", 51)
    syncing.trainer_offset = 0.0 if backend.is_main_process else 0.0011
    report["apart"] = syncing.sync_with("", 52)
    syncing.trainer_offset = 0.0
    report["adapters"] = adapters(syncing, folder / f"adapters_{is_shared}")
    return report


def adapters(syncing: SyncRun, folder: Path) -> dict[str, Any]:
    """Two adapters that arrive, and one that does not; what the folder then holds."""
    called = []

    def write(path: Path) -> None:
        called.append(path.name)
        syncing.backend.barrier()
        if syncing.backend.is_main_process:
            save_file({"lora": torch.full((2, 3), float(path.name[-1]))}, path / "adapter_model.safetensors")

    def sync(version: int) -> dict[str, float]:
        return syncing.syncing.sync_adapter(write, folder, version, trainer_logprobs=syncing.trainer_logprobs)

    syncing.sampler.calls.clear()
    metrics = [sync(1), sync(2)]
    report: dict[str, Any] = {"metrics": metrics[-1], "calls": syncing.sampler.calls.copy()}
    report["folders"] = sorted(path.name for path in folder.iterdir())
    for engine in syncing.sampler.engines:
        engine.fault = "altered"
    try:
        sync(3)
        report["error"] = ""
    except AgentRLError as caught:
        report["error"] = str(caught)
    report["called"] = syncing.backend.all_gather_object(called)
    report["unwritable"] = syncing.backend.all_gather_object(error_without_folder(syncing, folder))
    return report


def error_without_folder(syncing: SyncRun, folder: Path) -> str:
    """Where the adapters' folder cannot be made; all processes would gather as they write."""
    (folder / "file").touch()

    def write(_: Path) -> None:
        syncing.backend.barrier()

    try:
        syncing.syncing.sync_adapter(write, folder / "file", 4, trainer_logprobs=syncing.trainer_logprobs)
    except WeightSyncError as error:
        return str(error)
    return ""


def main(folder: Path, faults: Sequence[str]) -> None:
    zero.BUCKET_ELEMENTS = BUCKET_ELEMENTS
    run = ToyRun()
    report = {kind: report_on(run, folder, is_shared=kind == "shared", faults=faults) for kind in ("shared", "own")}
    if run.backend.is_main_process:
        torch.save(report, folder / "sync.pt")
    run.backend.close()
