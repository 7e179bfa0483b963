"""`agent-rl tools`: which tools `tools.use` knows, and one call of a tool by hand.

    agent-rl tools list
    agent-rl tools try calculator "15% of 80"
    agent-rl tools try search "Who founded Corekin?" --config configs/search_qa_grpo.yaml
    agent-rl tools try code_exec "print(2**10)"

Without a model: what is shown is what a model would read. Not here: the tools (`agent_rl/tools/`).
"""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_rl.agent.messages import ToolCall, ToolSpec
from agent_rl.config import ToolsConfig, validate_section
from agent_rl.config.load import apply_override, find_files, import_plugins, read_yaml
from agent_rl.errors import ConfigError, SandboxError, UserError, nearest_or_all
from agent_rl.failures import noting
from agent_rl.registry import TOOLS
from agent_rl.renamed import TOOL_ALIASES
from agent_rl.resources import find
from agent_rl.scripts.common import reads
from agent_rl.tools.base import ToolRegistry, ToolResult
from agent_rl.tools.toolset import Toolset

app = typer.Typer(help="List the tools of `tools.use`, or try one.", no_args_is_help=True)
Overrides = Annotated[list[str] | None, typer.Argument(help="section.key=value, applied in order.")]
ConfigFile = Annotated[Path | None, typer.Option(help="YAML file whose plug-ins and section `tools` count.")]


@app.command("list")
def list_tools(
    config: ConfigFile = None,
) -> None:
    """Print every tool that `tools.use` takes by name, and what a model is told about it."""
    _settings(config, ())
    for name in TOOLS.names():
        entry = TOOLS.get(name)
        entry = getattr(entry, "kind", entry)
        print(f"{name}: {getattr(entry, 'description', None) or _first_sentence(entry)}")
    print("by other names: " + ", ".join(f"{theirs} is {ours}" for theirs, ours in TOOL_ALIASES.items()))


def _first_sentence(opener: Any) -> str:
    return " ".join((opener.__doc__ or "a tool").split()).partition(". ")[0]


@app.command("try")
@reads("tools")
def try_tool(
    name: Annotated[str, typer.Argument(help="As in tools.use, an import path, or a tool of a server of tools.mcp.")],
    given: Annotated[str, typer.Argument(help="The argument as text, or all arguments as a JSON object.")] = "{}",
    overrides: Overrides = None,
    config: ConfigFile = None,
) -> None:
    """Call a tool once and print what a model would read; exit code 1 where the tool says that the call failed."""
    tools = _settings(config, overrides or ())
    name = TOOL_ALIASES.get(name, name)
    if not tools.get("mcp") or name in TOOLS or ":" in name:
        tools |= {"use": [name], "mcp": []}
    else:
        tools["use"] = []
    for section, users in (("search", {"search"}), ("code_exec", {"code_exec", "pytest_run"})):
        if name not in users:
            tools.pop(section, None)
    try:
        with noting() as failures:
            result = _call(
                validate_section(ToolsConfig, tools, source=str(config or "tools"), prefix="tools"), name, given
            )
    except SandboxError as error:
        raise UserError(f"{name}: {error}") from None
    print(result.text)
    for failed in failures:
        print(f"raised at {failed.place}" if failed.place else failed.error, file=sys.stderr)
    if not result.ok:
        raise typer.Exit(1)


def _settings(config: Path | None, overrides: "tuple[str, ...] | list[str]") -> dict[str, Any]:
    """The section `tools` of a file with its overrides, whose plug-ins are now imported."""
    raw = {} if config is None else read_yaml(find(config))
    for text in overrides:
        apply_override(raw, text, example="tools.search.provider=serper")
    find_files(raw)
    import_plugins(raw.get("plugins"), str(config or "overrides"))
    tools = raw.get("tools") or {}
    if not isinstance(tools, dict):
        raise ConfigError(f"{config}: tools = {tools!r:.80}: expected a section")
    return dict(tools)


def _call(tools: ToolsConfig, name: str, given: str) -> ToolResult:
    with closing(Toolset(tools)) as toolset:
        toolset.start()
        toolset.start_sandbox()
        made = {tool.name: tool for tool in toolset.make({"task_id": "try"})}
        if tools.use:
            (tool,) = made.values()
        elif name in made:
            tool = made[name]
        else:
            raise ConfigError(f"there is no tool {name!r}{nearest_or_all(name, (*TOOLS.names(), *made))}")
        return ToolRegistry([tool]).run(ToolCall(name=tool.name, arguments=read_arguments(tool.spec, given)))


def read_arguments(tool: ToolSpec, given: str) -> dict[str, Any]:
    """The arguments of a JSON object; else the text as the tool's only argument that has to be given, or only one.

    ConfigError where the tool has none, or several.
    """
    try:
        read = json.loads(given)
    except ValueError as error:
        if given.lstrip().startswith("{"):
            raise ConfigError(f"the arguments {given!r:.60} are no JSON object: {error}") from None
        read = given
    if isinstance(read, dict):
        return read
    properties = tool.parameters.get("properties", {})
    names = [*tool.parameters.get("required", ())] or [*properties]
    if not names:
        raise ConfigError(f"{tool.name} takes no argument; leave {given!r:.60} out")
    if len(names) > 1:
        raise ConfigError(
            f"{tool.name} has not one argument but {', '.join(properties)}; give a JSON object such as "
            f"'{{\"{names[0]}\": ...}}'"
        )
    kinds = properties[names[0]].get("type", "string")
    return {names[0]: given if "string" in ([kinds] if isinstance(kinds, str) else kinds) else read}
