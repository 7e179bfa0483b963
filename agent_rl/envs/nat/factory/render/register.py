"""register.py of a reference project: the components that the toolkit builds."""

from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.families.base import literal
from agent_rl.envs.nat.factory.render.configs import field_name, references
from agent_rl.envs.nat.factory.render.names import (
    arguments,
    builder_name,
    class_name,
    import_line,
    import_logic,
    signature,
)
from agent_rl.envs.nat.spec import ConfigField, Group, InputField, NATSpec, Pipeline, Router, Tool


def register(spec: NATSpec) -> str:
    parts = [_tool(spec, tool) for tool in spec.tools]
    if spec.group:
        parts.append(_group(spec.group))
    if isinstance(spec.workflow, Router):
        parts.append(_router(spec, spec.workflow))
    elif isinstance(spec.workflow, Pipeline):
        parts.append(_pipeline(spec, spec.workflow))
    return _head(spec) + "\n\n".join(parts)


def _head(spec: NATSpec) -> str:
    names = {"Builder"}
    has_functions = bool(spec.tools) or spec.workflow.kind in ("router", "pipeline")
    if has_functions:
        names |= {"FunctionBaseConfig", "FunctionInfo", "register_function"}
    if spec.workflow.kind in ("router", "pipeline"):
        names.add("FunctionRef")
    if spec.group:
        names |= {"FunctionGroup", "FunctionGroupBaseConfig", "register_function_group"}
    line = import_line("nat.plugin_api", names)
    fields = any(tool.config_field for tool in spec.tools) or (spec.group and spec.group.config_field)
    pydantic = "from pydantic import Field\n" if fields or references(spec) else ""
    extra = sorted({each for tool in spec.tools for each in FAMILIES[tool.family].answer(tool, None).imports})
    packages = "".join(f"{each}\n" for each in extra)
    return f'''"""Components of {spec.package}."""

from collections.abc import AsyncGenerator

{packages}{line}
{pydantic}
{import_logic(spec)}

'''


def _field(field: ConfigField | None) -> str:
    if field is None:
        return ""
    bounds = f"ge={field.low}, le={field.high}"
    return f'\n    {field.name}: int = Field(default={field.default}, {bounds}, description="{field.description}")\n'


def _tool(spec: NATSpec, tool: Tool) -> str:
    family = FAMILIES[tool.family]
    setting = f"config.{tool.config_field.name}" if tool.config_field else None
    lines = "".join(f"        {line}\n" for line in family.answer(tool, setting).statements)
    config, builder = class_name(spec, tool), builder_name(spec, tool)
    return f'''class {config}(FunctionBaseConfig, name="{tool.type_name}"):
    """Configuration of {tool.type_name}."""
{_field(tool.config_field)}

@register_function(config_type={config})
async def {builder}(config: {config}, _builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    """Register {tool.type_name}."""

    async def run({signature(tool.inputs)}) -> str:
        """{family.summary}"""
{lines}
    yield FunctionInfo.from_fn(run, description=run.__doc__)
'''


def _group(group: Group) -> str:
    setting = f"config.{group.config_field.name}" if group.config_field else ""
    functions = "".join(
        f'''
    async def {function.name}({signature(function.nat_inputs)}) -> str:
        """{function.description}"""
        return state.{function.name}({arguments(function.inputs)})

    group.add_function("{function.name}", {function.name}, description={function.name}.__doc__)
'''
        for function in group.functions
    )
    return f'''class GroupConfig(FunctionGroupBaseConfig, name="{group.type_name}"):
    """Configuration of {group.type_name}."""
{_field(group.config_field)}

@register_function_group(config_type=GroupConfig)
async def build_group(config: GroupConfig, _builder: Builder) -> AsyncGenerator[FunctionGroup, None]:
    """Register {group.type_name}."""
    state = {group.class_name}({setting})
    group = FunctionGroup(config=config)
{functions}
    yield group
'''


