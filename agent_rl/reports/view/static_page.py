"""The page of `agent-rl view` as one file for another person: its scripts, its style and the episodes are inside.

Episodes are packed (gzip, base64), so that no text of a model is markup anywhere in the file; scripts and style run by
their checksums alone, and nothing is fetched. Not here: what is in a set (`data.py`), the page itself (`static/`).
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_rl.errors import ConfigError
from agent_rl.reports.view.runs import ViewedRuns
from agent_rl.reports.view.server import SCRIPTS, static_file
from agent_rl.reports.view.steps import ViewedStep
from agent_rl.telemetry.files import whole_file

Wanted = Callable[[int, str], Iterable[int] | None]
"""From the number of a run and the id of a set to the episodes to be kept; None: all."""


def everything(_run: int, _name: str) -> None:
    """Keeps all episodes of all sets."""
    return None


def write_page(path: Path, runs: ViewedRuns, wanted: Wanted = everything) -> int:
    """Write the file, whole or not at all; how many episodes it holds. ConfigError where it cannot be written."""
    number = 0
    overview = runs.overview()
    try:
        with whole_file(path) as file:
            head, tail = _frame()
            file.write(head)
            for run, viewed in enumerate(runs.runs):
                rows = {row["id"]: row for row in overview[run]["sets"]}
                overview[run]["sets"] = []
                for name, found in viewed.sets().items():
                    chosen = wanted(run, name)
                    indices = None if chosen is None else sorted(set(chosen))
                    if indices == []:  # reading a set for nothing takes long
                        continue
                    block = _block(viewed.load_set(name, found), name, indices)
                    overview[run]["sets"].append(rows[name])
                    number += len(block["records"])
                    file.write(_data({"data-run": str(run), "data-set": name}, block))
            file.write(_data({"id": "overview"}, overview))
            file.write(tail)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); name another file") from None
    return number


def _block(viewed: ViewedStep, name: str, wanted: Sequence[int] | None) -> dict[str, Any]:
    """What the page's source answers about a set; episodes keep their numbers."""
    indices = range(len(viewed.summaries)) if wanted is None else wanted
    return {
        "id": name,
        "scales": viewed.scales,
        "num_left_out": len(viewed.summaries) - len(indices),
        "episodes": [viewed.summaries[index] for index in indices],
        "records": {index: viewed.record(index) | {"index": index} for index in indices},
        "texts": {index: viewed.text(index) for index in indices},
    }


def _data(attributes: Mapping[str, str], value: Any) -> bytes:
    """A block that no browser runs, and that holds letters and digits alone."""
    packed = base64.b64encode(gzip.compress(json.dumps(value, allow_nan=False).encode(), 6, mtime=0))
    named = " ".join(f'{name}="{text}"' for name, text in attributes.items())
    return f'<script type="application/gzip" {named}>'.encode() + packed + b"</script>\n"


def _frame() -> tuple[bytes, bytes]:
    """The page before and after the data; the style and the scripts stand where the page names them."""
    html = static_file("view.html").decode()
    style = static_file("view.css").decode()
    script = "\n".join(static_file(name).decode() for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src '{_checksum(script)}'; style-src '{_checksum(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    lines = list(_inlined(html, policy, style))
    head, tail = "\n".join(lines).split("</body>")
    return f"{head}".encode(), f"<script>{script}</script>\n</body>{tail}\n".encode()


def _inlined(html: str, policy: str, style: str) -> Iterator[str]:
    for line in html.splitlines():
        if line.startswith('<link rel="stylesheet"'):
            yield f"<style>{style}</style>"
        elif not line.startswith("<script "):
            yield line
        if line.startswith("<meta charset"):
            yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'


def _checksum(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
