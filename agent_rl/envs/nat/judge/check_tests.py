"""Score the model's own tests: they must pass on right code and fail on wrong code."""

from collections.abc import Callable, Mapping

from agent_rl.envs.nat.factory.families import FAMILIES, GROUPS
from agent_rl.envs.nat.factory.render import render_logic
from agent_rl.envs.nat.judge.report import Point, point
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.sandbox.verdict import Verdict

HOLDS, KILLS = "hold on right code", "catch wrong code"


Judged = tuple[list[Point], bool]
"""Points, and whether they are worth keeping."""


def check_tests(toolkit: NatToolkit, spec: NATSpec, files: Mapping[str, str]) -> Callable[[bool], Judged]:
    """Run the tests on the reference and its mutants. The rest needs to know whether the project's own code is right:
    code that is right in every hidden case behaves as the reference does, so the tests need not run on both."""
    path = spec.tests_path
    if path not in files or spec.logic_path not in files:
        why = f"{path} or logic.py is missing"
        return lambda is_right: ([point("tests", name, 0, why) for name in (HOLDS, KILLS)], True)
    module = f"{spec.package}/logic.py"

    def graded(logic: str, mutants: list[str]) -> Verdict:
        return toolkit.grade_tests(
            files,
            path=path,
            modules=[f"{spec.package}.logic"],
            reference={f"{spec.package}/__init__.py": "", module: logic},
            mutants=[{module: text} for text in mutants],
        )

    verdict = graded(render_logic(spec), mutants_of(spec))
    holds = verdict.holds
    points = [
        point("tests", HOLDS, holds, "pass on the reference" if holds else verdict.evidence or str(verdict.status)),
        point("tests", KILLS, verdict.score, f"{verdict.passed} of {verdict.total} caught; {verdict.evidence}"),
    ]

    def with_own_code(is_right: bool) -> Judged:
        if not verdict.passed:
            return [each.model_copy(update={"score": 0.0}) for each in points], verdict.is_settled
        if is_right or not holds:
            return points, verdict.is_settled
        # Apart from the tests as well: code in their process could make any test pass.
        own = files[spec.logic_path]
        on_own = graded(own, [own])
        is_settled = verdict.is_settled and on_own.is_settled
        if on_own.holds:
            return points, is_settled
        return [point("tests", each.name, 0, "the tests fail on the project's own code") for each in points], is_settled

    return with_own_code


def mutants_of(spec: NATSpec) -> list[str]:
    """Texts of logic.py, each wrong in one tool in a way that useful tests notice: at least four."""
    each = 4 if len(spec.tools) == 1 else 2
    out = [
        render_logic(spec, {tool.instance: text})
        for tool in spec.tools
        for text in FAMILIES[tool.family].mutants(tool)[:each]
    ]
    if spec.group:
        out += [
            render_logic(spec, {spec.group.type_name: text}) for text in GROUPS[spec.group.family].mutants(spec.group)
        ]
    return out
