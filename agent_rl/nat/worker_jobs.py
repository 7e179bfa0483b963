"""Jobs of the toolkit's interpreter: build and run a NAT project, be its MCP server.

Loaded into a fork server of `.venv-nat`; each call runs in a fresh fork. Standard library, NAT and mcp only. What the
jobs return is what the candidate's process said: raw answers, never a comparison with a right one, because no right
answer is known here.
"""

import asyncio
import copy
import importlib
import importlib.metadata
import io
import json
import logging
import os
import runpy
import sys
import traceback
import warnings
from typing import Any

import mcp.server.fastmcp
import mcp.server.stdio
import mcp.shared.memory
import nat.plugin_api  # noqa: F401
import yaml  # noqa: F401
from nat.builder.workflow_builder import WorkflowBuilder
from nat.cli.type_registry import GlobalTypeRegistry
from nat.data_models.config import Config
from nat.runtime.loader import PluginTypes, discover_and_register_plugins
from nat.utils.data_models.schema_validator import validate_schema
from nat.utils.io.yaml_tools import yaml_load

from agent_rl.sandbox.guest.run import direct

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

ERROR_CHARS = 300


# ---------------------------------------------------------------- the project inside the toolkit


def run_agent(request: dict[str, Any], workdir: str) -> dict[str, Any]:
    """Import, load, build and run a project; `stage` is the last one reached, `done` when nothing raised."""
    report: dict[str, Any] = {
        "stage": "import",
        "error": None,
        "workflow_type": None,
        "function_schemas": {},
        "runs": [],
    }
    sys.path.append(os.path.join(workdir, "src"))
    try:
        with GlobalTypeRegistry.get().pause_registration_changed_hooks():
            importlib.import_module(request["package"] + ".register")
        asyncio.run(_build_and_run(request, os.path.join(workdir, request["config_path"]), report))
    except BaseException as error:  # the boundary to the candidate's code: SystemExit included
        report["error"] = f"{type(error).__name__}: {error}"[:ERROR_CHARS]
    else:
        report["stage"] = "done"
    return report


async def _build_and_run(request: dict[str, Any], config_path: str, report: dict[str, Any]) -> None:
    report["stage"] = "load"
    raw = yaml_load(config_path)
    base = validate_schema(raw, Config)
    for wanted in request["runs"]:
        report["stage"] = "load"
        config, applied = _override(raw, base, request["instance"], wanted["overrides"])
        report["stage"] = "build"
        async with WorkflowBuilder.from_config(config=config) as builder:
            workflow = await builder.build()
            function = await builder.get_function(request["instance"])
            report["workflow_type"] = str(config.workflow.type)
            for name in config.functions:
                if name not in report["function_schemas"]:
                    schema = (await builder.get_function(name)).input_schema.model_json_schema()
                    report["function_schemas"][name] = _types(schema)
            report["stage"] = "run"
            answers = {"override_applied": applied, "workflow": [], "function": []}
            report["runs"].append(answers)
            for given in wanted["inputs"]:
                value = given if len(given) > 1 else next(iter(given.values()))
                answers["workflow"].append(await _answer(_ask_workflow(workflow, value)))
                answers["function"].append(await _answer(function.ainvoke(value)))


def _override(raw: dict[str, Any], base: Config, instance: str, overrides: dict[str, Any]) -> tuple[Config, bool]:
    """(the configuration with `overrides` in the sections of the instance and of the workflow, whether both took all).

    They are written before validation, so that they mean what the same text in the file would mean.
    """
    if not overrides:
        return base, True
    raw = copy.deepcopy(raw)
    applied = True
    tool = (base.functions.get(instance), raw.get("functions", {}).get(instance))
    for model, section in (tool, (base.workflow, raw.get("workflow"))):
        for field, value in overrides.items():
            if isinstance(section, dict) and field in type(model).model_fields:
                section[field] = value
            else:
                applied = False
    return validate_schema(raw, Config), applied


async def _ask_workflow(workflow: Any, value: Any) -> Any:
    async with workflow.run(value) as runner:
        return await runner.result(to_type=str)


