"""`agent-rl view`: a page to browse steps, evaluations, groups, episodes and every token of runs.

    agent-rl view runs/nat_grpo
    agent-rl view runs/first runs/second
    agent-rl view runs/nat_grpo --output episodes.html

Shows the steps that `log.samples_every` saved and the evaluations, also while a run goes on, and folders of
`agent-rl eval`. Reads only; Ctrl-C ends it. With --output it writes the page into one file and ends.
"""

import html
import tempfile
import threading
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from agent_rl.errors import ConfigError
from agent_rl.reports.view.data import RunSamples
from agent_rl.reports.view.runs import ViewedRuns
from agent_rl.reports.view.server import ViewServer
from agent_rl.reports.view.static_page import write_page

_TO_READ_S = 30.0
"""After so long a browser has read its page."""
RunPaths = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, such as runs/nat_grpo, or of agent-rl eval.")
]
Output = Annotated[
    Path | None, typer.Option(help="Write the page with all that it shows into this .html file, and serve nothing.")
]
At = Annotated[
    str, typer.Option(help="What to show first: what stands behind # in an address of such a page or of a report.")
]
Port = Annotated[int, typer.Option(help="Where to listen; 0 takes a free port.", min=0, max=65535)]
Host = Annotated[str, typer.Option(help="Address to listen on; others than the default let other machines read.")]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")]


def main(
    runs: RunPaths,
    output: Output = None,
    at: At = "",
    port: Port = 0,
    host: Host = "127.0.0.1",
    no_browser: NoBrowser = False,
) -> None:
    """Serve a page about runs until Ctrl-C, or write it into a file."""
    viewed = ViewedRuns([RunSamples(run) for run in runs])
    if output is not None:
        if output.suffix != ".html":
            raise ConfigError(f"--output is {output}, expected a file that ends with .html; name one")
        number = write_page(output, viewed)
        print(f"{output} holds {number} episodes with everything in them; open it in a browser", flush=True)
        return
    with ViewServer(viewed, host=host, port=port) as server:
        fragment = at.rpartition("#")[2]
        address = server.address + (f"#{fragment}" if fragment else "")
        print(f"{', '.join(map(str, runs))} is shown at {address} until Ctrl-C", flush=True)
        if not no_browser:  # in a thread, as a browser of the terminal holds its caller up; requests wait in line
            threading.Thread(target=_open_browser, args=(address,), daemon=True).start()
        server.serve_forever()


def _open_browser(address: str) -> None:
    """By a file that leads there, because other users of the machine can read a browser's arguments."""
    with tempfile.TemporaryDirectory(prefix="agent_rl_view_") as folder:
        page = Path(folder) / "open.html"
        page.write_text(f'<meta http-equiv="refresh" content="0; url={html.escape(address)}">', encoding="utf-8")
        webbrowser.open(page.as_uri())
        time.sleep(_TO_READ_S)
