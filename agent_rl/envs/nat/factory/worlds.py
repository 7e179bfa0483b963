"""Generate fictional HTTP services: the replies behind each URL, from an API's rules and a tool's inputs.

The same rules and inputs give the same replies, in every process. It only invents data: the families
(for the checker) and the oracle decide which URLs a right tool requests, in which order, and what it answers.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from agent_rl.envs.nat.spec import Value

UNKNOWN_STATUS = 599
"""Of what is answered to a request that the service does not know."""
RETRY_STATUS = 503
"""The only status that is worth another attempt; an API whose rules have no retries never sends it."""
_WORDS = ["Amber", "Birch", "Coral", "Delta", "Ember", "Fjord", "Grove", "Haze", "Inlet", "Jade", "Koï", "Lärche"]
_OTHER_STATUSES = [204, 302, 400, 403, 418, 500, 502]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one GET is answered with."""

    url: str
    status: int = 200
    payload: dict[str, Any] | None = None
    """The body's content; None when it is not JSON or no tool should read it."""
    body: str = ""
    failure: str | None = None
    """`timeout` or `connection`: no reply comes at all."""


def world(rules: Mapping[str, Any], inputs: Mapping[str, Value], page_size: int | None) -> list[list[Reply]]:
    """The pages behind the first URL, each with its attempts: the last is final, those before it have RETRY_STATUS."""
    return _world(json.dumps(rules), json.dumps(inputs), page_size)


@lru_cache(maxsize=4096)
def _world(rules_text: str, inputs_text: str, page_size: int | None) -> list[list[Reply]]:
    rules, inputs = json.loads(rules_text), json.loads(inputs_text)
    rng = random.Random(json.dumps([rules["host"], rules["path"], inputs], sort_keys=True))
    outcome = "found"
    if rng.random() < 0.4:
        outcome = rng.choice(_outcomes(rules))
    bad_page = rng.choice([0, 0, 1]) if outcome not in ("not found", "nothing") else 0
    first = _first_url(rules, inputs, page_size)
    payloads = _payloads(rules, rng, page_size, first, outcome)
    urls = [first, *(_next_url(rules, first, payload["next"]) for payload in payloads[:-1])]
    pages = []
    for number, (url, payload) in enumerate(zip(urls, payloads, strict=True)):
        kind = outcome if number == min(bad_page, len(payloads) - 1) else "found"
        pages.append(_attempts(rules, rng, url, kind, payload))
    return pages


def _outcomes(rules: Mapping[str, Any]) -> list[str]:
    """What can go wrong."""
    out = ["not found", "failed", "not json", "timeout"]
    if rules["connection"]:
        out.append("connection")
    if rules["items"]:
        out.append("nothing")
    return out


def _first_url(rules: Mapping[str, Any], inputs: Mapping[str, Value], page_size: int | None) -> str:
    parts = {name: quote(str(value), safe="") for name, value in inputs.items()}
    query = []
    for param in rules["params"]:
        sources = {"fixed": param["value"], "page_size": str(page_size), "input": parts.get(param["value"])}
        query.append(f"{param['name']}={sources[param['kind']]}")
    return rules["host"] + rules["path"].format(**parts) + ("?" + "&".join(query) if query else "")


def _next_url(rules: Mapping[str, Any], first: str, value: str) -> str:
    return f"{first}&cursor={quote(value, safe='')}" if rules["next_style"] == "cursor" else rules["host"] + value


def _payloads(
    rules: Mapping[str, Any], rng: random.Random, page_size: int | None, first: str, outcome: str
) -> list[dict[str, Any]]:
    """The JSON objects of the pages; all but the last have a `next`."""
    if not rules["items"]:
        return [_record(rules, rng)]
    num_records = rng.randint(2, 10 if rules["next_style"] else 6)
    records = [_record(rules, rng) for _ in range(0 if outcome == "nothing" else num_records)]
    size = page_size or len(records) or 1
    chunks = [records[start : start + size] for start in range(0, len(records), size)] or [[]]
    if rules["next_style"] is None:
        return [{"total": len(records), rules["items"]: chunks[0]}]
    out: list[dict[str, Any]] = [{rules["items"]: chunk, "total": len(records)} for chunk in chunks]
    for number, payload in enumerate(out[:-1]):
        # The number keeps the marks of two pages apart.
        mark = f"{rng.choice('bcdfgh')}{rng.randrange(10, 100)}{number}="
        is_path = rules["next_style"] == "path"
        payload["next"] = f"{first.removeprefix(rules['host'])}&after={quote(mark, safe='')}" if is_path else mark
    if rng.random() < 0.5:
        out[-1]["next"] = None
    return out


def _record(rules: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """One object with the fields of the rules, and some that no rule names."""
    out: dict[str, Any] = {"uid": rng.randrange(1000, 10000), "note": rng.choice(_WORDS)}
    for field in rules["fields"]:
        *parents, name = field["path"].split(".")
        value: Any = rng.choice(_WORDS) if field["kind"] == "word" else rng.choice([0, 7, rng.randrange(1, 2000)])
        holder = out
        for parent in parents:
            holder = holder.setdefault(parent, {})
        lack = rng.random() if rules["missing"] is not None else 1.0
        if lack < 0.15:
            holder[name] = None
        elif lack > 0.3:
            holder[name] = value
    return out


def _attempts(
    rules: Mapping[str, Any], rng: random.Random, url: str, kind: str, payload: dict[str, Any]
) -> list[Reply]:
    num_busy = rng.choice([0, 0, 1, 2, 3]) if rules["max_retries"] is not None else 0
    urls = [url, *(f"{url}&attempt={attempt}" for attempt in range(2, num_busy + 2))]
    busy = [Reply(url=each, status=RETRY_STATUS, body="try again") for each in urls[:-1]]
    return [*busy, _final(rng, urls[-1], kind, payload)]


def _final(rng: random.Random, url: str, kind: str, payload: dict[str, Any]) -> Reply:
    if kind in ("timeout", "connection"):
        return Reply(url=url, failure=kind)
    text = json.dumps(payload)
    if kind == "not found":
        return Reply(url=url, status=404, body=rng.choice(["", "nothing here", text]))
    if kind == "failed":
        return Reply(url=url, status=rng.choice(_OTHER_STATUSES), body=rng.choice(["", "sorry", text]))
    if kind == "not json":
        return Reply(url=url, body=rng.choice(["", "<p>busy</p>", text[:-1]]))
    return Reply(url=url, payload=payload, body=text)
