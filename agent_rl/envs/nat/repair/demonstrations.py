"""Record demonstrations that call tools: a teacher repairs a project, or mends a submission that was not taken.

The teacher acts in the real environment, so every reply that a model reads later is one that the tools gave. It reads
the files that the replies point to until it finds the one that is wrong, writes that as the reference has it, and
submits; the last message is not run. What a teacher did wrong on purpose is not learned, nor what a model did whose
submissions a teacher mends. Not here: training, running the model.
"""

import difflib
import random
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.envs.demonstrations import Demonstration, Turns
from agent_rl.envs.nat.env import NATEnvFactory
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.factory.requests.reword import any_request, in_any_names
from agent_rl.envs.nat.repair.faults import PRACTISED, plant
from agent_rl.envs.nat.repair.generate import starter_specs, tried
from agent_rl.envs.nat.repair.misread import miscopied, misread
from agent_rl.envs.nat.repair.task import NATTask, covered
from agent_rl.envs.nat.repair.wording import repair_request
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.envs.nat.visible import VisibleChecks, visible_checks
from agent_rl.sandbox.workspace import WorkspaceError

Script = Generator[Message, tuple[Message, ...], Message]
"""Assistant messages, to each of which the replies come back; what it returns is the last message."""

REPAIR_TURNS = 2
"""What a model is told that is left after a submission that was not taken."""
MENDED_SHARE = 0.25
"""Of the demonstrations, those of a project written from nothing whose first submission is not taken."""
TWICE_SHARE = 0.4
"""Of the misread projects that can be, those that are mended in vain first."""
MISCOPIED_SHARE = 0.4
"""Of the misread ones, right projects whose test has a value that was copied wrong."""
BOTH_WRONG_SHARE = 0.25
"""Of the others, those whose test has one too."""
_MOST_CHANGED = 12
"""Lines of a file that are said before it is written again."""
BOTH_SHARE, AGAIN_SHARE = 0.5, 0.5
"""Of the repairs, those that run both checks in the first turn, and those that run a check again after the repair."""


def recorded_demonstrations(
    factory: NATEnvFactory, seed: int, classes: Sequence[str] = PRACTISED
) -> Iterator[Demonstration]:
    """Endless, of the starter's specs for warm starts; classes of faults take turns. The factory was started, with
    `repair_turns` above 0."""
    return tried(lambda each: _recorded(factory, seed, classes, *each), enumerate(starter_specs(seed, ["sft"])))


def _recorded(
    factory: NATEnvFactory, seed: int, classes: Sequence[str], number: int, spec: NATSpec
) -> Demonstration | None:
    """Of the fault whose turn it is, or the next one that goes with the spec and that a tool shows."""
    rng = random.Random(f"recorded-{seed}-{spec.task_id}")
    is_mended = rng.random() < MENDED_SHARE
    for offset in range(len(classes)):
        name = classes[(number + offset) % len(classes)]
        files = plant(name, spec, random.Random(f"{name}-{seed}-{spec.task_id}"))
        found = visible_checks(factory.get_toolkit(), spec, files) if files else None
        if files is None or found is None or found.all_passed:
            continue
        if is_mended:
            return record(factory, NATTask(spec=spec), mending(spec, files), unlearned=frozenset([0]))
        told = spec.model_copy(update={"request": repair_request(spec, rng)})
        task = NATTask(spec=told, kind="repair", start_files=files, fault=name)
        return record(factory, task, repairing(task, found, rng))
    return None


def misread_demonstrations(factory: NATEnvFactory, seed: int) -> Iterator[Demonstration]:
    """Endless: a project as its request says is submitted, the example proves it wrong, and a teacher mends it by that.

    The request is that of the wrong project, as one reads it who reads it wrong: to read it again would not help, which
    it would where the request was right. Now and then a first idea of what was meant is wrong too. Otherwise as
    `recorded_demonstrations`.
    """

    def recorded(spec: NATSpec) -> Demonstration | None:
        rng = random.Random(f"misread-{seed}-{spec.task_id}")
        if random.Random(f"miscopied-{seed}-{spec.task_id}").random() < MISCOPIED_SHARE:
            return _recorded_miscopied(factory, in_any_names(spec, rng), rng)
        found = misread(in_any_names(spec, rng), rng)
        if found is None:
            return None
        right, *wrong = found
        told = right.model_copy(update={"request": any_request(wrong[0], rng)})
        attempts = [render_project(each) for each in (wrong if rng.random() < TWICE_SHARE else wrong[:1])]
        if rng.random() < BOTH_WRONG_SHARE:
            attempts[0] = miscopied(wrong[0].model_copy(update={"request": told.request}), rng) or attempts[0]
        unlearned = frozenset(range(len(attempts)))
        return record(factory, NATTask(spec=told), mending(told, *attempts), unlearned=unlearned, wordings=("any",))

    return tried(recorded, starter_specs(seed, ["sft"]))


def _recorded_miscopied(factory: NATEnvFactory, spec: NATSpec, rng: random.Random) -> Demonstration | None:
    told = spec.model_copy(update={"request": any_request(spec, rng)})
    files = miscopied(told, rng)
    if files is None or _is_taken(factory, told, files):
        return None
    return record(factory, NATTask(spec=told), mending(told, files), unlearned=frozenset([0]), wordings=("any",))


