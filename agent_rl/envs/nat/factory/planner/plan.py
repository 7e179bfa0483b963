"""Make the plan of a spec, as a planner would pass it to the agent: scaffold, servers, tools, test cases."""

from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.spec import NATSpec, Plan, PlannedCase, PlannedServer, PlannedTool

_SCAFFOLDS = {"direct": "simple_tool", "router": "router", "pipeline": "pipeline", "react": "react_agent"}


def plan_of(spec: NATSpec) -> Plan:
    """Derived from the spec alone; test cases are the examples of the request and the first error of each tool."""
    tools = [
        PlannedTool(
            name=tool.instance,
            description=FAMILIES[tool.family].summary,
            inputs={each.name: each.type for each in tool.inputs},
        )
        for tool in spec.tools
    ]
    cases = []
    for tool in spec.tools:
        bad = FAMILIES[tool.family].bad_inputs(tool)
        cases.append(PlannedCase(tool=tool.instance, inputs=tool.example.inputs, expected=tool.example.output))
        cases.append(PlannedCase(tool=tool.instance, inputs=bad, expected=tool.errors[0]))
    scaffold = _SCAFFOLDS[spec.workflow.kind]
    if spec.group:
        scaffold = "function_group"
        tools += [
            PlannedTool(
                name=each.name, description=each.description, inputs={field.name: field.type for field in each.inputs}
            )
            for each in spec.group.functions
        ]
        cases += [PlannedCase(tool=c.function, inputs=c.inputs, expected=c.output) for c in spec.group.example]
    served = tuple(each.name for each in tools if not (spec.group and each.name in spec.group.hidden))
    return Plan(
        scaffold_type="mcp_client" if spec.client_group else scaffold,
        mcp_servers=(PlannedServer(name=spec.server.name, transport="stdio", tools=served),),
        custom_tools=tuple(tools),
        test_cases=tuple(cases),
    )
