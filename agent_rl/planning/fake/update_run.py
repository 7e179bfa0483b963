"""Runs real updates of a planned model on tensors that may be fake, and says what was alive in which phase.

Real are: the model as Transformers and peft build it, our layers in it, packing, log-probs, loss, backward pass,
clipping and AdamW, through `PolicyUpdater`. Not run: DeepSpeed, which reads tensors' addresses. Under ZeRO-2 and 3 a
gradient is dropped as soon as it is complete, as DeepSpeed does after it has copied it to a bucket; under any ZeRO the
optimizer step is left out. Does not: make tensors fake (`pretended_gpu.py`), compare with a plan (`verify.py`).
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from agent_rl.config import Config
from agent_rl.distributed.backend import Backend, OptimizerStep
from agent_rl.errors import ConfigError
from agent_rl.learning.objective import LossInputs, Objective
from agent_rl.learning.step_stats import StepStats
from agent_rl.learning.update import PolicyUpdater
from agent_rl.planning.fake.live_bytes import LiveBytes
from agent_rl.planning.layout import Layout
from agent_rl.policies.hf_loading import quiet
from agent_rl.policies.hf_policy import add_adapter, enable_gradient_checkpointing
from agent_rl.records import TrainingSample

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

NUM_MICRO_BATCHES = 2
"""Of an update and a process: gradients add up in the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchShape:
    """A prompt and the samples that continue it: `MicroBatchShape(prompt=4096, own=(6144, 6144))` is 16,384 tokens."""

    prompt: int
    own: tuple[int, ...]
    """Tokens of each sample behind the prompt, all of them trained."""

    @property
    def num_tokens(self) -> int:
        return self.prompt + sum(self.own)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBytes:
    """Of the second of two updates, when all states of the optimizer exist; bytes of one process."""

    weights: int
    """Of the whole model and its adapters; a process holds a share of them under ZeRO-3."""
    states: int
    """Of the optimizer; 0 under ZeRO, where it is not run."""
    kept: int
    """Beyond weights and states when the model's layers are done: what they keep for the backward pass."""
    layers: int
    """As all the following: the most that was alive beyond weights and states. In the forward pass of the layers."""
    head: int
    """In the output head and the loss, forward and backward."""
    backward: int
    """In the backward pass of the layers, gradients included."""
    step: int
    """In clipping and the optimizer's step, gradients included."""
    products: dict[str, int]
    """Multiplications and additions of matrix products by the number format of their factors."""
    attentions: dict[str, int]
    """Calls of fused attention by number format."""


