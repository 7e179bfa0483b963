"""Messages to token ids and back, for any chat template whose turns end with a special token.

The model is always given what it really sampled: a conversation grows by the sampled ids, then by the ids of the
environment's answer (`render_env_messages`), and nothing sampled is ever decoded and encoded again. Text of users,
tools and models is encoded without special tokens, so `<|im_end|>` in a tool's output stays six harmless characters.
This module renders and parses; it calls no model, and does not know which tools exist.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer

from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.agent.phrase_bpe import TOOLS_FOOTER, TOOLS_HEADER
from agent_rl.agent.tool_parser import CALL_CLOSE, CALL_OPEN, dump_call, parse_tool_calls
from agent_rl.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class _Segment(NamedTuple):
    """A stretch of a rendered conversation."""

    text: str
    is_markup: bool
    """Comes from the template or from us: special tokens in it count. Otherwise they are plain text."""
    starts_turn: bool = False
    """First of an assistant's turn: generation starts here, so no token may reach over this seam."""


# Contents are replaced by numbered slots before the template sees them: what it cannot see it cannot strip, escape or
# mistake for markup. The two characters are of the Unicode private use area.
_SLOT = re.compile("\ue000([0-9]+)\ue001")


def _slot(number: int) -> str:
    return f"\ue000{number}\ue001"


class ChatFormat:
    """One tokenizer and its chat template. Safe to call from many threads.

    Raises UserError when the tokenizer has no chat template or no fast backend, when its template does not end a turn
    with a special token, or when adding a message changes how earlier ones are rendered.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._name = tokenizer.name_or_path or type(tokenizer).__name__
        if not tokenizer.chat_template:
            raise self._error("has no chat template; add chat_template.jinja to its folder")
        if not tokenizer.is_fast:
            raise self._error("has no fast backend; save it with a tokenizer.json")
        self._added_ids: dict[str, int] = dict(tokenizer.get_added_vocab())
        by_length = sorted(self._added_ids, key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, by_length)) or "(?!)")
        # Private copies that are never changed, so any number of threads may use them: some releases of `tokenizers`
        # raise "Already borrowed" when one thread encodes while another sets padding on the same object.
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain = _without_added_tokens(self._backend)
        self._check_seams()
        self._end_of_turn = self._find_end_of_turn()
        question = Message.user("")
        self._shows_tools = self._renders([question], "probe_tool", [ToolSpec(name="probe_tool", description="")])
        self._shows_results = self._renders([question, Message.assistant(""), Message.tool("")], _slot(2))
        for answer in (Message.tool(""), Message.user("")):
            self.render_env_messages([answer])

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a completion: the template's end of turn first, then the tokenizer's eos if it is another."""
        ids = (self._added_ids[self._end_of_turn], self._tokenizer.eos_token_id)
        return tuple(dict.fromkeys(token for token in ids if token is not None))

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """Ids of a whole conversation, generation prompt included. Assistant turns are as in `render_completion`.

        A template that cannot list tools gets them at the end of the system message.
        """
        return self._encode(self._segments(messages, tools))

    def render_env_messages(self, messages: Sequence[Message]) -> list[int]:
        """Ids to append after a completion that ended with its end-of-turn id: separator, answers, generation prompt.

        Raises UserError when the template renders what came before differently once these messages follow.
        """
        messages = self._in_known_roles(messages)
        before = self._template([Message.user("")], generation_prompt=True) + _slot(1) + self._end_of_turn
        conversation = [Message.user(""), Message.assistant(""), *messages]
        text = self._template(conversation, generation_prompt=True)
        if not text.startswith(before):
            raise self._error("changes earlier turns when a message is added, so a conversation cannot be extended")
        return self._encode(self._fill(text[len(before) :], conversation, first=2))

    def render_completion(self, message: Message) -> list[int]:
        """Ids of an assistant message as the model should write it, end-of-turn id included: a supervised target."""
        return [*self._encode(_assistant_segments(message)), self._added_ids[self._end_of_turn]]

    def parse_completion(self, token_ids: Sequence[int]) -> Message:
        """The assistant message in sampled ids, calls and broken calls parsed. A last stop id is left out."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        text = self._backend.decode(ids, skip_special_tokens=False)
        reply = parse_tool_calls(text)
        return Message(role="assistant", content=reply.content, tool_calls=reply.calls, tool_errors=reply.errors)

    def _segments(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[_Segment]:
        """The conversation with generation prompt, contents in place."""
        messages = self._in_known_roles(messages)
        if self._shows_tools or not tools:
            text = self._template(messages, tools, generation_prompt=True)
            return self._fill(text, messages)
        if not messages or messages[0].role != "system":
            messages = [Message.system(""), *messages]
        text = self._template(messages, generation_prompt=True)
        separator = "\n\n" if messages[0].content else ""
        return self._fill(text, messages, first_suffix=separator + _tools_block(tools))

    def _fill(
        self, text: str, messages: Sequence[Message], *, first: int = 0, first_suffix: str = ""
    ) -> list[_Segment]:
        """Put contents into the slots of a rendered template; every message from `first` on must be there."""
        segments: list[_Segment] = []
        parts = _SLOT.split(text)
        for markup, number in zip(parts[::2], [*parts[1::2], None], strict=True):
            segments.append(_Segment(markup, True))
            if number is not None:
                segments += _content_segments(messages[int(number)])
            if number == "0":
                segments.append(_Segment(first_suffix, True))
        dropped = set(range(first, len(messages))) - {int(number) for number in parts[1::2]}
        if dropped:
            raise self._error(f"leaves out messages of role {messages[min(dropped)].role!r}; use another template")
        return segments

    def _encode(self, segments: Iterable[_Segment]) -> list[int]:
        """Ids of segments. Neighbouring plain text is encoded in one go, as the tokenizer itself would."""
        ids: list[int] = []
        plain = ""
        for segment in segments:
            if segment.starts_turn:
                ids += self._plain.encode(plain, add_special_tokens=False).ids
                plain = ""
            position = 0
            for match in self._added.finditer(segment.text) if segment.is_markup else ():
                plain += segment.text[position : match.start()]
                ids += self._plain.encode(plain, add_special_tokens=False).ids
                ids.append(self._added_ids[match.group()])
                plain, position = "", match.end()
            plain += segment.text[position:]
        return ids + self._plain.encode(plain, add_special_tokens=False).ids

    def _template(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generation_prompt: bool) -> str:
        """Rendered text with a numbered slot for every content. An assistant's calls are part of its slot."""
        conversation = [{"role": message.role, "content": _slot(number)} for number, message in enumerate(messages)]
        try:
            return self._tokenizer.apply_chat_template(
                conversation,
                tools=[tool.to_openai() for tool in tools] or None,
                add_generation_prompt=generation_prompt,
                tokenize=False,
            )
        except TemplateError as error:
            roles = ", ".join(message.role for message in messages)
            raise self._error(f"refuses a conversation of roles {roles} ({error}); use another template") from error

    def _renders(self, messages: Sequence[Message], needle: str, tools: Sequence[ToolSpec] = ()) -> bool:
        try:
            return needle in self._template(messages, tools, generation_prompt=True)
        except UserError:
            return False

    def _in_known_roles(self, messages: Sequence[Message]) -> list[Message]:
        """Messages in roles the template renders: neighbouring tool results become one user message if it must be."""
        if self._shows_results:
            return list(messages)
        known: list[Message] = []
        results: list[str] = []
        for message in messages:
            if message.role == "tool":
                results.append(f"<tool_response>\n{message.content}\n</tool_response>")
                continue
            if results:
                known.append(Message.user("\n".join(results)))
                results = []
            known.append(message)
        return [*known, Message.user("\n".join(results))] if results else known

    def _find_end_of_turn(self) -> str:
        """The special token right after an assistant's content."""
        question = [Message.user("")]
        text = self._template([*question, Message.assistant("")], generation_prompt=False)
        before = self._template(question, generation_prompt=True) + _slot(1)
        if not text.startswith(before):
            raise self._error("renders an assistant's turn differently from its own generation prompt")
        end = self._added.match(text, len(before))
        if end is None:
            raise self._error("does not end an assistant's turn with a special token, so generation could not stop")
        return end.group()

    def _check_seams(self) -> None:
        """Encoding between special tokens must give what encoding in one go gives."""
        text = self._template([Message.user("")], generation_prompt=True)
        if self._encode([_Segment(text, True)]) != self._tokenizer(text, add_special_tokens=False)["input_ids"]:
            raise self._error("changes text next to special tokens (spaces added or stripped), so it cannot be spliced")

    def _error(self, complaint: str) -> UserError:
        return UserError(f"{self._name}: the tokenizer or its chat template {complaint}")


