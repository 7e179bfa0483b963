"""OpenAI's Responses protocol, translated into chat requests and back.

Nothing is stored: a request brings its whole conversation, so `previous_response_id` is refused. Not here: what a
request may ask for (`requests.py`), the provider's own tools.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi.sse import format_sse_event

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.endpoint.errors import EndpointError, bad_request
from agent_rl.endpoint.replies import finish_reason, logprob_entries
from agent_rl.endpoint.requests import ChatRequest, parse_chat, restrictions
from agent_rl.endpoint.session import SampledReply

_COPIED = ("model", "temperature", "stream", "return_token_ids")
_REFUSED = ("previous_response_id", "conversation", "prompt", "background")


class ResponsesDialect:
    """`POST /v1/responses`."""

    def parse(self, body: Mapping[str, Any]) -> ChatRequest:
        for key in _REFUSED:
            if body.get(key):
                raise bad_request(
                    f"{key} is not supported: nothing is stored; send the whole conversation in input",
                    param=key,
                    code="unsupported_parameter",
                )
        rows = [] if not body.get("instructions") else [{"role": "system", "content": body["instructions"]}]
        chat = {key: body[key] for key in _COPIED if key in body} | restrictions(body)
        chat["messages"] = rows + _rows(body.get("input"))
        if body.get("max_output_tokens") is not None:
            chat["max_tokens"] = body["max_output_tokens"]
        text = body.get("text")
        if isinstance(text, Mapping) and text.get("format"):
            chat["response_format"] = text["format"]
        if body.get("tools") is not None:
            chat["tools"] = _tools(body["tools"])
        include = body.get("include") or []
        if not isinstance(include, list):
            raise bad_request(f"include is {include!r:.80}; expected a list", param="include")
        chat["logprobs"] = "message.output_text.logprobs" in include
        return parse_chat(chat)

    def body(self, reply: SampledReply, request: ChatRequest, chat: ChatFormat, *, created: int) -> dict[str, Any]:
        is_cut, completion = finish_reason(reply) == "length", reply.sampled.completion
        num_prompt, num_new = len(reply.place.prompt_ids), len(completion.token_ids)
        body: dict[str, Any] = {
            "id": f"resp_{reply.id}",
            "object": "response",
            "created_at": created,
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "error": None,
            "instructions": None,
            "metadata": {},
            "model": request.model,
            "output": _output(reply, request, chat),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": {
                "input_tokens": num_prompt,
                "input_tokens_details": {"cached_tokens": num_prompt - len(reply.place.new_ids)},
                "output_tokens": num_new,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": num_prompt + num_new,
            },
        }
        if request.return_token_ids:
            body["prompt_token_ids"] = list(reply.place.prompt_ids)
            body["token_ids"] = list(completion.token_ids)
        return body

    def events(self, body: dict[str, Any], request: ChatRequest) -> Iterator[bytes]:
        opened = body | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        contents = [
            {"type": "response.created", "response": opened},
            {"type": "response.in_progress", "response": opened},
        ]
        for index, item in enumerate(body["output"]):
            contents += _item_events(item, {"item_id": item["id"], "output_index": index})
        contents.append({"type": f"response.{body['status']}", "response": body})
        for number, content in enumerate(contents):
            row = json.dumps({**content, "sequence_number": number})
            yield format_sse_event(data_str=row, event=content["type"])

    def error(self, error: EndpointError) -> dict[str, Any]:
        row = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
        return {"error": row}

    def error_event(self, error: EndpointError) -> bytes:
        row = {"type": "error", "message": error.message, "code": error.code, "param": error.param}
        return format_sse_event(data_str=json.dumps({**row, "sequence_number": 0}), event="error")


def _output(reply: SampledReply, request: ChatRequest, chat: ChatFormat) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.shown.content or not reply.shown.tool_calls:
        logprobs = logprob_entries(reply, chat)["content"] if request.logprobs else []
        part = {"type": "output_text", "text": reply.shown.content, "annotations": [], "logprobs": logprobs}
        row = {
            "type": "message",
            "id": f"msg_{reply.id}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
        items.append(row)
    for call_id, call in zip(reply.call_ids, reply.shown.tool_calls, strict=True):
        row = {"type": "function_call", "id": f"fc_{reply.id}_{call_id}", "call_id": call_id, "name": call.name}
        items.append({**row, "arguments": json.dumps(call.arguments), "status": "completed"})
    return items


def _item_events(item: dict[str, Any], where: dict[str, Any]) -> list[dict[str, Any]]:
    index = {"output_index": where["output_index"]}
    if item["type"] == "function_call":
        opened, arguments = item | {"arguments": "", "status": "in_progress"}, item["arguments"]
        inner = [
            {"type": "response.function_call_arguments.delta", **where, "delta": arguments},
            {"type": "response.function_call_arguments.done", **where, "arguments": arguments, "name": item["name"]},
        ]
    else:
        part, at = item["content"][0], {**where, "content_index": 0}
        opened = item | {"content": [], "status": "in_progress"}
        said = {"logprobs": part["logprobs"]}
        inner = [
            {"type": "response.content_part.added", **at, "part": part | {"text": "", "logprobs": []}},
            {"type": "response.output_text.delta", **at, "delta": part["text"], **said},
            {"type": "response.output_text.done", **at, "text": part["text"], **said},
            {"type": "response.content_part.done", **at, "part": part},
        ]
    added = {"type": "response.output_item.added", **index, "item": opened}
    return [added, *inner, {"type": "response.output_item.done", **index, "item": item}]


def _rows(given: Any) -> list[dict[str, Any]]:
    """The chat messages of `input`: an assistant's text and the calls behind it are one message."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise bad_request(f"input is {given!r:.80}; expected a text or a list of items", param="input")
    rows: list[dict[str, Any]] = []
    for number, item in enumerate(given):
        where = f"input[{number}]"
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        if kind == "message":
            rows.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            if not rows or rows[-1]["role"] != "assistant":
                rows.append({"role": "assistant", "content": ""})
            row = {"id": item.get("call_id"), "type": "function", "function": function}
            rows[-1].setdefault("tool_calls", []).append(row)
        elif kind == "function_call_output":
            rows.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        elif kind != "reasoning":
            raise bad_request(f"{where} is an item of type {kind!r:.80}; the policy reads no such items", param=where)
    return rows


def _tools(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        raise bad_request(f"tools is {given!r:.80}; expected a list", param="tools")
    tools = []
    for number, tool in enumerate(given):
        if not isinstance(tool, Mapping) or tool.get("type") != "function":
            raise bad_request(f"tools[{number}] is {tool!r:.80}; the policy calls functions only", param="tools")
        function = {key: tool[key] for key in ("name", "description", "parameters") if key in tool}
        tools.append({"type": "function", "function": function})
    return tools
