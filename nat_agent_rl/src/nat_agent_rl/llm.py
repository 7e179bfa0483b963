"""`_type: agent_rl_policy` for LangChain and LangGraph: a `ChatOpenAI` whose requests name their episode.

Imported when a workflow is built, not when the toolkit looks for plug-ins: `langchain_openai` takes a second.
Not here: other frameworks; they take `policy_client` or `episode_headers`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import LLMResult
from langchain_openai import ChatOpenAI

from nat_agent_rl.episodes import keep_token_ids
from nat_agent_rl.transport import BlockingPolicyTransport, PolicyTransport

RETRIES = 2
"""Of a request whose connection failed. While weights change, the transport waits."""


class TokenIds(BaseCallbackHandler):
    """Keeps the sampled ids that LangChain hands on: of whole answers, and of streams put together."""

    run_inline = True  # else it runs in a thread, with a copy of the context

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        for generation in response.generations[0]:
            kept = (generation.generation_info or {}).get("logprobs")
            keep_token_ids(kept or getattr(generation, "message", generation).response_metadata.get("logprobs"))


@asynccontextmanager
async def chat_model(
    server: str, *, model: str, api_key_env: str, max_tokens: int | None, request_timeout_s: float
) -> AsyncIterator[ChatOpenAI]:
    """A chat model on the server's endpoint; its connections are closed at the end.

    Sampling is the server's: it decides temperature and seeds while an episode runs.
    """
    transport = PolicyTransport(api_key_env, request_timeout_s)
    blocking = BlockingPolicyTransport(api_key_env, request_timeout_s)
    async with httpx.AsyncClient(transport=transport, timeout=request_timeout_s) as client:
        with httpx.Client(transport=blocking, timeout=request_timeout_s) as blocking_client:
            yield ChatOpenAI(
                model=model,
                base_url=f"{server.rstrip('/')}/v1",
                api_key="set by the transport",
                max_tokens=max_tokens,
                logprobs=True,
                stream_usage=True,
                max_retries=RETRIES,
                timeout=request_timeout_s,
                http_async_client=client,
                http_client=blocking_client,
                callbacks=[TokenIds()],
            )
