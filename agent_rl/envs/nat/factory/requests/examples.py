"""Give a written request another example, so that a model has to copy it and cannot know it by heart.

Only values that the request tells once, and says nothing more about, are exchanged. Not here: tables and notes, whose
requests speak of what is in them.
"""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.planner.plan import plan_of
from agent_rl.envs.nat.factory.requests.names import any_word, whole_words, with_words
from agent_rl.envs.nat.spec import Example, Inputs, NATSpec, Tool

_TOLD_AT_LENGTH = ("table_processor", "note_search")
_NEAR, _AFTER = r"[\w.]", r"\w|\.\w"
"""A value may end a sentence, and is no part of a longer number."""
_MOST_CHARACTERS = 40
_TRIES = 20


def with_other_example(spec: NATSpec, rng: random.Random) -> NATSpec:
    """The spec of one tool with another example in its request too; the same spec where that cannot be done safely."""
    (tool,) = spec.tools
    if tool.family in _TOLD_AT_LENGTH:
        return spec
    old = tool.example
    # A unit that is told once may stand where all units are listed.
    values = {name: value for name, value in old.inputs.items() if json.dumps(value) not in json.dumps(tool.rules)}
    free = {name: form for name, value in values.items() if (form := _only_form(value, spec.request))}
    output = _only_form(old.output, spec.request)
    for _ in range(_TRIES if free else 0):
        given = {**old.inputs, **{name: value for name, value in _sampled(tool, rng).items() if name in free}}
        answer = oracle.answer(tool, given, tool.defaults)
        if given == old.inputs or answer.startswith("error") or not _is_plain(answer):
            continue
        if not all(map(_is_plain, given.values())) or (answer != old.output and not output):
            continue
        table = {form: _as_told(form, given[name]) for name, form in free.items()}
        table |= {output: answer} if output else {}
        if len(table) < len(free) + bool(output):  # two values are told alike
            return spec
        tool = tool.model_copy(update={"example": Example(inputs=given, output=answer)})
        longest_first = dict(sorted(table.items(), key=lambda pair: -len(pair[0])))
        request = with_words(spec.request, longest_first, _NEAR, _AFTER)
        changed = spec.model_copy(update={"tools": (tool,), "request": request})
        return changed.model_copy(update={"plan": plan_of(changed)})
    return spec


def _sampled(tool: Tool, rng: random.Random) -> Inputs:
    """Valid inputs; texts are of any words, as the generator has few."""
    if tool.family == "text_pipeline":
        return {each.name: " ".join(any_word(rng) for _ in range(rng.randint(1, 3))) for each in tool.inputs}
    return FAMILIES[tool.family].valid_inputs(tool, rng)


def _only_form(value: Any, text: str) -> str:
    """How the text tells the value, where it does so once; "" where it does not, or more often."""
    forms = [form for form in _forms(value) if form for _ in re.findall(whole_words([form], _NEAR, _AFTER), text)]
    return forms[0] if len(forms) == 1 else ""


def _forms(value: Any) -> Iterator[str]:
    yield str(value)
    if isinstance(value, float) and value.is_integer():
        yield str(int(value))


def _as_told(form: str, value: Any) -> str:
    """A whole number as the old one was told, with or without `.0`."""
    is_short = isinstance(value, float) and value.is_integer() and "." not in form
    return str(int(value)) if is_short else str(value)


def _is_plain(value: Any) -> bool:
    text = str(value)
    return bool(text) and text == text.strip() and "\n" not in text and len(text) <= _MOST_CHARACTERS