def _workflow(spec: NATSpec, type_name: str, head: str, run: str) -> str:
    """A function that fetches the tools by reference; `head` comes before the coroutine `run`."""
    names = references(spec)
    fields = "".join(f'    {field_name(name)}: FunctionRef = Field(description="Name of {name}.")\n' for name in names)
    fetched = "".join(f"    {name} = await builder.get_function(config.{field_name(name)})\n" for name in names)
    return f'''class WorkflowConfig(FunctionBaseConfig, name="{type_name}"):
    """Configuration of {type_name}."""

{fields}

@register_function(config_type=WorkflowConfig)
async def workflow(config: WorkflowConfig, builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    """Register {type_name}."""
{fetched}{head}
{run}
    yield FunctionInfo.from_fn(run, description=run.__doc__)
'''


def inputs_of(spec: NATSpec, reference: str) -> tuple[InputField, ...]:
    """Inputs of the tool, or of the group's function, that a workflow refers to."""
    if spec.group and "__" in reference:
        name = reference.split("__", 1)[1]
        return next(function.inputs for function in spec.group.functions if function.name == name)
    return spec.tool(reference).inputs


def _router(spec: NATSpec, router: Router) -> str:
    head = "    commands = {\n"
    for keyword, reference in router.commands.items():
        kinds = ", ".join(f'"{each.name}": {each.type}' for each in inputs_of(spec, reference))
        head += f"        {literal(keyword)}: ({reference}, {{{kinds}}}),\n"
    head += "    }\n"
    bare = any(not inputs_of(spec, reference) for reference in router.commands.values())
    values = '(values or {"unused": ""})' if bare else "values"
    run = f'''    async def run(request: str) -> str:
        """Send a request to the tool of its keyword."""
        keyword, *parts = (part.strip() for part in request.split({literal(router.separator)}))
        if keyword not in commands:
            return {literal(router.unknown)}
        function, kinds = commands[keyword]
        if len(parts) != len(kinds):
            return {literal(router.malformed)}
        try:
            values = {{name: kind(part) for (name, kind), part in zip(kinds.items(), parts, strict=True)}}
        except ValueError:
            return {literal(router.malformed)}
        return str(await function.acall_invoke(**{values}))
'''
    return _workflow(spec, router.type_name, head, run)


def _pipeline(spec: NATSpec, pipeline: Pipeline) -> str:
    types = {field.name: field.type for field in pipeline.inputs}
    lines = []
    for number, step in enumerate(pipeline.steps, start=1):
        kinds = {field.name: field.type for field in inputs_of(spec, step.tool)}
        given = []
        for name, source in step.arguments.items():
            variable = source.replace("step ", "step_")
            is_text = source not in types or types[source] == "str"
            value = variable if kinds[name] == "str" or not is_text else f"{kinds[name]}({variable})"
            given.append(f"{name}={value}")
        call = f"str(await {step.tool}.acall_invoke({', '.join(given)}))"
        if step.only_if_digit:
            source = next(iter(step.arguments.values())).replace("step ", "step_")
            lines += [f"step_{number} = {source}", f"if any(char.isdigit() for char in {source}):"]
            lines.append(f"    step_{number} = {call}")
        else:
            lines.append(f"step_{number} = {call}")
        if pipeline.on_error == "stop" and (number < len(pipeline.steps) or pipeline.joiner is not None):
            lines += [f'if step_{number}.startswith("error"):', f"    return step_{number}"]
    answers = [f"step_{number}" for number in range(1, len(pipeline.steps) + 1)]
    final = answers[-1] if pipeline.joiner is None else f"{literal(pipeline.joiner)}.join([{', '.join(answers)}])"
    body = "".join(f"        {line}\n" for line in [*lines, f"return {final}"])
    run = f'''    async def run({signature(pipeline.inputs)}) -> str:
        """Call the tools one after the other."""
{body}'''
    return _workflow(spec, pipeline.type_name, "", run)
