"""Oracle of API clients: requests a fictional service URL by URL and reads the decoded replies.

The service's data comes from `agent_rl.envs.nat.factory.worlds`; URLs, their order and the answer are worked out here.
"""

from collections.abc import Mapping
from typing import Any

from agent_rl.envs.nat.factory.worlds import Reply, world
from agent_rl.envs.nat.spec import Value

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def answer(rules: Mapping[str, Any], inputs: Mapping[str, Value], config: Mapping[str, int]) -> str:
    return answer_wrongly(rules, rules, inputs, config)


def answer_wrongly(
    rules: Mapping[str, Any], right: Mapping[str, Any], inputs: Mapping[str, Value], config: Mapping[str, int]
) -> str:
    """What a client of other rules answers at the service of the right ones, which knows no other requests."""
    limits = {name: config.get(name, rules[name]) for name in ("page_size", "max_pages", "max_retries")}
    page_size = config.get("page_size", right["page_size"])
    service = {reply.url: reply for page in world(right, inputs, page_size) for reply in page}
    start = url = rules["host"] + _start(rules, inputs, limits["page_size"])
    found: list[str] = []
    num_pages = 0
    while True:
        reply = _ask(service, url, limits["max_retries"] or 0)
        if reply is None:
            return rules["failed"]
        problem = _problem(rules, reply)
        if problem:
            return problem
        assert reply.payload is not None
        things = reply.payload[rules["items"]] if rules["items"] else [reply.payload]
        found += [
            rules["between"].join(_text(rules, thing, field["path"]) for field in rules["fields"]) for thing in things
        ]
        num_pages += 1
        follow = reply.payload.get("next") if rules["next_style"] else None
        if follow is None or num_pages == limits["max_pages"]:
            return rules["joiner"].join(found)
        url = rules["host"] + follow if rules["next_style"] == "path" else f"{start}&cursor={_encode(follow)}"


def _ask(service: Mapping[str, Reply], url: str, num_retries: int) -> Reply | None:
    reply = service.get(url)
    for attempt in range(num_retries):
        if reply is not None and reply.status == 503:
            reply = service.get(f"{url}&attempt={attempt + 2}")
    return reply


def _problem(rules: Mapping[str, Any], reply: Reply) -> str | None:
    if reply.failure:
        return rules[reply.failure]
    if reply.status != 200:
        return rules["not_found"] if reply.status == 404 else rules["failed"]
    if reply.payload is None:
        return rules["not_json"]
    return rules["nothing"] if rules["items"] and not reply.payload[rules["items"]] else None


def _text(rules: Mapping[str, Any], thing: Mapping[str, Any], path: str) -> str:
    parent, _, name = path.rpartition(".")
    value = (thing[parent] if parent else thing).get(name)
    return rules["missing"] if value is None else f"{value}"


def _start(rules: Mapping[str, Any], inputs: Mapping[str, Value], page_size: int | None) -> str:
    path = rules["path"]
    for name, value in inputs.items():
        path = path.replace("{" + name + "}", _encode(value))
    for number, param in enumerate(rules["params"]):
        value = {"fixed": param["value"], "page_size": page_size}.get(param["kind"], inputs.get(param["value"]))
        path += f"{'&' if number else '?'}{param['name']}={_encode(value)}"
    return path


def _encode(value: object) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in str(value).encode())
