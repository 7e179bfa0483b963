"""Reference projects to be changed in tests: one spec for each family and level, the same in every run."""

import json
import os
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent_rl.envs.nat.env import NATEnvFactory, NATEnvOptions
from agent_rl.envs.nat.factory.generate import finish, sample_parts
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.factory.tool_sampler import TooFewCasesError
from agent_rl.envs.nat.judge.checker import check_project
from agent_rl.envs.nat.judge.report import ValidationReport
from agent_rl.envs.nat.judge.reward import RewardWeights, reward_parts
from agent_rl.envs.nat.judge.toolkit import REACT_PYTHON_VARIABLE, NatToolkit
from agent_rl.envs.nat.spec import NATSpec

Changes = Mapping[str, str | None]
"""Path -> new text, None to leave the file out."""

NOTHING_ANSWERED = "no hidden case is answered right, and a file that merely loads is worth nothing"
NOTHING_SERVED = "no call to the server is answered right"
STEADY = frozenset({"unit_converter", "text_pipeline", "calculator"})
"""Families of the tools in these specs, also where the task family mixes in others."""
_REACT = Path(os.environ.get(REACT_PYTHON_VARIABLE) or Path(__file__).parents[3] / ".venv-nat-react/bin/python")
needs_react = pytest.mark.skipif(not _REACT.exists(), reason=f"there is no {_REACT}; run `make setup-react`")


class SharedFactory(NATEnvFactory):
    """A factory on the toolkit that all tests share."""

    def __init__(self, toolkit: NatToolkit, **options: Any) -> None:
        super().__init__(NATEnvOptions(**options), seed=0)
        self._toolkit = toolkit

    def close(self) -> None:
        """The toolkit outlives it."""


def row(spec: NATSpec) -> dict[str, Any]:
    """A dataset row, as it is read from a file."""
    return json.loads(json.dumps(spec.model_dump(mode="json")))


def sample_spec(family: str, level: int, rng: random.Random, *, task_id: str) -> NATSpec | None:
    """One spec, or None when the sampled rules are too narrow to judge an agent by."""
    try:
        return finish(sample_parts(family, level, rng, task_id=task_id), rng)
    except TooFewCasesError:
        return None


@cache
def spec_of(family: str, level: int, seed: int = 0, of: frozenset[str] = STEADY) -> NATSpec:
    """The first spec from `seed` on whose tools are all of the families `of`."""
    for number in range(seed, seed + 500):
        rng = random.Random(f"nat-project-{family}-{level}-{number}")
        spec = sample_spec(family, level, rng, task_id=f"test-{number}")
        if spec is not None and {tool.family for tool in spec.tools} <= of:
            return spec
    raise AssertionError(f"no {family} of level {level} with tools of {sorted(of)}")


def replaced(spec: NATSpec, path: str, old: str, new: str) -> dict[str, str]:
    """The reference's file with every `old` replaced; it must be in there."""
    text = render_project(spec)[path]
    assert old in text, f"{old!r} is not in {path}"
    return {path: text.replace(old, new)}


def check(toolkit: NatToolkit, spec: NATSpec, changes: Changes | None = None) -> ValidationReport:
    """The verdict on the reference project with some files replaced, added, or (None) left out."""
    files = {**render_project(spec), **(changes or {})}
    return check_project(toolkit, spec, {path: text for path, text in files.items() if text is not None}, seed=0)


def score(report: ValidationReport, stage: str, name: str) -> float:
    """The score of one point."""
    (found,) = [each.score for each in report.points if (each.stage, each.name) == (stage, name)]
    return found


def stub(spec: NATSpec, body: str, head: str = "") -> dict[str, str]:
    """A logic.py in which every function takes anything and has this body."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    texts = [f"def {tool.function}(*given, **named) -> str:\n{lines}" for tool in spec.tools]
    return {spec.logic_path: f"{head}\n\n" + "\n\n".join(texts)}


def earns_no(report: ValidationReport, *components: str) -> None:
    """These components earn nothing, and the project is no success."""
    assert not report.complete
    assert {name: report.shares[name] for name in components} == dict.fromkeys(components, 0.0)
    assert report.problems


def does_nothing(report: ValidationReport) -> None:
    """No answer was right, so the gates are closed as well."""
    earns_no(report, "behaviour", "workflow", "config", "mcp")
    assert report.gates == {"config": NOTHING_ANSWERED, "mcp": NOTHING_SERVED}


def reward(report: ValidationReport) -> float:
    """Of an episode of one turn, with the default weights."""
    return sum(reward_parts(report, RewardWeights(), num_turns=1, submitted=True).values())
