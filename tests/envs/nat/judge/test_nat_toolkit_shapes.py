"""The toolkit client on the shapes an agent may have: workflow over tools, MCP client, group, network, ReAct."""

from nat_demo import CONFIG, FILES, INPUTS, REGISTER, REMOTE, run_demo, run_of
from nat_projects import needs_react

from agent_rl.envs.nat.judge.toolkit import NatToolkit

WORKFLOW = """

class FlowConfig(FunctionBaseConfig, name="demo_flow"):
    scaler: FunctionRef


@register_function(config_type=FlowConfig)
async def flow(config: FlowConfig, builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    scaler = await builder.get_function(config.scaler)

    async def run(unit: str) -> str:
        \"\"\"Scale two of them.\"\"\"
        return "flow " + str(await scaler.acall_invoke(value=2.0, unit=unit))

    yield FunctionInfo.from_fn(run, description=run.__doc__)
"""
FLOW_FILES = {
    "src/nat_demo/register.py": REGISTER.replace("register_function\n", "register_function, FunctionRef\n") + WORKFLOW,
    "src/nat_demo/configs/config.yml": CONFIG.replace(
        "workflow:\n  _type: demo_scale", "workflow:\n  _type: demo_flow\n  scaler: scaler"
    ),
    "src/nat_demo/configs/client.yml": f"""{REMOTE}    include: [scaler]
workflow:
  _type: demo_flow
  scaler: remote__scaler
""",
}
MOCK = {"scaler": "7"}


def test_a_mock_replaces_a_tool_that_the_workflow_calls(nat_toolkit: NatToolkit) -> None:
    calls = [("", {"unit": "km"})]
    usual, swapped = run_demo(nat_toolkit, FLOW_FILES, run_of(calls), run_of(calls, swapped=MOCK)).runs
    assert (usual.answers, swapped.answers) == (("flow 2000.00 m",), ("flow 7",))


def test_a_client_takes_its_tools_from_the_server_or_from_its_mock(nat_toolkit: NatToolkit) -> None:
    more = {"config": "src/nat_demo/configs/client.yml", "through_client": True}
    calls = [("", {"unit": "km"})]
    evidence = nat_toolkit.run_agent(
        {**FILES, **FLOW_FILES},
        package="nat_demo",
        schemas=[],
        runs=[run_of(calls, **more), run_of(calls, swapped=MOCK, **more)],
    )
    assert evidence.error is None
    assert [run.answers for run in evidence.runs] == [("flow 2000.00 m",), ("flow 7",)]


GROUP = """from collections.abc import AsyncGenerator

from nat.plugin_api import Builder, FunctionGroup, FunctionGroupBaseConfig, register_function_group


class GroupConfig(FunctionGroupBaseConfig, name="demo_group"):
    start: int = 0


@register_function_group(config_type=GroupConfig)
async def build(config: GroupConfig, _builder: Builder) -> AsyncGenerator[FunctionGroup, None]:
    state = [config.start]
    group = FunctionGroup(config=config)

    async def add(amount: int) -> str:
        \"\"\"Add an amount.\"\"\"
        state[0] += amount
        return str(state[0])

    async def drop(amount: int) -> str:
        \"\"\"Take an amount away.\"\"\"
        return "dropped"

    group.add_function("add", add, description=add.__doc__)
    group.add_function("drop", drop, description=drop.__doc__)
    yield group
"""


def test_the_functions_of_a_group_share_a_state_and_hidden_ones_are_missing(nat_toolkit: NatToolkit) -> None:
    config = "function_groups:\n  desk: {_type: demo_group, include: [add]}\n  shelf: {_type: demo_group}\n"
    config += "workflow: {_type: current_timezone}\n"
    files = {"src/nat_demo/register.py": GROUP, "src/nat_demo/configs/config.yml": config}
    add = ("desk__add", {"amount": 2})
    run = run_of([add, add, ("desk__drop", {}), ("shelf__add", {"amount": 1})])
    evidence = nat_toolkit.run_agent({**FILES, **files}, package="nat_demo", schemas=["desk__add"], runs=[run])
    assert evidence.error is None
    assert evidence.runs[0].answers == ("2", "4", {"missing": "desk__drop"}, {"missing": "shelf__add"})
    assert evidence.schemas == {"desk__add": {"amount": "integer"}}


def test_requests_to_the_network_get_the_configured_reply_and_nothing_else_is_reached(nat_toolkit: NatToolkit) -> None:
    logic = """import httpx

def scale(value, unit, digits=2):
    try:
        answer = httpx.get("http://api.test/" + unit, headers={"x-key": "k"})
    except httpx.TimeoutException:
        return "timeout"
    return f"{answer.status_code} {answer.text}"
"""
    known = {"status": 200, "body": "hello", "failure": None, "headers": {"x-key": "k"}}
    exchanges = {
        "GET http://api.test/a": known,
        "GET http://api.test/b": {**known, "failure": "timeout"},
        "GET http://api.test/c": {**known, "headers": {"x-key": "other"}},
    }
    questions = [("scaler", {"value": 1.0, "unit": unit}) for unit in "abcd"]
    evidence = run_demo(
        nat_toolkit, {"src/nat_demo/logic.py": logic}, run_of(questions, exchanges=exchanges), run_of(questions[:1])
    )
    assert evidence.runs[0].answers == ("200 hello", "timeout", "599 unknown request", "599 unknown request")
    assert evidence.runs[1].answers == ("599 unknown request",)


@needs_react
def test_a_react_agent_calls_the_tool_that_the_script_names_and_answers_with_its_reply(
    nat_toolkit: NatToolkit,
) -> None:
    config = (
        CONFIG.replace("workflow:\n  _type: demo_scale\n", "")
        + """llms:
  brain: {_type: openai, model_name: none}
workflow: {_type: react_agent, llm_name: brain, tool_names: [scaler]}
"""
    )
    evidence = nat_toolkit.run_agent(
        {**FILES, "src/nat_demo/configs/config.yml": config},
        package="nat_demo",
        schemas=["scaler"],
        runs=[
            run_of([("", INPUTS[0])], scripted=["brain"], via="scaler"),
            run_of([("", INPUTS[0])], scripted=["brain"], via="scaler", swapped=MOCK),
            run_of([("", INPUTS[0])], scripted=["brain"], via="no_such_tool"),
        ],
        react=True,
    )
    assert evidence.error is None and evidence.workflow_type == "react_agent"
    (usual,), (swapped,), (unknown,) = (run.answers for run in evidence.runs)
    assert (usual, swapped) == ("2000.00 m", "7")
    assert usual not in str(unknown)
