"""Seeded specs: the offline source of tasks. The same seed gives the same spec, byte for byte, on any machine.

Specs are divided by fingerprint (what the tool does, not what it is called), so a renamed copy of a training task can
never be in the held-out set: 10 % of fingerprints are held out, 30 % are for reinforcement learning, and 60 % are
for demonstrations of the supervised warm start.
"""

import random
from collections.abc import Iterator
from typing import Literal

from agent_rl.nat import oracle
from agent_rl.nat.cases import hidden_cases
from agent_rl.nat.families import FAMILIES
from agent_rl.nat.families.base import Draft, Family
from agent_rl.nat.spec import Example, NATSpec, fingerprint

Split = Literal["val", "train", "sft"]

WORDS = [
    "amber", "brisk", "cobalt", "delta", "ember", "frost", "gravel", "hazel", "indigo", "jasper", "kelp",
    "linen", "maple", "north", "opal", "pine", "quartz", "river", "slate", "timber", "umber", "velvet",
    "willow", "yarrow", "zephyr",
]  # fmt: skip
INSTANCES = ["main_tool", "primary", "worker", "engine", "helper", "service", "unit", "agent_tool"]
_DRAFT_ATTEMPTS = 50
_EXAMPLE_DRAWS = 25


def split_of(digest: str) -> Split:
    """Which set a fingerprint belongs to."""
    bucket = int(digest, 16) % 10
    return "val" if bucket == 0 else "train" if bucket <= 3 else "sft"


def generate_specs(seed: int, split: Split) -> Iterator[NATSpec]:
    """Endless stream of specs of one split; families and levels take turns, fingerprints never repeat."""
    seen: set[str] = set()
    names = sorted(FAMILIES)
    index = 0
    while True:
        family = FAMILIES[names[index % len(names)]]
        level = 1 + (index // len(names)) % 2
        rng = random.Random(f"nat-spec-{seed}-{split}-{index}")
        spec = make_spec(family, level, rng, task_id=f"{split}-{seed}-{index:06d}")
        index += 1
        if split_of(spec.fingerprint) == split and spec.fingerprint not in seen:
            seen.add(spec.fingerprint)
            yield spec


def make_spec(family: Family, level: int, rng: random.Random, *, task_id: str) -> NATSpec:
    """Draw one spec; drafts on which the oracle and the family's own error inputs disagree are drawn again."""
    for _ in range(_DRAFT_ATTEMPTS):
        spec = _named(family, level, family.draft(rng, level), rng, task_id)
        if spec and _is_sound(spec, rng):
            return spec.model_copy(update={"request": request(spec, rng)})
    raise AssertionError(f"family {family.name} gave no sound spec in {_DRAFT_ATTEMPTS} drafts")


def _named(family: Family, level: int, draft: Draft, rng: random.Random, task_id: str) -> NATSpec | None:
    first, second = rng.sample(WORDS, 2)
    spec = NATSpec(
        task_id=task_id,
        family=family.name,
        level=level,
        fingerprint=fingerprint(family.name, level, draft.rules, draft.config_field),
        package=f"nat_{first}_{second}",
        type_name=f"nat_{first}_{second}_tool",
        instance=rng.choice(INSTANCES),
        function=family.function,
        inputs=draft.inputs,
        rules=draft.rules,
        config_field=draft.config_field,
        errors=draft.errors,
        example=Example(inputs={}, output=""),
        request="",
    )
    candidates = []
    for _ in range(_EXAMPLE_DRAWS):
        inputs = family.valid_inputs(spec, rng)
        output = oracle.answer(spec, inputs, spec.defaults)
        if not output.startswith("error") and oracle.is_robust(spec, inputs, spec.defaults):
            candidates.append(Example(inputs=inputs, output=output))
    if not candidates:
        return None
    shortest = min(candidates, key=lambda example: len(str(example)))  # an example is there to be read
    return spec.model_copy(update={"example": shortest})


def _is_sound(spec: NATSpec, rng: random.Random) -> bool:
    errors = FAMILIES[spec.family].error_inputs(spec, rng)
    if any(oracle.answer(spec, inputs, spec.defaults) != text for text, inputs in errors.items()):
        return False
    try:
        hidden_cases(spec, seed=0)
    except ValueError:
        return False
    return True


def request(spec: NATSpec, rng: random.Random) -> str:
    """The task in a user's words: what to build, how it behaves, one example."""
    opening = rng.choice(
        [
            f"Build a NeMo Agent Toolkit agent in the package `{spec.package}`.",
            f"Write the NAT agent `{spec.package}`.",
            f"Please create a complete NAT project called `{spec.package}`.",
            f"I need a NAT agent; its package is `{spec.package}`.",
        ]
    )
    naming = rng.choice(
        [
            f"Register the type `{spec.type_name}` and configure it as `{spec.instance}`.",
            f"The function type is `{spec.type_name}`, the instance `{spec.instance}`.",
            f"Name the instance `{spec.instance}`; its type is `{spec.type_name}`.",
        ]
    )
    arguments = ", ".join(f"`{field.name}` ({field.type})" for field in spec.inputs)
    sentences = FAMILIES[spec.family].sentences(spec, rng)
    inputs = rng.choice([f"Inputs: {arguments}.", f"It takes {arguments}."])
    field = spec.config_field
    config = []
    if field:
        wording = [f"Config field `{field.name}`, default {field.default}", f"Setting `{field.name}` = {field.default}"]
        config = [f"{rng.choice(wording)} ({field.low} to {field.high})."]
    return " ".join([opening, naming, *sentences, inputs, *config, example_sentence(spec, rng)])


def example_sentence(spec: NATSpec, rng: random.Random) -> str:
    given = ", ".join(f'"{value}"' if isinstance(value, str) else repr(value) for value in spec.example.inputs.values())
    return rng.choice([f"Example: {given} gives", f"For instance, {given} gives"]) + f' "{spec.example.output}".'
