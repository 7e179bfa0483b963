"""Hand-written fakes: a byte-level chat format, policies that follow a script, toy environments, a tiny model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.agent.phrase_bpe import CONTROL_TOKENS, TAG_TOKENS, as_pretrained
from agent_rl.agent.tool_parser import parse_tool_calls
from agent_rl.config import Config, parse_config
from agent_rl.envs.base import AgentEnv, StepResult, Task
from agent_rl.inference.base import Cancel
from agent_rl.modeling.minimind import MiniMindConfig, MiniMindForCausalLM
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Completion, FinishReason, SamplingParams, StopReason

END = 256
"""End of a turn."""
ROLE_IDS = {"system": 257, "user": 258, "assistant": 259, "tool": 260}


class ByteChatFormat:
    """One id a byte; a message is its role's id, its bytes, END."""

    stop_token_ids = (END,)

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        return [*self._render(messages), ROLE_IDS["assistant"]]

    def render_env_messages(self, messages: Sequence[Message]) -> list[int]:
        return [*self._render(messages), ROLE_IDS["assistant"]]

    def render_continuation(self, messages: Sequence[Message]) -> list[int]:
        return self.render_env_messages(messages)

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        return [chr(token) if token < END else "<end>" for token in token_ids]

    def parse_completion(self, token_ids: Sequence[int]) -> Message:
        text = bytes(token for token in token_ids if token < END).decode()
        reply = parse_tool_calls(text)
        return Message(
            role="assistant",
            content=reply.content,
            tool_calls=reply.calls,
            tool_errors=reply.errors,
            written=text if reply.calls or reply.errors else "",
        )

    def reply_end(self, token_ids: Sequence[int]) -> int | None:
        return None

    @staticmethod
    def _render(messages: Sequence[Message]) -> list[int]:
        return [token for m in messages for token in (ROLE_IDS[m.role], *m.content.encode(), END)]


Script = Callable[[int, SamplingParams], str]
"""(number of the turn, sampling) -> what the model says; the last character may be cut off by the budget."""


class ScriptedPolicy(BasePolicy):
    """Replies from `script`, nothing once it is cancelled. Records every prompt."""

    def __init__(self, script: Script | Sequence[str], *, max_context: int = 10_000) -> None:
        self.chat_format = ByteChatFormat()
        self.max_context = max_context
        self.prompts: list[list[int]] = []
        self.samplings: list[SamplingParams] = []
        self._script: Script = script if callable(script) else lambda turn, _sampling: script[turn]

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        if cancel is not None and cancel.is_set():
            return Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.CANCELLED, weight_version=0)
        self.prompts.append(list(prompt_ids))
        self.samplings.append(sampling)
        turn = list(prompt_ids).count(ROLE_IDS["assistant"]) - 1
        wanted = [*self._script(turn, sampling).encode(), END]
        sampled = wanted[: sampling.max_new_tokens]
        return Completion(
            token_ids=tuple(sampled),
            logprobs=tuple(-0.5 for _ in sampled),
            finish_reason=FinishReason.STOP if sampled == wanted else FinishReason.LENGTH,
            weight_version=0,
        )

    def refresh_weights(self, version: int) -> None:
        return None

    def close(self) -> None:
        return None


class EchoEnv(AgentEnv):
    """Answers every message with "ok" (reward 0.25), ends with reward 1 at "done"; a truncated episode earns -1."""

    def __init__(self) -> None:
        self.num_closed = 0
        self.received: list[Message] = []
        self.truncated_for: StopReason | None = None

    def reset(self, task: Task) -> list[Message]:
        return [Message.user(task.get("question", "go"))]

    def step(self, message: Message) -> StepResult:
        self.received.append(message)
        if message.content == "done":
            return StepResult(reward=1.0, reward_parts={"success": 1.0}, terminated=True)
        return StepResult(messages=(Message.tool("ok"),), reward=0.25, info={"note": "seen"})

    def truncate(self, reason: StopReason) -> StepResult:
        self.truncated_for = reason
        return StepResult(reward=-1.0, reward_parts={"success": 0.0}, terminated=True)

    def close(self) -> None:
        self.num_closed += 1


class LetterEnv(AgentEnv):
    """One turn: the reward is the share of the letter `a` in the reply; success when there is nothing else."""

    def reset(self, task: Task) -> list[Message]:
        return [Message.user(task["question"])]

    def step(self, message: Message) -> StepResult:
        share = message.content.count("a") / max(1, len(message.content))
        return StepResult(reward=share, reward_parts={"success": float(share == 1.0)}, terminated=True)


TINY_ALPHABET = "aestunirompg\u010a"
"""The letters of the template's role names, and a line break as byte-level tokenizers write it."""
LETTER_TASKS = [{"task_id": f"t{i}", "question": "post"[: i + 1]} for i in range(4)]


def save_tiny_model(folder: Path, *, seed: int = 0) -> Path:
    """A model of 20 ids and a tokenizer of single letters, in Hugging Face format."""
    vocabulary = {token: i for i, token in enumerate([*CONTROL_TOKENS, *TAG_TOKENS, *TINY_ALPHABET])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    as_pretrained(tokenizer).save_pretrained(folder)
    torch.manual_seed(seed)
    config = MiniMindConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    MiniMindForCausalLM(config).save_pretrained(folder)
    return folder


def tiny_config(folder: Path, **sections: dict[str, Any]) -> Config:
    """A run on the tiny model in `folder`/model, written to `folder`/runs; `sections` override single keys."""
    raw: dict[str, dict[str, Any]] = {
        "run": {"name": "tiny", "output_dir": str(folder / "runs"), "device": "cpu"},
        "data": {"train_path": "unused", "eval_path": "unused"},
        "env": {"name": "nat_agent_creation"},
        "model": {"path": str(folder / "model")},
        "policy": {"max_new_tokens": 24, "max_context": 64, "max_batch_size": 32},
        "rollout": {"group_size": 8, "groups_per_step": 4, "async_workers": 32},
        "train": {"steps": 4, "learning_rate": 3e-3},
        "eval": {"temperatures": []},
        "log": {"progress": False},
    }
    for name, values in sections.items():
        raw[name] = raw.get(name, {}) | values
    return parse_config(raw, source="test")
