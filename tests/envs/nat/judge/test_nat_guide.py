"""The guide's sample project and each of its warnings, run by the real toolkit."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent_rl.envs.nat.judge.validator.guide import GUIDE

ROOT = Path(__file__).parents[4]
PYTHON = Path(os.environ.get("AGENT_RL_NAT_PYTHON", ROOT / ".venv-nat" / "bin" / "python"))
REACT_PYTHON = Path(os.environ.get("AGENT_RL_NAT_REACT_PYTHON", ROOT / ".venv-nat-react" / "bin" / "python"))
BLOCKS = re.findall(r"^`([^`\n]+)`[^\n]*\n```\w+\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
CONFIG_PATH, CLIENT_PATH = (f"src/nat_store/configs/{name}.yml" for name in ("config", "config-mcp-client"))
REGISTER_PATH = "src/nat_store/register.py"
CONFIG, REACT = (text for path, text in BLOCKS if path == CONFIG_PATH)
PROJECT = {**dict(BLOCKS), CONFIG_PATH: CONFIG, "src/nat_store/__init__.py": ""}

needs_toolkit = pytest.mark.skipif(not PYTHON.is_file(), reason=f"{PYTHON} is missing; run `make setup`")
needs_agents = pytest.mark.skipif(not REACT_PYTHON.is_file(), reason=f"{REACT_PYTHON}, with react_agent, is missing")

PLAYER = """
import asyncio, importlib, json, logging, os, sys
from mcp import ClientSession, StdioServerParameters, stdio_client
from nat.cli.type_registry import GlobalTypeRegistry
from nat.runtime.loader import PluginTypes, discover_and_register_plugins, load_workflow

logging.disable(logging.CRITICAL)
discover_and_register_plugins(PluginTypes.CONFIG_OBJECT)

async def ask(config, requests):
    async with load_workflow(config) as manager:
        answers = []
        for request in requests:
            async with manager.run(request) as runner:
                answers.append(await runner.result(to_type=str))
        return answers

async def serve(calls):
    parameters = StdioServerParameters(command=sys.executable, args=["mcp_server.py"])
    async with stdio_client(parameters) as pipes, ClientSession(*pipes) as client:
        await client.initialize()
        answers = [sorted(tool.name for tool in (await client.list_tools()).tools)]
        for name, arguments in calls:
            result = await client.call_tool(name, arguments)
            answers.append([result.isError, result.content[0].text])
        return answers

def play(job):
    os.chdir(job["folder"])
    sys.path.append(os.path.abspath("src"))
    try:
        with GlobalTypeRegistry.push():
            if "calls" in job:
                return asyncio.run(serve(job["calls"]))
            importlib.import_module("nat_store.register")
            if "react" in job:
                exec(job["react"], {})
            return asyncio.run(ask(job["config"], job["requests"]))
    except BaseException as error:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return f"{type(error).__name__}: {error}"
    finally:
        sys.path.pop()
        for name in [name for name in sys.modules if name.startswith("nat_store")]:
            del sys.modules[name]

print(json.dumps([play(job) for job in json.load(sys.stdin)]))
"""

SCRIPTED_LLM = """
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from nat.plugin_api import LLMBaseConfig, LLMFrameworkEnum, LLMProviderInfo, register_llm_client, register_llm_provider

class ScriptedConfig(LLMBaseConfig, name="scripted"):
    pass

class Scripted(BaseChatModel):
    turns: list = ["Thought: use it\\nAction: left__put\\nAction Input: {'amount': 3}"]
    _llm_type = "scripted"

    def _generate(self, messages, stop=None, run_manager=None, **_):
        text = self.turns.pop() if self.turns else "Final Answer: " + messages[-1].content
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=text))])

@register_llm_provider(config_type=ScriptedConfig)
async def provider(config, builder):
    yield LLMProviderInfo(config=config, description="scripted")

