"""Generate specs from a seed, offline. The same seed gives the same specs, byte for byte, on any machine.

Specs are divided by fingerprint (what the agent does, not what it is called), so a renamed copy of a training task can
never be in the held-out set. Of the fingerprints, 10 % are held out (`val`), 30 % are for training alone (`train`), and
60 % also for demonstrations of a supervised warm start (`sft`). One family and some combinations of operations are in
none of them: they are the generalisation set.
"""

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from typing import Literal

from agent_rl.envs.nat.factory.cases import hidden_cases
from agent_rl.envs.nat.factory.compose import Composition, compose
from agent_rl.envs.nat.factory.compose_group import compose_group
from agent_rl.envs.nat.factory.families import FAMILIES, GROUPS
from agent_rl.envs.nat.factory.oracle import workflow as flow_oracle
from agent_rl.envs.nat.factory.planner.plan import plan_of
from agent_rl.envs.nat.factory.tool_sampler import TooFewCasesError
from agent_rl.envs.nat.factory.wording import request
from agent_rl.envs.nat.factory.workflow_inputs import flow_inputs, line_of
from agent_rl.envs.nat.spec import (
    DIFFICULTY,
    Difficulty,
    Direct,
    Example,
    Group,
    McpServer,
    NATSpec,
    Plan,
    React,
    digest,
)
from agent_rl.errors import ConfigError, nearest

Split = Literal["val", "train", "sft", "test_generalisation"]
Cell = tuple[str, int]
"""A task family and a level."""

WORDS = [
    "amber", "brisk", "cobalt", "delta", "ember", "frost", "gravel", "hazel", "indigo", "jasper", "kelp",
    "linen", "maple", "north", "opal", "pine", "quartz", "river", "slate", "timber", "umber", "velvet",
    "willow", "yarrow", "zephyr",
]  # fmt: skip
LEVELS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(FAMILIES, (1, 2, 3, 4, 5)),
    "tool_workflow": (3, 4, 5),
    "react_agent": (5,),
    "mcp_served": (2, 3, 4),
    **dict.fromkeys(GROUPS, (4, 5)),
}
"""The levels of each task family."""
STARTER_FAMILIES = (
    "unit_converter", "text_pipeline", "calculator", "code_validator",
    "table_processor", "note_search", "api_client", "mcp_served",
)  # fmt: skip
STARTER_LEVELS = (1, 2)
"""What the shipped small model knows: the demonstrations of its warm start are of these."""
HELD_OUT_FAMILY = "date_tool"
_DIFFICULTIES: tuple[Difficulty, ...] = (
    "easy", "medium", "medium", "easy", "medium", "hard", "medium", "easy", "medium", "hard",
)  # fmt: skip
"""30 % easy, 50 % medium, 20 % hard, well mixed."""
_ATTEMPTS = 400
_MOST_FAILED = 3
"""Cells in a row without a new spec, after which there are taken to be no more."""
_NO_PLAN = Plan(scaffold_type="simple_tool", mcp_servers=(), custom_tools=(), test_cases=())


def split_of(fingerprint: str) -> Split:
    """Which set a fingerprint belongs to."""
    bucket = int(fingerprint, 16) % 10
    return "val" if bucket == 0 else "train" if bucket <= 3 else "sft"


def cell_order(families: Sequence[str] | None = None, levels: Sequence[int] | None = None) -> Iterator[Cell]:
    """Cells of these families and levels in the order in which they take turns, for ever: 30/50/20 by difficulty where
    all three are there. Raises ConfigError when there is no such cell."""
    families = list(LEVELS) if families is None else families
    for family in families:
        if family not in LEVELS:
            raise ConfigError(
                f"there is no task family {family!r}{nearest(family, LEVELS) or f'; known: {list(LEVELS)}'}"
            )
    chosen = [(family, level) for level in (levels or range(1, 6)) for family in families if level in LEVELS[family]]
    if not chosen:
        raise ConfigError(
            f"no task family of {list(families)} (without {HELD_OUT_FAMILY}, which is held out, unless for "
            f"test_generalisation) has a level in {list(levels or range(1, 6))}; choose others"
        )
    queues = {
        each: itertools.cycle(cells)
        for each in dict.fromkeys(_DIFFICULTIES)
        if (cells := [cell for cell in chosen if DIFFICULTY[cell[1]] == each])
    }
    for each in itertools.cycle([each for each in _DIFFICULTIES if each in queues]):
        yield next(queues[each])


def generate_specs(
    seed: int,
    splits: Sequence[Split],
    *,
    families: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    terse: bool = False,
) -> Iterator[NATSpec]:
    """Endless stream of specs of some splits; cells take turns, fingerprints never repeat. Raises ConfigError when
    there is nothing to generate, or nothing more."""
    seen: set[str] = set()
    name = "+".join(splits)
    generalisation = "test_generalisation" in splits
    if not generalisation:
        families = [each for each in (LEVELS if families is None else families) if each != HELD_OUT_FAMILY]
    num_failed = 0
    for index, (family, level) in enumerate(cell_order(families, levels)):
        for attempt in range(_ATTEMPTS):
            rng = random.Random(f"nat-spec-{seed}-{name}-{index}-{attempt}")
            spec = sample_parts(family, level, rng, task_id=f"{splits[0]}-{seed}-{index:06d}")
            if spec.fingerprint in seen or is_held_out(spec) != generalisation:
                continue
            if generalisation or split_of(spec.fingerprint) in splits:
                try:
                    finished = finish(spec, rng, terse=terse)
                except TooFewCasesError:
                    continue
                seen.add(spec.fingerprint)
                num_failed = 0
                yield finished
                break
        else:
            num_failed += 1
            if num_failed == _MOST_FAILED:
                raise ConfigError(
                    f"only {len(seen)} different specs for {name} were found in families {list(families or LEVELS)} "
                    f"and levels {list(levels or range(1, 6))}; ask for fewer, or for more families or levels"
                )


