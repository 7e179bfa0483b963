"""Finds the files that come with the package: configurations, warm starts, small task files, requirement files.

A path in a command or a configuration counts from the working directory. Where nothing is there, `find` takes the file
of the same path from an installed wheel, or from the checkout that holds the package, and reports which one it takes.
`python -m agent_rl.resources` prints the folder of these files. Does not: copy or download anything.
"""

import os
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path

_FOLDERS = ("configs/", "dataset/", "model/")


@cache
def folder() -> Path:
    """The folder with `configs/`, `dataset/`, `model/` and the requirement files; `setup.py` puts it into a wheel."""
    package = Path(str(files("agent_rl")))
    shipped = package / "shipped"
    return shipped if shipped.is_dir() else package.parent


def install_command(extra: str) -> str:
    """What installs an optional part: the pins of a checkout, or the extra of an installed package."""
    if folder().name == "shipped":
        return f'pip install "agent_rl[{extra}]"'
    return f"pip install -r requirements-{extra}.txt"


def find(path: str | Path) -> Path:
    """`path` itself where it exists or is not one of these files; else the package's file, reported on stderr."""
    wanted = Path(path)
    if not wanted.exists() and str(wanted).startswith("agent_rl/configs/"):  # where an earlier project had them
        wanted = wanted.relative_to("agent_rl")
    if wanted.exists() or ".." in wanted.parts or not str(wanted).startswith(_FOLDERS):
        return wanted
    shipped = folder() / wanted
    if not shipped.exists():
        return wanted
    _report(wanted, shipped)
    return shipped


@cache
def _report(wanted: Path, shipped: Path) -> None:
    """Once per path; of several processes of a launcher the first one reports."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"{wanted} is not in {Path.cwd()}; using {shipped}", file=sys.stderr)


if __name__ == "__main__":
    print(folder())
