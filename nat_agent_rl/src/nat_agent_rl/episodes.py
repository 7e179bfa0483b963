"""Episodes on the toolkit's side: their names, seeds and headers, and what their requests showed.

The player sets `EPISODE` around the run of a workflow; whatever is called from there, tasks and threads included, sees
it. Not here: playing (`play.py`), HTTP (`transport.py`).
"""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import quote


@dataclass(slots=True)
class Episode:
    """One run of the workflow on one row, and what its requests brought."""

    id: str
    seed: int
    temperature: float | None = None
    """None: the server's configuration decides."""
    num_answers: int = 0
    """Requests through our clients that the server answered."""
    token_ids: list[list[int]] = field(default_factory=list)
    """The sampled ids of each completion, as they reached the framework; the server compares them with its record."""
    endpoint_error: str | None = None
    """How the endpoint itself failed, if it did and answered nothing since."""


EPISODE: ContextVar[Episode | None] = ContextVar("nat_agent_rl_episode", default=None)


def seed_of(*parts: object) -> int:
    """A seed of 63 bits that depends on nothing but `parts`."""
    digest = sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def function_name(name: str) -> str:
    """A function's name as it stands in a header: ASCII, without "/", which separates the names of a path."""
    return quote(name, safe="<>")


def episode_headers() -> dict[str, str]:
    """The headers that tell the server which episode a request belongs to, for any HTTP client.

    Inside of `nat finetune` they name the episode, its seed and temperature; in any other run of a workflow the episode
    has the toolkit's `workflow_run_id`. Empty outside of a workflow.
    """
    from nat.builder.context import Context

    context, episode = Context.get(), EPISODE.get()
    name = episode.id if episode else context.workflow_run_id
    if name is None:
        return {}
    headers = {"X-Agent-RL-Episode": name}
    if episode is not None:
        headers["X-Agent-RL-Seed"] = str(episode.seed)
        if episode.temperature is not None:
            headers["X-Agent-RL-Temperature"] = str(episode.temperature)
    if path := context.function_path:
        headers["X-Agent-RL-Function"] = "/".join(map(function_name, path))
    return headers


def keep_token_ids(logprobs: Mapping[str, Any] | None) -> None:
    """Keep the sampled ids of one completion, from its `logprobs`; nothing where the server did not send them."""
    episode = EPISODE.get()
    ids = [entry.get("token_id") for entry in (logprobs or {}).get("content") or ()]
    if episode is not None and ids and None not in ids:
        episode.token_ids.append(ids)
