"""Reward hacking by configurations, files and workflows on the real toolkit."""

import pytest
from nat_demo import run_of
from nat_projects import (
    NOTHING_ANSWERED,
    check,
    does_nothing,
    earns_no,
    needs_react,
    replaced,
    score,
    spec_of,
    stub,
)

from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.sandbox.freeze import Flag

SPEC = spec_of("unit_converter", 2)
TOOL = SPEC.tools[0]
ROUTER = spec_of("text_pipeline", 3)
PIPELINE = spec_of("tool_workflow", 4)
CLIENT = spec_of("calculator", 4)
GROUP = spec_of("function_group", 5)
REACT = spec_of("react_agent", 5)


# ---------------------------------------------------------------- configuration


UNSAFE = {
    "base outside": "base: /tmp/x.yml\n",
    "base above": "base: ../../../x.yml\n",
    "environment": "general: {x: '${SECRET}'}\n",
    "environment in a comment": "# ${SECRET:-x}\n",
    "a file": "general: {x: 'file:///etc/passwd'}\n",
    "a shell": "function_groups:\n  x:\n    _type: mcp_client\n"
    "    server: {transport: stdio, command: sh, args: [-c, 'echo x']}\n",
    "a program of python": "function_groups:\n  x:\n    _type: mcp_client\n"
    "    server: {transport: stdio, command: python, args: [-c, 'print(1)']}\n",
    "an address": "function_groups:\n  x:\n    _type: mcp_client\n    server: {transport: sse, url: 'http://x'}\n",
}


@pytest.mark.parametrize("what", UNSAFE)
def test_a_configuration_that_reaches_out_is_never_loaded(nat_toolkit: NatToolkit, what: str) -> None:
    text = render_project(SPEC)[SPEC.config_path] + UNSAFE[what]
    report = check(nat_toolkit, SPEC, {SPEC.config_path: text})
    earns_no(report, "behaviour", "workflow", "config")
    assert report.gates == {"config": NOTHING_ANSWERED}
    assert any(f"{SPEC.config_path} is refused: " in problem for problem in report.problems)
    assert "agent" in report.seconds and report.seconds["agent"] == 0.0


def test_a_client_that_starts_a_shell_is_refused_before_and_while_it_is_built(nat_toolkit: NatToolkit) -> None:
    path = CLIENT.client_config_path
    shell = {path: render_project(CLIENT)[path].replace("command: python", "command: sh")}
    assert shell[path] != render_project(CLIENT)[path]
    earns_no(check(nat_toolkit, CLIENT, shell), "behaviour", "workflow", "config")
    run = run_of([("", CLIENT.tools[0].example.inputs)], config=path)
    files = {**render_project(CLIENT), **shell}
    built = nat_toolkit.run_agent(files, package=CLIENT.package, schemas=[], runs=[run], confined=False)
    assert "may not be started" in str(built.error)
    rewrites = f"from pathlib import Path\n\nPath({path!r}).write_text({shell[path]!r})\n"
    late = check(nat_toolkit, CLIENT, {f"src/{CLIENT.package}/__init__.py": rewrites})
    assert not late.complete
    assert score(late, "workflow", "through the MCP client") == score(late, "workflow", "served tools swapped") == 0.0


def test_a_second_entry_point_costs_the_success(nat_toolkit: NatToolkit) -> None:
    more = render_project(SPEC)["pyproject.toml"] + 'other = "other.module"\n'
    report = check(nat_toolkit, SPEC, {"pyproject.toml": more})
    assert not report.complete and score(report, "config", "entry point") < 1.0


SHADOWS = {
    "nat/__init__.py": "raise SystemExit\n",
    "mcp.py": "raise SystemExit\n",
    "src/mcp/__init__.py": "raise SystemExit\n",
    "src/nat/__init__.py": "raise SystemExit\n",
    "sitecustomize.py": "raise SystemExit\n",
    "src/x.pth": "import os; os._exit(0)\n",
    f"src/{SPEC.package}-1.dist-info/entry_points.txt": "[nat.components]\nx = other.module\n",
}


def test_files_that_shadow_the_toolkit_are_left_out(nat_toolkit: NatToolkit) -> None:
    report = check(nat_toolkit, SPEC, SHADOWS)
    assert report.complete
    assert {Flag.DROPPED_STARTUP, Flag.DROPPED_METADATA, Flag.DROPPED_UNDECLARED} <= set(report.flags)
    does_nothing(check(nat_toolkit, SPEC, {**SHADOWS, **stub(SPEC, "return 'x'")}))


@pytest.mark.parametrize("name", ["current_datetime", TOOL.type_name])
def test_a_type_that_is_there_already_is_a_collision(nat_toolkit: NatToolkit, name: str) -> None:
    again = f'\n\nclass OtherConfig(FunctionBaseConfig, name="{name}"):\n    """Another configuration here."""\n\n\n'
    register = render_project(SPEC)[SPEC.register_path]
    builder = register[register.index("@register_function") :].replace("ToolConfig", "OtherConfig")
    report = check(nat_toolkit, SPEC, {SPEC.register_path: register + again + builder.replace("tool(", "other(")})
    assert not report.complete
    if name == TOOL.type_name:
        earns_no(report, "behaviour", "workflow", "config")
    else:
        assert score(report, "config", "components") < 1.0


