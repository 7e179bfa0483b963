"""Word a spec as a user's request: what to build, how it behaves, an example of everything. Samples phrasings only."""

import random

from agent_rl.envs.nat.factory.families import FAMILIES, GROUPS
from agent_rl.envs.nat.factory.families.base import join_names, literal
from agent_rl.envs.nat.spec import ConfigField, Direct, Group, Inputs, NATSpec, Pipeline, Router, Tool


def request(spec: NATSpec, rng: random.Random, *, terse: bool = False) -> str:
    """The whole request. One tool that is the workflow itself takes one paragraph, anything else several.

    `terse`, for one tool only, leaves out what the shipped small model has learned from demonstrations: the meaning of
    the names of operations, and what every project of one tool has in common.
    """
    if len(spec.tools) == 1 and spec.workflow.kind == "direct" and (terse or spec.server.name == spec.package):
        return _one_tool(spec, spec.tools[0], rng, terse=terse)
    parts = [_opening(spec, rng)]
    parts += [_tool(tool, rng) for tool in spec.tools]
    if spec.group:
        parts.append(_group(spec.group, rng))
    parts += [_workflow(spec, rng), _server(spec, rng)]
    return "\n".join(part for part in parts if part)


def _opening(spec: NATSpec, rng: random.Random) -> str:
    return rng.choice(
        [
            f"Build a NeMo Agent Toolkit agent in the package `{spec.package}`.",
            f"Write the NAT agent `{spec.package}`.",
            f"Please create a complete NAT project called `{spec.package}`.",
            f"I need a NAT agent; its package is `{spec.package}`.",
        ]
    )


def _one_tool(spec: NATSpec, tool: Tool, rng: random.Random, *, terse: bool) -> str:
    return " ".join(each for part in one_tool_sentences(spec, tool, rng, terse=terse) for each in part)


def one_tool_sentences(
    spec: NATSpec, tool: Tool, rng: random.Random, *, terse: bool
) -> tuple[list[str], list[str], list[str]]:
    """What the one tool is called; what it does; its inputs, setting, example and server."""
    opening = _opening(spec, rng)
    naming = rng.choice(
        [
            f"Register the type `{tool.type_name}` and configure it as `{tool.instance}`.",
            f"The function type is `{tool.type_name}`, the instance `{tool.instance}`.",
            f"Name the instance `{tool.instance}`; its type is `{tool.type_name}`.",
        ]
    )
    behaviour, tail = _behaviour(tool, rng, terse=terse)
    if spec.server.name != spec.package:
        tail.append(_server(spec, rng).removeprefix("- "))
    elif not terse:
        tail.append(f"This tool is the workflow; mcp_server.py serves it over stdio as `{spec.server.name}`.")
    return [opening, naming], behaviour, tail


def _behaviour(tool: Tool, rng: random.Random, *, terse: bool = False) -> tuple[list[str], list[str]]:
    """What it does; its inputs, setting and example."""
    arguments = ", ".join(f"`{field.name}` ({field.type})" for field in tool.inputs)
    sentences = FAMILIES[tool.family].sentences(tool, rng)
    inputs = rng.choice([f"Inputs: {arguments}.", f"It takes {arguments}."])
    setting = _setting(tool.config_field, rng)
    if not terse:
        sentences += FAMILIES[tool.family].glossary(tool)
        setting += _as_argument(tool)
    return sentences, [inputs, *setting, _example(tool.example.inputs, tool.example.output, rng)]


def _as_argument(tool: Tool) -> list[str]:
    """Where the setting enters the logic, which the tests call as well."""
    if tool.config_field is None or FAMILIES[tool.family].exports(tool) != (tool.function,):
        return []
    return [f"`{tool.function}` has `{tool.config_field.name}` as its last argument, with that default."]


def _setting(field: ConfigField | None, rng: random.Random) -> list[str]:
    if field is None:
        return []
    wording = [f"Config field `{field.name}`, default {field.default}", f"Setting `{field.name}` = {field.default}"]
    return [f"{rng.choice(wording)} ({field.low} to {field.high})."]


def _example(inputs: Inputs, output: str, rng: random.Random) -> str:
    given = ", ".join(literal(value) for value in inputs.values())
    return rng.choice([f"Example: {given} gives", f"For instance, {given} gives"]) + f" {literal(output)}."


def _tool(tool: Tool, rng: random.Random) -> str:
    naming = rng.choice(
        [
            f"Tool `{tool.instance}` (type `{tool.type_name}`, pure function `{tool.function}` in logic.py):",
            f"One tool is `{tool.instance}`, of type `{tool.type_name}`; its logic is `{tool.function}` in logic.py.",
            f"`{tool.instance}` is a function of type `{tool.type_name}` on top of `{tool.function}` in logic.py.",
        ]
    )
    behaviour, tail = _behaviour(tool, rng)
    return " ".join([f"- {naming}", *behaviour, *tail])


