"""Give a spec names of any words: words of a long list, made-up ones, letters and digits, mixed case where names may.

A model that has seen a few names alone learns them by heart; one that has seen names without end has to copy. Not here:
what an agent does; its fingerprint and its answers stay.
"""

import keyword
import random
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.families.base import is_argument_name
from agent_rl.envs.nat.factory.planner.plan import plan_of
from agent_rl.envs.nat.factory.requests.grammar import read_words
from agent_rl.envs.nat.spec import ConfigField, Example, InputField, NATSpec, Telling, Tool

WORDS = "words.txt"
PIECES = "pieces.txt"
"""What the tokenizer of `model/nat_minimind_words` cuts small letters into: a name of other words falls into these."""
_ONSETS = ["b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gl", "h", "j", "k", "kr", "l", "m", "n", "p", "pl", "qu",
           "r", "s", "sh", "sk", "st", "t", "tr", "v", "w", "y", "z"]  # fmt: skip
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ee", "io", "oo", "ou"]
_ENDS = ["", "", "", "n", "r", "l", "s", "t", "x", "m", "ck", "nd", "rt"]
_TAKEN = {"server", "path", "sys", "tool", "run", "config", "main", "nat", "mcp", "tests", "src", "table", "lookup"}
_SERVICE_TEXTS = ("host", "path", "not_found", "failed", "not_json", "nothing", "timeout", "connection")
SIGNS = "....::++--__"
"""Between parts of a type or a server's name; the toolkit refuses a slash in a type."""
FUNCTION_SHARE = 0.3
"""Specs whose function in logic.py is called otherwise; the system message names it."""
FIELD_SHARE = 0.5
"""Specs whose own variables, hosts and fields are renamed too, where the family has some."""


def any_word(rng: random.Random) -> str:
    """One part of a name, in small letters."""
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(read_words(WORDS))
    if kind < 0.65:
        return "".join(rng.choices(read_words(PIECES), k=rng.choice([2, 2, 3])))
    if kind < 0.85:
        return "".join(
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_ENDS) for _ in range(rng.choice([1, 2, 2, 3]))
        )
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 6)))


def any_name(rng: random.Random, most: int = 3) -> str:
    """Parts joined by `_`, now and then with digits: what the toolkit takes for any of its names."""
    parts = [any_word(rng) for _ in range(rng.randint(1, most))]
    if rng.random() < 0.3:
        at = rng.randrange(len(parts))
        digits = str(rng.randint(0, 9) if rng.random() < 0.6 else rng.randint(10, 2099))
        parts[at] = parts[at] + digits if at == 0 or rng.random() < 0.6 else digits
    name = "_".join(parts) if rng.random() < 0.9 else "".join(parts)
    bad = name in _TAKEN or name in sys.stdlib_module_names or keyword.iskeyword(name) or not is_argument_name(name)
    return any_name(rng, most) if bad else name


def in_any_case(name: str, rng: random.Random) -> str:
    """The name as it is, with hyphens, or in one of several cases: for names that are texts alone."""
    style: Callable[[str], str] = rng.choice(
        [
            str,
            str,
            lambda text: text.replace("_", "-"),
            lambda text: text.replace("_", rng.choice(".:+")),
            lambda text: "".join(part[:1].upper() + part[1:] for part in text.split("_")),
            lambda text: re.sub("_(.)", lambda found: found[1].upper(), text),
            lambda text: "-".join(part.capitalize() for part in text.split("_")),
            str.upper,
        ]
    )
    return style(name)


def renamed(spec: NATSpec, rng: random.Random, *, of_service: bool = True) -> NATSpec:
    """The spec of one tool under other names; its request is that of the old names until it is worded again.

    `of_service`: an API may get another host, path and fields, and so another example.
    """
    (tool,) = spec.tools
    package = f"nat_{any_name(rng)}"
    type_name = _type_of(package, rng)
    instance = tool.instance if rng.random() < 0.25 else _other_than({tool.function, package}, rng)
    tool = tool.model_copy(update={"type_name": type_name, "instance": instance})
    if rng.random() < FUNCTION_SHARE:
        tool = tool.model_copy(update={"function": _other_than({instance, package}, rng)})
    if rng.random() < FIELD_SHARE and (of_service or tool.family != "api_client"):
        tool = _with_other_fields(tool, rng)
    same = spec.server.name == spec.package
    name = package if same else _server_name(rng)
    server = spec.server.model_copy(update={"name": name})
    changed = spec.model_copy(update={"package": package, "tools": (tool,), "server": server})
    return changed.model_copy(update={"plan": plan_of(changed)})


