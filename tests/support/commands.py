"""Commands as a person types them, in this process: a new one would take seconds to import PyTorch."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import typer

from agent_rl.scripts import cli
from agent_rl.scripts.common import run_app

ROOT = Path(__file__).resolve().parents[2]


def run_here(*words: str | Path, app: typer.Typer = cli.app, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`agent-rl WORDS`, or one script with its `app`, in a folder."""
    output, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["command", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            run_app(app)
    return subprocess.CompletedProcess(words, int(ended.value.code or 0), output.getvalue(), errors.getvalue())


def one_line_error(done: subprocess.CompletedProcess[str]) -> str:
    """The error of a command that must have failed as a user's mistake does."""
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    return line
