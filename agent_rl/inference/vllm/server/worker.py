"""The extension of vLLM's workers: load new weights and report checksums. `worker_extension_cls` names it.

vLLM mixes `WorkerExtension` into its worker and calls it by `collective_rpc`, in a process of its own or in this one.
Checksums are of whole tensors by the names of the checkpoint, before vLLM joins, shards or casts them, and so the same
on every worker. Not here: who sends (`transports.py`), what is compared (`distributed/weight_verification.py`).
"""

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agent_rl.distributed.checksums import checksum
from agent_rl.distributed.model_checksums import (
    UnreadableWeightsError,
    changed_since,
    checksums_of_model,
    read_tensors,
)
from agent_rl.errors import AgentRLError
from agent_rl.inference.base import digest_of

NCCL_BACKEND = "agent_rl_nccl"
"""Name for `--weight-transfer-config`: vLLM's NCCL transfer, with checksums of what arrived."""
ADAPTER_FILE = "adapter_model.safetensors"
_IMPORTED_S = time.time()
"""vLLM imports this module before it reads the weights."""
_UNFINISHED = "a load that was not finished"
_RELOAD_LOGGER = "vllm.model_executor.model_loader.reload.layerwise"


class WorkerExtension:
    """Methods of a vLLM worker; a failure is a ValueError that names the tensor."""

    _agent_rl_state: str | None = None
    _agent_rl_checksums: dict[str, str] | None = None
    """Of the whole weights; None: they are those that the worker was started with, and nobody asked yet."""
    _agent_rl_torn: str | None = None

    def agent_rl_load_files(self, paths: Sequence[str]) -> dict[str, str]:
        """Load all weights from safetensors files, one tensor at a time; checksums of them as they were read.

        A missing or torn file, or a tensor that stands in two of them, leaves the weights as they were. The caller
        does not sample while weights are loaded, nor after a failed load.
        """
        _check_files(paths)
        return self._agent_rl_load(read_tensors(paths, self.device))

    def agent_rl_load_tensors(self, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
        """The same from an iterator of this process; what is left of it after a failure is the caller's to read."""
        # vLLM keeps the tensors of a layer until the last of them is there; each is valid until the next one only.
        return self._agent_rl_load((name, tensor.detach().clone()) for name, tensor in tensors)

    def agent_rl_state(self) -> str | None:
        """`digest_of` the last weights received, or why they are not whole; None if nothing was received."""
        return self._agent_rl_state

    def agent_rl_weights(self) -> dict[str, Any]:
        """The `checksums` of the weights that are sampled with, adapters left out; or, as a clause, why the weights are
        `torn`, or why their checksums are `unknown`.

        Of weights that were received, as they arrived. Of those that the worker was started with they are computed the
        first time, from the files, which must not have changed since.
        """
        if getattr(getattr(self, "weight_transfer_engine", None), "is_unfinished", False):
            return {"torn": _UNFINISHED}
        if self._agent_rl_torn is not None:
            return {"torn": self._agent_rl_torn}
        if self._agent_rl_checksums is None:
            config = self.vllm_config.model_config
            try:
                if (changed := changed_since(config.model, _IMPORTED_S)) is not None:
                    return {"unknown": f"{changed} was changed after the server was started"}
                self._agent_rl_checksums = checksums_of_model(config.model, config.dtype, self.device)
            except UnreadableWeightsError as error:
                return {"unknown": str(error)}
        return {"checksums": self._agent_rl_checksums}

    def agent_rl_device(self) -> str:
        """What identifies this worker's GPU among those of all machines; empty on a CPU."""
        return gpu_id(self.device)

    def agent_rl_adapter_checksums(self, folder: str) -> dict[str, str]:
        """Checksums of the LoRA adapter in `folder`, as this worker reads it."""
        path = str(Path(folder) / ADAPTER_FILE)
        _check_files([path])
        return self._agent_rl_note({name: checksum(tensor) for name, tensor in read_tensors([path], self.device)})

    def agent_rl_received(self) -> dict[str, str]:
        """Checksums of what came by NCCL since the last call; RuntimeError without our transfer engine."""
        engine = getattr(self, "weight_transfer_engine", None)
        if not hasattr(engine, "take_received"):
            raise RuntimeError(
                f"this server receives through {type(engine).__name__}, expected the backend {NCCL_BACKEND!r}; start "
                "it with agent-rl serve-vllm --weight-transfer nccl"
            )
        return self._agent_rl_note_all(engine.take_received())

    def agent_rl_sample_by_seed(self) -> None:
        """Let this CPU worker sample without the process's random numbers, which are the trainer's."""
        self.model_runner.sampler.topk_topp_sampler.forward = _sample_by_seed

    def _agent_rl_note(self, received: dict[str, str]) -> dict[str, str]:
        self._agent_rl_state = digest_of(received)
        return received

    def _agent_rl_note_all(self, received: dict[str, str]) -> dict[str, str]:
        """The same for whole weights, without adapters."""
        self._agent_rl_checksums, self._agent_rl_torn = received, None
        return self._agent_rl_note(received)

    def _agent_rl_load(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
        model = self.model_runner.get_model()
        received: dict[str, str] = {}
        hide_expected_warnings()
        self._agent_rl_state = self._agent_rl_torn = _UNFINISHED
        try:
            with whole_or_restored(model, self.vllm_config), recorded(model, received) as filled:
                self.reload_weights(weights_iterator=weights)
                check_filled(model, filled, self.vllm_config)
        except AgentRLError:
            raise  # raised by the gathering code
        except Exception as error:
            last = next(reversed(received), None)
            # A second sentence of vLLM's lists all parameters of the model.
            why = str(error).split(". ", maxsplit=1)[0]
            self._agent_rl_state = self._agent_rl_torn = f"at tensor {last!r}: {type(error).__name__}: {why}"
            raise ValueError(f"vLLM did not take these weights, {self._agent_rl_state}") from error
        if self.device.type == "cpu":
            _pack_tied_heads(model)
        return self._agent_rl_note_all(received)


def gpu_id(device: torch.device) -> str:
    """The UUID of a GPU; empty for another device."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


@contextmanager
def recorded(model: nn.Module, received: dict[str, str]) -> Iterator[set[str]]:
    """While open, checksums of all that `model.load_weights` is given go to `received`; yields what it filled."""
    filled: set[str] = set()
    plain = model.load_weights

    def load_weights(weights: Iterable[tuple[str, Tensor]]) -> set[str] | None:
        loaded = plain(_noted(weights, received))
        filled.update(loaded or ())
        return loaded

    model.load_weights = load_weights
    try:
        yield filled
    finally:
        del model.load_weights


@contextmanager
def whole_or_restored(model: nn.Module, vllm_config: Any) -> Iterator[None]:
    """Around a reload: after a failure, make the model's layers complete again, whatever their weights are.

    vLLM would count the tensors it has read of a layer to the next load, which would end early with a mixture.
    """
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

    def restore() -> None:
        with set_current_vllm_config(vllm_config):
            finalize_layerwise_reload(model, vllm_config.model_config)

    with ExitStack() as on_failure:
        on_failure.callback(restore)
        yield
        on_failure.pop_all()


def check_filled(model: nn.Module, filled: set[str], vllm_config: Any) -> None:
    """ValueError when parameters got no tensor; vLLM itself only logs it and leaves the old ones.

    Of parameters that are made of several tensors (queries, keys and values) the first is enough to pass: a tensor
    that was lost shows in the checksums.
    """
    if vllm_config.model_config.quantization is not None or not filled:
        return
    wanted = {name.replace(".base_layer.", ".") for name, _ in model.named_parameters()}
    if missing := sorted(wanted - filled):
        raise ValueError(f"no tensor came for {len(missing)} of {len(wanted)} parameters, the first is {missing[0]!r}")


def hide_expected_warnings() -> None:
    """Filter vLLM's warnings of every reload out of the log: tables of rotary embeddings and tied heads.

    The first are computed and in no checkpoint, the second have the embeddings' weight; `check_filled` finds the rest.
    """
    logging.getLogger(_RELOAD_LOGGER).addFilter(_is_informative)


def _is_informative(record: logging.LogRecord) -> bool:
    return not record.getMessage().endswith(
        ("RotaryEmbedding: Failed to load weights", "ParallelLMHead: Failed to load weights")
    )


def _noted(weights: Iterable[tuple[str, Tensor]], received: dict[str, str]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in weights:
        if name in received:
            raise ValueError(f"tensor {name!r} came twice")
        received[name] = checksum(tensor)
        yield name, tensor


def _check_files(paths: Sequence[str]) -> None:
    from safetensors import SafetensorError, safe_open

    seen: dict[str, str] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
        except FileNotFoundError:
            raise ValueError(
                f"{path} does not exist where vLLM runs; put vllm.weight_folder where trainer and servers see it"
            ) from None
        except SafetensorError as error:
            raise ValueError(f"{path} is torn or not a safetensors file: {error}") from None
        for name in names:
            if name in seen:
                raise ValueError(f"tensor {name!r} is in {seen[name]} and in {path}, expected it once")
            seen[name] = path


def _pack_tied_heads(model: nn.Module) -> None:
    """Prepare heads that share the embeddings' weight for sampling, which vLLM's reload omits on CPUs.

    There a head computes with a packed copy, made when weights are loaded into it; a tied one is loaded into the
    embeddings alone, and without this would use the copy of the old weights.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    tables = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    shared = {id(table.weight) for table in tables if not isinstance(table, ParallelLMHead)}
    for table in tables:
        if isinstance(table, ParallelLMHead) and id(table.weight) in shared:
            table.quant_method.process_weights_after_loading(table)


def _sample_by_seed(
    logits: Tensor, generators: Mapping[int, torch.Generator], _top_k: None, _top_p: None
) -> tuple[Tensor, Tensor]:
    """As vLLM samples on CPUs, [B, V] logits to [B] ids and [B, V] log-probs, but from the rows' own generators alone.

    Rows without one are greedy; vLLM replaces their sampled ids by the most likely ones.
    """
    seeds = torch.zeros(len(logits), dtype=torch.long)
    for row, generator in generators.items():
        seeds[row] = torch.randint(0, 2**31, (1,), generator=generator)
    sampled = torch.ops._C.fused_gumbel_argmax(logits.float(), seeds)
    return sampled, logits.log_softmax(-1, dtype=torch.float32)


@cache
def offer_nccl_backend() -> None:
    """Make `NCCL_BACKEND` known to vLLM, which must be done before a worker makes its transfer engine."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    WeightTransferEngineFactory.register_engine(
        NCCL_BACKEND, "agent_rl.inference.vllm.server.worker_nccl", "NCCLEngine"
    )


if "vllm" in sys.modules:
    # In a server: its worker imports this module for `WorkerExtension`, and offers no later moment.
    offer_nccl_backend()
