"""Supervised fine-tuning on finished conversations: the warm start before reinforcement learning.

Loss is the mean cross-entropy of the tokens an assistant wrote (end-of-turn tokens included); what it read is
masked. Conversations are rendered by the same `ChatFormat` as in rollouts, so the model meets the same ids later.
This module knows no task: it is handed token ids and masks.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.agent.messages import Message, ToolSpec
from model.model_minimind import MiniMindForCausalLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Ids of a whole conversation and 1 where the assistant wrote them; two lists of one length."""

    token_ids: list[int]
    loss_mask: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    num_conversations: int
    batch_size: int = 16
    learning_rate: float = 1.5e-3
    warmup_steps: int = 60
    decay_share: float = 0.4
    """Share of the steps, at the end, over which the learning rate falls linearly to a twentieth."""
    weight_decay: float = 0.05
    seed: int = 0
    autocast: bool = True
    """bfloat16 matrix products (weights stay fp32)."""


def render_conversation(
    chat: ChatFormat, messages: Sequence[Message], turns: Sequence[tuple[Message, Sequence[Message]]], tools: Sequence[ToolSpec]
) -> Conversation:
    """Ids of `messages` followed by `turns`, each an assistant message and what the environment answered to it."""
    token_ids = list(chat.render_prompt(messages, tools))
    loss_mask = [0] * len(token_ids)
    for message, replies in turns:
        completion = chat.render_completion(message)
        token_ids += completion
        loss_mask += [1] * len(completion)
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
) -> None:
    """Train in place; `report(step, num_steps, smoothed loss, tokens per second)` is called every 50 steps."""
    num_steps = settings.num_conversations // settings.batch_size
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay, fused=True
    )
    model.train()
    smoothed, num_tokens, start = 0.0, 0, time.perf_counter()
    for step, batch in enumerate(_batches(conversations, settings), start=1):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * schedule(step, num_steps, settings)
        loss = _loss(model, batch, settings.autocast)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        smoothed = loss.item() if step == 1 else 0.95 * smoothed + 0.05 * loss.item()
        num_tokens += sum(len(item.token_ids) for item in batch)
        if step % 50 == 0 or step == num_steps:
            report(step, num_steps, smoothed, num_tokens / (time.perf_counter() - start))
    model.eval()


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
    length = max(len(item.token_ids) for item in batch)
    ids_BT = torch.zeros(len(batch), length, dtype=torch.long)
    mask_BT = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, item in enumerate(batch):
        ids_BT[row, : len(item.token_ids)] = torch.tensor(item.token_ids)
        mask_BT[row, : len(item.loss_mask)] = torch.tensor(item.loss_mask, dtype=torch.bool)
    ids_BT, mask_BT = ids_BT.to(model.device), mask_BT.to(model.device)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=autocast):
        hidden = model.hidden_states(ids_BT[:, :-1])
        trained = mask_BT[:, 1:]
        logits = model.logits(hidden[trained])
    return F.cross_entropy(logits.float(), ids_BT[:, 1:][trained])
