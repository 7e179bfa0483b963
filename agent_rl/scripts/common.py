"""What entry points share: user errors as one line and exit code 2, Ctrl-C as 130; the folder they write to."""

import os
import sys
from pathlib import Path
from typing import Literal

import typer

from agent_rl.core.interrupts import is_first_process_here
from agent_rl.errors import ConfigError, UserError

TaskDomain = Literal["code", "search", "math"]
"""Kinds of tasks with a generator and demonstrations, beside those of the NeMo Agent Toolkit."""


def make_folder(path: Path, option: str) -> None:
    """Make the folder that `option` names, if it is not there. ConfigError where that cannot be, as for a file."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{option} is {path}, which cannot be a folder ({error.strerror}); name another") from None


def run_app(app: typer.Typer) -> None:
    """Run a Typer app. A `UserError` is printed as one line (exit 2); Ctrl-C exits 130; bugs keep their traceback."""
    try:
        exit_code = app(standalone_mode=False)
    except UserError as error:
        if is_first_process_here():
            print(f"error: {error}", file=sys.stderr)
        elif not error.is_everywhere:
            print(f"error in process {os.environ.get('RANK', '?')}: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        if is_first_process_here():
            print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's own usage errors
            if message := error.format_message():  # none when help was shown for want of a command
                print(f"error: {message}", file=sys.stderr)
            sys.exit(2)
        raise
    sys.exit(exit_code if isinstance(exit_code, int) else 0)  # Typer returns the code of an exit or an interrupt
