"""A server as people write them: over stdio, after a banner, or with a port as argument over streamable HTTP."""

import os
import socket
import sys
import time
from pathlib import Path

import anyio
from helper import GREETING
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

server = MCPServer("everyday")
server.num_calls = 0


class Line(BaseModel):
    item: str
    count: int = 1


class Order(BaseModel):
    customer: str
    lines: list[Line]


@server.tool()
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@server.tool()
def order(order: Order) -> str:
    """Write an order down."""
    return f"{order.customer}: " + ", ".join(f"{line.count} {line.item}" for line in order.lines)


@server.tool()
def divide(a: int, b: int) -> float:
    """Divide."""
    if b == 0:
        raise ToolError("b must not be 0")
    return a / b


@server.tool()
def greet() -> str:
    """Say what the file beside this one says."""
    return GREETING


@server.tool()
def count() -> int:
    """How often this tool was called since the server started."""
    server.num_calls += 1
    return server.num_calls


@server.tool()
def big(megabytes: int) -> str:
    """A long text."""
    return "x" * (megabytes * 1_000_000)


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=b"no picture", format="png")


@server.tool()
async def wait(seconds: float) -> str:
    """Wait."""
    await anyio.sleep(seconds)
    return "waited"


@server.tool()
async def freeze() -> str:
    """Answer nobody any more."""
    time.sleep(600)


@server.tool()
def die() -> str:
    """End in the middle of a call."""
    print("it is over", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def whoami() -> int:
    """Its process."""
    return os.getpid()


@server.tool()
def read(path: str) -> str:
    """Read a file."""
    try:
        return Path(path).read_text()
    except OSError as error:
        return f"refused: {type(error).__name__}"


@server.tool()
def connect(host: str, port: int) -> str:
    """Open a connection."""
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError as error:
        return f"refused: {type(error).__name__}"
    return "connected"


@server.tool()
def environment() -> str:
    """Names of the environment variables."""
    return " ".join(sorted(os.environ))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        print("Welcome to the everyday server!", flush=True)
        server.run("stdio")