def mended_submissions(
    factory: NATEnvFactory, specs: Mapping[str, NATSpec], episodes: Iterable[Mapping[str, Any]]
) -> Iterator[Demonstration]:
    """Of every episode whose first reply is a submission that is not taken, that reply and how a teacher mends it.

    `specs` are those of the episodes, by task id; `episodes` have `task_id` and `messages`, as `agent-rl eval` writes
    them. What a model gets wrong is told from its own mistakes, which planted faults are not. The factory was started,
    with `repair_turns` above 0.
    """

    def mended(episode: Mapping[str, Any]) -> Demonstration | None:
        spec, files = specs.get(episode["task_id"]), submitted(episode["messages"])
        if spec is None or files is None or _is_taken(factory, spec, files):
            return None
        return record(factory, NATTask(spec=spec), mending(spec, files), unlearned=frozenset([0]), wordings=())

    return tried(mended, episodes)


def _is_taken(factory: NATEnvFactory, spec: NATSpec, files: Mapping[str, str]) -> bool:
    try:
        return visible_checks(factory.get_toolkit(), spec, files).all_passed
    except WorkspaceError:  # a path that file_write refuses
        return False


def submitted(messages: Sequence[Mapping[str, Any]]) -> dict[str, str] | None:
    """The files of a conversation's first reply, where that writes files and submits; else None."""
    reply = next((each for each in messages if each.get("role") == "assistant"), {})
    calls = [(each.get("name"), each.get("arguments")) for each in reply.get("tool_calls") or ()]
    if len(calls) < 2 or calls[-1][0] != "submit" or any(name != "file_write" for name, _ in calls[:-1]):
        return None
    written = [arguments for _, arguments in calls[:-1]]
    if not all(isinstance(each, Mapping) and {"path", "content"} == each.keys() for each in written):
        return None
    return {each["path"]: each["content"] for each in written}


def record(
    factory: NATEnvFactory,
    task: NATTask,
    script: Script,
    *,
    unlearned: frozenset[int] = frozenset(),
    wordings: tuple[str, ...] = ("own",),
) -> Demonstration:
    """Act a script out in the environment: all but its last message, whose verdict is known."""
    env = factory()
    turns: Turns = []
    try:
        messages = env.reset(task.to_row())
        try:
            message = next(script)
            while True:
                result = env.step(message)
                assert not result.terminated, "only the last message of a script ends an episode"
                turns.append((message, result.messages))
                message = script.send(result.messages)
        except StopIteration as end:
            turns.append((end.value, ()))
        covers = covered(task.to_row()) | ({"wordings": wordings} if wordings else {})
        return Demonstration(messages, turns, env.tools, kind=task.spec.family, unlearned=unlearned, covers=covers)
    finally:
        env.close()


def mending(spec: NATSpec, *attempts: Mapping[str, str]) -> Script:
    """Submit one wrong project after the other and then the reference; after each report, say which lines change, and
    write the files that change again.

    Hardly a token of a file that is written again differs from the one before: from these alone a model learns to copy.
    """
    there: dict[str, str] = {}
    for files in attempts:
        yield _submission(there, files)
        there |= files
    return _submission(there, render_project(spec))


def _submission(there: Mapping[str, str], files: Mapping[str, str]) -> Message:
    changed = {path: text for path, text in files.items() if there.get(path) != text}
    said = changed_lines(there, changed) if there else []
    return Message.assistant("\n".join(said), (*_writes(changed), _call("submit")))


def changed_lines(files: Mapping[str, str], right: Mapping[str, str]) -> list[str]:
    """The path of each file with few changes, its lines that go, with `-`, and that come, with `+`."""
    said: list[str] = []
    for path, text in right.items():
        lines = difflib.unified_diff(files.get(path, "").split("\n"), text.split("\n"), n=0, lineterm="")
        changed = [line for line in [*lines][2:] if line[0] in "+-" and line[1:].strip()]
        if 0 < len(changed) <= _MOST_CHANGED:
            said += [f"{path}:", *changed]
    return said


def repairing(task: NATTask, found: VisibleChecks, rng: random.Random) -> Script:
    """Run the checks, read what they point to until the wrong file is found, write it, submit."""
    right = task.solution()
    shows_agent = not all(found.passed[name] for name in ("built", "example", "served"))
    if rng.random() < BOTH_SHARE:
        yield _calls("nat_check", "pytest_run")
    else:
        yield _calls("nat_check")
        if not shows_agent:
            yield _calls("pytest_run")
    for path in suspects(task.spec, found):
        yield Message.assistant("", (_call("file_read", path=path),))
        if path in right:
            break
    if rng.random() < AGAIN_SHARE:
        check = "nat_check" if shows_agent else "pytest_run"
        yield Message.assistant("", (*_writes(right), _call(check)))
        return _calls("submit")
    return Message.assistant("", (*_writes(right), _call("submit")))


def suspects(spec: NATSpec, found: VisibleChecks) -> list[str]:
    """All files, those first that the replies point to."""
    passed, tested = found.passed, found.texts["pytest_run"]
    agent = found.texts["nat_check"].partition("\nmcp: ")[0]
    first: list[str] = []
    if not passed["built"]:
        is_config = agent.startswith(("error at load", "error:"))
        first += [spec.config_path, spec.register_path] if is_config else [spec.register_path, spec.config_path]
    elif not passed["example"]:
        first += [spec.logic_path] if not passed["tests"] else [spec.register_path]
    elif not passed["served"] and passed["tests"]:
        first.append("mcp_server.py")
    if not passed["tests"]:
        is_example = "::test_example" in tested or "::" not in tested
        first += [spec.tests_path, spec.logic_path] if passed["example"] and is_example else [spec.logic_path]
    return list(dict.fromkeys([*first, spec.logic_path, spec.register_path, *spec.files]))


def _writes(files: Mapping[str, str]) -> list[ToolCall]:
    return [_call("file_write", path=path, content=text) for path, text in files.items()]


def _calls(*names: str) -> Message:
    return Message.assistant("", tuple(map(_call, names)))


def _call(name: str, **arguments: str) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)
