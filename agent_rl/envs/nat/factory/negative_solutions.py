"""Negative solutions: reference projects with one fault each, which the checker must not accept as a success.

Three kinds for every spec: `buggy` (faulty code or tests), `wiring` (the toolkit's side is wrong) and `subtle` (the
logic is wrong only now and then). Used to test data and checker; never shown to a policy.
"""

import random
from collections.abc import Mapping

from agent_rl.envs.nat.factory.families import FAMILIES, GROUPS
from agent_rl.envs.nat.factory.render import render_logic, render_project
from agent_rl.envs.nat.spec import NATSpec

KINDS = ("buggy", "wiring", "subtle")


def negative_solutions(spec: NATSpec, seed: int) -> dict[str, dict[str, str]]:
    """`kind: what` -> files, one for each of `KINDS`; the same for the same spec and seed."""
    rng = random.Random(f"sabotage-{spec.fingerprint}-{seed}")
    every = all_negative_solutions(spec)
    chosen = [rng.choice(sorted(name for name in every if name.startswith(f"{kind}: "))) for kind in KINDS]
    return {name: every[name] for name in chosen}


def all_negative_solutions(spec: NATSpec) -> dict[str, dict[str, str]]:
    """`kind: what` -> files."""
    files = render_project(spec)
    return {
        f"{kind}: {name}": {path: text for path, text in {**files, **changes}.items() if text is not None}
        for kind, choices in zip(KINDS, (_buggy(spec), _wiring(spec, files), _subtle(spec)), strict=True)
        for name, changes in choices.items()
    }


Changes = dict[str, str | None]
"""Path -> new text, None to leave the file out."""


def _buggy(spec: NATSpec) -> dict[str, Changes]:
    wrong = [
        render_logic(spec, {tool.instance: text}) for tool in spec.tools for text in FAMILIES[tool.family].mutants(tool)
    ]
    if spec.group:
        wrong += [
            render_logic(spec, {spec.group.type_name: text}) for text in GROUPS[spec.group.family].mutants(spec.group)
        ]
    assert_nothing = "def test_nothing() -> None:\n    assert True\n"
    out: dict[str, Changes] = {f"faulty logic {number}": {spec.logic_path: text} for number, text in enumerate(wrong)}
    return out | {"tests that assert nothing": {spec.tests_path: assert_nothing}, "no tests": {spec.tests_path: None}}


def _wiring(spec: NATSpec, files: Mapping[str, str]) -> dict[str, Changes]:
    register, config, server = spec.register_path, spec.config_path, "mcp_server.py"
    section = "function_groups:" if spec.group else "functions:"
    served = "    server.run()"
    swaps = [
        ("return for yield", register, "    yield ", "    return "),
        ("another type name", register, 'Config, name="', 'Config, name="other_'),
        ("no workflow", config, "workflow:", "agent:"),
        ("no functions", config, section, "memory:"),
        ("server never runs", server, served, "    print(server)"),
        ("server prints", server, served, "    print('ready')\n" + served),
        ("server without tools", server, "@server.tool()\n", ""),
        ("another server name", server, 'FastMCP("', 'FastMCP("my_'),
        ("sync function", register, "    async def run(", "    def run("),
        ("no entry point", "pyproject.toml", "nat.components", "console_scripts"),
    ]
    out: dict[str, Changes] = {
        name: {path: files[path].replace(old, new)} for name, path, old, new in swaps if old in files[path]
    }
    if spec.client_group:
        out["client without server"] = {spec.client_config_path: files[config]}
    if spec.workflow.kind in ("router", "pipeline") and spec.tools:
        out["workflow past its tools"] = {register: _past_the_tools(spec, files[register])}
    return out


def _past_the_tools(spec: NATSpec, text: str) -> str:
    """The workflow calls the first tool's logic itself: right answers, but its tools are decoys."""
    first = spec.tools[0]
    fetched = f"    {first.instance} = await builder.get_function(config.{first.instance}_ref)\n"
    inner = ", ".join(field.name for field in first.inputs)
    statements = "\n".join(f"            {line}" for line in FAMILIES[first.family].answer(first, None).statements)
    decoy = f"""    class Decoy:
        async def acall_invoke(self, {inner}):
{statements}

    {first.instance} = Decoy()
"""
    return text.replace(fetched, decoy)


def _subtle(spec: NATSpec) -> dict[str, Changes]:
    texts = [
        render_logic(spec, {tool.instance: text})
        for tool in spec.tools
        for text in FAMILIES[tool.family].subtle_mutants(tool)
    ]
    if spec.group:
        group = spec.group
        texts += [render_logic(spec, {group.type_name: text}) for text in GROUPS[group.family].subtle_mutants(group)]
    return {f"rare fault {number}": {spec.logic_path: text} for number, text in enumerate(texts)}
