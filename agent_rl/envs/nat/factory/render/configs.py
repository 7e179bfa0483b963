"""config.yml, config-mcp-client.yml and pyproject.toml of a reference project."""

from agent_rl.envs.nat.spec import NATSpec, Router


def config(spec: NATSpec) -> str:
    """The workflow with its tools in the same process."""
    out = ""
    if spec.tools:
        out += "functions:\n" + "".join(f"  {tool.instance}:\n    _type: {tool.type_name}\n" for tool in spec.tools)
    if spec.group:
        include = ", ".join(function.name for function in spec.group.visible)
        out += "function_groups:\n" + "".join(
            f"  {instance}:\n    _type: {spec.group.type_name}\n    include: [{include}]\n"
            for instance in spec.group.instances
        )
    if spec.workflow.kind == "react":
        out += f"llms:\n  {spec.workflow.llm}:\n    _type: openai\n    model_name: gpt-4o-mini\n"
    return out + _workflow(spec, prefix="")


def client_config(spec: NATSpec) -> str:
    """The same workflow with its tools taken from mcp_server.py."""
    names = ", ".join(tool.instance for tool in spec.tools)
    return f"""function_groups:
  {spec.client_group}:
    _type: mcp_client
    server:
      transport: stdio
      command: python
      args: [mcp_server.py]
    include: [{names}]
{_workflow(spec, prefix=f"{spec.client_group}__")}"""


def _workflow(spec: NATSpec, prefix: str) -> str:
    flow = spec.workflow
    if flow.kind == "direct":
        return f"workflow:\n  _type: {spec.tools[0].type_name}\n"
    if flow.kind == "react":
        names = ", ".join(tool.instance for tool in spec.tools)
        return f"""workflow:
  _type: react_agent
  llm_name: {flow.llm}
  tool_names: [{names}]
  max_tool_calls: {flow.max_tool_calls}
"""
    lines = "".join(f"  {field_name(name)}: {prefix}{name}\n" for name in references(spec))
    return f"workflow:\n  _type: {flow.type_name}\n{lines}"


def references(spec: NATSpec) -> list[str]:
    """Instances (or functions of a group) that the workflow fetches, each once, in order of first use."""
    if isinstance(spec.workflow, Router):
        return list(dict.fromkeys(spec.workflow.commands.values()))
    if spec.workflow.kind == "pipeline":
        return list(dict.fromkeys(step.tool for step in spec.workflow.steps))
    return []


def field_name(reference: str) -> str:
    """The workflow's config field that holds a reference."""
    return f"{reference}_ref"


def pyproject(spec: NATSpec) -> str:
    return f"""[project]
name = "{spec.package}"
version = "1"
dependencies = ["nvidia-nat-core", "nvidia-nat-mcp"]

[project.entry-points.'nat.components']
{spec.package} = "{spec.package}.register"
"""
