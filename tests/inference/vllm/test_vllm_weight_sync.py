"""New weights for real vLLM servers: verified when they arrive, found when they do not.

The tests share one server, in this order: the last one kills it. Adapters have a server of their own, and the last test
an engine inside this process.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from vllm_load import wait_for_load
from waiting import free_port
from watched_servers import one_server

from agent_rl.distributed.backend import Backend
from agent_rl.distributed.weight_stream import WeightStream
from agent_rl.distributed.weight_sync import ProbeSample, WeightSync, WeightSyncError
from agent_rl.errors import EngineError
from agent_rl.inference.base import Receipt, WeightReceiver
from agent_rl.inference.vllm.server.launch_plan import ServeOptions
from agent_rl.inference.vllm.server_engine import ServerEngine
from agent_rl.inference.vllm.servers import VLLMServers
from agent_rl.inference.vllm.transports import FileTransport
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.records import FinishReason, SamplingParams

if TYPE_CHECKING:
    from peft import PeftModel

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

MODEL = Path(__file__).resolve().parents[3] / "model" / "nat_minimind"
PROBE_IDS = tuple(range(60, 20, -1)) * 7
"""280 ids: two whole blocks of vLLM's cache on a CPU."""
OTHER_PROMPT = tuple(range(100, 130))
MAX_GAP = 1e-3
TEMPERATURE = 0.8


class Setup:
    """A trained model, one server, and what sends it weights."""

    def __init__(self, address: str, folder: Path) -> None:
        self.backend = Backend("cpu")
        self.folder = folder
        self.port = int(address.rsplit(":", 1)[1])
        self.address = address
        self.model = MiniMindForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        self.servers = VLLMServers([address], request_timeout_s=200.0, start_timeout_s=150.0)
        self.sampler = ServerEngine(self.servers, FileTransport(folder / "weights"), max_gap=MAX_GAP)
        self.version = 0
        torch.manual_seed(0)

    def learn(self, size: float = 0.02) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(size * parameter.std() * torch.randn_like(parameter))

    def logprobs(self, samples: Sequence[ProbeSample]) -> list[list[float]]:
        rows = []
        for prompt_ids, token_ids in samples:
            with torch.no_grad():
                logits = self.model(torch.tensor([[*prompt_ids, *token_ids]]))[0, len(prompt_ids) - 1 : -1]
            scores = (logits / TEMPERATURE).log_softmax(-1)
            rows.append([float(row[token]) for row, token in zip(scores, token_ids, strict=True)])
        return rows

    def syncing(self, sampler: WeightReceiver | None = None) -> WeightSync:
        return WeightSync(
            self.backend,
            sampler or self.sampler,
            dtype=torch.float32,
            probe_ids=PROBE_IDS,
            temperature=TEMPERATURE,
            max_gap=MAX_GAP,
        )

    def sync(self, sampler: WeightReceiver | None = None) -> dict[str, float]:
        self.version += 1
        try:
            return self.syncing(sampler).sync(self.model, self.version, trainer_logprobs=self.logprobs)
        finally:
            self.servers.pool.rejoin = self.sampler.rejoin

    def gap(self) -> float:
        """Of a completion after another prompt than the probe's."""
        sampled = self.servers.complete(
            OTHER_PROMPT, SamplingParams(max_new_tokens=12, temperature=TEMPERATURE, seed=5)
        )
        assert sampled.weight_version == self.version
        (ours,) = self.logprobs([(OTHER_PROMPT, sampled.token_ids)])
        return max(abs(a - b) for a, b in zip(sampled.logprobs, ours, strict=True))

    def pids(self) -> list[int]:
        """Of the server's process group."""
        return [pid for pid in pids() if str(self.port) in words_of(pid) and "--model" in words_of(pid)]

    def group(self) -> list[int]:
        groups = {os.getpgid(pid) for pid in self.pids()}
        return [pid for pid in pids() if group_of(pid) in groups]


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def words_of(pid: int) -> list[str]:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text().split("\0")
    except OSError:
        return []


