"""Write one project: the policy with the tools of training on files in memory, until it submits.

The conversation is that of an episode (`env.py`), token for token, so a model is used as it was trained; sampled ids
are never encoded again. A rejected project can be given back with what was found, and the model goes on from there.
Not here: what a project is worth (`judging.py`), which one is taken (`creator.py`).
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agent_rl.agent.messages import Message
from agent_rl.envs.base import StepResult, Task, ToolEnv
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.prompts import PromptStyle, first_messages
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.envs.nat.tools import NO_CALL, NatCheckTool, PytestRunTool, is_marked_complete
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import FinishReason, SamplingParams
from agent_rl.seeds import derive_seed
from agent_rl.tools.base import BaseTool, ToolResult
from agent_rl.tools.file_tools import FileReadTool, Files, FileWriteTool, SubmitTool

MAX_CALLS = 64
MAX_INVALID_TURNS = 3
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
FreeCheck = Callable[[Files], Sequence[str]]
"""What is wrong with a project that has no plan."""


class Stops(Protocol):
    """Anything with `is_set`, such as a `threading.Event`."""

    def is_set(self) -> bool: ...


class CreationCancelledError(Exception):
    """The caller cancelled the creation."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of a creation: a point on the monotonic clock, or the caller's own cancel."""

    at_s: float
    cancelled: Stops | None = None
    beaten: threading.Event | None = None
    """Set when an earlier candidate was accepted, so that this one is not needed."""

    def is_set(self) -> bool:
        return time.monotonic() > self.at_s or self.is_beaten() or self.is_cancelled()

    def is_beaten(self) -> bool:
        return self.beaten is not None and self.beaten.is_set()

    def is_cancelled(self) -> bool:
        return self.cancelled is not None and self.cancelled.is_set()


class ProjectSession(ToolEnv):
    """The environment of training without its verdict: `submit` hands the files over and may be answered."""

    def __init__(self, spec: NATSpec | None, toolkit: NatToolkit, free_check: FreeCheck) -> None:
        self.files: Files = {}
        self.is_submitted = False
        self._spec, self._toolkit, self._free_check = spec, toolkit, free_check

    def reset(self, task: Task) -> list[Message]:
        """`task` holds the `request` and the `style` of the first message."""

        def get_toolkit() -> NatToolkit:
            return self._toolkit

        check: BaseTool = FreeCheckTool(self.files, self._free_check)
        if self._spec is not None:
            check = NatCheckTool(self.files, get_toolkit, self._spec)
        tools = [FileWriteTool(self.files), FileReadTool(self.files), PytestRunTool(self.files, get_toolkit)]
        self.registry = self.add_tools(task, [*tools, check, SubmitTool()])
        return first_messages(self._spec, str(task["request"]), task["style"])

    def step(self, message: Message) -> StepResult:
        result = super().step(message)
        # As in training, the marker counts after the calls of the same reply.
        if is_marked_complete(message) and not result.terminated:
            return self.on_terminal("submit")
        return result

    def no_call(self, message: Message) -> StepResult:
        return StepResult(messages=(Message.user(NO_CALL),))

    def on_terminal(self, tool_name: str) -> StepResult:
        self.is_submitted = True
        return StepResult(terminated=True)

    def reopen(self) -> None:
        """Go on after a submission."""
        self.is_submitted = False