def is_held_out(spec: NATSpec) -> bool:
    """Whether a spec belongs to the generalisation set: the held-out family, or a held-out combination."""
    if HELD_OUT_FAMILY in (spec.family, *(tool.family for tool in spec.tools)):
        return True
    if spec.group and GROUPS[spec.group.family].is_held_out(spec.group.rules):
        return True
    return any(FAMILIES[tool.family].is_held_out(tool.rules) for tool in spec.tools)


def sample_parts(family: str, level: int, rng: random.Random, *, task_id: str) -> NATSpec:
    """A spec without the workflow's example, wording and plan."""
    package = "nat_" + "_".join(rng.sample(WORDS, 2))
    group = None
    if family in GROUPS:
        group, flow = compose_group(GROUPS[family], level, package, rng)
        parts = Composition(tools=(), workflow=flow, server=McpServer(name=package))
    else:
        parts = compose(family, level, package, rng)
    return bare_spec(family, level, package, parts, group=group, task_id=task_id)


def bare_spec(
    family: str, level: int, package: str, parts: Composition, *, group: Group | None = None, task_id: str
) -> NATSpec:
    """The spec of these parts, for `finish`: without the workflow's example, wording and plan."""
    spec = NATSpec(
        task_id=task_id,
        family=family,
        level=level,
        difficulty=DIFFICULTY[level],
        fingerprint="",
        package=package,
        tools=parts.tools,
        group=group,
        workflow=parts.workflow,
        server=parts.server,
        client_group=parts.client_group,
        plan=_NO_PLAN,
        request="",
    )
    return spec.model_copy(update={"fingerprint": fingerprint_of(spec)})


def finish(spec: NATSpec, rng: random.Random, *, terse: bool = False) -> NATSpec:
    """The spec with an example of its workflow, its plan and its request (`terse` as in `wording.py`).

    Raises TooFewCasesError when its rules are too narrow to judge an agent by.
    """
    spec = _with_example(spec, rng)
    hidden_cases(spec, seed=0)
    spec = spec.model_copy(update={"plan": plan_of(spec)})
    return spec.model_copy(update={"request": request(spec, rng, terse=terse)})


def _with_example(spec: NATSpec, rng: random.Random) -> NATSpec:
    """The spec with an example of its workflow, where that is not a tool itself."""
    flow = spec.workflow
    if isinstance(flow, Direct | React):
        return spec
    config = flow_oracle.defaults(spec)
    if spec.group:
        call = spec.group.example[0]
        requests = [{"request": line_of(spec, f"{spec.group.instances[0]}__{call.function}", call.inputs)}]
    else:
        requests = sorted(flow_inputs(spec, config, rng, 2), key=lambda inputs: len(str(inputs)))
    answers = flow_oracle.conversation(spec, requests, config)
    pairs = [Example(inputs=each, output=text) for each, text in zip(requests, answers, strict=True)]
    good = next((each for each in pairs if not each.output.startswith("error")), pairs[0])
    return spec.model_copy(update={"workflow": flow.model_copy(update={"example": good})})


def fingerprint_of(spec: NATSpec) -> str:
    """16 hex digits that do not depend on what anything is called. Tools in another order count as another agent."""
    tools = [
        [
            tool.family,
            FAMILIES[tool.family].canonical(tool.rules, tool.inputs),
            tool.config_field.model_dump() if tool.config_field else None,
        ]
        for tool in spec.tools
    ]
    if isinstance(spec.workflow, Direct) and not spec.server.raises:
        return digest([spec.tools[0].family, spec.level, *tools[0][1:]])
    core = {
        "tools": tools,
        "group": _anonymous_group(spec.group) if spec.group else None,
        "workflow": _anonymous_workflow(spec),
        "raises": spec.server.raises,
        "client": spec.client_group is not None,
    }
    return digest(core)


def _anonymous_group(group: Group) -> object:
    field = group.config_field.model_dump() if group.config_field else None
    hidden = len(group.hidden)
    return [group.family, GROUPS[group.family].canonical(group.rules), len(group.instances), hidden, field]


def _anonymous_workflow(spec: NATSpec) -> object:
    """What the workflow does, without names: of a step's arguments only which one is an earlier answer."""
    flow = spec.workflow
    if flow.kind != "pipeline":
        return flow.kind
    numbers = {tool.instance: number for number, tool in enumerate(spec.tools)}
    steps = []
    for step in flow.steps:
        rules = json.dumps(spec.tool(step.tool).rules, sort_keys=True)
        names = sorted(step.arguments, key=rules.find)  # by first use, whatever the names are
        sources = [source if (source := step.arguments[name]).startswith("step ") else "input" for name in names]
        steps.append([numbers[step.tool], sources, step.only_if_digit])
    return ["pipeline", steps, flow.joiner is None, flow.on_error]