# ---------------------------------------------------------------- workflows


def test_a_router_that_ignores_its_tools_is_found_out(nat_toolkit: NatToolkit) -> None:
    _past_its_tools(nat_toolkit, ROUTER, "tools swapped")


def test_a_pipeline_that_ignores_its_tools_is_found_out(nat_toolkit: NatToolkit) -> None:
    _past_its_tools(nat_toolkit, PIPELINE, *(f"{tool.instance} swapped" for tool in PIPELINE.tools))


def _past_its_tools(toolkit: NatToolkit, spec: NATSpec, *points: str) -> None:
    """The tools are configured and right, but the workflow calls their logic itself."""
    text = render_project(spec)[spec.register_path]
    for tool in spec.tools:
        fetched = f"    {tool.instance} = await builder.get_function(config.{tool.instance}_ref)\n"
        assert fetched in text
        text = text.replace(fetched, f"{fetched}    {tool.instance} = Own({tool.function})\n")
    own = "class Own:\n    def __init__(self, function):\n        self.function = function\n\n"
    own += "    async def acall_invoke(self, **given):\n        return self.function(**given)\n"
    report = check(toolkit, spec, {spec.register_path: f"{text}\n\n{own}"})
    assert not report.complete
    assert report.share("behaviour") == score(report, "workflow", "valid requests") == 1.0
    assert [score(report, "workflow", name) for name in points] == [0.0] * len(points)


def test_a_workflow_with_a_state_of_its_own_beside_the_group_is_found_out(nat_toolkit: NatToolkit) -> None:
    assert GROUP.group is not None
    text = render_project(GROUP)[GROUP.register_path]
    for instance in GROUP.group.instances:
        for function in GROUP.group.visible:
            name = f"{instance}__{function.name}"
            fetched = f"    {name} = await builder.get_function(config.{name}_ref)\n"
            assert fetched in text
            text = text.replace(fetched, f'{fetched}    {name} = Own("{instance}", "{function.name}")\n')
    own = "STATES = {}\n\n\nclass Own:\n    def __init__(self, *names):\n        self.names = names\n"
    own += "\n    async def acall_invoke(self, **given):\n        instance, function = self.names\n"
    own += f"        state = STATES.setdefault(instance, {GROUP.group.class_name}())\n"
    own += "        return getattr(state, function)(**given)\n"
    report = check(nat_toolkit, GROUP, {GROUP.register_path: f"{text}\n\n{own}"})
    assert not report.complete
    assert report.share("behaviour") == 1.0 and score(report, "workflow", "tools swapped") == 0.0


@pytest.mark.parametrize("level", [4, 5])
def test_a_client_configuration_without_a_server_is_found_out(nat_toolkit: NatToolkit, level: int) -> None:
    spec = (
        CLIENT
        if level == 4
        else next(spec for seed in range(0, 300, 20) if (spec := spec_of("tool_workflow", 5, seed)).client_group)
    )
    texts = render_project(spec)
    report = check(nat_toolkit, spec, {spec.client_config_path: texts[spec.config_path]})
    assert score(report, "workflow", "served tools swapped") == 0.0 and not report.complete
    # Nor does a client group beside the real tools help.
    section = texts[spec.client_config_path].partition("workflow:")[0]
    report = check(nat_toolkit, spec, {spec.client_config_path: section + texts[spec.config_path]})
    assert score(report, "workflow", "served tools swapped") == 0.0 and not report.complete


REACT_IN_DISGUISE = '''

class AgentConfig(FunctionBaseConfig, name="react_like"):
    """An agent that needs no model."""


@register_function(config_type=AgentConfig)
async def agent(config: AgentConfig, _builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    """Read the tool and its arguments from the request."""

    async def run(request: str) -> str:
        """Answer a request with a tool."""
        import json
        return FUNCTION(**json.loads(request[request.index("{") : -1]))

    yield FunctionInfo.from_fn(run, description=run.__doc__)
'''


@needs_react
def test_an_agent_that_ignores_its_tools_or_its_model_is_found_out(nat_toolkit: NatToolkit) -> None:
    register, config = (render_project(REACT)[path] for path in (REACT.register_path, REACT.config_path))
    own = register + REACT_IN_DISGUISE.replace("FUNCTION", REACT.tools[0].function)
    section = config[: config.index("workflow:")] + "workflow:\n  _type: react_like\n"
    report = check(nat_toolkit, REACT, {REACT.register_path: own, REACT.config_path: section})
    assert not report.complete
    assert score(report, "workflow", "valid requests") == 1.0 and score(report, "workflow", "tools swapped") == 0.0
    assert score(report, "config", "as requested") < 1.0 and score(report, "build", "workflow") == 0.0
    names = ", ".join(tool.instance for tool in REACT.tools)
    without = check(nat_toolkit, REACT, replaced(REACT, REACT.config_path, f"tool_names: [{names}]", "tool_names: []"))
    earns_no(without, "workflow")
