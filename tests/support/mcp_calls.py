"""What the tests of MCP servers share: configurations of the servers in `mcp_servers/`, a call, and one over HTTP."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
from waiting import wait_for

from agent_rl.agent.messages import ToolCall
from agent_rl.config import MCPServerConfig
from agent_rl.tools.base import ToolRegistry, ToolResult
from agent_rl.tools.mcp.tools import MCPConnections

SERVERS = Path(__file__).with_name("mcp_servers")


def sandboxed(name: str, **options: Any) -> MCPServerConfig:
    return MCPServerConfig(command=("python", str(SERVERS / name)), **options)


def plain(name: str, *arguments: str, **options: Any) -> MCPServerConfig:
    command = (sys.executable, str(SERVERS / name), *arguments)
    return MCPServerConfig(command=command, sandbox=False, **options)


def call(connections: MCPConnections, name: str, **arguments: Any) -> ToolResult:
    return ToolRegistry(connections.tools).run(ToolCall(name=name, arguments=arguments))


def descendants() -> set[int]:
    """Without those that have ended: a fork server takes note of its branches' ends at the next request."""
    return {process.pid for process in psutil.Process().children(recursive=True) if _lives(process)}


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class HttpServer:
    """`everyday.py` on a port."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __enter__(self) -> None:
        command = [sys.executable, str(SERVERS / "everyday.py"), str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self.answers)

    def answers(self) -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