def _group(group: Group, rng: random.Random) -> str:
    signatures = [
        f"`{each.name}({', '.join(f'{field.name}: {field.type}' for field in each.inputs)})`"
        for each in group.functions
    ]
    names = join_names(group.instances)
    naming = rng.choice(
        [
            f"It has the function group `{group.type_name}`, configured as {names}, with {', '.join(signatures)}.",
            f"Register a function group of type `{group.type_name}` and configure it as {names}. "
            f"Its functions: {', '.join(signatures)}.",
        ]
    )
    state = f"The state is the class `{group.class_name}` in logic.py, with a method for each function"
    state += f" and `{group.config_field.name}` as argument." if group.config_field else "."
    extra = [f"Each of {names} has a state of its own."] if len(group.instances) > 1 else []
    if group.hidden:
        visible = join_names([each.name for each in group.visible])
        extra.append(f"`include` lists only {visible}; {join_names(group.hidden)} cannot be called from outside.")
    else:
        extra.append("`include` lists all of them.")
    calls = "; ".join(
        f"{call.function}({', '.join(literal(value) for value in call.inputs.values())}) gives {literal(call.output)}"
        for call in group.example
    )
    bare = [each.name for each in group.functions if not each.inputs]
    if bare:
        extra.append(f"NAT functions need an argument, so there {join_names(bare)} {_take(bare)} `unused` (str).")
    sentences = GROUPS[group.family].sentences(group, rng)
    return " ".join(
        [f"- {naming}", state, *sentences, *extra, *_setting(group.config_field, rng), f"In order, at first: {calls}."]
    )


def _take(names: list[str]) -> str:
    return "take" if len(names) > 1 else "takes"


def _workflow(spec: NATSpec, rng: random.Random) -> str:
    flow = spec.workflow
    if isinstance(flow, Direct):
        return f"- The workflow is of type `{spec.tools[0].type_name}`: the tool itself."
    if isinstance(flow, Router):
        return _router(spec, flow, rng)
    if isinstance(flow, Pipeline):
        return _pipeline(flow, rng)
    names = join_names([tool.instance for tool in spec.tools])
    return (
        f"- The workflow is NAT's `react_agent` with the tools {names}, `llm_name` `{flow.llm}` and "
        f"`max_tool_calls` {flow.max_tool_calls}. Configure `{flow.llm}` as an `openai` model."
    )


def _router(spec: NATSpec, flow: Router, rng: random.Random) -> str:
    words = "; ".join(f"`{word}` for `{name}`" for word, name in flow.commands.items())
    sentence = rng.choice(
        [
            f"The workflow `{flow.type_name}` takes `request` (str): a keyword and the arguments in order, separated "
            f"by `{flow.separator}`, and answers with that function's answer.",
            f"As workflow, a router of type `{flow.type_name}` with one input `request` (str). A request is a keyword, "
            f"then the arguments, with `{flow.separator}` between them; the answer is the function's.",
        ]
    )
    return (
        f"- {sentence} Keywords: {words}. Spaces around parts do not count. Another keyword gives `{flow.unknown}`; a "
        f"wrong number of arguments, or one that is no number where a number is needed, `{flow.malformed}`. It reaches "
        f"the functions through `FunctionRef` fields. {_example(flow.example.inputs, flow.example.output, rng)}"
    )


def _pipeline(flow: Pipeline, rng: random.Random) -> str:
    inputs = ", ".join(f"`{field.name}` ({field.type})" for field in flow.inputs)
    steps = []
    for number, step in enumerate(flow.steps, start=1):
        given = ", ".join(
            f"{name} = the answer of {source}" if source.startswith("step ") else f"{name} = `{source}`"
            for name, source in step.arguments.items()
        )
        condition = " if that holds a digit, else the answer is that text unchanged" if step.only_if_digit else ""
        steps.append(f"step {number}: `{step.tool}` with {given}{condition}")
    end = "The answer is that of the last step."
    if flow.joiner is not None:
        end = f"The answers of all steps, joined by `{flow.joiner}`, are the answer."
    error = "An answer that begins with `error` ends it and is the answer."
    if flow.on_error == "go on":
        error = "An answer that begins with `error` is passed on like any other."
    opening = rng.choice(
        [f"The workflow `{flow.type_name}` takes {inputs} and has", f"As workflow `{flow.type_name}`, on {inputs}:"]
    )
    fields = "It reaches the functions through `FunctionRef` fields."
    example = _example(flow.example.inputs, flow.example.output, rng)
    return f"- {opening} {'; '.join(steps)}. {end} {error} {fields} {example}"


def _server(spec: NATSpec, rng: random.Random) -> str:
    names = [tool.instance for tool in spec.tools] or [each.name for each in spec.group.visible if spec.group]
    out = rng.choice(
        [
            f"- mcp_server.py serves {join_names(names)} over stdio as `{spec.server.name}`.",
            f"- The MCP server is called `{spec.server.name}` and offers {join_names(names)} (mcp_server.py, stdio).",
        ]
    )
    if spec.server.raises:
        out += " There, an answer that begins with `error` is raised, so that the client sees `isError`."
    if spec.client_group:
        out += (
            f" configs/config-mcp-client.yml has the same workflow with its functions from an `mcp_client` group "
            f"`{spec.client_group}` that starts `python mcp_server.py`."
        )
    return out
