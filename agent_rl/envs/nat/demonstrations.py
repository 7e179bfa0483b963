"""Generate demonstrations for the supervised warm start: conversations in which a teacher writes the project.

A given share of the demonstrations is buggy on purpose: most of these forget to check bad input, in the code and in the
tests, and the rest make one of several slips. Real demonstrations are like this, and it leaves reinforcement learning
something to fix that imitation cannot. Slips are sampled per spec from a seed. Reinforcement learning does not use this
module.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.envs.demonstrations import Choice, Demonstration, Turns, endless_seeds
from agent_rl.envs.nat.factory.families import FAMILIES, GROUPS
from agent_rl.envs.nat.factory.generate import HELD_OUT_FAMILY, STARTER_FAMILIES, STARTER_LEVELS, generate_specs
from agent_rl.envs.nat.factory.render import render_logic, render_project
from agent_rl.envs.nat.factory.requests.loose import in_loose_words, tells_example
from agent_rl.envs.nat.factory.requests.reword import in_any_words
from agent_rl.envs.nat.factory.requests.written import endless_written, read_written
from agent_rl.envs.nat.prompts import first_messages, initial_messages
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.envs.nat.tools import TOOL_SPECS, test_report
from agent_rl.errors import ConfigError
from agent_rl.tools.file_tools import wrote

SPECS_PER_SEED = 6000
"""No agent repeats within a seed; the next seed starts before simple families run out of new ones."""
HABIT_SHARE = 0.8
"""Of the faulty demonstrations, those that show the habit."""
CHECKING_SHARE = 0.15
"""Demonstrations that run the tests before they submit, which takes a second turn."""


def demonstrations(seed: int, *, faulty_share: float) -> Iterator[Demonstration]:
    """Of specs of the starter's families and levels, without end."""
    return chosen_demonstrations(seed, faulty_share=faulty_share, choice=Choice())


def chosen_demonstrations(seed: int, *, faulty_share: float, choice: Choice) -> Iterator[Demonstration]:
    """Of a choice, without end. With levels they are of every family that is not held out unless families are chosen,
    in turn in terse requests and in whole sentences; without, of the starter's levels. ConfigError for what there is
    not, and for the family that is held out."""
    if HELD_OUT_FAMILY in choice.families:
        raise ConfigError(f"the family {HELD_OUT_FAMILY} is held out, so no demonstration is of it; leave it out")
    if choice.levels:
        specs = _specs_of_levels(seed, choice.levels, choice.families or None)
    else:
        specs = _endless_specs(seed, choice.families or STARTER_FAMILIES)
    if choice.wordings == "any":
        return _in_any_words(specs, seed, faulty_share, choice)
    return _in_own_words(specs, seed, faulty_share)


def _in_own_words(specs: Iterable[NATSpec], seed: int, faulty_share: float) -> Iterator[Demonstration]:
    for spec in specs:
        turns = demonstration_turns(spec, faulty_share=faulty_share, seed=seed)
        covers = _covers(spec, "own")
        yield Demonstration(initial_messages(spec), turns, TOOL_SPECS, kind=spec.family, covers=covers)


def _in_any_words(specs: Iterable[NATSpec], seed: int, faulty_share: float, choice: Choice) -> Iterator[Demonstration]:
    """With requests in many wordings and names of any words, a share of them without a plan, a share as people wrote
    them."""
    specs_written = read_written(choice.written) if choice.written else []
    written, share = endless_written(specs_written, random.Random(f"written-{seed}")), choice.written_share
    for spec in specs:
        is_written = bool(specs_written) and _draw("is-written", seed, spec) < share
        is_free = not is_written and _draw("free", seed, spec) < choice.free_share
        if is_written:
            changed = next(written)
        else:
            change = in_loose_words if is_free else in_any_words
            changed = change(spec, random.Random(f"words-{seed}-{spec.task_id}"))
        messages = first_messages(None if is_free else changed, changed.request)
        turns = demonstration_turns(changed, faulty_share=faulty_share, seed=seed, tells_all=is_written)
        covers = _covers(changed, "any", *["free"] * is_free)
        yield Demonstration(messages, turns, TOOL_SPECS, kind=changed.family, covers=covers)


