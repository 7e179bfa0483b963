"""What a tokenizer's chat template puts in front of, between and behind the contents of a conversation.

The template never sees contents. It gets slots, so what it cannot see it cannot strip, escape or mistake for markup;
a slot that comes back inside a JSON string gets its content escaped likewise. What a template does with replies, calls
and tool results is found out by rendering dummy conversations, never by knowing the model's name.
This module deals in text; token ids are made in `chat_format.py`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_rl.agent.messages import ToolSpec
from agent_rl.agent.segments import TextSegment
from agent_rl.agent.template_process import TemplateLimitError, render
from agent_rl.agent.tool_parser import CallStyle
from agent_rl.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Part(NamedTuple):
    """A message whose content is already cut into segments."""

    role: str
    content: tuple[TextSegment, ...]
    name: str = ""
    """For role `tool`: the tool that answers."""


class ReplyFrame(NamedTuple):
    """What stands around an assistant's own words between the generation prompt and the end-of-turn token."""

    opening: str
    """In front of the content when there is no reasoning: Mistral's space, Qwen3's empty think block."""
    call_opening: str
    """In front of the calls when there is neither content nor reasoning."""
    reasoning_marks: tuple[str, str]
    """In front of the reasoning, and between it and the content."""
    closing: str
    """Behind the content when there are no calls."""
    end_of_turn: str
    """The special token that ends the turn."""


THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
_THINK_END = f"\n{THINK_CLOSE}\n\n"
_EMPTY_THINK = re.compile(rf"\A{THINK_OPEN}\s*{THINK_CLOSE}\s*")
# The two characters around are of the Unicode private use area. The quote shows whether the slot was JSON-encoded.
_SLOT = re.compile('\ue000(\\w+)(\\\\?)"\ue001')
_CALL_STYLES = {
    CallStyle.MISTRAL: re.compile(r"\[TOOL_CALLS\]\s*\[\s*\{"),
    CallStyle.HERMES: re.compile(r"<tool_call>\s*\{"),
    CallStyle.LLAMA: re.compile(r'(?:<\|python_tag\|>)?\{"name": "probe_tool",\s*"parameters":'),
}
_REFUSALS = (TypeError, ValueError)
"""What a template raises on a conversation that it was not written for, and Transformers where there is none."""
_PROBE_SPEC = ToolSpec(name="probe_tool", description="")


def _slot(label: str | int) -> str:
    return f'\ue000{label}"\ue001'


_QUESTION = {"role": "user", "content": _slot("question")}


def call_id(number: int) -> str:
    """Id of the call with this number in its message: nine letters and digits, as Mistral's templates demand."""
    return f"call{number:05d}"


