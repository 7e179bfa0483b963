"""Messages to token ids and back, for any chat template whose turns end with a special token.

The model is always given what it really sampled: a conversation grows by the sampled ids, then by the ids of the
environment's answer (`render_env_messages`), and nothing sampled is ever decoded and encoded again. So earlier turns
stay as they were even where the template would show them differently once later messages follow (Qwen3 strips earlier
reasoning, Mistral moves the tools to the last user message). Text of users, tools and models is encoded without special
tokens, so `<|im_end|>` in a tool's output stays six harmless characters.
This module renders and parses; it calls no model, and does not know which tools exist.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from agent_rl.agent.chat_template import THINK_CLOSE, THINK_OPEN, ChatTemplate, Part, call_id
from agent_rl.agent.messages import Message, ToolCall, ToolSpec
from agent_rl.agent.phrase_bpe import TOOLS_FOOTER, TOOLS_HEADER
from agent_rl.agent.segments import SegmentEncoder, TextSegment
from agent_rl.agent.token_texts import token_texts
from agent_rl.agent.tool_parser import LLAMA_OPEN, MISTRAL_OPEN, CallStyle, dump_call, parse_tool_calls, write_calls
from agent_rl.errors import UserError
from agent_rl.registry import CHAT_FORMATS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OTHER_STOP = "<|eom_id|>"
"""Also ends a turn where a tokenizer has it: with it Llama 3 hands a call to its interpreter."""


class ChatFormat:
    """One tokenizer and its chat template. Safe to call from many threads.

    Raises UserError when the tokenizer has no chat template or no fast backend, when its template does not end a turn
    with a special token, cannot show an answer to a reply, or when its ids depend on what stands beyond special tokens.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        name = tokenizer.name_or_path or type(tokenizer).__name__
        if not tokenizer.chat_template:
            raise UserError(f"{name}: the tokenizer has no chat template; add chat_template.jinja to its folder")
        if not tokenizer.is_fast:
            raise UserError(f"{name}: the tokenizer has no fast backend; save it with a tokenizer.json")
        self._encoder = SegmentEncoder(tokenizer.backend_tokenizer, dict(tokenizer.get_added_vocab()))
        self._template = ChatTemplate(tokenizer, self._encoder.added)
        added_ids = self._encoder.added_ids
        stops = (added_ids[self._template.frame.end_of_turn], tokenizer.eos_token_id, added_ids.get(_OTHER_STOP))
        self._stop_token_ids = tuple(dict.fromkeys(token for token in stops if token is not None))
        self._replies_behind_text = self._encoder.ends_in_text(self._template.generation_prompt)
        for answer in (Message.user(""), Message.tool("")):
            self.render_env_messages([answer])
        self._check_encoding(tokenizer)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a completion: the template's end of turn first, then the tokenizer's eos and `<|eom_id|>`."""
        return self._stop_token_ids

    @property
    def rewrites_history(self) -> bool:
        """Whether the template itself would show an earlier turn differently once later messages follow.

        Conversations here never change behind the model's back, so they then differ from what the template renders.
        """
        return self._template.rewrites_history

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """Ids of a whole conversation, generation prompt included.

        Up to the first reply it is what the template renders, tools where a prompt without replies has them. A template
        that cannot list tools gets them at the end of the system message; one that takes no system message gets it at
        the start of the user's. From the first reply on it is `render_completion` and `render_env_messages` by turns.
        """
        replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
        first = replies[0] if replies else len(messages)
        return [*self._encoder.encode(self._head(messages[:first], tools)), *self._render_rest(messages[first:])]

    def render_continuation(self, messages: Sequence[Message]) -> list[int]:
        """As `render_env_messages`, where replies that the model did not sample may stand among the messages.

        The last message is no reply.
        """
        replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
        first = replies[0] if replies else len(messages)
        return [*self.render_env_messages(messages[:first]), *self._render_rest(messages[first:])]

    def _render_rest(self, messages: Sequence[Message]) -> list[int]:
        """Ids of messages of which the first is a reply, if there is any: replies and answers by turns."""
        replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
        ids = []
        for start, end in pairwise([*replies, len(messages)]):
            ids += self.render_completion(messages[start])
            ids += self.render_env_messages(messages[start + 1 : end])
        return ids

    def render_env_messages(self, messages: Sequence[Message]) -> list[int]:
        """Ids to append after a completion that ended with its end-of-turn id: separator, answers, generation prompt.

        Tool results become user messages when the template has no other place for them, and neighbouring user messages
        one when it must. Raises UserError when the template cannot show these roles after a reply at all.
        """
        return self._encoder.encode(self._template.suffix([_part(message) for message in messages]))

    def render_completion(self, message: Message) -> list[int]:
        """Ids of an assistant message as the model should write it, end-of-turn id included: a supervised target.

        Calls are in the template's own style, Hermes blocks where it has none, and written even where the template
        leaves them out or refuses more than one. Reasoning stands in the template's marks, else in `<think>`.
        """
        frame = self._template.frame
        opening = frame.opening if message.content or not message.tool_calls else frame.call_opening
        segments = [TextSegment(opening, True)]
        if message.reasoning:
            before, behind = frame.reasoning_marks
            segments = [TextSegment(before, True), TextSegment(message.reasoning, False), TextSegment(behind, True)]
        segments.append(TextSegment(message.content, False))
        segments += self._calls(message) if message.tool_calls else [TextSegment(frame.closing, True)]
        segments.append(TextSegment(frame.end_of_turn, True))
        return self._encoder.encode(segments, behind_text=self._replies_behind_text)

    def parse_completion(self, token_ids: Sequence[int]) -> Message:
        """The assistant message in sampled ids, calls and broken calls parsed. A last stop id is left out."""
        ids = list(token_ids)
        if ids and ids[-1] in self._stop_token_ids:
            ids.pop()
        reasoning, ids = self._split_reasoning(ids)
        text = self._encoder.decode(ids)
        reply = self._read(text)
        written = text if reply.tool_calls or reply.tool_errors else ""
        return replace(reply, reasoning="\n".join(filter(None, [reasoning, reply.reasoning])), written=written)

    def _read(self, text: str) -> Message:
        """The reply in a text without special reasoning tokens."""
        reply = parse_tool_calls(text)
        return Message(role="assistant", content=reply.content, tool_calls=reply.calls, tool_errors=reply.errors)

    def reply_end(self, token_ids: Sequence[int]) -> int | None:
        """Where the reply in sampled ids is over although the model did not end its turn there; None where it is not.

        Here it never is. What was sampled after that place has to be left out, as a stop sequence would, and the
        end-of-turn id, which is then missing, to be read.
        """
        return None

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each id, special tokens included, for people to read; joined, that of all of them."""
        return token_texts(token_ids, self._encoder.decode)

    def _head(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[TextSegment]:
        parts = [_part(message) for message in messages]
        if self._template.shows_tools or not tools:
            return self._template.head(parts, tools)
        listing = _tools_block(tools)
        if parts and parts[0].role == "system":
            separator = TextSegment("\n\n" if messages[0].content else "", True)
            listing = (*parts.pop(0).content, separator, *listing)
        return self._template.head([Part("system", listing), *parts])

    def _calls(self, message: Message) -> list[TextSegment]:
        """Calls in the template's style, behind the content."""
        style, calls = self._template.call_style, message.tool_calls
        separator = "\n" if message.content and style is not CallStyle.MISTRAL else ""
        if style is CallStyle.MISTRAL and self._template.shows_call_ids:
            listing = ", ".join(_with_id(call, number) for number, call in enumerate(calls))
            return [TextSegment(f"{MISTRAL_OPEN} ", True), TextSegment(f"[{listing}]", False)]
        pieces = [TextSegment(*piece) for piece in write_calls(calls, style)]
        # Llama 3.1's own templates write a lone call without the tag, which only tells it from text and other calls.
        if not message.content and len(calls) == 1 and not self._template.shows_python_tag:
            pieces = [piece for piece in pieces if piece != TextSegment(LLAMA_OPEN, True)]
        return [TextSegment(separator, True), *pieces]

    def _split_reasoning(self, ids: list[int]) -> tuple[str, list[int]]:
        """Reasoning and the ids of the reply proper, for a tokenizer that has `</think>`.

        Up to the last `</think>`, and from a `<think>` without one, it is reasoning. Only the tokens count: their
        characters in a file that the model writes do not.
        """
        start, end = self._reply_span(ids)
        marks = {self._encoder.added_ids.get(tag) for tag in (THINK_OPEN, THINK_CLOSE)}
        thoughts = [
            self._encoder.decode([token for token in part if token not in marks]).strip()
            for part in (ids[:start], ids[end:])
        ]
        return "\n".join(filter(None, thoughts)), ids[start:end]

    def _reply_span(self, ids: list[int]) -> tuple[int, int]:
        """Where the reply proper starts and ends."""
        opening, closing = (self._encoder.added_ids.get(tag) for tag in (THINK_OPEN, THINK_CLOSE))
        if closing is None:
            return 0, len(ids)
        start = len(ids) - ids[::-1].index(closing) if closing in ids else 0
        is_cut_off = self._template.opens_reasoning and start == 0
        return start, 0 if is_cut_off else next((i for i in range(start, len(ids)) if ids[i] == opening), len(ids))

    def _check_encoding(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Encoding between special tokens must give what encoding in one go gives, and plain text must stay plain."""
        reply = TextSegment(f"{self._template.frame.opening}Well. I say{self._template.frame.closing}", True)
        part = Part("user", (TextSegment("Say it. Again", False),))
        end_of_turn = TextSegment(self._template.frame.end_of_turn, True)
        segments = [*self._template.head([part]), reply, end_of_turn, *self._template.suffix([part])]
        text = "".join(segment.text for segment in segments)
        if self._encoder.encode(segments) != tokenizer(text, add_special_tokens=False)["input_ids"]:
            raise self._template.error(
                "changes text next to special tokens (spaces added or stripped), so it cannot be spliced"
            )
        token = self._encoder.token_in_plain_text()
        if token is not None:
            raise self._template.error(f"encodes the plain text {token!r} as the special token")


def _part(message: Message) -> Part:
    return Part(message.role, (TextSegment(message.content, False),), message.name or "")


def _with_id(call: ToolCall, number: int) -> str:
    return f'{dump_call(call)[:-1]}, "id": "{call_id(number)}"}}'


def _tools_block(tools: Sequence[ToolSpec]) -> tuple[TextSegment, ...]:
    """The tools as Qwen2.5's template lists them, for templates that cannot."""
    lines = [f"\n{json.dumps(tool.to_openai(), ensure_ascii=False)}" for tool in tools]
    return (TextSegment(TOOLS_HEADER, True), TextSegment("".join(lines), False), TextSegment(TOOLS_FOOTER, True))


def make_chat_format(tokenizer: "PreTrainedTokenizerBase", agent_type: str = "hf") -> ChatFormat:
    """Make the format of an `agent.type` for a model with this tokenizer.

    ConfigError for an unknown type, UserError for a tokenizer that `ChatFormat` refuses.
    """
    return CHAT_FORMATS.get(agent_type)(tokenizer)
