"""What every entry point shares: user errors as one line and exit code 2, Ctrl-C as 130."""

import sys

import typer

from agent_rl.errors import UserError


def run_app(app: typer.Typer) -> None:
    """Run a Typer app. A `UserError` is printed as one line (exit 2); Ctrl-C exits 130; bugs keep their traceback."""
    try:
        app(standalone_mode=False)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except typer.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's own usage errors
            print(f"error: {error.format_message()}", file=sys.stderr)
            sys.exit(2)
        raise
