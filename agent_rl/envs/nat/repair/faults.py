"""Faults to plant: one file of a reference project changed in one place, by classes.

A class says where a fault is and what kind of mistake it is, or only what was done to the text (`edits.py`); `plant`
makes one for a spec, drawn by a seed, or none where the class does not go with it. Not here: whether a fault matters
and whether a tool shows it (`proof.py`).
"""

import itertools
import random
import re
from collections.abc import Callable, Mapping
from functools import partial

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.families.base import literal
from agent_rl.envs.nat.factory.render import render_logic, render_project
from agent_rl.envs.nat.factory.telling import wrong_rules
from agent_rl.envs.nat.repair.edits import EDITS, Edit, edited
from agent_rl.envs.nat.spec import NATSpec, Tool

Files = Mapping[str, str]
Plant = Callable[[NATSpec, Files, random.Random], tuple[str, str] | None]
"""The path of the file that is wrong and its text; None where there is no such fault."""

_NUM_HELD_OUT = 8
"""Draws of a class of faults that has at most three."""
_NUM_RULES = 200
"""Other rules that are looked through for one that the example or the test of the project tells."""


def plant(name: str, spec: NATSpec, rng: random.Random) -> dict[str, str] | None:
    """The reference project with a fault of the class in it; None where the class does not go with the spec, and where
    an edit happens to be a fault of the classes that are held out."""
    files = render_project(spec)
    changed = FAULTS[name](spec, files, rng)
    if changed is None or files.get(changed[0]) == changed[1]:
        return None
    if name in EDITS and changed in _held_out(spec, files):
        return None
    return {**files, changed[0]: changed[1]}


def _held_out(spec: NATSpec, files: Files) -> list[tuple[str, str] | None]:
    """Faults of the classes that are held out, of each as many as it has."""
    return [FAULTS[name](spec, files, random.Random(seed)) for name in HELD_OUT for seed in range(_NUM_HELD_OUT)]


# ---------------------------------------------------------------- what the tool computes


def _lost_check(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str]:
    tool = rng.choice(spec.tools)
    return spec.logic_path, render_logic(spec, {tool.instance: FAMILIES[tool.family].mutants(tool)[0]})


def _wrong_rule(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    """Rules one step away, under which the example of the request or the tested error comes out otherwise."""
    tool = rng.choice(spec.tools)
    family = FAMILIES[tool.family]
    if not family.is_pure:
        return None
    found = [rules for rules in itertools.islice(wrong_rules(tool, rng), _NUM_RULES) if _tells(tool, rules)]
    texts = {family.definitions(tool.model_copy(update={"rules": rules})) for rules in found}
    return (spec.logic_path, render_logic(spec, {tool.instance: rng.choice(sorted(texts))})) if texts else None


def _tells(tool: Tool, rules: Mapping[str, object]) -> bool:
    tested = FAMILIES[tool.family].tested_error(tool)
    for inputs, right in ((tool.example.inputs, tool.example.output), (tested, tool.errors[0])):
        try:
            if oracle.wrong_answer(tool, rules, inputs, tool.defaults) != right:
                return True
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError):
            return False  # rules without sense, whose code need not even load
    return False


