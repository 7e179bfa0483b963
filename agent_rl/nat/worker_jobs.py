"""Jobs of the toolkit's interpreter: build and run a NAT project, talk to its MCP server.

Loaded into a fork server of `.venv-nat`; each call runs in a fresh fork. Standard library, NAT and mcp only. What the
jobs return is what the candidate's process said: raw answers, never a comparison with a right one, because no right
answer is known here.
"""

import asyncio
import contextlib
import copy
import importlib
import importlib.metadata
import io
import json
import logging
import os
import runpy
import select
import signal
import sys
import time
import traceback
import warnings
from typing import Any, NoReturn

import mcp.server.fastmcp  # noqa: F401  preloaded for the candidates
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
MCP_LINE_BYTES = 256 * 1024


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


# ---------------------------------------------------------------- the MCP server over real pipes


class ProtocolError(Exception):
    """The server broke the protocol, was silent, or ended."""


class ServerEnded(Exception):
    """End of file on the server's stdout."""


class McpPeer:
    """The client side of newline-delimited JSON-RPC on two file descriptors, with a deadline for every request."""

    def __init__(self, read_fd: int, write_fd: int, timeout_s: float) -> None:
        self._read_fd, self._write_fd, self._timeout_s = read_fd, write_fd, timeout_s
        self._buffer = b""
        self._last_id = 0

    def notify(self, method: str) -> None:
        self._send({"jsonrpc": "2.0", "method": method})

    def request(self, method: str, *params: dict[str, Any]) -> list[dict[str, Any]]:
        """Send one request for each of `params` together; return the responses in that order.

        Sent together because most of a call's time is the way to the server and back. Raises ProtocolError or
        ServerEnded.
        """
        ids = range(self._last_id + 1, self._last_id + 1 + len(params))
        self._last_id += len(params)
        self._send(
            *({"jsonrpc": "2.0", "id": i, "method": method, "params": p} for i, p in zip(ids, params, strict=True))
        )
        responses: dict[int, dict[str, Any]] = {}
        while len(responses) < len(params):
            message = _parse(self._line(time.monotonic() + self._timeout_s, method))
            if message.get("id") in ids and "method" not in message:
                responses[message["id"]] = message  # all else is the server's own notifications and requests
        return [responses[i] for i in ids]

    def _send(self, *messages: dict[str, Any]) -> None:
        data = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
        try:
            while data:
                data = data[os.write(self._write_fd, data) :]
        except BrokenPipeError:
            raise ServerEnded from None

    def _line(self, deadline: float, method: str) -> bytes:
        while b"\n" not in self._buffer:
            if len(self._buffer) > MCP_LINE_BYTES:
                raise ProtocolError(f"a line on stdout is longer than {MCP_LINE_BYTES} bytes")
            if not select.select([self._read_fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise ProtocolError(f"no answer to {method} within {self._timeout_s:g} s")
            chunk = os.read(self._read_fd, 65536)
            if not chunk:
                raise ServerEnded
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line


def _parse(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise ProtocolError(f"stdout is for JSON-RPC only, but the server wrote {line[:80]!r}")
    return message


def run_mcp(request: dict[str, Any], workdir: str) -> dict[str, Any]:
    """Handshake with the server file over stdio, list its tools, call one with every input and an unknown one once."""
    report: dict[str, Any] = {"stage": "start", "error": None, "kind": None, "server_name": None}
    report |= {"tools": {}, "answers": [], "is_error": [], "unknown_tool_refused": None}
    stderr = os.open(os.environ["TMPDIR"], os.O_TMPFILE | os.O_RDWR, 0o600)
    (to_server_r, to_server_w), (from_server_r, from_server_w) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        _serve(os.path.join(workdir, request["server_path"]), to_server_r, from_server_w, stderr)
    os.close(to_server_r)
    os.close(from_server_w)
    try:
        _converse(McpPeer(from_server_r, to_server_w, request["request_timeout_s"]), request, report)
    except ProtocolError as error:
        report["error"], report["kind"] = str(error)[:ERROR_CHARS], "candidate"
    except ServerEnded:
        report["error"], report["kind"] = _why_ended(pid, stderr)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        report["error"] = f"malformed answer to {report['stage']}: {error!r}"[:ERROR_CHARS]
        report["kind"] = "candidate"
    else:
        report["stage"] = "done"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return report


def _serve(path: str, read_fd: int, write_fd: int, stderr: int) -> NoReturn:
    """In the grandchild: be `python PATH`, on pipes, with nothing of the job's own open."""
    try:
        os.dup2(read_fd, 0)
        os.dup2(write_fd, 1)
        os.dup2(stderr, 2)
        os.closerange(3, 1 << 20)  # the result pipe among them
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
        # Line-buffered, so that a stray print shows between the messages and not after the last one.
        out = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
        sys.stdout = io.TextIOWrapper(out, encoding="utf-8", line_buffering=True)
        sys.argv = [path]
        sys.path.append(os.path.dirname(path))
        runpy.run_path(path, run_name="__main__")
        sys.stdout.flush()
        os.write(2, b"the file ran to its end without serving\n")
    except BaseException:  # as the interpreter would: print it and end
        os.write(2, traceback.format_exc(limit=-3).encode())
    finally:
        os._exit(1)


def _converse(peer: McpPeer, request: dict[str, Any], report: dict[str, Any]) -> None:
    report["stage"] = "initialize"
    client = {"name": "agent_rl", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    report["server_name"] = str(_result(peer.request("initialize", hello)[0])["serverInfo"]["name"])[:200]
    peer.notify("notifications/initialized")
    report["stage"] = "tools/list"
    tools = _result(peer.request("tools/list", {})[0])["tools"]
    report["tools"] = {str(tool["name"]): _types(tool["inputSchema"]) for tool in tools}
    report["stage"] = "tools/call"
    calls = [{"name": request["tool"], "arguments": given} for given in request["inputs"]]
    *answers, unknown = map(_tool_answer, peer.request("tools/call", *calls, {"name": "no_such_tool", "arguments": {}}))
    report["answers"] = [text for text, _ in answers]
    report["is_error"] = [is_error for _, is_error in answers]
    report["unknown_tool_refused"] = unknown[1]


def _tool_answer(message: dict[str, Any]) -> tuple[str, bool]:
    """(text, isError) of the response to tools/call."""
    if "error" in message:
        return str(message["error"])[:ERROR_CHARS], True
    result = _result(message)
    text = "".join(str(part.get("text", "")) for part in result["content"])
    return text, bool(result.get("isError", False))


def _result(message: dict[str, Any]) -> dict[str, Any]:
    if "error" in message:
        raise ProtocolError(f"the server refused: {message['error']}")
    return message["result"]


def _why_ended(pid: int, stderr: int) -> tuple[str, str]:
    """(error, kind). An end that the file itself does not explain may be ours, so the host asks once more."""
    deadline = time.monotonic() + 1.0
    done, status = 0, 0
    while done == 0 and time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)
    lines = os.pread(stderr, 1 << 16, 0).decode("utf-8", "replace").strip().splitlines()
    if lines:
        return f"the server ended: {lines[-1]}"[:ERROR_CHARS], "candidate"
    exit_code = os.waitstatus_to_exitcode(status) if done else None
    return f"the server closed its stdout without a traceback (exit code {exit_code})", "infrastructure"


discover_and_register_plugins(PluginTypes.CONFIG_OBJECT)
JOBS = {"run_agent": direct(run_agent), "run_mcp": direct(run_mcp)}
ABOUT = {"nvidia-nat-core": importlib.metadata.version("nvidia-nat-core")}
