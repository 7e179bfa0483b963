"""What the toolkit's interpreter does to serve one project: install it into its own folder and run `nat serve`.

In the sandbox it is a job, with a tunnel on its standard streams in place of a network: lines of JSON about
connections, which the host (`tunnel.py`) opens and the toolkit's server, on a port inside, answers. As a program of its
own (`python serve_jobs.py`) it serves without a sandbox. Standard library and the toolkit only. Not here: the host's
side.
"""

import base64
import contextlib
import json
import os
import re
import socket
import sys
import threading
import tomllib
import traceback
from typing import Any

PORT = 8000
"""Of the toolkit's server inside the sandbox."""
CHUNK = 32 * 1024
PROJECT, SITE = "project", "site"
_LOG_CHARS = 2000
_CONNECT_S = 2.0
_PUBLIC = "127.0.0.1"


def serve_in_sandbox(request: dict[str, Any], workdir: str) -> None:
    """Serve the project below `project/` as `argv` says, `[mode, configuration]`, and be the tunnel to it."""
    mode, config = request["argv"]
    tunnel = Tunnel(os.dup(0), os.dup(1))
    logs_in, logs_out = os.pipe()
    for stream in (1, 2):  # whatever the project prints is a log line, and no frame of the tunnel
        os.dup2(logs_out, stream)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    threading.Thread(target=tunnel.send_logs, args=(logs_in,), daemon=True).start()
    threading.Thread(target=tunnel.run, daemon=True).start()
    try:
        serve(os.path.join(workdir, PROJECT), os.path.join(workdir, SITE), mode, config, _PUBLIC, PORT)
    except BaseException:  # the boundary to the project's code: its traceback is what a person needs
        traceback.print_exc()
    tunnel.flush_logs()


def serve(project: str, site: str, mode: str, config: str, host: str, port: int) -> None:
    """`nat serve` or `nat mcp serve` of the project in a folder; `site` is a new folder for its metadata."""
    install(project, site)
    os.chdir(project)
    words = ["serve"] if mode == "http" else ["mcp", "serve"]
    sys.argv = ["nat", *words, "--config_file", config, "--host", host, "--port", str(port)]
    from nat.cli.main import run_cli

    run_cli()


def install(project: str, site: str) -> None:
    """Make the project's modules importable and its entry points known, as an installer does; nothing of it is run.

    At the end of the path, so that no file of the project can shadow an installed module.
    """
    with open(os.path.join(project, "pyproject.toml"), "rb") as file:
        section = tomllib.load(file)["project"]
    name = re.sub(r"[^a-z0-9]+", "_", str(section["name"]).lower())
    info = os.path.join(site, f"{name}-0.dist-info")
    os.makedirs(info)
    entries = section["entry-points"]["nat.components"]
    with open(os.path.join(info, "entry_points.txt"), "w", encoding="utf-8") as file:
        file.write("[nat.components]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items()))
    with open(os.path.join(info, "METADATA"), "w", encoding="utf-8") as file:
        file.write(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    source = os.path.join(project, "src")
    sys.path += [site, source if os.path.isdir(source) else project]


class Tunnel:
    """Connections of the host, by number, to the server inside.

    Lines in: `{"open": 1}`, `{"to": 1, "data": BASE64}`, `{"close": 1}`. Lines out: `{"from": 1, "data": BASE64}`,
    `{"closed": 1}`, `{"log": TEXT}`.
    """

    def __init__(self, frames_in: int, frames_out: int) -> None:
        self._in = open(frames_in, encoding="utf-8")  # noqa: SIM115  lives as long as the process
        self._out = frames_out
        self._writing = threading.Lock()
        self._logged = threading.Event()
        self._connections: dict[int, socket.socket] = {}

    def run(self) -> None:
        """Until the host closes its end."""
        for line in self._in:
            frame = json.loads(line)
            if "open" in frame:
                self._open(frame["open"])
            elif "to" in frame and (connection := self._connections.get(frame["to"])):
                with contextlib.suppress(OSError):
                    connection.sendall(base64.b64decode(frame["data"]))
            elif "close" in frame:
                self._close(frame["close"])

    def send_logs(self, logs: int) -> None:
        """Pass on what is printed, until nobody holds the other end."""
        with open(logs, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._send({"log": line.rstrip("\n")[:_LOG_CHARS]})
        self._logged.set()

    def flush_logs(self) -> None:
        """Before the end: wait for what was printed."""
        sys.stdout.flush()
        sys.stderr.flush()
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(null, stream)
        self._logged.wait(_CONNECT_S)

    def _open(self, number: int) -> None:
        try:
            connection = socket.create_connection((_PUBLIC, PORT), timeout=_CONNECT_S)
        except OSError:
            self._send({"closed": number})
            return
        connection.settimeout(None)
        self._connections[number] = connection
        threading.Thread(target=self._pump, args=(number, connection), daemon=True).start()

    def _pump(self, number: int, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(CHUNK):
                self._send({"from": number, "data": base64.b64encode(data).decode()})
        self._send({"closed": number})
        self._close(number)

    def _close(self, number: int) -> None:
        if connection := self._connections.pop(number, None):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _send(self, frame: dict[str, Any]) -> None:
        payload = json.dumps(frame).encode() + b"\n"
        with self._writing:
            while payload:
                payload = payload[os.write(self._out, payload) :]


JOBS = {"run_python": serve_in_sandbox}

if __name__ == "__main__":
    serve(*sys.argv[1:6], int(sys.argv[6]))