def _error_text(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    error = spec.tools[0].errors[0]
    return _swap(files, spec.logic_path, literal(error), literal(error.removeprefix("error: ")))


def _unknown_name(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    """A name in the last line of the function that nothing has."""
    lines = files[spec.logic_path].split("\n")
    last = max((number for number, line in enumerate(lines) if line.startswith("    return ")), default=None)
    name = re.search(r"\b(result|text|lines|rows|answer|value|found|best|parts|code|out)\b", lines[last or 0])
    if last is None or name is None:
        return None
    lines[last] = lines[last][: name.end()] + "_" + lines[last][name.end() :]
    return spec.logic_path, "\n".join(lines)


def _wrong_default(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    """The setting's default in logic.py is another one."""
    field = spec.tools[0].config_field
    if field is None:
        return None
    return _swap(files, spec.logic_path, f"{field.name}: int = {field.default}", f"{field.name}: int = {_other(field)}")


def _other(field) -> int:
    return field.default - 1 if field.default > field.low else field.default + 1


# ---------------------------------------------------------------- register.py and the configuration


def _no_yield(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    return _swap(files, spec.register_path, "    yield FunctionInfo", "    return FunctionInfo")


def _not_async(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    return _swap(files, spec.register_path, "    async def run(", "    def run(")


def _type_name(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    """The registered name; the rest of the file and the configuration have the right one."""
    name = spec.tools[0].type_name
    other = rng.choice([f"{name}s", f"my_{name}", name.rpartition("_")[0]])
    return _swap(files, spec.register_path, f'Config, name="{name}"', f'Config, name="{other}"')


def _missing_import(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    lines = files[spec.register_path].split("\n")
    imports = [line for line in lines if line.startswith(("from ", "import ")) and not line.endswith("(")]
    lost = rng.choice(imports)
    return _swap(files, spec.register_path, f"{lost}\n", "")


def _field_default(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    """The setting's default in register.py is another one."""
    field = spec.tools[0].config_field
    if field is None:
        return None
    return _swap(files, spec.register_path, f"Field(default={field.default},", f"Field(default={_other(field)},")


def _swapped_arguments(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    """The tool gives its last two inputs to the logic in the wrong order."""
    names = [field.name for field in spec.tools[0].inputs]
    if len(names) < 2:
        return None
    right, wrong = ", ".join(names), ", ".join([*names[:-2], names[-1], names[-2]])
    function = spec.tools[0].function
    return _swap(files, spec.register_path, f"return {function}({right}", f"return {function}({wrong}")


def _config_type(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    """The function is configured with a type that nothing registers; the workflow still has the right one."""
    name = spec.tools[0].type_name
    other = rng.choice([f"{name}s", name.removeprefix("nat_"), spec.tools[0].function])
    text = files[spec.config_path].replace(f"    _type: {name}\n", f"    _type: {other}\n", 1)
    return spec.config_path, text


def _workflow_key(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    return _swap(files, spec.config_path, "workflow:\n", rng.choice(["agent:\n", "workflows:\n", "work_flow:\n"]))


def _broken_yaml(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    old = rng.choice(["functions:\n", "workflow:\n"])
    return _swap(files, spec.config_path, old, old.replace(":", ""))


# ---------------------------------------------------------------- the MCP server and the tests


def _server_runs(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    return _swap(files, "mcp_server.py", "    server.run()", rng.choice(["    server.start()", "    server.run"]))


def _not_offered(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    return _swap(files, "mcp_server.py", "@server.tool()\n", "")


def _server_import(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    wrong = rng.choice(
        [f"from {spec.package}.tools import", "from logic import", f"from {spec.package}.register import"]
    )
    return _swap(files, "mcp_server.py", f"from {spec.package}.logic import", wrong)


def _server_argument(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    """The server's tool takes its first input as another type, or lacks the last."""
    tool = spec.tools[0]
    given = ", ".join(f"{field.name}: {field.type}" for field in tool.inputs)
    first, others = tool.inputs[0], tool.inputs[1:]
    kind = "int" if first.type == "str" else "str"
    wrong = ", ".join([f"{first.name}: {kind}", *(f"{field.name}: {field.type}" for field in others)])
    return _swap(files, "mcp_server.py", f"def {tool.instance}({given})", f"def {tool.instance}({wrong})")


def _wrong_expectation(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    """The test of the example expects another text than the request says."""
    output = spec.tools[0].example.output
    wrong = rng.choice([f"{output}0", f" {output}", output[:-1]])
    return _swap(files, spec.tests_path, literal(output), literal(wrong))


def _test_import(spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    wrong = rng.choice([f"from {spec.package} import", "from logic import", f"from {spec.package}.tools import"])
    return _swap(files, spec.tests_path, f"from {spec.package}.logic import", wrong)


def _edited(edit: Edit, _spec: NATSpec, files: Files, rng: random.Random) -> tuple[str, str] | None:
    return edited(edit, files, rng)


def _swap(files: Files, path: str, old: str, new: str) -> tuple[str, str] | None:
    return (path, files[path].replace(old, new)) if old in files.get(path, "") else None


FAULTS: dict[str, Plant] = {
    "lost check": _lost_check,
    "wrong rule": _wrong_rule,
    "error text": _error_text,
    "unknown name": _unknown_name,
    "wrong default": _wrong_default,
    "no yield": _no_yield,
    "not async": _not_async,
    "type name": _type_name,
    "missing import": _missing_import,
    "field default": _field_default,
    "swapped arguments": _swapped_arguments,
    "config type": _config_type,
    "workflow key": _workflow_key,
    "broken yaml": _broken_yaml,
    "server runs": _server_runs,
    "not offered": _not_offered,
    "server import": _server_import,
    "server argument": _server_argument,
    "wrong expectation": _wrong_expectation,
    "test import": _test_import,
    **{name: partial(_edited, edit) for name, edit in EDITS.items()},
}
"""By name, in the order in which they take turns."""
HELD_OUT = ("unknown name", "not async", "swapped arguments", "broken yaml", "not offered", "test import")
"""Classes that only the test set has: no demonstration and no training task."""
SHOWN = tuple(name for name in FAULTS if name not in HELD_OUT and name not in EDITS)
"""Classes of the other tasks."""
PRACTISED = (*SHOWN, *EDITS)
"""Classes of the demonstrations."""
