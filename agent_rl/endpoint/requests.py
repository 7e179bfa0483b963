"""Chat requests of OpenAI's protocol, read and checked: JSON in, messages and tools out.

What training cannot allow is refused with the reason: samples must come from the policy's plain distribution, one at a
time. Unknown keys are ignored, as clients send many. Not here: other dialects (each turns its requests into
this one's body), sampling.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_rl.agent.message_dicts import read_chat, read_tools
from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.endpoint.errors import bad_request
from agent_rl.errors import DataError

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "stop": (None, [], ""),
    "top_p": (None, 1, 1.0),
    "top_k": (None, -1, 0),
    "min_p": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "logit_bias": (None, {}),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto", "none"),
    "functions": (None, []),
    "function_call": (None, "auto", "none"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "best_of": (None, 1),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_decoding": (None,),
    "structured_outputs": (None,),
    "stop_token_ids": (None, []),
    "min_tokens": (None, 0),
    "ignore_eos": (None, False),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "typical_p": (None, 1, 1.0),
    "length_penalty": (None, 1, 1.0),
    "use_beam_search": (None, False),
    "max_tool_calls": (None,),
    "logits_processors": (None, []),
    "custom_logit_processor": (None,),
    "vllm_xargs": (None, {}),
    "structural_tag": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "grammar": (None, ""),
    "json_schema": (None,),
    "stop_regex": (None, [], ""),
    "thinking_token_budget": (None,),
    "mirostat": (None, 0),
    "top_a": (None, 0, 0.0),
    "truncate_prompt_tokens": (None,),
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "documents": (None, []),
    "continue_final_message": (None, False),
    "add_generation_prompt": (None, True),
}
"""Keys that would change the distribution, or the prompt, and the values that do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One request for the next assistant message."""

    messages: tuple[Message, ...]
    """The conversation so far; the last one is no assistant's."""
    call_ids: tuple[tuple[str, ...], ...]
    """Ids of the calls of each message; empty but for assistants'."""
    tools: tuple[ToolSpec, ...]
    model: str
    max_tokens: int | None
    """Most tokens to generate, where the client says so."""
    stream: bool
    include_usage: bool
    logprobs: bool
    return_token_ids: bool
    digest: str
    """Of the whole body, to tell a retry from another request."""


def parse_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request; EndpointError for anything else."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is no JSON ({type(error).__name__}); send one JSON object") from error
    if not isinstance(body, dict):
        raise bad_request(f"the body is a JSON {type(body).__name__}; send one JSON object")
    return body


def restrictions(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a body of any dialect has of the keys that `parse_chat` may refuse."""
    return {key: body[key] for key in _NEUTRAL if key in body}


def parse_chat(body: Mapping[str, Any]) -> ChatRequest:
    """Read a body of `POST /v1/chat/completions`. EndpointError names the key that is wrong or not allowed."""
    for key, neutral in _NEUTRAL.items():
        if body.get(key) not in neutral:
            raise bad_request(
                f"{key} = {body[key]!r:.80} is not allowed: the policy is sampled from its plain distribution, one "
                f"completion at a time; leave {key} out",
                param=key,
                code="unsupported_parameter",
            )
    _check_temperature(body)
    messages, call_ids = _messages(body.get("messages"))
    return ChatRequest(
        messages=messages,
        call_ids=call_ids,
        tools=() if body.get("tool_choice") == "none" else _tools(body.get("tools")),
        model=_typed(body, "model", str, "policy"),
        max_tokens=_max_tokens(body),
        stream=_typed(body, "stream", bool, False),
        include_usage=bool(_typed(body, "stream_options", dict, {}).get("include_usage")),
        logprobs=_typed(body, "logprobs", bool, False),
        return_token_ids=_typed(body, "return_token_ids", bool, False),
        digest=hashlib.sha256(_encoded(body)).hexdigest(),
    )


def _encoded(body: Mapping[str, Any]) -> bytes:
    """The body as bytes; EndpointError for half of a surrogate pair, which is no character and has no token."""
    try:
        return json.dumps(body, sort_keys=True, ensure_ascii=False).encode()
    except RecursionError as error:
        raise bad_request("the body is nested too deeply; send a flatter one") from error
    except UnicodeEncodeError as error:
        raise bad_request("a text holds half of a surrogate pair, which is no character; send valid Unicode") from error


def _typed(body: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise bad_request(f"{key} is {value!r:.80}; expected {_KINDS[kind]}", param=key, code="invalid_type")
    return value


_KINDS = {str: "a text", bool: "true or false", dict: "an object", list: "a list"}


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    given = [(key, body[key]) for key in ("max_completion_tokens", "max_tokens") if body.get(key) is not None]
    for key, value in given:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise bad_request(f"{key} is {value!r:.80}; expected a whole number from 1 on", param=key)
    return min((value for _, value in given), default=None)


def _check_temperature(body: Mapping[str, Any]) -> None:
    """A number is taken and does not count: the session's does."""
    value = body.get("temperature")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100):
        raise bad_request(f"temperature is {value!r:.80}; expected a number from 0 on", param="temperature")


def _messages(given: Any) -> tuple[tuple[Message, ...], tuple[tuple[str, ...], ...]]:
    try:
        messages, call_ids = read_chat(given, "messages")
    except DataError as error:
        raise bad_request(str(error), param="messages") from error
    if messages[-1].role == "assistant":
        raise bad_request(
            "the last message is an assistant's; the policy writes whole messages and continues none, end with a "
            "message of user or tool",
            param="messages",
        )
    return messages, call_ids


def _tools(given: Any) -> tuple[ToolSpec, ...]:
    try:
        return read_tools(given, "tools")
    except DataError as error:
        raise bad_request(str(error), param="tools") from error