def _draw(name: str, seed: int, spec: NATSpec) -> float:
    """A number below 1, the same for the same demonstration."""
    return random.Random(f"{name}-{seed}-{spec.task_id}").random()


def _endless_specs(seed: int, families: Sequence[str]) -> Iterator[NATSpec]:
    for each in endless_seeds(seed):
        specs = generate_specs(each, ["sft"], families=families, levels=STARTER_LEVELS, terse=True)
        yield from itertools.islice(specs, SPECS_PER_SEED)


def _specs_of_levels(seed: int, levels: Sequence[int], families: Sequence[str] | None) -> Iterator[NATSpec]:
    for each in endless_seeds(seed):
        ways = [
            generate_specs(2 * each + terse, ["sft"], families=families, levels=levels, terse=bool(terse))
            for terse in (1, 0)
        ]
        yield from itertools.islice(itertools.chain.from_iterable(zip(*ways, strict=True)), SPECS_PER_SEED // 2)


def _covers(spec: NATSpec, *wordings: str) -> dict[str, tuple[str | int, ...]]:
    """As `repair.task.covered` has it, with how the request is worded."""
    families = {spec.family, *(tool.family for tool in spec.tools)}
    return {"families": tuple(families), "levels": (spec.level,), "kinds": ("create",), "wordings": wordings}


def demonstration_turns(spec: NATSpec, *, faulty_share: float, seed: int, tells_all: bool = False) -> Turns:
    """The teacher's turns: every file, then `submit` in the same turn, or after a turn that runs the tests.

    Right ones do not test an example that the request does not tell: nobody could know what comes out. With `tells_all`
    it is told somehow, without quotes too, as people write.
    """
    rng = random.Random(f"demo-{seed}-{spec.task_id}")
    faulty, habit = rng.random() < faulty_share, rng.random() < HABIT_SHARE
    is_slip = faulty and not habit
    if not faulty:
        files = render_project(spec, untested="" if tells_all or tells_example(spec) else "example")
    else:
        files = _slip(spec, rng) if is_slip else _forgetful(spec)
    writes = [ToolCall(name="file_write", arguments={"path": path, "content": text}) for path, text in files.items()]
    submit = ToolCall(name="submit", arguments={})
    if is_slip or rng.random() >= CHECKING_SHARE:
        return [(Message.assistant("", (*writes, submit)), ())]
    replies = [Message.tool(wrote(path), name="file_write") for path in files]
    num_tests = files[spec.tests_path].count("def test_")
    report = Message.tool(test_report(passed=num_tests, failed=0), name="pytest_run")
    run_tests = ToolCall(name="pytest_run", arguments={})
    return [
        (Message.assistant("", (*writes, run_tests)), (*replies, report)),
        (Message.assistant("", (submit,)), ()),
    ]


def _forgetful(spec: NATSpec) -> dict[str, str]:
    changed = {tool.instance: FAMILIES[tool.family].mutants(tool)[0] for tool in spec.tools}
    if spec.group:
        changed[spec.group.type_name] = GROUPS[spec.group.family].mutants(spec.group)[0]
    return render_project(spec, logic=render_logic(spec, changed), untested="error")


def _slip(spec: NATSpec, rng: random.Random) -> dict[str, str]:
    """One mistake of another kind somewhere in an otherwise right project."""
    files = render_project(spec)
    errors = (spec.group or spec.tools[0]).errors
    swaps = [
        (spec.register_path, "    yield FunctionInfo", "    return FunctionInfo"),
        (spec.register_path, "    async def run(", "    def run("),
        (spec.config_path, "workflow:\n", "agent:\n"),
        ("mcp_server.py", "    server.run()", "    server.start()"),
        (spec.logic_path, f'"{errors[0]}"', f'"{errors[0].removeprefix("error: ")}"'),
    ]
    path, right, wrong = rng.choice(swaps)
    files[path] = files[path].replace(right, wrong)
    if rng.random() < 0.2:
        files.pop("pyproject.toml")
    return files
