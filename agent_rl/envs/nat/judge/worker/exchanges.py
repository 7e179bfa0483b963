"""The fake network: what `METHOD URL` is answered with, told by a process apart from the candidate's.

A candidate must not find the table: it holds the addresses of all hidden cases. So the table comes over standard input
to a process that is forked before anything of the candidate is loaded, and is asked for one request at a time.
Knows no right answer of a tool.
"""

import contextlib
import json
import os
import socket
import ssl
from typing import Any

import httpx

from agent_rl.sandbox.guest import linux

UNKNOWN_REQUEST = 599
_MAX_PACKET = 1 << 17
_PR_SET_DUMPABLE = 4


class _Network:
    """Where this process asks, and from which table."""

    keeper: socket.socket | None = None
    run = 0


def keep_table(num_bytes: int) -> None:
    """Fork the process that reads `num_bytes` of JSON, a table for each run, from standard input and answers from it.

    Raises OSError when it does not come up.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MAX_PACKET)
    if os.fork() == 0:
        try:
            ours.close()
            linux.prctl(_PR_SET_DUMPABLE, 0)  # neither its memory nor its files can be opened
            tables = json.loads(_read(num_bytes + 1))  # a newline comes behind it
            os.closerange(0, 3)  # the end of the run's output must show when the run ends
            _answer_from(tables, theirs)
        finally:
            os._exit(0)
    theirs.close()
    if ours.recv(1) != b"r":
        raise OSError("the fake network did not come up")
    _Network.keeper = ours


def keeper_descriptor() -> int | None:
    """What a process forked later needs to be on this network."""
    return _Network.keeper.fileno() if _Network.keeper else None


def use_table(run: int) -> None:
    """From now on in this process requests are answered from the table of this run."""
    _Network.run = run


def _read(num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes and (chunk := os.read(0, num_bytes - len(data))):
        data += chunk
    return data


def _answer_from(tables: list[dict[str, Any]], asked: socket.socket) -> None:
    asked.send(b"r")
    while packet := asked.recv(_MAX_PACKET):
        known = None
        with contextlib.suppress(ValueError, KeyError, IndexError, TypeError, AttributeError):
            request = json.loads(packet)
            found = tables[request["run"]].get(request["request"])
            if found and all(request["headers"].get(name.lower()) == text for name, text in found["headers"].items()):
                known = {key: found[key] for key in ("status", "body", "failure")}
        asked.send(json.dumps(known).encode())


def _respond(request: httpx.Request) -> httpx.Response:
    known = None
    if _Network.keeper:
        headers = {name.lower(): text for name, text in request.headers.items()}
        asked = {"run": _Network.run, "request": f"{request.method} {request.url}", "headers": headers}
        with contextlib.suppress(OSError):  # a request too long for any table
            _Network.keeper.send(json.dumps(asked).encode())
            known = json.loads(_Network.keeper.recv(_MAX_PACKET) or b"null")
    if known is None:
        return httpx.Response(UNKNOWN_REQUEST, text="unknown request", request=request)
    if known["failure"] == "timeout":
        raise httpx.ReadTimeout("timed out", request=request)
    if known["failure"] == "connection":
        raise httpx.ConnectError("connection refused", request=request)
    return httpx.Response(known["status"], text=known["body"], request=request)


async def _handle_async(self: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
    return _respond(request)


def _handle(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
    return _respond(request)


_SSL_CONTEXT = ssl.create_default_context()
# Every new client would read the certificates again, which takes longer than all the rest of a call.
httpx._transports.default.create_ssl_context = lambda *_, **__: _SSL_CONTEXT  # type: ignore[attr-defined]
httpx.AsyncHTTPTransport.handle_async_request = _handle_async  # type: ignore[method-assign]
httpx.HTTPTransport.handle_request = _handle  # type: ignore[method-assign]
httpx.AsyncClient()  # Loads what httpx loads with its first client, before the forks.
