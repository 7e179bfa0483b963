"""Anthropic's Messages protocol, translated into chat requests and back.

Not here: what a request may ask for (`requests.py`), counting tokens, images, the provider's own tools.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi.sse import format_sse_event

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.endpoint.errors import EndpointError, bad_request
from agent_rl.endpoint.replies import finish_reason
from agent_rl.endpoint.requests import ChatRequest, parse_chat, restrictions
from agent_rl.endpoint.session import SampledReply

_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_CHOICES = {"auto": "auto", "none": "none", "any": "required", "tool": "required"}
_COPIED = ("model", "max_tokens", "temperature", "stream", "return_token_ids")


class AnthropicDialect:
    """`POST /v1/messages`."""

    def parse(self, body: Mapping[str, Any]) -> ChatRequest:
        system, choice = body.get("system"), body.get("tool_choice")
        rows = [] if not system else [{"role": "system", "content": system}]
        for number, message in enumerate(_listed(body.get("messages"), "messages")):
            rows += _rows(message, f"messages[{number}]")
        chat = {key: body[key] for key in _COPIED if key in body} | restrictions(body) | {"messages": rows}
        if body.get("stop_sequences"):
            chat["stop"] = body["stop_sequences"]
        if body.get("tools") is not None:
            tools = _listed(body["tools"], "tools")
            chat["tools"] = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
        if choice is not None:
            kind = choice.get("type") if isinstance(choice, Mapping) else choice
            chat["tool_choice"] = _CHOICES.get(str(kind), kind)
        wanted = body.get("output_config")
        shape = wanted.get("format") if isinstance(wanted, Mapping) else wanted
        if (shape := shape or body.get("output_format")) is not None:
            chat["response_format"] = shape
        return parse_chat(chat)

    def body(self, reply: SampledReply, request: ChatRequest, chat: ChatFormat, *, created: int) -> dict[str, Any]:
        shown, completion = reply.shown, reply.sampled.completion
        content: list[dict[str, Any]] = [{"type": "text", "text": shown.content}] if shown.content else []
        content += [
            {"type": "tool_use", "id": call_id, "name": call.name, "input": call.arguments}
            for call_id, call in zip(reply.call_ids, shown.tool_calls, strict=True)
        ]
        num_new = len(reply.place.new_ids)
        body: dict[str, Any] = {
            "id": f"msg_{reply.id}",
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": content,
            "stop_reason": _STOPS[finish_reason(reply)],
            "stop_sequence": None,
            "usage": {
                "input_tokens": num_new,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": len(reply.place.prompt_ids) - num_new,
                "output_tokens": len(completion.token_ids),
            },
        }
        if request.return_token_ids:
            body["prompt_token_ids"] = list(reply.place.prompt_ids)
            body["token_ids"] = list(completion.token_ids)
        return body

    def events(self, body: dict[str, Any], request: ChatRequest) -> Iterator[bytes]:
        usage = body["usage"]
        opened = body | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 0}}
        yield _event("message_start", message=opened)
        for index, block in enumerate(body["content"]):
            if block["type"] == "text":
                empty, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                empty = block | {"input": {}}
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield _event("content_block_start", index=index, content_block=empty)
            yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        end = {"stop_reason": body["stop_reason"], "stop_sequence": None}
        yield _event("message_delta", delta=end, usage={"output_tokens": usage["output_tokens"]})
        yield _event("message_stop")

    def error(self, error: EndpointError) -> dict[str, Any]:
        kind = "api_error" if error.status >= 500 else error.kind
        return {"type": "error", "error": {"type": kind, "message": error.message, "code": error.code}}

    def error_event(self, error: EndpointError) -> bytes:
        return format_sse_event(data_str=json.dumps(self.error(error)), event="error")


def _event(kind: str, **content: Any) -> bytes:
    return format_sse_event(data_str=json.dumps({"type": kind, **content}), event=kind)


def _listed(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise bad_request(f"{where} is {value!r:.80}; expected a list", param=where)
    return value


def _rows(message: Any, where: str) -> list[dict[str, Any]]:
    """The chat messages of one message: results of calls are messages of their own, before the user's text."""
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in ("user", "assistant"):
        raise bad_request(f"{where}.role is {role!r:.80}; expected user or assistant", param=where)
    content = message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    texts: list[Any] = []
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in _listed(content, f"{where}.content"):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "text":
            texts.append(block)
        elif kind == "tool_result" and role == "user":
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": block.get("content")})
        elif kind == "tool_use" and role == "assistant":
            function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind not in ("thinking", "redacted_thinking"):
            raise bad_request(f"{where} has a block of type {kind!r:.80}; the policy reads no such blocks", param=where)
    if role == "assistant":
        return [{"role": role, "content": texts, **({"tool_calls": calls} if calls else {})}]
    return [*results, *([{"role": role, "content": texts}] if texts or not results else [])]


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or tool.get("type", "custom") != "custom":
        raise bad_request(f"{where} is {tool!r:.80}; expected {{name, description, input_schema}}", param=where)
    function = {key: tool[key] for key in ("name", "description") if key in tool}
    return {"type": "function", "function": function | {"parameters": tool.get("input_schema")}}
