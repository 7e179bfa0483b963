"""Word an API client's rules for a user: URL, fields, failures, paging, the functions of logic.py.

It words rules sampled by `rules.py` and decides nothing.
"""

import random
from typing import Any

from agent_rl.envs.nat.factory.families.base import join_names
from agent_rl.envs.nat.factory.worlds import RETRY_STATUS
from agent_rl.envs.nat.spec import Tool


def template(tool: Tool) -> str:
    """Path and query with names in braces for what varies."""
    size = "{page_size}" if "page_size" in tool.defaults else str(tool.rules["page_size"])
    params = []
    for param in tool.rules["params"]:
        value = {"fixed": param["value"], "page_size": size, "input": f"{{{param['value']}}}"}[param["kind"]]
        params.append(f"{param['name']}={value}")
    return tool.rules["path"] + ("?" + "&".join(params) if params else "")


def signature(tool: Tool) -> str:
    field = tool.config_field
    size = [f"page_size: int = {field.default}"] if field and field.name == "page_size" else []
    return ", ".join([*(f"{each.name}: {each.type}" for each in tool.inputs), *size])


def field_sentences(rules: dict[str, Any], rng: random.Random) -> list[str]:
    paths = [field["path"] for field in rules["fields"]]
    whose = "of an object" if rules["items"] else "of the object"
    joined = f", in this order, joined by `{rules['between']}`" if len(paths) > 1 else ""
    inner = " (a dot leads into an inner object)" if any("." in path for path in paths) else ""
    out = [
        rng.choice(
            [
                f"The answer has {join_names(paths)}{inner} {whose}{joined}.",
                f"Take {join_names(paths)}{inner} {whose}{joined}.",
            ]
        )
    ]
    if rules["missing"] is not None:
        out.append(f"A field that is absent or null is written `{rules['missing']}`.")
    if rules["items"]:
        out.append(f"Objects are joined by `{rules['joiner']}`; an empty list gives `{rules['nothing']}`.")
    return out


def failure_sentence(rules: dict[str, Any]) -> str:
    if rules["connection"] is None:
        return f"A timeout gives `{rules['timeout']}`."
    if rules["connection"] == rules["timeout"]:
        return f"A timeout or a failed connection gives `{rules['timeout']}`."
    return f"A timeout gives `{rules['timeout']}`, a failed connection `{rules['connection']}`."


def request_sentences(tool: Tool) -> list[str]:
    rules, settings = tool.rules, tool.defaults
    out = []
    if rules["token"]:
        out.append(f"Every request carries the header `X-Api-Key: {rules['token']}`.")
    if rules["max_retries"] is not None:
        limit = "`max_retries`" if "max_retries" in settings else rules["max_retries"]
        out.append(
            f"Status {RETRY_STATUS} is asked again at once, up to {limit} more times, with `&attempt=2`, `&attempt=3` "
            "and so on after the URL; what the last attempt says counts."
        )
    if rules["max_pages"]:
        limit = "`max_pages`" if "max_pages" in settings else rules["max_pages"]
        follow = (
            "add it to the first URL as last parameter `cursor`, percent-encoded"
            if rules["next_style"] == "cursor"
            else "it is path and query of that page"
        )
        out.append(
            f"A reply with a `next` that is not null has a following page: {follow}. Read at most {limit} pages "
            f"and join their answers by `{rules['joiner']}`; an error on any of these pages is the whole answer."
        )
    return out


def contract(tool: Tool) -> str:
    """The functions of logic.py, in words."""
    name = tool.function
    out = (
        f"logic.py has `{name}_path({signature(tool)}) -> str`, path and query of the first request, "
        f"and `{name}(status: int, body: str) -> str`, the answer for one reply"
    )
    if not tool.rules["max_pages"]:
        return f"{out}."
    if tool.rules["next_style"] == "cursor":
        given, first = "first: str, body: str", ", where `first` is path and query of the first"
    else:
        given, first = "body: str", ""
    return (
        f"{out}, and `{name}_next({given}) -> str`, path and query of the page after that JSON reply{first}, or empty."
    )
