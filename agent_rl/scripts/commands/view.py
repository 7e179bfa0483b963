"""`agent-rl view`: a local page to browse a run's steps, groups, episodes and every token.

    agent-rl view runs/nat_grpo

Shows the steps that `log.samples_every` saved, also while the run goes on. Reads only; Ctrl-C ends it.
"""

import html
import tempfile
import threading
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from agent_rl.reports.view.data import RunSamples
from agent_rl.reports.view.server import ViewServer

_TO_READ_S = 30.0
"""After so long a browser has read its page."""
RunPath = Annotated[Path, typer.Argument(help="Folder of a run, such as runs/nat_grpo.")]
Port = Annotated[int, typer.Option(help="Where to listen; 0 takes a free port.", min=0, max=65535)]
Host = Annotated[str, typer.Option(help="Address to listen on; others than the default let other machines read.")]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")]


def main(run: RunPath, port: Port = 0, host: Host = "127.0.0.1", no_browser: NoBrowser = False) -> None:
    """Serve a page about a run until Ctrl-C."""
    with ViewServer(RunSamples(run), host=host, port=port) as server:
        print(f"{run} is shown at {server.address} until Ctrl-C", flush=True)
        if not no_browser:  # in a thread, as a browser of the terminal holds its caller up; requests wait in line
            threading.Thread(target=_open_browser, args=(server.address,), daemon=True).start()
        server.serve_forever()


def _open_browser(address: str) -> None:
    """By a file that leads there, because other users of the machine can read a browser's arguments."""
    with tempfile.TemporaryDirectory(prefix="agent_rl_view_") as folder:
        page = Path(folder) / "open.html"
        page.write_text(f'<meta http-equiv="refresh" content="0; url={html.escape(address)}">', encoding="utf-8")
        webbrowser.open(page.as_uri())
        time.sleep(_TO_READ_S)