def _server_name(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return joined_anyhow([any_word(rng), *_any_parts(rng, rng.choice([1, 2]))], rng)
    return in_any_case(any_name(rng), rng)


def _type_of(package: str, rng: random.Random) -> str:
    """As the task generator has it, or the package with another end, so that the end is copied too, or any, with signs
    of every kind: a model that has seen names without dots ends a name at its dot, as a sentence does.

    Of two words at least, since the reference's docstring is made of it and has to say something.
    """
    kind = rng.random()
    if kind < 0.2:
        return f"{package}_tool"
    if kind < 0.35:
        return f"{package}_{any_word(rng)}"
    if kind < 0.6:
        return joined_anyhow([package, *_any_parts(rng, rng.choice([1, 1, 2]))], rng)
    if kind < 0.8:
        return joined_anyhow([any_word(rng), *_any_parts(rng, rng.choice([1, 2, 2, 3]))], rng)
    return in_any_case(f"{any_word(rng)}_{any_name(rng, 2)}", rng)


def joined_anyhow(parts: Iterable[str], rng: random.Random) -> str:
    """`nat_quarry.Lift:7`: the parts with one of `SIGNS` before each but the first."""
    first, *others = parts
    return first + "".join(rng.choice(SIGNS) + part for part in others)


def _any_parts(rng: random.Random, num: int) -> list[str]:
    """Words in small letters, with capitals or joined by a hyphen, the last of several now and then a version."""
    parts = []
    for _ in range(num):
        words = [any_word(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        joined = ["".join(map(str.capitalize, words)), "-".join(words), "_".join(words)]
        parts.append(rng.choice([*joined, joined[0]]))
    if num > 1 and rng.random() < 0.35:
        number = rng.randint(0, 9) if rng.random() < 0.4 else rng.randint(10, 999)
        parts[-1] = rng.choice([f"{number}", f"v{number}", f"{number}.{rng.randint(0, 9)}"])
    return parts


def _other_than(taken: set[str], rng: random.Random) -> str:
    while (name := any_name(rng, 2)) in taken:
        pass
    return name


def _with_other_fields(tool: Tool, rng: random.Random) -> Tool:
    """Other names for a calculator's variables and an API's host, path and fields; the same tool where that is not
    possible. Columns of tables stay: what is in them is sampled by their names."""
    if tool.family == "calculator":
        old = [each.name for each in tool.inputs]
    elif tool.family == "api_client":
        old = _service_words(tool.rules)
    else:
        return tool
    parts = (Tool, InputField, ConfigField, Example, Telling)
    structure = {name for part in parts for name in part.model_fields} | {*tool.rules}
    if structure & {*old}:
        return tool  # exchanging such a name would exchange keys
    new: list[str] = []
    while len(new) < len(old):
        name = any_word(rng)
        if name not in {*new, *old, *structure, *_TAKEN, tool.function} and is_argument_name(name):
            new.append(name)
    if tool.family == "api_client":
        return _with_other_service(tool, dict(zip(old, new, strict=True)), rng)
    there, back = dict(zip(old, new, strict=True)), dict(zip(new, old, strict=True))
    kept = {name: getattr(tool, name) for name in ("type_name", "instance", "function", "family", "errors")}
    changed = Tool.model_validate({**with_words(tool.model_dump(exclude=set(kept)), there), **kept})
    for given in (changed.example.inputs, *changed.telling.inputs):
        before = oracle.answer(tool, with_words(given, back), tool.defaults)
        if oracle.answer(changed, given, changed.defaults) != with_words(before, there):
            return tool  # one of the names means something else as well
    return changed


def _with_other_service(tool: Tool, table: dict[str, str], rng: random.Random) -> Tool:
    """A made-up service answers by its own names, so the example is another one."""
    rules = {**tool.rules}
    for name in _SERVICE_TEXTS:
        rules[name] = with_words(rules[name], table, near=r"\w")
    rules["fields"] = [{**each, "path": table.get(each["path"], each["path"])} for each in rules["fields"]]
    rules["params"] = [
        {**each, "value": table.get(each["value"], each["value"]) if each["kind"] == "input" else each["value"]}
        for each in rules["params"]
    ]
    inputs = tuple(each.model_copy(update={"name": table.get(each.name, each.name)}) for each in tool.inputs)
    errors = tuple(with_words(each, table, near=r"\w") for each in tool.errors)
    changed = tool.model_copy(update={"rules": rules, "inputs": inputs, "errors": errors, "telling": Telling()})
    family = FAMILIES[tool.family]
    for _ in range(20):
        given = family.valid_inputs(changed, rng)
        output = oracle.answer(changed, given, changed.defaults)
        if not output.startswith("error") and len(output) < 60:
            return changed.model_copy(update={"example": Example(inputs=given, output=output)})
    return tool


def _service_words(rules: dict[str, Any]) -> list[str]:
    """The words of a made-up service that mean nothing to the tool."""
    host = rules["host"].removeprefix("https://api.").removesuffix(".example")
    path = [part for part in rules["path"].split("/") if part.isalpha() and part not in ("api", "open")]
    return list(dict.fromkeys([host, *path, *(each["path"] for each in rules["fields"] if "." not in each["path"])]))


def with_words(value: Any, table: dict[str, str], near: str = r"[A-Za-z0-9_.]", after: str | None = None) -> Any:
    """Plain data with whole words exchanged in every text and key; where several fit, the first of the table.

    `near` is what a whole word never touches: with a dot, parts of a path stay. `after` is what never follows one, if
    not `near`.
    """
    if isinstance(value, dict):
        return {
            with_words(key, table, near, after): with_words(each, table, near, after) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [with_words(each, table, near, after) for each in value]
    if not isinstance(value, str) or not table:
        return value
    return re.sub(whole_words(table, near, after), lambda found: table[found[0]], value)


def whole_words(words: Iterable[str], near: str, after: str | None = None) -> str:
    """The pattern of any of these words that `with_words` exchanges."""
    return rf"(?<!{near})(?:{'|'.join(map(re.escape, words))})(?!{after or near})"
