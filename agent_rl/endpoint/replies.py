"""Replies in OpenAI's chat protocol: one JSON object, or the same as a stream of chunks.

A stream has the whole message in one delta: it is sampled before its calls can be read. Not here: HTTP.
"""

import json
from collections.abc import Iterator
from typing import Any

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.endpoint.requests import ChatRequest
from agent_rl.endpoint.session import SampledReply
from agent_rl.records import FinishReason


def chat_completion(reply: SampledReply, request: ChatRequest, chat: ChatFormat, *, created: int) -> dict[str, Any]:
    """The body of a reply as `request` wants it; `token_id` stands beside each log-prob."""
    completion = reply.sampled.completion
    num_prompt, num_new = len(reply.place.prompt_ids), len(completion.token_ids)
    choice: dict[str, Any] = {
        "index": 0,
        "message": assistant_message(reply),
        "finish_reason": finish_reason(reply),
        "logprobs": logprob_entries(reply, chat) if request.logprobs else None,
    }
    body = {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion",
        "created": created,
        "model": request.model,
        "system_fingerprint": f"weights-{completion.weight_version}",
        "choices": [choice],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_new,
            "total_tokens": num_prompt + num_new,
            "prompt_tokens_details": {"cached_tokens": num_prompt - len(reply.place.new_ids)},
        },
    }
    if request.return_token_ids:
        body["prompt_token_ids"] = list(reply.place.prompt_ids)
        choice["token_ids"] = list(completion.token_ids)
    return body


def assistant_message(reply: SampledReply) -> dict[str, Any]:
    """The message; `content` is null where there are only calls."""
    calls = [
        {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for call_id, call in zip(reply.call_ids, reply.shown.tool_calls, strict=True)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": reply.shown.content or (None if calls else "")}
    if reply.sampled.message.reasoning:
        message["reasoning_content"] = reply.sampled.message.reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def finish_reason(reply: SampledReply) -> str:
    if reply.sampled.completion.finish_reason is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if reply.shown.tool_calls else "stop"


def logprob_entries(reply: SampledReply, chat: ChatFormat) -> dict[str, Any]:
    completion = reply.sampled.completion
    texts = chat.token_texts(completion.token_ids)
    entries = [
        {"token": text, "bytes": list(text.encode()), "logprob": logprob, "top_logprobs": [], "token_id": token_id}
        for text, logprob, token_id in zip(texts, completion.logprobs, completion.token_ids, strict=True)
    ]
    return {"content": entries, "refusal": None}


def chat_chunks(body: dict[str, Any], *, include_usage: bool) -> Iterator[dict[str, Any]]:
    """The chunks of a stream that add up to `body`; the caller ends the stream with `[DONE]`."""
    choice = body["choices"][0]
    head = {key: body[key] for key in ("id", "created", "model", "system_fingerprint")}
    head["object"] = "chat.completion.chunk"
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
    first = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": choice["logprobs"]}
    if "token_ids" in choice:
        head["prompt_token_ids"] = body["prompt_token_ids"]
        first["token_ids"] = choice["token_ids"]
    yield {**head, "choices": [first]}
    head.pop("prompt_token_ids", None)
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"], "logprobs": None}]}
    if include_usage:
        yield {**head, "choices": [], "usage": body["usage"]}
