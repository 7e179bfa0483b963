"""Hidden cases: inputs drawn from a spec's rules when an episode is scored, with the oracle's answers beside them.

They depend on the spec and a seed alone, so all episodes of a group face the same ones. Only the inputs are sent to
the process that runs the candidate; the answers stay here.
"""

import random
from dataclasses import dataclass

from agent_rl.nat import oracle
from agent_rl.nat.families import FAMILIES
from agent_rl.nat.families.base import Inputs
from agent_rl.nat.spec import NATSpec

NUM_VALID = 12
NUM_OVERRIDDEN = 4
_ATTEMPTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """Inputs to be answered under one configuration, and the right answers."""

    overrides: dict[str, int]
    """Values set in place of the defaults of the configuration; empty for the project as it is."""
    inputs: tuple[Inputs, ...]
    expected: tuple[str, ...]


def hidden_cases(spec: NATSpec, seed: int) -> tuple[CaseRun, ...]:
    """At least 12 valid inputs and one for every error; with a configuration field also a run under another value."""
    family = FAMILIES[spec.family]
    rng = random.Random(f"cases-{spec.fingerprint}-{seed}")
    inputs = _valid(spec, rng, spec.defaults, NUM_VALID)
    inputs += [case for case in family.error_inputs(spec, rng).values() if case != spec.example.inputs]
    runs = [_run(spec, {}, inputs)]
    if spec.config_field:
        overrides = {spec.config_field.name: _other_value(spec, rng)}
        runs.append(_run(spec, overrides, _valid(spec, rng, overrides, NUM_OVERRIDDEN)))
    return tuple(runs)


def _run(spec: NATSpec, overrides: dict[str, int], inputs: list[Inputs]) -> CaseRun:
    config = {**spec.defaults, **overrides}
    expected = tuple(oracle.answer(spec, case, config) for case in inputs)
    return CaseRun(overrides=overrides, inputs=tuple(inputs), expected=expected)


def _other_value(spec: NATSpec, rng: random.Random) -> int:
    field = spec.config_field
    assert field is not None
    if field.name == "precision":
        return rng.choice([digits for digits in range(0, 5) if digits != field.default])
    return max(field.low, field.default // 2)  # a limit that some ordinary inputs overstep


def _valid(spec: NATSpec, rng: random.Random, config: dict[str, int], count: int) -> list[Inputs]:
    """Distinct inputs other than the example's, with an answer that float rounding cannot blur."""
    family = FAMILIES[spec.family]
    out: list[Inputs] = []
    for _ in range(_ATTEMPTS):
        case = family.valid_inputs(spec, rng)
        if case != spec.example.inputs and case not in out and oracle.is_robust(spec, case, config):
            out.append(case)
            if len(out) == count:
                return out
    raise ValueError(f"spec {spec.task_id} allows only {len(out)} distinct cases, {count} are needed; drop the spec")
