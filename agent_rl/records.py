"""The glossary: every record that crosses from one stage of a step to the next. No behaviour lives here.

Suffixes of shapes in this package: `_G` one entry per episode of a group, `_T` per token, `_B` per sample of a batch.
Names tell who computed a thing: `sampling_logprobs` (the policy, when it sampled the token), `trainer_logprobs`
(the trainer, on the same ids), `ref_logprobs` (a frozen reference).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from agent_rl.agent.messages import Message
from agent_rl.failures import FailedCall

if TYPE_CHECKING:
    import torch


class FinishReason(StrEnum):
    """Why one completion ended."""

    STOP = "stop"
    """A stop id was sampled and is the last of `token_ids`; or the reply ended before it, and the rest was cut off."""
    LENGTH = "length"
    """The token budget of this completion was used up."""
    CANCELLED = "cancelled"
    """The caller cancelled it, or its deadline passed."""
    INTERRUPTED = "interrupted"
    """The weights were about to change: the tokens so far, to be continued by the new weights."""


class StopReason(StrEnum):
    """Why an episode ended. `FINISHED` and `INVALID_CALLS` are terminated (the task ended); the rest are truncated."""

    FINISHED = "finished"
    """The environment ended it, for example after `submit`."""
    INVALID_CALLS = "invalid_calls"
    """Too many turns in a row whose calls could not be read."""
    MAX_TURNS = "max_turns"
    """The turn budget was used up."""
    MAX_TOKENS = "max_tokens"
    """A completion ran into its token budget before its stop id."""
    CONTEXT_FULL = "context_full"
    """No room was left in the model's window for another completion."""
    TOOL_BUDGET = "tool_budget"
    """The tool-call budget was used up."""
    TIMEOUT = "timeout"
    """The episode's deadline passed."""
    ENV_ERROR = "env_error"
    """The environment or its sandbox failed; the episode is dropped from the loss and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample one completion: `SamplingParams(max_new_tokens=64, temperature=1.0, seed=7)`."""

    max_new_tokens: int
    """Most tokens to generate, stop id included."""
    temperature: float = 1.0
    """0 takes the most likely token; there the recorded log-prob is that of temperature 1."""
    stop_token_ids: tuple[int, ...] = ()
    """Any of these ends the completion and is its last id."""
    seed: int = 0
    """The tokens depend on this seed and the prompt alone, not on what else is in the batch (up to rounding)."""
    session: int | None = None
    """The conversation, for engines that keep its prefix; it changes no token. None: none."""
    group: int | None = None
    """Conversations that begin alike, as the episodes of one task; it changes no token. None: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One generated reply: ids `(5, 2)`, log-probs `(-0.1, -0.7)`, finish reason `stop`, weight version 3."""

    token_ids: tuple[int, ...]
    """Sampled ids, untouched; the end-of-turn id too, when it ended the reply. Shape [T]."""
    logprobs: tuple[float, ...]
    """Natural log-prob of each id under the distribution really sampled from. Shape [T]."""
    finish_reason: FinishReason
    weight_version: int
    """Version of the weights that sampled the first token."""
    token_versions: tuple[int, ...] = ()
    """Version for each token, where the weights changed in between; else empty. Never falling. Shape [T]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One exchange: the new part of the prompt, the model's completion, the environment's answer."""

    prompt_token_ids: tuple[int, ...]
    """Only the ids the model had not seen before this turn. Shape [P]."""
    completion: Completion
    message: Message
    """The completion as a message, calls parsed."""
    env_messages: tuple[Message, ...]
    """What the environment answered (tool results, as a rule); empty after the last turn."""
    new_context: bool = False
    """True when the prompt was not an extension of what came before, so that a new training sample starts here."""
    info: dict[str, Any] = field(default_factory=dict)
    """What the environment reported about this step; for logs only."""
    reward: float = 0.0
    """What the environment gave for this turn; the last turn earns what is left of the episode's reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode of one task."""

    task_id: str
    group_id: str
    """Episodes with one `group_id` share their task and are compared with each other."""
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    reward: float | None
    """None when it could not be scored (`ENV_ERROR`): left out of group statistics, advantage 0."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """Named components, for logs; `success` (0 or 1) is among them when the environment knows it."""
    flags: tuple[str, ...] = ()
    """Kinds of reward hacking that the environment noticed, each once; counted, not punished."""
    initial_messages: tuple[Message, ...] = ()
    """What the environment opened with (system, user); for logs, their ids are in the first turn."""
    duration_s: float = 0.0
    """Wall time of the episode."""
    error: str | None = None
    """What failed, when `stop_reason` is `ENV_ERROR`."""
    failures: tuple[FailedCall, ...] = ()
    """What code of the user raised in it, a tool's exceptions too, which the model read as text."""
    env: str = ""
    """Name of its environment in a mixture; empty where a run has one environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """All episodes of one task in one step."""

    task_id: str
    trajectories: tuple[Trajectory, ...]
    greedy: Trajectory | None = None
    """One more episode, sampled greedily, that others are compared with (ReMax) and that is not trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One row to train on: four lists of one length T, for example ids (7, 8, 5, 2), mask (0, 0, 1, 1)."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    """1 where the model generated the id, 0 where it read it."""
    sampling_logprobs: tuple[float, ...]
    """0.0 where the mask is 0."""
    advantages: tuple[float, ...]
    """0.0 where the mask is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSample:
    """A training sample with what the step computed for it; for logs only."""

    episode: Trajectory
    sample: TrainingSample
    """With the mask and the advantages that were trained on."""
    trainer_logprobs: tuple[float, ...] | None
    """Of the generated ids, as the step first computed them; None where it did not, as without a gradient."""
    num_updates: int
    """Optimizer steps with it in the loss that changed the policy; 0 for a sample without gradient, where loss or
    gradient was not finite, and while the critic learns alone."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens of a flat micro-batch: `Segment(5, 3, prefix=0)` is tokens 5, 6, 7, which continue segment 0."""

    start: int
    length: int
    prefix: int | None = None
    """Index of the segment that these tokens follow, which several samples have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A micro-batch: the tokens of its samples one after the other, without padding, what they have in common once.

    Samples (7, 8, 5, 2), (7, 8, 5, 3) and (7, 8, 4) with two prompt ids each are tokens (7, 8, 5), segments (0, 2) and
    (2, 1, 0): what follows the last trained id, and that id itself, is never read. They are trained by predictions from
    sources (1, 1, 2, 2) of targets (4, 5, 2, 3), taken in the order (1, 2, 1, 3, 0).
    """

    token_ids: "torch.Tensor"
    """Long [T], as are the positions."""
    position_ids: "torch.Tensor"
    """Place of a token in its sample; a segment with a prefix continues its count."""
    segments: tuple[Segment, ...]
    """They follow one another and cover all T tokens."""
    sources: "torch.Tensor"
    """The token (0 .. T - 1) from whose hidden state an id is predicted; long [P], one per distinct prediction."""
    targets: "torch.Tensor"
    """The ids that are predicted; long [P]."""
    predictions: "torch.Tensor"
    """The prediction (0 .. P - 1) of each trained id, sample after sample; long [N]."""
    num_trained: tuple[int, ...]
    """Trained ids of each sample; they add up to N."""
    samples: tuple[int, ...]
    """Indices of the S samples in the step's list; none in a micro-batch that only keeps other ranks company."""
    most_trained: int
    """Largest N of the micro-batches that all ranks work on at the same time."""
    num_loss_tokens: int
    """Trained tokens of the whole step, over all micro-batches and ranks."""
    num_samples: int
    """Samples of the whole step, over all micro-batches and ranks."""
