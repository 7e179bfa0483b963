"""Checks that a server, or a router, can serve this run. Called once, before the first completion.

Every finding is a ConfigError about `vllm.servers` or `vllm.router` that names what to do instead.
"""

import asyncio
from typing import Any

from agent_rl.errors import ConfigError, EngineError
from agent_rl.inference.vllm.server.settings import ServerSettings, check_settings, read_settings
from agent_rl.inference.vllm.server_answers import GENERATE_PATH, make_body, read_answer
from agent_rl.inference.vllm.server_pool import ServerPool, ServerState
from agent_rl.records import SamplingParams

_AGAIN_S = 0.5
_HEALTH_S = 5.0
_LOOK_S = 0.05
_ROUNDING = 1e-3
_ONLY = 0
"""The id that a trial may sample."""
_ONE_TOKEN = SamplingParams(max_new_tokens=1)


async def check_server(
    pool: ServerPool, address: str, *, start_timeout_s: float, max_context: int, needed: ServerSettings
) -> None:
    """Wait until the server answers, resume it where a dead run left it paused, and try it. Raises ConfigError."""
    await _await_health(pool, address, start_timeout_s)
    try:
        pause = await pool.call(address, "GET", "/is_paused", timeout_s=start_timeout_s)
        await pool.call(address, "GET", "/weight_info", timeout_s=start_timeout_s)
        models = await pool.call(address, "GET", "/v1/models", timeout_s=start_timeout_s)
        window = int(models["data"][0]["max_model_len"])
        found = read_settings(model["id"] for model in models["data"])
        if pause["is_paused"]:
            await pool.call(address, "POST", "/resume", timeout_s=start_timeout_s)
    except (EngineError, KeyError, IndexError, TypeError, ValueError) as error:
        raise _not_ours(address, error) from None
    if window < max_context:
        raise ConfigError(
            f"vllm.servers: {address} has a window of {window} tokens, policy.max_context is {max_context}; start it "
            f"with `agent-rl serve-vllm --max-context {max_context}`"
        )
    check_settings(address, found, needed)
    await _sample(pool, pool.servers[address], start_timeout_s)
    while not pool.servers[address].is_up:  # an earlier request failed, and its watcher has not looked again yet
        await asyncio.sleep(_LOOK_S)


async def _await_health(pool: ServerPool, address: str, start_timeout_s: float) -> None:
    problem: EngineError | None = None
    try:
        async with asyncio.timeout(start_timeout_s):
            while True:
                try:
                    await pool.call(address, "GET", "/health", timeout_s=_HEALTH_S)
                    return
                except EngineError as error:
                    problem = error
                await asyncio.sleep(_AGAIN_S)
    except TimeoutError:
        raise ConfigError(
            f"vllm.servers: {address} did not answer within {start_timeout_s:g} s, vllm.start_timeout_s ({problem}); "
            "start it with `agent-rl serve-vllm`, or correct the address"
        ) from None


async def check_router(pool: ServerPool, router: ServerState, *, start_timeout_s: float) -> None:
    """Sample a token through the router, as often as it fails, for so long. Raises ConfigError."""
    problem = "no answer"
    try:
        async with asyncio.timeout(start_timeout_s):
            while True:
                try:
                    answer = await pool.request(router, GENERATE_PATH, _one_token_body())
                    read_answer(router.address, answer, _ONE_TOKEN)
                    return
                except EngineError as error:
                    problem = str(error)
                await asyncio.sleep(_AGAIN_S)
    except TimeoutError:
        raise ConfigError(
            f"vllm.router: {router.address} did not pass on a completion within {start_timeout_s:g} s, "
            f"vllm.start_timeout_s ({problem}); it has to forward {GENERATE_PATH} and the Authorization header to the "
            "servers of vllm.servers"
        ) from None


async def _sample(pool: ServerPool, server: ServerState, timeout_s: float) -> None:
    """Sample with only one id allowed: its log-prob under the sampling distribution is 0."""
    address = server.address
    try:
        async with asyncio.timeout(timeout_s):
            answer: Any = await pool.request(server, GENERATE_PATH, _one_token_body())
    except (EngineError, TimeoutError) as error:
        raise _not_ours(address, error) from None
    try:
        sampled = read_answer(address, answer, _ONE_TOKEN)
    except EngineError as error:
        raise ConfigError(
            f"vllm.servers: {error}; start it with `agent-rl serve-vllm` and the model of model.path"
        ) from None
    if sampled.token_ids != (_ONLY,) or sampled.logprobs[0] < -_ROUNDING:
        raise ConfigError(
            f"vllm.servers: {address} returns log-probs of another distribution than the one it samples from; start it "
            "with `agent-rl serve-vllm`, which sets --logprobs-mode processed_logprobs"
        )


def _one_token_body() -> dict[str, Any]:
    body = make_body([_ONLY], _ONE_TOKEN, adapter=None)
    body["sampling_params"]["allowed_token_ids"] = [_ONLY]
    return body


def _not_ours(address: str, error: Exception) -> ConfigError:
    finding = f"{type(error).__name__}: {error}" if not isinstance(error, EngineError) else str(error)
    return ConfigError(
        f"vllm.servers: {address} is not a server that `agent-rl serve-vllm` started ({finding}); start it with that "
        "command"
    )
