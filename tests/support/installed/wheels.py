"""Copies of the project as other people have it: a clean copy of the files, and an installed wheel."""

import shutil
import subprocess
import sys
from pathlib import Path

from builders import ROOT

MAX_WHEEL_BYTES = 70_000_000


def copy_files(folder: Path) -> Path:
    """Every tracked file as it is now, without tests: what a clone would hold after a commit."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def install_wheel(top: Path) -> Path:
    """Build a wheel of such a copy and install it without what it depends on; the folder it is in."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    copy = copy_files(top / "copy")
    subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", top, copy], check=True)
    (wheel,) = top.glob("*.whl")
    assert wheel.stat().st_size < MAX_WHEEL_BYTES
    subprocess.run([*pip, "install", *offline, "--target", top / "site", wheel], check=True)
    return top / "site"