async def _answer(pending: Any) -> Any:
    try:
        return _plain(await pending)
    except Exception as error:  # what the candidate's function raises is its answer to this input
        return {"exception": repr(error)[:200]}


def _plain(value: Any) -> Any:
    """JSON values as they are (a str stays a str, an int an int); anything else by its repr."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return {"not_json": repr(value)[:200]}
    return value


def _types(schema: dict[str, Any]) -> dict[str, str]:
    """Argument name -> JSON type of a JSON schema; `any` where it names none."""
    properties = schema.get("properties", {})
    return {name: str(properties[name].get("type", "any")) for name in sorted(properties)}


# ---------------------------------------------------------------- the MCP server


def serve_mcp(request: dict[str, Any], workdir: str) -> None:
    """Be `python PATH`, on the pipes the host talks to; what ends it is the last thing on stderr."""
    path = os.path.join(workdir, request["server_path"])
    # Line-buffered, so that a stray print shows between the messages and not after the last one.
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), line_buffering=True)
    sys.argv = [path]
    sys.path.append(os.path.dirname(path))
    try:
        runpy.run_path(path, run_name="__main__")
        sys.stdout.flush()
        os.write(2, b"the file ran to its end without serving\n")
    except BaseException:  # as the interpreter would: print it and end
        os.write(2, traceback.format_exc(limit=-3).encode())


# ---------------------------------------------------------------- before the forks

_WARM_UP_PACKAGE = "agent_rl_warm_up"
_WARM_UP_REGISTER = f'''
from collections.abc import AsyncGenerator
from pydantic import Field
from nat.plugin_api import Builder, FunctionBaseConfig, FunctionInfo, register_function

class ToolConfig(FunctionBaseConfig, name="{_WARM_UP_PACKAGE}"):
    digits: int = Field(default=2, ge=0, le=6, description="Digits kept.")

@register_function(config_type=ToolConfig)
async def tool(config: ToolConfig, _builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    async def run(value: float, unit: str) -> str:
        """Convert."""
        return f"{{value}} {{unit}}"
    yield FunctionInfo.from_fn(run, description=run.__doc__)
'''
_WARM_UP_CONFIG = f"functions:\n  tool:\n    _type: {_WARM_UP_PACKAGE}\nworkflow:\n  _type: {_WARM_UP_PACKAGE}\n"


def prepare(workdir: str) -> None:
    """Build one agent and answer one MCP call, so that late imports and caches are there before the forks."""
    folder, path = os.path.join(workdir, "src", _WARM_UP_PACKAGE), list(sys.path)
    os.makedirs(folder)
    for name, text in (("register.py", _WARM_UP_REGISTER), ("config.yml", _WARM_UP_CONFIG)):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    runs = [{"overrides": {"digits": 1}, "inputs": [{"value": 1.0, "unit": "m"}]}]
    config_path = f"src/{_WARM_UP_PACKAGE}/config.yml"
    request = {"package": _WARM_UP_PACKAGE, "config_path": config_path, "instance": "tool", "runs": runs}
    with GlobalTypeRegistry.push():
        report = run_agent(request, workdir)
    if report["error"]:
        raise RuntimeError(f"the toolkit cannot run a minimal agent: at {report['stage']}, {report['error']}")
    asyncio.run(_answer_one_mcp_call())
    sys.path[:] = path
    for name in [name for name in sys.modules if name.startswith(_WARM_UP_PACKAGE)]:
        del sys.modules[name]


async def _answer_one_mcp_call() -> None:
    server = mcp.server.fastmcp.FastMCP("warm_up")
    server.tool()(_warm_up_tool)
    async with mcp.shared.memory.create_connected_server_and_client_session(server._mcp_server) as client:
        await client.list_tools()
        await client.call_tool("_warm_up_tool", {"value": 1.0, "unit": "m"})


def _warm_up_tool(value: float, unit: str) -> str:
    """Convert."""
    return f"{value} {unit}"


discover_and_register_plugins(PluginTypes.CONFIG_OBJECT)
JOBS = {"run_agent": direct(run_agent), "serve_mcp": direct(serve_mcp)}
ABOUT = {"nvidia-nat-core": importlib.metadata.version("nvidia-nat-core")}