class ChatTemplate:
    """One tokenizer's chat template. Safe to call from many threads.

    `added` finds the special tokens in a text. Raises UserError when the template cannot take a question and a reply,
    or when no special token ends the reply.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", added: re.Pattern[str]) -> None:
        self._tokenizer = tokenizer
        self._added = added
        self._name = tokenizer.name_or_path or type(tokenizer).__name__
        self._suffixes: dict[tuple[str, ...], tuple[str, _Shape]] = {}
        try:
            self._prompt = self._render([_QUESTION], generation_prompt=True)
        except _REFUSALS as error:
            raise self.error(f"{_refusal([Part('user', ())], error)}; use another template") from error
        if _slot("question") not in self._prompt:
            raise self.error("leaves out messages of role 'user'; use another template")
        prompt = self.generation_prompt
        self.opens_reasoning = prompt.rfind(THINK_OPEN) > prompt.rfind(THINK_CLOSE)
        """Whether the generation prompt itself holds the `<think>` of the reply."""
        turn = self._reply_turn(tool_calls=[_probe_call(0)])
        styles = {style: match for style, pattern in _CALL_STYLES.items() if (match := pattern.search(turn))}
        self.call_style, first_call = next(iter(styles.items()), (CallStyle.HERMES, None))
        self.shows_call_ids = call_id(0) in turn
        self.shows_python_tag = "<|python_tag|>" in turn
        has_unknown_style = first_call is None and _PROBE_SPEC.name in turn
        listing = self._shown([_QUESTION], [_PROBE_SPEC.to_openai()], generation_prompt=True)
        self.shows_tools = _PROBE_SPEC.name in listing and not has_unknown_style
        """Whether the template lists tools, for calls in a style that can be read."""
        self.frame = self._frame(turn[: first_call.start()] if first_call else None)
        self.rewrites_history = self._rewrites_history()
        """Whether the template shows an earlier turn differently once later messages follow."""

    @property
    def generation_prompt(self) -> str:
        """What the template writes after the last content, up to where a reply starts."""
        return self._prompt.rpartition(_slot("question"))[2]

    def head(self, parts: Sequence[Part], tools: Sequence[ToolSpec] = ()) -> list[TextSegment]:
        """A conversation without replies, generation prompt included, in the first shape that the template takes."""
        if not parts:
            raise self.error("needs a message to start a conversation with; put a system or user message first")
        hidden: dict[str, tuple[TextSegment, ...]] = {}
        specs = [self._hide(tool.to_openai(), hidden) for tool in tools]
        complaint = ""
        for shape in _SHAPES:
            shaped = shape.apply(parts)
            try:
                text = self._render(_conversation(shaped), specs, generation_prompt=True)
            except _REFUSALS as error:
                complaint = complaint or _refusal(parts, error)
                continue
            labels = _labels(text)
            missing = [part.role for number, part in enumerate(shaped) if str(number) not in labels]
            if not missing:
                return _fill(text, {**hidden, **_contents(shaped)})
            complaint = complaint or f"leaves out messages of role {missing[0]!r}"
        raise self.error(f"{complaint}; use another template")

    def suffix(self, parts: Sequence[Part]) -> list[TextSegment]:
        """What follows a reply's end-of-turn token: separator, these messages, generation prompt.

        Rendered once for each pattern of roles.
        """
        roles = tuple(part.role for part in parts)
        if roles not in self._suffixes:
            self._suffixes[roles] = self._find_suffix(roles)
        text, shape = self._suffixes[roles]
        return _fill(text, _contents(shape.apply(parts)))

    def error(self, complaint: str) -> UserError:
        return UserError(f"{self._name}: the tokenizer or its chat template {complaint}")

    def _find_suffix(self, roles: Sequence[str]) -> tuple[str, "_Shape"]:
        """Text with slots behind a dummy reply, and the shape of messages that the template took."""
        parts = [Part(role, ()) for role in roles]
        complaint = ""
        for shape in _SHAPES:
            shaped = shape.apply(parts)
            for reply in _dummy_replies(shaped):
                try:
                    text = self._render([_QUESTION, reply, *_conversation(shaped)], generation_prompt=True)
                except _REFUSALS as error:
                    complaint = complaint or _refusal([Part("user", ()), Part("assistant", ()), *parts], error)
                    continue
                reply_ends = [match.end() for match in _SLOT.finditer(text) if match[1] == "reply"]
                _, is_ended, suffix = text[max(reply_ends, default=len(text)) :].partition(self.frame.end_of_turn)
                wanted = {str(number) for number in range(len(shaped))}
                if is_ended and wanted <= _labels(suffix) <= _contents(shaped).keys():
                    return suffix, shape
                complaint = complaint or f"does not show messages of roles {', '.join(roles)} after a reply"
        raise self.error(f"{complaint}; use another template")

    def _frame(self, call_opening: str | None) -> ReplyFrame:
        turn = self._reply_turn(content=_slot("reply"))
        opening, found, rest = turn.partition(_slot("reply"))
        if not found:
            raise self.error("renders an assistant's turn differently from its own generation prompt")
        end = self._added.search(rest)
        if end is None:
            raise self.error("does not end an assistant's turn with a special token, so generation could not stop")
        thinking = self._reply_turn(content=_slot("reply"), reasoning_content=_slot("reasoning"))
        before, is_shown, thinking = thinking.partition(_slot("reasoning"))
        marks = ("" if self.opens_reasoning else f"{THINK_OPEN}\n", _THINK_END)
        if is_shown:
            marks = (before, thinking.partition(_slot("reply"))[0])
        return ReplyFrame(
            opening=opening,
            call_opening=opening if call_opening is None else call_opening,
            reasoning_marks=marks,
            closing=rest[: end.start()],
            end_of_turn=end.group(),
        )

    def _reply_turn(self, **reply: Any) -> str:
        """A dummy reply behind the generation prompt; empty when the template refuses it or starts it otherwise."""
        text = self._shown([_QUESTION, {"role": "assistant", "content": "", **reply}])
        if text.startswith(self._prompt):
            return text.removeprefix(self._prompt)
        before = self._prompt.rpartition(THINK_OPEN)[0]
        if self.opens_reasoning and text.startswith(before):
            # DeepSeek-R1's prompt opens a reasoning that its finished turns do not show.
            return _THINK_END + _EMPTY_THINK.sub("", text.removeprefix(before))
        return ""

    def _rewrites_history(self) -> bool:
        tools = [_PROBE_SPEC.to_openai()] if self.shows_tools else []
        reply = {"role": "assistant", "content": _slot("reply"), "reasoning_content": _slot("reasoning")}
        shorter = self._shown([_QUESTION, reply], tools)
        longer = self._shown([_QUESTION, reply, {"role": "user", "content": _slot("more")}], tools)
        turn, end, _ = shorter.rpartition(self.frame.end_of_turn)
        return bool(longer) and not longer.startswith(turn + end)

    def _shown(
        self, conversation: list[dict[str, Any]], tools: Sequence[dict] = (), *, generation_prompt: bool = False
    ) -> str:
        """The rendered text, empty when the template refuses the conversation."""
        try:
            return self._render(conversation, tools, generation_prompt=generation_prompt)
        except _REFUSALS:
            return ""

    def _render(
        self, conversation: list[dict[str, Any]], tools: Sequence[dict] = (), *, generation_prompt: bool
    ) -> str:
        shown = list(tools) or None
        arguments = {
            **self._tokenizer.special_tokens_map,
            "messages": conversation,
            "tools": shown,
            "documents": None,
            "add_generation_prompt": generation_prompt,
        }
        try:
            return render(self._tokenizer.get_chat_template(tools=shown), arguments)
        except TemplateLimitError as error:
            raise self.error(f"{error} to render; use another template") from None

    def _hide(self, value: Any, hidden: dict[str, tuple[TextSegment, ...]]) -> Any:
        """A tool's schema with special tokens in its texts replaced by slots, so that they stay plain text."""
        if isinstance(value, dict):
            return {self._hide(key, hidden): self._hide(item, hidden) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._hide(item, hidden) for item in value]
        if not isinstance(value, str):
            return value

        def hide(match: re.Match[str]) -> str:
            label = f"tool{len(hidden)}"
            hidden[label] = (TextSegment(match.group(), False),)
            return _slot(label)

        return re.sub(f"{self._added.pattern}|\ue000", hide, value)


