"""The trained weights as a stream of whole tensors, named as in a Hugging Face checkpoint.

Tied weights come once, under the name that the checkpoint has; what is in no checkpoint is left out; weights that
Transformers keep joined (the experts of a layer) come as the parts that they were read from. Shards are gathered bucket
by bucket while the stream is read. Not here: the readers of the stream.
"""

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from agent_rl.distributed import zero
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.checksums import checksum
from agent_rl.errors import ConfigError
from agent_rl.modeling.sharding import full_shape


class WeightStream:
    """`for name, tensor in WeightStream(backend, model, dtype=torch.bfloat16)`: one pass over all weights.

    A tensor is valid only until the next one is read. Under ZeRO-3 every process reads the stream to its end, at
    the same time and outside the model's forward. Once read, `checksums`, `num_buckets`, `num_bytes` and `gather_s`
    describe what was sent.
    """

    def __init__(self, backend: Backend, module: nn.Module, *, dtype: torch.dtype) -> None:
        """`module` is the model inside the prepared one; `dtype` is the engine's, for all floating-point tensors.

        ConfigError for a model whose checkpoint joins what the model keeps apart.
        """
        self._backend = backend
        self._module = module
        self._dtype = dtype
        self._tensors = _tensors_of(module)
        self.kinds = self._kinds()
        """Names, and tensors without data of their formats and shapes, in the order of the stream."""
        self.checksums: dict[str, str] = {}
        """Of each tensor as it was sent."""
        self.num_buckets = 0
        self.num_bytes = 0
        self.gather_s = 0.0
        """Time until buckets were whole, on this process."""
        self._rest = self._read()

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self._rest

    def drain(self) -> None:
        """Read what is left to its end, because the other processes do."""
        for _ in self._rest:
            pass

    def _read(self) -> Iterator[tuple[str, Tensor]]:
        buckets = zero.gathered(self._tensors)
        while True:
            started = time.perf_counter()
            self._settle()
            with self._backend.waiting_for("the weights of the other processes"):
                bucket = next(buckets, None)
            self._settle()
            self.gather_s += time.perf_counter() - started
            if bucket is None:
                return
            self.num_buckets += 1
            for own_name, whole in bucket:
                for name, tensor in _revert(self._module, {own_name: whole.detach()}).items():
                    sent = tensor.to(self._sent_dtype(tensor))
                    self.checksums[name] = checksum(sent)
                    self.num_bytes += sent.nbytes
                    yield name, sent

    def _settle(self) -> None:
        """The reader may use another CUDA stream: gathering must be done before, and reading before the next one."""
        if self._backend.device.type == "cuda":
            torch.cuda.synchronize(self._backend.device)

    def _sent_dtype(self, tensor: Tensor) -> torch.dtype:
        return self._dtype if tensor.is_floating_point() else tensor.dtype

    def _kinds(self) -> list[tuple[str, Tensor]]:
        empty = {
            name: torch.empty(full_shape(tensor), dtype=tensor.dtype, device="meta") for name, tensor in self._tensors
        }
        one_by_one = [pair for own in empty.items() for pair in _revert(self._module, dict([own])).items()]
        whole = _revert(self._module, empty)
        if {name: tensor.shape for name, tensor in one_by_one} != {n: tensor.shape for n, tensor in whole.items()}:
            raise ConfigError(
                f"{type(self._module).__name__}: a checkpoint joins weights that this model keeps apart, which cannot "
                "be sent to an engine with weights of its own; set policy.type=huggingface"
            )
        return [(name, tensor.to(self._sent_dtype(tensor))) for name, tensor in one_by_one]


def _tensors_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Names and weights that a checkpoint holds; of tied ones the name that it is read from."""
    left_out = set(getattr(module, "_keys_to_ignore_on_save", None) or ())
    tied = getattr(module, "all_tied_weights_keys", None) or {}
    state = {name: tensor for name, tensor in module.state_dict(keep_vars=True).items() if name not in left_out}
    names: dict[int, str] = {}
    for name, tensor in state.items():
        # The pointer does not identify it: all shards of ZeRO-3 have the same.
        first = names.setdefault(id(tensor), name)
        if first in tied and name not in tied:
            names[id(tensor)] = name
    chosen = set(names.values())
    return [(name, tensor) for name, tensor in state.items() if name in chosen]


def _revert(module: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Undo what Transformers did to a checkpoint's tensors as it read them; other modules have their names."""
    from transformers import PreTrainedModel
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(module, state) if isinstance(module, PreTrainedModel) else state
