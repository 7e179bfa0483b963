"""Give a spec other names, made of words that the generator does not have, in every place that follows from them.

Package, registered type, instance, function, server, inputs of a formula, host, path and fields of an API. Other names
change no answer, except those of a fictional service, whose example is asked again. Does not: change a rule.
"""

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from wordings.rewording import LITERAL

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.families.base import literal
from agent_rl.envs.nat.spec import Example, NATSpec, Tool

Vocabulary = Literal["test", "val", "fresh", "fresh_val"]

VOCABULARIES: dict[Vocabulary, dict[str, list[str]]] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)
"""Words, shapes of names, and kinds: shapes of a registered type, which may hold anything; one word would make
docstrings that say nothing. `fresh` and `fresh_val` are by authors who had seen none of the others, nor the
generator's; one is to test on, the other to tune on."""


class _Pool:
    """Words that are given once each."""

    def __init__(self, vocabulary: Vocabulary, rng: random.Random) -> None:
        self._rng, self._vocabulary = rng, VOCABULARIES[vocabulary]
        self._words = rng.sample(self._vocabulary["words"], len(self._vocabulary["words"]))

    def word(self) -> str:
        return self._words.pop()

    def words(self, count: int) -> list[str]:
        """In alphabetical order."""
        return sorted(self.word() for _ in range(count))

    def name(self) -> str:
        return self._shaped(self._rng.choice(self._vocabulary["shapes"]))

    def kind(self, package: str) -> str:
        return self._shaped(self._rng.choice(self._vocabulary["kinds"]), package=package)

    def _shaped(self, shape: str, **others: str) -> str:
        values = {each: self.word() for each in "abc" if re.search(rf"{{[{each}{each.upper()}]}}", shape)}
        values |= {each.upper(): word.capitalize() for each, word in values.items()}
        return shape.format(n=self._rng.randrange(2, 1000), **values, **others)


def renamed(spec: NATSpec, vocabulary: Vocabulary, rng: random.Random) -> NATSpec:
    """The spec and its request under other names."""
    pool, tool = _Pool(vocabulary, rng), spec.tools[0]
    package, function = f"nat_{pool.name()}", pool.name()
    server = "-".join(pool.words(2)) if spec.server.name != spec.package else package
    names = {
        spec.package: package,
        tool.type_name: pool.kind(package),
        tool.instance: pool.name(),
        spec.server.name: server,
    }
    changed = tool.model_copy(
        update={"type_name": names[tool.type_name], "instance": names[tool.instance], "function": function}
    )
    text = _with_literals(spec.request, {f"`{old}`": f"`{new}`" for old, new in names.items()})
    if tool.family == "calculator":
        changed, text = _other_inputs(changed, text, pool)
    if tool.family == "api_client":
        text = _with_words(text, {tool.function: function, f"{tool.function}_path": f"{function}_path"})
        changed, text = _other_service(changed, text, pool, rng)
    return spec.model_copy(
        update={
            "package": package,
            "tools": (changed,),
            "server": spec.server.model_copy(update={"name": server}),
            "request": text,
        }
    )


def _other_inputs(tool: Tool, text: str, pool: _Pool) -> tuple[Tool, str]:
    """A formula on other names, in the same alphabetical order."""
    words = dict(zip((each.name for each in tool.inputs), pool.words(len(tool.inputs)), strict=True))
    rules = {**tool.rules, "formula": _worded(tool.rules["formula"], words)}
    rules["divisors"] = [words[name] for name in rules["divisors"]]
    rules["nonnegative"] = words.get(rules["nonnegative"])
    text = text.replace(tool.rules["formula"], rules["formula"])
    text = _with_literals(text, {f"`{old}`": f"`{new}`" for old, new in words.items()})
    return _with_inputs(tool, words).model_copy(update={"rules": rules}), text


def _other_service(tool: Tool, text: str, pool: _Pool, rng: random.Random) -> tuple[Tool, str]:
    """Another host, path and other fields; the example is another one, of a call that succeeds."""
    rules = tool.rules
    host = rules["host"].removeprefix("https://api.").removesuffix(".example")
    path = [part for part in rules["path"].split("/") if part.isalpha() and part not in ("api", "open")]
    old = dict.fromkeys([host, *path, *(each["path"] for each in rules["fields"])])
    words = {name: pool.word() for name in old}
    texts = ("host", "path", "not_found", "failed", "not_json", "nothing", "timeout", "connection")
    changed = {key: _worded(rules[key], words) for key in texts if rules[key] is not None}
    fields = [{**each, "path": words[each["path"]]} for each in rules["fields"]]
    renamed_tool = _with_inputs(tool, words).model_copy(
        update={
            "rules": {**rules, **changed, "fields": fields},
            "errors": tuple(_worded(error, words) for error in tool.errors),
        }
    )
    renamed_tool = renamed_tool.model_copy(update={"example": _example(renamed_tool, rng)})
    was, now = (_example_text(each.example) for each in (tool, renamed_tool))
    if was not in text:
        raise AssertionError(f"{was} is not in {text}")
    head, _, tail = text.rpartition(was)
    return renamed_tool, _with_words(head, words) + now + tail


def _example(tool: Tool, rng: random.Random) -> Example:
    family = FAMILIES[tool.family]
    while True:
        inputs = family.valid_inputs(tool, rng)
        output = oracle.answer(tool, inputs, tool.defaults)
        if not output.startswith("error") and len(output) < 60:
            return Example(inputs=inputs, output=output)


def _example_text(example: Example) -> str:
    return f"{', '.join(map(literal, example.inputs.values()))} gives {literal(example.output)}"


def _with_inputs(tool: Tool, words: Mapping[str, str]) -> Tool:
    fields = tuple(each.model_copy(update={"name": words.get(each.name, each.name)}) for each in tool.inputs)
    inputs: dict[str, Any] = {words.get(name, name): value for name, value in tool.example.inputs.items()}
    return tool.model_copy(update={"inputs": fields, "example": tool.example.model_copy(update={"inputs": inputs})})


def _worded(text: str, words: Mapping[str, str]) -> str:
    """The text with other words, where they stand alone."""
    return re.sub(r"\w+", lambda found: words.get(found[0], found[0]), text)


def _with_words(text: str, words: Mapping[str, str]) -> str:
    return LITERAL.sub(lambda found: _worded(found[0], words) if found[0][0] == "`" else found[0], text)


def _with_literals(text: str, others: Mapping[str, str]) -> str:
    """The text with other literals in place of whole ones."""
    return LITERAL.sub(lambda found: others.get(found[0], found[0]), text)
