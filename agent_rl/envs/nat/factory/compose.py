"""Sample the agent around its tools: which tools, workflow and server, for a task family and a level.

Level 1: one tool. Level 2: one tool with a configuration field. Level 3: several tools behind a workflow. Level 4:
tools taken back through MCP, branching, or a function group. Level 5: two families together, a scripted ReAct agent,
groups with undo, hidden functions or two instances.
Does not: choose names and wording (`generate.py`, `wording.py`).
"""

import random
from dataclasses import dataclass, field

from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.tool_sampler import sample_tool
from agent_rl.envs.nat.spec import Direct, Example, InputField, McpServer, Pipeline, React, Router, Step, Tool, Workflow

INSTANCES = ["main_tool", "primary", "worker", "engine", "helper", "service", "unit", "agent_tool"]
SEPARATORS = ["|", ";", "::", "->", "##"]
KEYWORDS = ["ask", "check", "do", "find", "get", "give", "look", "make", "run", "show", "take", "try"]
UNKNOWN = ["error: unknown command", "error: no such command", "error: what do you want"]
MALFORMED = ["error: bad request", "error: malformed request", "error: wrong arguments"]
_NO_EXAMPLE = Example(inputs={}, output="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A spec without names, wording, plan and workflow example."""

    tools: tuple[Tool, ...]
    workflow: Workflow = field(default_factory=Direct)
    server: McpServer
    client_group: str | None = None


def compose(family: str, level: int, package: str, rng: random.Random) -> Composition:
    """Sample the parts of an agent that has no function group."""
    if family == "react_agent":
        return _react(package, rng)
    if family == "mcp_served":
        return _served(level, package, rng)
    if family == "tool_workflow":
        return _pipeline(level, package, rng)
    if level <= 2:
        name = rng.choice(INSTANCES)
        tool = sample_tool(
            FAMILIES[family], level, rng, type_name=f"{package}_tool", instance=name, function=FAMILIES[family].function
        )
        return Composition(tools=(tool,), server=McpServer(name=package))
    names = [family, family]
    if level == 5:
        names.append(rng.choice([other for other in sorted(FAMILIES) if other != family]))
    tools = sample_tools(names, level, package, rng)
    return Composition(
        tools=tools,
        workflow=router(tools, package, rng),
        server=McpServer(name=package),
        client_group=_client(level, rng),
    )


def sample_tools(families: list[str], level: int, package: str, rng: random.Random) -> tuple[Tool, ...]:
    """One tool for each of `families`, with names of their own."""
    tools = []
    for family, instance in zip(families, rng.sample(INSTANCES, len(families)), strict=True):
        made = FAMILIES[family]
        function = f"{made.function}_{instance}"
        tools.append(
            sample_tool(made, level, rng, type_name=f"{package}_{instance}", instance=instance, function=function)
        )
    return tuple(tools)


def router(tools: tuple[Tool, ...], package: str, rng: random.Random) -> Router:
    """A router over all the tools, with a separator that none of their examples holds."""
    words = rng.sample(KEYWORDS, len(tools))
    return router_over({word: tool.instance for word, tool in zip(words, tools, strict=True)}, tools, package, rng)


def router_over(commands: dict[str, str], tools: tuple[Tool, ...], package: str, rng: random.Random) -> Router:
    shown = " ".join(str(value) for tool in tools for value in tool.example.inputs.values())
    return Router(
        type_name=f"{package}_router",
        separator=rng.choice([each for each in SEPARATORS if each not in shown]),
        commands=commands,
        unknown=rng.choice(UNKNOWN),
        malformed=rng.choice(MALFORMED),
        example=_NO_EXAMPLE,
    )


def _client(level: int, rng: random.Random) -> str | None:
    return rng.choice(["remote", "served", "outside"]) if level >= 4 else None


def _served(level: int, package: str, rng: random.Random) -> Composition:
    """What counts is the server: its name, its tools, how it reports errors, and its use by a client."""
    families = rng.choices(sorted(set(FAMILIES) - {"api_client"}), k=1 if level == 2 else rng.randint(2, 4))
    tools = sample_tools(families, 2 if level == 2 else rng.choice([1, 2, 3]), package, rng)
    name = "-".join(rng.sample(["desk", "hub", "kit", "lab", "port", "shop"], 2))
    return Composition(
        tools=tools,
        workflow=Direct() if len(tools) == 1 else router(tools, package, rng),
        server=McpServer(name=name, raises=level < 4 and rng.random() < 0.6),
        client_group=_client(level, rng),
    )


def _react(package: str, rng: random.Random) -> Composition:
    """The toolkit's own agent, configured; its tools are ours."""
    families = rng.sample(sorted(set(FAMILIES) - {"api_client"}), rng.randint(1, 2))
    tools = sample_tools(families, rng.choice([1, 2]), package, rng)
    llm = rng.choice(["main_llm", "thinker", "brain"])
    return Composition(
        tools=tools, workflow=React(llm=llm, max_tool_calls=rng.randint(3, 9)), server=McpServer(name=package)
    )


# ---------------------------------------------------------------- pipelines


def _pipeline(level: int, package: str, rng: random.Random) -> Composition:
    patterns = {3: ["chain", "guard", "number"], 4: ["branch", "both", "guard chain"], 5: ["both", "branch", "number"]}
    pattern = rng.choice(patterns[level])
    families = {
        "chain": ["text_pipeline", "text_pipeline"],
        "guard": ["code_validator", "text_pipeline"],
        "number": ["unit_converter", "calculator"],
        "branch": ["text_pipeline", "text_pipeline", "text_pipeline"],
        "both": ["text_pipeline", "text_pipeline", "text_pipeline"],
        "guard chain": ["code_validator", "text_pipeline", "text_pipeline"],
    }[pattern]
    tools = sample_tools(families, rng.choice([1, 2]), package, rng)
    inputs = (InputField(name="text", type="str"),)
    if pattern == "number":
        inputs, steps = _number_steps(tools, rng)
    else:
        steps = _text_steps(pattern, tools)
    has_joiner = pattern == "both"
    flow = Pipeline(
        type_name=f"{package}_workflow",
        inputs=inputs,
        steps=steps,
        joiner=rng.choice([" / ", " + ", ", "]) if has_joiner else None,
        on_error="go on" if has_joiner and rng.random() < 0.5 else "stop",
        example=_NO_EXAMPLE,
    )
    client = _client(level, rng) if level == 5 else None
    return Composition(tools=tools, workflow=flow, server=McpServer(name=package), client_group=client)


def _text_steps(pattern: str, tools: tuple[Tool, ...]) -> tuple[Step, ...]:
    """`guard`: the first tool only says whether to go on; `both`: two tools read the text, the third the second."""
    sources = {
        "chain": ["text", "step 1"],
        "guard": ["text", "text"],
        "guard chain": ["text", "text", "step 2"],
        "branch": ["text", "step 1", "step 2"],
        "both": ["text", "text", "step 2"],
    }[pattern]
    return tuple(
        Step(
            tool=tool.instance,
            arguments={tool.inputs[0].name: source},
            only_if_digit=pattern == "branch" and number == 1,
        )
        for number, (tool, source) in enumerate(zip(tools, sources, strict=True))
    )


def _number_steps(tools: tuple[Tool, ...], rng: random.Random) -> tuple[tuple[InputField, ...], tuple[Step, ...]]:
    """The converted value becomes one input of the calculator; the others stay inputs of the workflow."""
    converter, calculator = tools
    fed = rng.choice(calculator.inputs).name
    others = tuple(each for each in calculator.inputs if each.name != fed)
    arguments = {each.name: "step 1" if each.name == fed else each.name for each in calculator.inputs}
    return (*converter.inputs, *others), (
        Step(tool=converter.instance, arguments={each.name: each.name for each in converter.inputs}),
        Step(tool=calculator.instance, arguments=arguments),
    )
