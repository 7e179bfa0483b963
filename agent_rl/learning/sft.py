"""Supervised fine-tuning on finished conversations: the warm start before reinforcement learning.

Loss is the mean cross-entropy of the tokens an assistant wrote (end-of-turn tokens included); what it read is
masked. Conversations are rendered by the same `ChatFormat` as in rollouts, so the model meets the same ids later.
Does not: know tasks; it gets token ids and masks.
"""

import itertools
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.errors import ConfigError
from agent_rl.learning.muon import Muon
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.telemetry.files import whole_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Ids of a whole conversation and 1 where the assistant wrote them; two lists of one length."""

    token_ids: list[int]
    loss_mask: list[int]

    def with_full_loss(self) -> "Conversation":
        """The same with every token but the first in the loss."""
        return Conversation(token_ids=self.token_ids, loss_mask=[0] + [1] * (len(self.token_ids) - 1))


COPIED_TOKENS = (4, 30)
"""Fewest and most tokens of a piece that is copied."""
NUM_CUES = 2
"""First tokens of a piece: they identify it, so they cannot be predicted."""


def copy_task(token_ids: Sequence[int], rng: random.Random) -> Conversation:
    """A copy task: a text, followed by its copy or, half of the time, by its pieces in another order.

    It teaches copying names and texts that a model has never seen, which demonstrations alone teach slowly. For a model
    that knows the words already: one with random weights has to learn these first.
    """
    pieces = [list(token_ids)]
    if rng.random() < 0.5:
        cuts = [0]
        while cuts[-1] < len(token_ids):
            cuts.append(cuts[-1] + rng.randint(*COPIED_TOKENS))
        pieces = [list(token_ids[first:last]) for first, last in itertools.pairwise(cuts)]
        rng.shuffle(pieces)
    again = [token for piece in pieces for token in piece]
    mask = [int(place >= NUM_CUES) for piece in pieces for place in range(len(piece))]
    return Conversation(token_ids=[*token_ids, *again], loss_mask=[0] * len(token_ids) + mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    num_conversations: int
    batch_size: int = 16
    learning_rate: float = 2e-3
    """Peak for embeddings and norms (AdamW)."""
    muon_learning_rate: float = 0.02
    """Peak for the matrices of the layers (Muon)."""
    warmup_steps: int = 60
    decay_share: float = 0.4
    """Share of the steps, at the end, over which the learning rate falls linearly to a twentieth."""
    weight_decay: float = 0.05
    seed: int = 0
    autocast: bool | None = None
    """bfloat16 matrix products (weights stay fp32); None: where the device has instructions for them."""


def render_conversation(
    chat: ChatFormat,
    messages: Sequence[Message],
    turns: Sequence[tuple[Message, Sequence[Message]]],
    tools: Sequence[ToolSpec],
    *,
    unlearned: Collection[int] = (),
) -> Conversation:
    """Ids of `messages` followed by `turns`, each an assistant message and what the environment answered to it.

    Those turns whose numbers are in `unlearned` are read only.
    """
    token_ids = list(chat.render_prompt(messages, tools))
    loss_mask = [0] * len(token_ids)
    for number, (message, replies) in enumerate(turns):
        completion = chat.render_completion(message)
        token_ids += completion
        loss_mask += [int(number not in unlearned)] * len(completion)
        if replies:
            suffix = chat.render_env_messages(replies)
            token_ids += suffix
            loss_mask += [0] * len(suffix)
    return Conversation(token_ids=token_ids, loss_mask=loss_mask)


def train_sft(
    model: MiniMindForCausalLM,
    conversations: Iterator[Conversation],
    settings: SftSettings,
    report: Callable[[int, int, float, float], None],
    *,
    progress: "SftProgress | None" = None,
) -> None:
    """Train in place; `report(step, num_steps, smoothed loss, tokens per second)` is called every 50 steps.

    With `progress`, a training that was cut off continues, to the bit, on the same `conversations` from their first.
    """
    num_steps = settings.num_conversations // settings.batch_size
    optimizers = _optimizers(model, settings)
    peaks = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    done, smoothed = progress.restore(model, optimizers) if progress else (0, 0.0)
    autocast = multiplies_bfloat16(model.device) if settings.autocast is None else settings.autocast
    model.train()
    num_tokens, start = 0, time.perf_counter()
    for step, batch in enumerate(_batches(conversations, settings), start=1):
        if step <= done:
            start = time.perf_counter()
            continue
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak * schedule(step, num_steps, settings)
        loss = _loss(model, batch, autocast)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        smoothed = loss.item() if step == 1 else 0.95 * smoothed + 0.05 * loss.item()
        num_tokens += sum(len(item.token_ids) for item in batch)
        if step % 50 == 0 or step == num_steps:
            report(step, num_steps, smoothed, num_tokens / (time.perf_counter() - start))
        if progress:
            progress.save_if_due(model, optimizers, step, smoothed)
    model.eval()


class SftProgress:
    """`SftProgress(Path("out/unfinished.pt"), of="...")`: what a training that is cut off continues from.

    The text `of` describes the training; a file of another one is refused.
    """

    def __init__(self, path: Path, *, of: str, every_s: float = 60.0) -> None:
        self.path = path
        self._of = of
        self._every_s = every_s
        self._saved = time.monotonic()

    def is_there(self) -> bool:
        """Whether a training was cut off here. ConfigError for another one than this."""
        return self._read() is not None

    def _read(self) -> dict[str, Any] | None:
        if not self.path.exists():
            return None
        state = torch.load(self.path, map_location="cpu", weights_only=True)
        if state["of"] != self._of:
            raise ConfigError(
                f"{self.path} is of a training that was cut off, {state['of']}, and this one is {self._of}; remove it, "
                "or give another folder"
            )
        return state

    def restore(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> tuple[int, float]:
        """Steps that are done, and the smoothed loss; 0 and 0.0 where there is no file. ConfigError as `is_there`."""
        state = self._read()
        if state is None:
            return 0, 0.0
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        return state["step"], state["smoothed"]

    def save_if_due(
        self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], step: int, smoothed: float
    ) -> None:
        """Write the file, whole or not at all, where the last one is older than `every_s`."""
        if time.monotonic() - self._saved < self._every_s:
            return
        state = {
            "of": self._of,
            "step": step,
            "smoothed": smoothed,
            "model": model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        }
        with whole_file(self.path) as file:
            torch.save(state, file)
        self._saved = time.monotonic()


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16 products; a CPU without them is far slower."""
    capabilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return device.type != "cpu" or any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))