def group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def resident_mib(pid: int) -> float:
    return int((Path("/proc") / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("servers")
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    options = ServeOptions(
        model=str(MODEL),
        port=free_port(),
        max_context=2048,
        max_batch_size=32,
        dtype="float32",
        log_dir=folder / "logs",
    )
    with one_server(options) as address:
        own = Setup(address, folder)
        with own.servers:
            yield own


def test_trained_weights_arrive_and_are_sampled_from(setup: Setup) -> None:
    setup.learn()
    metrics = setup.sync()
    assert metrics["sync/probe_gap"] < MAX_GAP
    assert setup.gap() < MAX_GAP
    assert metrics["sync/gigabytes"] == pytest.approx(4e-9 * sum(p.numel() for p in setup.model.parameters()))


def test_running_completions_end_interrupted_and_later_ones_have_the_new_weights(setup: Setup) -> None:
    setup.learn()
    sampling = SamplingParams(max_new_tokens=2000, temperature=TEMPERATURE, seed=1)
    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(setup.servers.complete, OTHER_PROMPT, sampling) for _ in range(4)]
        wait_for_load(setup.servers, 4)
        setup.sync()
    sampled = [future.result() for future in futures]
    assert [completion.finish_reason for completion in sampled] == [FinishReason.INTERRUPTED] * 4
    assert {completion.weight_version for completion in sampled} == {setup.version - 1}
    assert setup.gap() < MAX_GAP


# Faults


class Faulty(ServerEngine):
    """A sampler that does one thing wrong."""

    def __init__(self, setup: Setup, fault: str) -> None:
        super().__init__(setup.servers, FileTransport(setup.folder / "weights"), max_gap=MAX_GAP)
        self._fault = fault
        self._setup = setup

    def pause(self) -> None:
        if self._fault != "cache":
            super().pause()
            return
        for address in self._servers.addresses:
            self._servers.post(address, "/pause", params={"mode": "abort", "clear_cache": "false"})

    def load(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> list[Receipt]:
        if self._fault.startswith("without "):
            left_out = self._fault.removeprefix("without ")
            return super().load(((name, tensor) for name, tensor in tensors if name != left_out), version)
        if self._fault == "altered":
            return super().load(((n, t + 1e-3 * (n == "model.norm.weight")) for n, t in tensors), version)
        if self._fault in ("skipped", "head"):
            if self._fault == "head":  # as vLLM reloads weights itself, which leaves a tied head's copy as it was
                self._setup.model.save_pretrained(self._setup.folder / "model")
                path = {"weights_path": str(self._setup.folder / "model")}
                self._members.post("/collective_rpc", {"method": "reload_weights", "kwargs": path})
            stream: WeightStream = tensors
            stream.drain()
            return [Receipt(where=address, checksums=stream.checksums) for address in self._servers.addresses]
        return super().load(tensors, version)

    def flush(self) -> None:
        if self._fault != "cache":
            super().flush()

    def _check_it_has_them(self, address: str) -> None:
        """Accepts skipped weights."""
        if self._fault not in ("skipped", "head"):
            super()._check_it_has_them(address)


@pytest.mark.parametrize(
    ("fault", "kind", "sentence"),
    [
        ("skipped", WeightSyncError, "does not sample from the trainer's weights"),
        ("head", WeightSyncError, "does not sample from the trainer's weights"),
        ("cache", WeightSyncError, "took 256 tokens of its prompt from a cache of older weights"),
        ("altered", WeightSyncError, "model.norm.weight has checksum float32"),
        (
            "without model.layers.0.self_attn.k_proj.weight",
            WeightSyncError,
            r"k_proj.weight has checksum none \(it is m",
        ),
        ("without model.norm.weight", EngineError, "no tensor came for 1 of"),
    ],
)
def test_faults_are_found_and_the_next_sync_repairs_them(
    setup: Setup, fault: str, kind: type[Exception], sentence: str
) -> None:
    setup.learn(size=0.1)
    with pytest.raises(kind, match=sentence):
        setup.sync(Faulty(setup, fault))
    assert setup.sync()["sync/probe_gap"] < MAX_GAP
    assert setup.gap() < MAX_GAP


def test_fifty_syncs_take_no_more_memory_and_disk_than_one(setup: Setup) -> None:
    def measure() -> tuple[float, int]:
        files = [path for path in (setup.folder / "weights").rglob("*") if path.is_file()]
        return sum(map(resident_mib, setup.group())), sum(path.stat().st_size for path in files)

    before = measure()
    for _ in range(50):
        setup.learn(size=0.001)
        setup.sync()
    after = measure()
    print("MiB and bytes", before, after)
    assert after[0] < before[0] + 40  # each is 19 MiB
    assert after[1] < 1.01 * before[1]
    assert setup.gap() < MAX_GAP


def test_a_server_that_was_killed_rejoins_with_the_present_weights_and_gets_the_next(setup: Setup) -> None:
    rejoin, rejoined = setup.servers.pool.rejoin, []

    def note(address: str) -> bool:
        has_rejoined = rejoin(address)
        if has_rejoined:
            rejoined.append(setup.servers.get(address, "/weight_info")["weight_version"])
        return has_rejoined

    setup.servers.pool.rejoin = note
    old_label = setup.servers.pool.weight_label
    os.killpg(os.getpgid(setup.pids()[0]), signal.SIGKILL)
    setup.learn()
    # The only server: waits until it is back, and has rejoined with the old weights.
    assert setup.sync()["sync/probe_gap"] < MAX_GAP
    assert rejoined == [old_label]
    assert setup.gap() < MAX_GAP
    assert setup.servers.get(setup.address, "/weight_info") == {"weight_version": setup.servers.pool.weight_label}
    assert setup.servers.pool.weight_label != old_label


# Adapters


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Setup, "PeftModel"]]:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("adapters")
    options = ServeOptions(
        model=str(MODEL),
        port=free_port(),
        max_context=2048,
        max_batch_size=32,
        dtype="float32",
        lora_rank=4,
        log_dir=folder / "logs",
    )
    torch.manual_seed(0)
    model = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    with one_server(options) as address:
        own = Setup(address, folder)
        own.model = lambda ids: model(ids).logits
        with own.servers:
            yield own, model