def _without_added_tokens(backend: Tokenizer) -> Tokenizer:
    """A private copy for which every text is plain text."""
    state: dict[str, Any] = json.loads(backend.to_str())
    state.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
    return Tokenizer.from_str(json.dumps(state))


def _content_segments(message: Message) -> list[_Segment]:
    if message.role == "assistant":
        return _assistant_segments(message)
    # Undecodable bytes in a tool's output may arrive as lone surrogates, which no tokenizer takes.
    return [_Segment(message.content.encode(errors="replace").decode(), False)]


def _assistant_segments(message: Message) -> list[_Segment]:
    """An assistant's content and calls, one call a block, as Hermes and Qwen2.5 templates write them."""
    segments = [_Segment(message.content, False, starts_turn=True)]
    for index, call in enumerate(message.tool_calls):
        separator = "\n" if index or message.content else ""
        segments.append(_Segment(f"{separator}{CALL_OPEN}\n", True))
        segments.append(_Segment(dump_call(call), False))
        segments.append(_Segment(f"\n{CALL_CLOSE}", True))
    return segments


def _tools_block(tools: Sequence[ToolSpec]) -> str:
    """The tools as Qwen2.5's template lists them, for templates that cannot."""
    lines = [json.dumps(tool.to_openai(), ensure_ascii=False) for tool in tools]
    return "\n".join([TOOLS_HEADER, *lines]) + TOOLS_FOOTER