def _optimizers(model: MiniMindForCausalLM, settings: SftSettings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms (Jordan et al. 2024)."""
    dtype = torch.bfloat16 if multiplies_bfloat16(model.device) else torch.float32
    inner = [p for name, p in model.named_parameters() if p.dim() == 2 and "layers" in name]
    held = {id(p) for p in inner}
    outer = [p for p in model.parameters() if id(p) not in held]
    return [
        Muon(inner, lr=settings.muon_learning_rate, weight_decay=settings.weight_decay, dtype=dtype),
        torch.optim.AdamW(outer, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def schedule(step: int, num_steps: int, settings: SftSettings) -> float:
    """Factor on the learning rate: linear warm-up, constant, linear fall to 0.05."""
    warm = min(1.0, step / max(1, settings.warmup_steps))
    left = (num_steps - step) / max(1.0, settings.decay_share * num_steps)
    return warm * min(1.0, max(0.05, left))


def _batches(conversations: Iterator[Conversation], settings: SftSettings) -> Iterator[list[Conversation]]:
    """Batches of similar length: 8 batches are read, sorted by length, cut, and shuffled."""
    rng = random.Random(settings.seed)
    left = settings.num_conversations // settings.batch_size
    while left > 0:
        num = min(8, left)
        pool = [next(conversations) for _ in range(num * settings.batch_size)]
        pool.sort(key=lambda item: len(item.token_ids))
        cut = [pool[i : i + settings.batch_size] for i in range(0, len(pool), settings.batch_size)]
        rng.shuffle(cut)
        yield from cut
        left -= num


def _loss(model: MiniMindForCausalLM, batch: list[Conversation], autocast: bool) -> torch.Tensor:
    longest = max(len(item.token_ids) for item in batch) - 1
    ids_BT = torch.zeros(len(batch), -(-longest // _SHAPE_STEP) * _SHAPE_STEP + 1, dtype=torch.long)
    mask_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for row, item in enumerate(batch):
        ids_BT[row, : len(item.token_ids)] = torch.tensor(item.token_ids)
        mask_BT[row, : len(item.loss_mask)] = torch.tensor(item.loss_mask, dtype=torch.bool)
    ids_BT, mask_BT = ids_BT.to(model.device), mask_BT[:, 1:].to(model.device)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=autocast):
        hidden = model.hidden_states(ids_BT[:, :-1])
        learned = hidden[mask_BT]
        spare = -len(learned) % (8 * _SHAPE_STEP)
        logits = model.logits(F.pad(learned, (0, 0, 0, spare)))
    targets = F.pad(ids_BT[:, 1:][mask_BT], (0, spare), value=-100)
    # Not the mean of cross_entropy, which is no number for conversations of which nothing is learned.
    return F.cross_entropy(logits.float(), targets, ignore_index=-100, reduction="sum") / max(1, len(learned))


_SHAPE_STEP = 32
"""Lengths are rounded to this: every new matrix shape costs the CPU kernels a compilation."""