@register_llm_client(config_type=ScriptedConfig, wrapper_type=LLMFrameworkEnum.LANGCHAIN)
async def client(config, builder):
    yield Scripted()
"""
"""Calls the group's function, then answers with what it read last."""


def save(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def run_nat(arguments: list[str], folder: Path, text: str = "", python: Path = PYTHON) -> str:
    """What the toolkit's interpreter prints; `python` is that interpreter, for MCP clients that start a server."""
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "PYTHONPATH": ""}
    done = subprocess.run(
        [python, *arguments],
        input=text,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def run_jobs(folder: Path, jobs: list[dict[str, Any]], python: Path = PYTHON) -> list[Any]:
    """Run jobs, each in a project folder of its own: the sample with `files` changed."""
    for number, job in enumerate(jobs):
        job["folder"] = str(save(folder / str(number), {**PROJECT, **job.pop("files", {})}))
    return json.loads(run_nat(["-c", PLAYER], folder, json.dumps(jobs), python))


def edited(*edits: tuple[str, str, str]) -> dict[str, str]:
    """Files of the sample after (path, old, new)."""
    files: dict[str, str] = {}
    for path, old, new in edits:
        text = files.get(path, PROJECT[path])
        assert old in text, f"{path} of the guide no longer holds {old!r}"
        files[path] = text.replace(old, new)
    return files


def test_each_block_is_a_file_of_the_layout() -> None:
    assert len(BLOCKS) == GUIDE.count("```") / 2
    listed = re.findall(r"^- ([\w/.-]+\.\w+):", GUIDE.partition("# Logic")[0], flags=re.MULTILINE)
    assert sorted(listed) == sorted(PROJECT)


def test_the_entry_point_names_the_module_that_registers() -> None:
    assert tomllib.loads(PROJECT["pyproject.toml"])["project"]["entry-points"] == {
        "nat.components": {"nat_store": "nat_store.register"}
    }


@needs_toolkit
def test_the_samples_tests_pass(tmp_path: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-o", "pythonpath=src"]
    assert "3 passed" in run_nat(["-m", "pytest", *options], save(tmp_path, PROJECT))


@needs_toolkit
def test_the_workflow_answers_the_same_with_local_tools_and_with_the_mcp_servers(tmp_path: Path) -> None:
    requests = {
        "convert|2|kg|g": "2000.00",
        "convert|2|kg|lb": "error: unknown unit",
        "convert|-2|kg|g": "error: negative value",
        "put|3": "3",
        "put|4": "error: shelf is full",
        "put|2": "5",
        "put|one": "error: malformed request",
        "put": "error: malformed request",
        "sell|1": "error: unknown command",
    }
    jobs = [{"config": path, "requests": list(requests)} for path in (CONFIG_PATH, CLIENT_PATH)]
    assert run_jobs(tmp_path, jobs) == [list(requests.values())] * 2


@needs_toolkit
def test_the_server_offers_the_tools_and_a_raised_error_is_an_mcp_error(tmp_path: Path) -> None:
    calls = [("main_tool", {"value": 1.5, "from_unit": "kg", "to_unit": "g"}), ("take", {"amount": 1})]
    raising = edited(("mcp_server.py", "return left.take(amount)", "raise ValueError(left.take(amount))"))
    right, raised = run_jobs(tmp_path, [{"calls": calls}, {"calls": calls, "files": raising}])
    assert right == [["main_tool", "put", "take"], [False, "1500.00"], [False, "error: too few items"]]
    assert raised[2] == [True, "Error executing tool take: error: too few items"]


@needs_agents
def test_the_agent_calls_the_groups_function_and_reads_its_answer(tmp_path: Path) -> None:
    scripted = REACT.replace("    _type: openai\n    model_name: gpt-4o-mini\n", "    _type: scripted\n")
    assert scripted != REACT
    job = {"config": CONFIG_PATH, "requests": ["Put 3"], "react": SCRIPTED_LLM, "files": {CONFIG_PATH: scripted}}
    assert run_jobs(tmp_path, [job], REACT_PYTHON) == [["3"]]


MISTAKES: dict[str, tuple[dict[str, str], str]] = {
    "return for yield": (
        edited((REGISTER_PATH, "    yield FunctionInfo", "    return FunctionInfo")),
        "TypeError: 'coroutine' object is not an async iterator",
    ),
    "an argument without annotation": (
        edited((REGISTER_PATH, "run(value: float", "run(value")),
        "ValidationError: 1 validation error for OutputArgsSchema\nvalue\n  Input should be a valid string",
    ),
    "a plain def": (
        edited((REGISTER_PATH, "async def run(value", "def run(value")),
        "ValueError: Invalid workflow function. Must be an async generator or coroutine",
    ),
    "no argument": (
        edited((REGISTER_PATH, "take(amount: int)", "take()")),
        "ValueError: single_fn must have exactly one parameter",
    ),
    "a reference with one underscore": (
        edited((CONFIG_PATH, "left__put", "left_put")),
        "ValueError: Function `left_put` not found",
    ),
    "a function that is not included": (
        edited((CONFIG_PATH, "[put, take]", "[take]")),
        "ValueError: Function `left__put` not found",
    ),
    "an include that does not exist": (
        edited((CONFIG_PATH, "[put, take]", "[put, drop]")),
        "ValueError: Unknown included functions: ['drop']",
    ),
    "no workflow": (
        edited((CONFIG_PATH, CONFIG[CONFIG.index("workflow:") :], "")),
        'KeyError: "Could not find a registered function for config',
    ),
    "a top-level key of one's own": (
        edited((CONFIG_PATH, "workflow:", "tools: {}\nworkflow:")),
        "ValueError: Invalid configuration: tools: Extra inputs are not permitted",
    ),
    "a value out of bounds": (
        edited((CONFIG_PATH, "mass_convert", "mass_convert\n    precision: 7")),
        "ValueError: Invalid configuration: functions: Input should be less than or equal to 6",
    ),
    "two classes of one name": (
        edited((REGISTER_PATH, 'name="store_router"', 'name="mass_convert"')),
        "ValueError: Invalid configuration: functions: Input tag 'mass_convert' found",
    ),
    "a name that NAT has": (
        edited(
            (REGISTER_PATH, '"mass_convert"', '"current_datetime"'), (CONFIG_PATH, "mass_convert", "current_datetime")
        ),
        "ValueError: Invalid configuration: functions: Input tag 'current_datetime' found",
    ),
    "a misspelt field, which is not noticed": (
        edited((CONFIG_PATH, "mass_convert", "mass_convert\n    precison: 3")),
        "['2000.00', '2']",
    ),
    "a key written twice, which is not noticed": (
        edited((CONFIG_PATH, "mass_convert", "mass_convert\n    precision: 3\n    precision: 4")),
        "['2000.0000', '2']",
    ),
}


@needs_toolkit
def test_the_mistakes_that_the_guide_names_behave_as_it_states(tmp_path: Path) -> None:
    requests = {"config": CONFIG_PATH, "requests": ["convert|2|kg|g", "put|2"]}
    bare = edited((REGISTER_PATH, "tool.ainvoke(inputs)", 'tool.ainvoke(inputs["amount"])'))
    jobs = [{**requests, "files": files} for files, _ in MISTAKES.values()]
    jobs += [{"config": path, "requests": ["put|2"], "files": bare} for path in (CONFIG_PATH, CLIENT_PATH)]
    *answers, bare_local, bare_served = run_jobs(tmp_path, jobs)
    expected = {name: text for name, (_, text) in MISTAKES.items()}
    assert {
        name: str(answer)[: len(expected[name])] for name, answer in zip(MISTAKES, answers, strict=True)
    } == expected
    assert (bare_local, bare_served) == (["2"], "TypeError: ")