class _Shape(NamedTuple):
    """A way to give messages to a template that does not take them as they are."""

    to_user: tuple[str, ...]
    """Roles whose messages become user messages; neighbouring tool results become one."""
    joins_users: bool
    """Neighbouring user messages become one."""

    def apply(self, parts: Iterable[Part]) -> list[Part]:
        shaped: list[Part] = []
        previous = ""
        for part in parts:
            both_results = previous == part.role == "tool"
            previous = part.role
            if part.role not in ("user", *self.to_user):
                shaped.append(part)
                continue
            content = _as_result(part.content) if part.role == "tool" else part.content
            if shaped and shaped[-1].role == "user" and (self.joins_users or both_results):
                content = (*shaped.pop().content, TextSegment("\n" if both_results else "\n\n", True), *content)
            shaped.append(Part("user", content))
        return shaped


_SHAPES = (
    _Shape((), False),
    _Shape((), True),
    _Shape(("tool",), False),
    _Shape(("system", "tool"), True),
)


def _as_result(content: tuple[TextSegment, ...]) -> tuple[TextSegment, ...]:
    return (TextSegment("<tool_response>\n", True), *content, TextSegment("\n</tool_response>", True))


def _conversation(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Messages with slots for their contents; the n-th tool result answers the n-th call."""
    conversation: list[dict[str, Any]] = []
    num_results = 0
    for number, part in enumerate(parts):
        message: dict[str, Any] = {"role": part.role, "content": _slot(number)}
        if part.role == "tool":
            message.update(name=_slot(f"{number}name"), tool_call_id=call_id(num_results))
            num_results += 1
        conversation.append(message)
    return conversation


def _contents(parts: Sequence[Part]) -> dict[str, tuple[TextSegment, ...]]:
    """What belongs into the slots of `_conversation`."""
    contents: dict[str, tuple[TextSegment, ...]] = {}
    for number, part in enumerate(parts):
        contents[str(number)] = part.content
        contents[f"{number}name"] = (TextSegment(part.name, False),)
    return contents


def _dummy_replies(parts: Sequence[Part]) -> Iterator[dict[str, Any]]:
    """Replies that tool results may follow, best first: a call for each, one call, no call."""
    names = [_slot(f"{number}name") for number, part in enumerate(parts) if part.role == "tool"]
    for num_calls in sorted({len(names), min(len(names), 1), 0}, reverse=True):
        reply: dict[str, Any] = {"role": "assistant", "content": _slot("reply")}
        if num_calls:
            reply["tool_calls"] = [_probe_call(number, name) for number, name in enumerate(names[:num_calls])]
        yield reply


def _probe_call(number: int, name: str = _PROBE_SPEC.name) -> dict[str, Any]:
    return {
        "id": call_id(number),
        "type": "function",
        "function": {"name": name, "arguments": {"probe": _slot("reply")}},
    }


def _labels(text: str) -> set[str]:
    return {match[1] for match in _SLOT.finditer(text)}


def _fill(text: str, contents: Mapping[str, Sequence[TextSegment]]) -> list[TextSegment]:
    """Put contents into the slots of a rendered template."""
    segments: list[TextSegment] = []
    position = 0
    for match in _SLOT.finditer(text):
        segments.append(TextSegment(text[position : match.start()], True))
        for segment in contents[match[1]]:
            is_json = bool(match[2])
            segments.append(segment._replace(text=_escape(segment.text)) if is_json else segment)
        position = match.end()
    return [*segments, TextSegment(text[position:], True)]


def _escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _refusal(parts: Sequence[Part], error: Exception) -> str:
    return f"refuses a conversation of roles {', '.join(part.role for part in parts)} ({error})"