def choose_micro_batch(config: Config, *, tokens: int, prompt: int, own: int) -> MicroBatchShape:
    """A group that fills `tokens`: as many samples of about `own` tokens behind one prompt as fit into the window."""
    window = config.policy.max_context
    if prompt + own > window:
        prompt = window // 4  # what is assumed of episodes does not fit into this window
    left = tokens - prompt
    if tokens > config.train.micro_batch_tokens:
        num = 1  # a sample that is longer than a micro-batch has one of its own
    else:
        num = max(1, left // min(own, left), math.ceil(left / (window - prompt)))
    return MicroBatchShape(prompt=prompt, own=tuple(left // num + (index < left % num) for index in range(num)))


def run_update(
    model: nn.Module, config: Config, layout: Layout, shape: MicroBatchShape, live: LiveBytes
) -> UpdateBytes:
    """Two updates of `NUM_MICRO_BATCHES` micro-batches; `live` and whatever makes tensors fake are entered already.

    ConfigError for a critic, a reference or shared micro-batches, which this does not know.
    """
    if config.algorithm.advantage == "gae" or config.algorithm.kl.coef:
        raise ConfigError(
            f"algorithm.advantage = {config.algorithm.advantage!r} with algorithm.kl.coef = "
            f"{config.algorithm.kl.coef}: this run has a critic or a reference, which are not run on fake tensors; set "
            "algorithm.advantage=grpo algorithm.kl.coef=0 to check the rest of the plan"
        )
    if config.train.sequence_parallel > 1:
        raise ConfigError(
            f"train.sequence_parallel = {config.train.sequence_parallel}: who predicts what of a shared micro-batch is "
            "read from tensors, and fake ones hold none; set it to 1, and train.micro_batch_tokens to a process's part"
        )
    with _processes(layout.num_processes):
        live.count([*model.parameters(), *model.buffers()])
        weights = live.now
        backend = PhaseBackend(layout, live, next(model.parameters()).device)
        updater = PolicyUpdater(model, config, backend)
        samples, inputs = _samples(shape, NUM_MICRO_BATCHES * layout.num_processes, Objective(config))
        _mark_layers(updater.module, live)
        made = live.now
        for _ in range(2):
            live.restart("before")
            base = live.now
            updater.train_minibatch(samples, range(len(samples)), inputs, StepStats(), is_critic_alone=False)
    return _figures(live, base=base, weights=weights, states=base - made)


class PhaseBackend(Backend):
    """The first process of a planned run, alone: what is collective answers for itself, and phases are marked."""

    def __init__(self, layout: Layout, live: LiveBytes, device: torch.device) -> None:
        # Without Accelerate, which would look for a GPU, and a group for control traffic, for which there is nobody.
        self.device, self.timeout_s = device, 0.0
        self.rank, self.num_processes = 0, layout.num_processes
        self._plugin = self._engine = self._control = None
        self._planned, self._live = layout, live

    @property
    def kind(self) -> str:
        return "plain"

    @property
    def zero_stage(self) -> int:
        return self._planned.zero_stage

    def prepare(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """As they are; under ZeRO-2 and 3 a gradient goes when it is complete."""
        if self.zero_stage >= 2:
            for parameter in module.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(_drop_gradient)
        return module, optimizer

    def sum(self, value: float) -> float:
        """As if all others had 0."""
        return value

    def backward(self, loss: Tensor) -> None:
        self._live.enter("head")
        super().backward(loss)

    def step(self, module: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> OptimizerStep:
        """Clip and step; under ZeRO, whose optimizer is DeepSpeed's, only forget the gradients."""
        self._live.enter("step")
        if self.zero_stage:
            module.zero_grad()
            return OptimizerStep(grad_norm=0.0, applied=True)
        return super().step(module, optimizer, **options)


def build_model(source: "PreTrainedConfig", config: Config) -> nn.Module:
    """The model that is trained, untrained, with adapters if configured; on the device that `torch.device` sets."""
    from transformers import AutoModelForCausalLM

    with quiet():
        model = AutoModelForCausalLM.from_config(copy.deepcopy(source), dtype=getattr(torch, config.model.dtype))
    if config.model.gradient_checkpointing:
        enable_gradient_checkpointing(model)
    if config.model.lora.rank:
        model = add_adapter(model, config.model.path, config.model.lora, seed=0)
    return model.eval()


def allocate(model: nn.Module) -> None:
    """Replace tensors of the meta device by new ones, fake if tensors are made fake; tied weights stay tied."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, old in tensors.items():
                if old is not None and id(old) not in made:
                    new = torch.empty(old.shape, dtype=old.dtype, device="cpu")
                    is_weight = isinstance(old, nn.Parameter)
                    made[id(old)] = nn.Parameter(new, requires_grad=old.requires_grad) if is_weight else new
                if old is not None:
                    tensors[name] = made[id(old)]


@contextmanager
def _processes(num: int) -> Iterator[None]:
    """A process group of so many, of which only this one exists."""
    if num == 1:
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=num, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None


def _mark_layers(module: nn.Module, live: LiveBytes) -> None:
    """Begin a phase where the layers' forward pass begins and ends, and where their backward pass begins."""

    def before(*_: Any) -> None:
        live.enter("layers")

    def after(_module: nn.Module, _inputs: Any, output: Any) -> None:
        live.enter("head")
        hidden = output.last_hidden_state
        if hidden.requires_grad:
            hidden.register_hook(lambda _: live.enter("backward"))

    module.backbone.register_forward_pre_hook(before)
    module.backbone.register_forward_hook(after)


def _samples(
    shape: MicroBatchShape, num_groups: int, objective: Objective
) -> tuple[list[TrainingSample], list[LossInputs]]:
    """Groups of one micro-batch each; no two prompts and no two samples have ids in common."""
    samples: list[TrainingSample] = []
    inputs: list[LossInputs] = []
    for group in range(num_groups):
        for number, own in enumerate(shape.own):
            # The last trained id is not read, so that a sample has one more than it computes.
            ids = (2 * group,) * shape.prompt + (2 * number + 1,) * (own + 1)
            mask = (0,) * shape.prompt + (1,) * (own + 1)
            column = tuple(float(is_trained) for is_trained in mask)
            samples.append(TrainingSample(token_ids=ids, loss_mask=mask, sampling_logprobs=column, advantages=column))
            inputs.append(
                LossInputs(
                    sampling_logprobs=torch.ones(own + 1),
                    advantages=torch.ones(own + 1),
                    old_logprobs=torch.ones(own + 1) if objective.needs_old_logprobs else None,
                )
            )
    return samples, inputs


def _figures(live: LiveBytes, *, base: int, weights: int, states: int) -> UpdateBytes:
    names = [phase.name for phase in live.phases]
    if names.count("layers") != NUM_MICRO_BATCHES or names.count("backward") != NUM_MICRO_BATCHES:
        raise AssertionError(f"an update of {NUM_MICRO_BATCHES} micro-batches had the phases {names}")
    peaks = {name: max(phase.peak for phase in live.phases if phase.name == name) - base for name in names}
    return UpdateBytes(
        weights=weights,
        states=states,
        kept=live.phases[names.index("layers")].end - base,
        layers=peaks["layers"],
        head=peaks["head"],
        backward=peaks["backward"],
        step=peaks["step"],
        products=dict(live.products),
        attentions=dict(live.attentions),
    )
