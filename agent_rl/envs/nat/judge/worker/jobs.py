"""Jobs of the toolkit's interpreter: build and run a NAT project, be its MCP server.

Loaded into a fork server of `.venv-nat`; each call runs in a fresh fork. Standard library, NAT and mcp only. The
jobs return what the candidate's process reported: raw answers, never a comparison with a right one, because no right
answer is known here.
"""

import asyncio
import copy
import importlib
import importlib.metadata
import inspect
import json
import logging
import os
import sys
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

from agent_rl.envs.nat.judge.worker import confined, exchanges, mock_tools
from agent_rl.envs.nat.judge.worker.talk import Talk
from agent_rl.sandbox.guest import linux
from agent_rl.sandbox.guest.base_jobs import outcomes_of_tests
from agent_rl.sandbox.guest.run import direct

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

ERROR_CHARS = 300
RUN_S = 3.0
"""How long one build with its questions may take, as far as it waits; the whole run has the sandbox's deadline."""


# ---------------------------------------------------------------- the project inside the toolkit


def run_agent(request: dict[str, Any], workdir: str) -> dict[str, Any]:
    """Import a project, then load, build and question it once for every run, as the host orders it over the talk.

    `schemas` names the functions to describe; None is all of them. What raises is the answer to the order it was raised
    in, and the end. The result is empty: a process that ends otherwise has nothing believed.
    """
    if request["table_bytes"]:
        exchanges.keep_table(request["table_bytes"])
    talk = Talk()
    linux.prctl(linux.PR_SET_DUMPABLE, 0)  # a server of the project's own must not write into this process
    mock_tools.let_servers_import(_absolute(request["roots"], workdir))
    if not request["confined"]:  # else what others import late, as a package that is not installed, would be its files
        sys.path += _absolute(request["roots"], workdir)
    os.chdir(workdir)
    configs = _Configs(workdir)
    try:
        talk.next()
        _import(request["modules"] or [request["package"] + ".register"], request["confined"] and request["roots"][0])
        talk.answer()
        asyncio.run(_all_runs(request, talk, configs))
    except BaseException as error:  # the boundary to the candidate's code: SystemExit included
        talk.answer(error=f"{type(error).__name__}: {error}"[:ERROR_CHARS])
    return {}


def _import(modules: list[str], folder: str | bool) -> None:
    """Import modules, confined ones from the folder of that name."""
    load = confined.Confined(os.path.abspath(str(folder))).load if folder else importlib.import_module
    with GlobalTypeRegistry.get().pause_registration_changed_hooks():
        for module in modules:
            load(module)


def _absolute(roots: list[str], workdir: str) -> list[str]:
    """Folders to import from, for the end of the path, so that no project file can shadow an installed module."""
    return [os.path.join(workdir, root) for root in roots]


class _Configs:
    """The configurations as they stood before any code of the project ran: its servers may write to its folder."""

    def __init__(self, workdir: str) -> None:
        self._read: dict[str, Any] = {}
        for folder, _, names in os.walk(os.path.realpath(workdir)):
            for path in (os.path.join(folder, name) for name in names if name.endswith((".yml", ".yaml"))):
                try:
                    self._read[path] = yaml_load(path)
                except Exception as error:  # a file of the candidate's; it matters when a build asks for it
                    self._read[path] = error

    def __getitem__(self, path: str) -> Any:
        """What the toolkit reads in the file. Raises what it raised then, and FileNotFoundError for one made later."""
        found = self._read.get(os.path.realpath(path), FileNotFoundError(path))
        if isinstance(found, Exception):
            raise found
        return copy.deepcopy(found)


async def _all_runs(request: dict[str, Any], talk: Talk, configs: _Configs) -> None:
    for number in range(request["num_runs"]):
        build = talk.next()["build"]
        config, applied = _configured(build, configs[build["config"]])
        exchanges.use_table(number)
        mock_tools.set_swapped({} if build["through_client"] else build["swapped"])
        mock_tools.set_served(build["swapped"] if build["through_client"] else {})
        mock_tools.forget_leads()
        talk.answer(applied=applied)
        talk.next()
        async with asyncio.timeout(RUN_S), WorkflowBuilder.from_config(config=config) as builder:
            workflow = await builder.build()
            names = request["schemas"]
            talk.answer(**({} if number else await _described(names, config, workflow, builder)))
            while "ask" in (order := talk.next()):
                mock_tools.add_leads(order["leads"])
                talk.answer(answer=await _ask(builder, workflow, *order["ask"]))
        talk.answer()
    talk.next()
    talk.answer()


def _configured(build: dict[str, Any], raw: Any) -> tuple[Config, bool]:
    """(the configuration with overrides and scripted LLMs, whether every overridden field exists).

    They are written before validation, so that they mean what the same text in the file would mean.
    """
    base = validate_schema(raw, Config)
    raw, applied = copy.deepcopy(raw), True
    for section, name, values in build["overrides"]:
        model, place = getattr(base, section), raw.get(section)
        if name is not None:
            model, place = model.get(name), (place or {}).get(name)
        for field, value in values.items():
            if isinstance(place, dict) and field in type(model).model_fields:
                place[field] = value
            else:
                applied = False
    for name in build["scripted"]:
        raw["llms"][name] = {"_type": "checker_scripted_llm"}
    return validate_schema(raw, Config), applied