def learn_adapter(model: "PeftModel") -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)


def test_adapters_arrive_and_the_last_one_is_sampled_with(adapted: Any) -> None:
    setup, model = adapted

    def write(folder: Path) -> None:
        model.save_pretrained(folder, save_embedding_layers=False)

    sampling = SamplingParams(max_new_tokens=2000, temperature=TEMPERATURE, seed=1)
    for version in (1, 2):
        learn_adapter(model)
        with ThreadPoolExecutor(2) as threads:
            active = threads.submit(setup.servers.complete, OTHER_PROMPT, sampling)
            wait_for_load(setup.servers, 1)
            setup.servers.post_all("/pause", params={"mode": "abort"})
            waiting = threads.submit(setup.servers.complete, OTHER_PROMPT, sampling)
            time.sleep(0.5)
            setup.version = version
            metrics = setup.syncing().sync_adapter(
                write, setup.folder / "adapters", version, trainer_logprobs=setup.logprobs
            )
        assert metrics["sync/probe_gap"] < MAX_GAP
        assert setup.gap() < MAX_GAP
        # Nothing that waited for the old adapter is answered by it.
        assert waiting.result().token_ids == ()
        assert {active.result().finish_reason, waiting.result().finish_reason} == {FinishReason.INTERRUPTED}
    models = setup.servers.get(setup.address, "/v1/models")["data"]
    assert [model["id"] for model in models if model["id"].startswith("adapter-")] == ["adapter-2"]
    assert [path.name for path in (setup.folder / "adapters").iterdir()] == ["adapter_2"]


def test_an_adapter_that_is_not_the_trainers_is_found(adapted: Any) -> None:
    setup, model = adapted

    def write(folder: Path) -> None:
        model.save_pretrained(folder, save_embedding_layers=False)
        file = folder / "adapter_model.safetensors"
        save_file({name: 2 * tensor for name, tensor in load_file(file).items()}, file)

    learn_adapter(model)
    with pytest.raises(WeightSyncError, match="does not sample from the trainer's weights 9"):
        setup.syncing().sync_adapter(write, setup.folder / "adapters", 9, trainer_logprobs=setup.logprobs)


# An engine inside the process


def test_an_engine_inside_the_process_is_sent_weights_in_the_same_way(setup: Setup) -> None:
    from agent_rl.inference.vllm.engine import VLLMEngine
    from agent_rl.inference.vllm.engine_start import EngineOptions

    class Forgetful(VLLMEngine):
        """Reports that it received all, and keeps its old weights."""

        def load(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> list[Receipt]:
            stream: WeightStream = tensors
            stream.drain()
            return [Receipt(where=self._where, checksums=stream.checksums)]

    with VLLMEngine(EngineOptions(model=str(MODEL), dtype="float32", max_context=512, max_batch_size=4)) as engine:
        for _ in range(2):
            setup.learn()
            assert setup.sync(engine)["sync/probe_gap"] < MAX_GAP
        sampled = engine.complete(OTHER_PROMPT, SamplingParams(max_new_tokens=12, temperature=TEMPERATURE, seed=5))
        (ours,) = setup.logprobs([(OTHER_PROMPT, sampled.token_ids)])
        assert max(abs(a - b) for a, b in zip(sampled.logprobs, ours, strict=True)) < MAX_GAP
        assert sampled.weight_version == setup.version
        engine.__class__ = Forgetful
        setup.learn(size=0.1)
        with pytest.raises(WeightSyncError, match="process 0 does not sample from the trainer's weights"):
            setup.sync(engine)