class FreeCheckTool(BaseTool):
    """`nat_check` where there is no plan: what the validator finds, without answers."""

    name = NatCheckTool.name
    description = NatCheckTool.description
    parameters = _NO_ARGUMENTS

    def __init__(self, files: Files, free_check: FreeCheck) -> None:
        self.files, self._free_check = files, free_check

    def __call__(self, **arguments: Any) -> ToolResult:
        problems = self._free_check(self.files)
        return ToolResult(text="\n".join(f"error: {each}" for each in problems) or "built", ok=not problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectReply:
    """One completion, for those who learn from feedback later."""

    prompt_token_ids: tuple[int, ...]
    """What the model read besides what it had read or written before."""
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class ProjectWriter:
    """One candidate: `write` the project, then `repair` it as often as wanted."""

    def __init__(
        self,
        policy: BasePolicy,
        session: ProjectSession,
        *,
        request: str,
        style: PromptStyle,
        seed: int,
        temperature: float,
        max_new_tokens: int,
        max_turns: int,
        deadline: Deadline,
    ) -> None:
        self.session = session
        self.replies: list[ProjectReply] = []
        self.why_ended = ""
        """Why the last project was not submitted; empty where it was."""
        self._policy = policy
        self.seed, self.temperature = seed, temperature
        self._max_new_tokens, self._max_turns, self._deadline = max_new_tokens, max_turns, deadline
        self._context: list[int] = []
        messages = session.reset({"request": request, "style": style})
        self._next = policy.chat_format.render_prompt(messages, session.tools)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that the model reads before its first reply."""
        return len(self._next) if not self.replies else len(self.replies[0].prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens sampled so far."""
        return sum(len(reply.token_ids) for reply in self.replies)

    def write(self) -> Files:
        """The files when the model submitted them, or when a budget was used up. Raises CreationCancelledError."""
        num_invalid = num_calls = 0
        for _ in range(self._max_turns):
            if (message := self._reply()) is None:
                return self.session.files
            num_calls += len(message.tool_calls)
            if num_calls > MAX_CALLS:
                return self._end(f"it made more than {MAX_CALLS} calls")
            result = self.session.step(message)
            if result.terminated:
                self.why_ended = ""
                return self.session.files
            num_invalid = num_invalid + 1 if message.tool_errors and not message.tool_calls else 0
            if num_invalid == MAX_INVALID_TURNS:
                return self._end("its calls could not be read")
            self._next += self._policy.chat_format.render_env_messages(result.messages)
        return self._end(f"it did not submit within {self._max_turns} replies")

    def repair(self, problems: Sequence[str]) -> Files | None:
        """The files after the model was told what was found; None where its window has no room for another reply."""
        lines = "\n".join(f"- {problem}" for problem in problems)
        text = f"The project was rejected:\n{lines}\nMend the files with file_write, then call submit."
        told = self._policy.chat_format.render_env_messages((Message.user(text),))
        if self._room(len(self._next) + len(told)) < 1:
            return None
        self._next += told
        self.session.reopen()
        return self.write()

    def _reply(self) -> Message | None:
        room = self._room(len(self._next))
        if room < 1:
            self._end("the model's window is full")
            return None
        sampling = SamplingParams(
            max_new_tokens=min(room, self._max_new_tokens),
            temperature=self.temperature,
            stop_token_ids=self._policy.chat_format.stop_token_ids,
            seed=derive_seed(self.seed, len(self.replies)),
            session=self.seed,
        )
        completion = self._policy.generate([*self._context, *self._next], sampling, self._deadline)
        if self._deadline.is_cancelled():
            raise CreationCancelledError
        ids = completion.token_ids
        end = self._policy.chat_format.reply_end(ids)
        is_cut = end is not None and completion.finish_reason is not FinishReason.CANCELLED
        ids = ids[:end] if is_cut else ids
        self.replies.append(
            ProjectReply(prompt_token_ids=tuple(self._next), token_ids=ids, logprobs=completion.logprobs[: len(ids)])
        )
        self._context += [*self._next, *ids]
        # Behind a reply that was cut the model reads the end of its own turn first.
        self._next = list(self._policy.chat_format.stop_token_ids[:1]) if is_cut else []
        if completion.finish_reason is FinishReason.CANCELLED:
            self._end("it was not needed any more" if self._deadline.is_beaten() else "the deadline passed")
            return None
        if completion.finish_reason is FinishReason.LENGTH and not is_cut:
            self._end(f"its reply was cut off after {len(ids)} tokens")
            return None
        return self._policy.chat_format.parse_completion(ids)

    def _room(self, num_new: int) -> int:
        return self._policy.max_context - len(self._context) - num_new

    def _end(self, why: str) -> Files:
        self.why_ended = why
        return self.session.files