async def _described(names: list[str] | None, config: Config, workflow: Any, builder: Any) -> dict[str, Any]:
    functions = {name: await builder.get_function(name) for name in (config.functions if names is None else names)}
    for group in config.function_groups if names is None else ():
        functions |= await (await builder.get_function_group(group)).get_accessible_functions()
    return {
        "workflow_type": str(config.workflow.type),
        "workflow_schema": _types(workflow.input_schema.model_json_schema()),
        "schemas": {name: _types(each.input_schema.model_json_schema()) for name, each in functions.items()},
    }


async def _ask(builder: Any, workflow: Any, target: str, inputs: dict[str, Any], via: str) -> Any:
    if target:
        try:
            function = await builder.get_function(target)
        except (ValueError, KeyError):
            return {"missing": target}
        return await _answer(function.acall_invoke(**inputs))
    if via:
        mock_tools.set_script(via, inputs)
        return await _answer(_ask_workflow(workflow, f"Use {via} on {json.dumps(inputs)}."))
    return await _answer(_ask_workflow(workflow, inputs if len(inputs) > 1 else next(iter(inputs.values()))))


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
    if request["table_bytes"]:
        exchanges.keep_table(request["table_bytes"])
    sys.stdout = mock_tools.line_buffered_stdout()
    mock_tools.let_servers_import(_absolute(request.get("roots", []), workdir))
    mock_tools.serve_file(os.path.join(workdir, request["server_path"]))


# ---------------------------------------------------------------- the tests of a person's project


def run_project_tests(request: dict[str, Any], workdir: str) -> dict[str, Any]:
    """As the sandbox's `run_tests`, with `roots` importable, and `async def` tests run without a plugin."""
    sys.path += _absolute(request["roots"], workdir)
    return outcomes_of_tests(request["targets"], workdir, _CoroutineTests())


class _CoroutineTests:
    """Pytest plugin: does what pytest-asyncio does for a test without async fixtures, which pytest alone fails."""

    def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool | None:
        if not inspect.iscoroutinefunction(pyfuncitem.obj):
            return None
        names = pyfuncitem._fixtureinfo.argnames
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True


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
_WARM_UP_TOOL = f"functions:\n  tool:\n    _type: {_WARM_UP_PACKAGE}\n"


def prepare(workdir: str) -> None:
    """Build one agent and answer one MCP call, so that late imports and caches are there before the forks."""
    inputs = {"value": 1.0, "unit": "m"}
    run = {"overrides": [["functions", "tool", {"digits": 1}]], "questions": [["", inputs, ""], ["tool", inputs, ""]]}
    warm_up(workdir, f"workflow:\n  _type: {_WARM_UP_PACKAGE}\n", run)
    asyncio.run(_answer_one_mcp_call())


def warm_up(workdir: str, workflow: str, run: dict[str, Any]) -> None:
    """Build an agent with one tool and this workflow section, send one question, and discard it."""
    folder, here = os.path.join(workdir, "src", _WARM_UP_PACKAGE), os.getcwd()
    os.makedirs(folder, exist_ok=True)
    for name, text in (("register.py", _WARM_UP_REGISTER), ("config.yml", _WARM_UP_TOOL + workflow)):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    config = f"src/{_WARM_UP_PACKAGE}/config.yml"
    defaults = {"overrides": [], "swapped": {}, "through_client": False, "scripted": []}
    talk = _Rehearsal({**defaults, "config": config, **run})
    os.chdir(workdir)
    with GlobalTypeRegistry.push():
        _import([f"{_WARM_UP_PACKAGE}.register"], "src")
        asyncio.run(_all_runs({"num_runs": 1, "schemas": ["tool"]}, talk, _Configs(workdir)))
    confined.let_go()
    os.chdir(here)
    for name in [name for name in sys.modules if name.startswith(_WARM_UP_PACKAGE)]:
        del sys.modules[name]


class _Rehearsal(Talk):
    """A talk without a host."""

    def __init__(self, run: dict[str, Any]) -> None:
        asks = [{"ask": question, "leads": []} for question in run["questions"]]
        self._orders = [{"build": run}, {}, *asks, {}, {}]

    def next(self) -> dict[str, Any]:
        return self._orders.pop(0)

    def answer(self, **facts: Any) -> None:
        if isinstance(answer := facts.get("answer"), dict):
            raise RuntimeError(f"the toolkit cannot run a minimal agent: {answer}")


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
JOBS = {
    "run_agent": direct(run_agent),
    "serve_mcp": direct(serve_mcp),
    "run_project_tests": direct(run_project_tests),
}
ABOUT = {name: importlib.metadata.version(name) for name in ("nvidia-nat-core", "nvidia-nat-mcp", "mcp")}
