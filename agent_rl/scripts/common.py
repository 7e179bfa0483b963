"""What entry points share: user errors as one line and exit code 2, Ctrl-C as 130; where a user's own modules are."""

import errno
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from agent_rl.config import Config, load_config
from agent_rl.config.base import flatten_keys, keys_called
from agent_rl.config.yaml_text import dump_line
from agent_rl.distributed.stopping import is_first_process_here
from agent_rl.errors import ConfigError, UserError
from agent_rl.registry import import_working_folder
from agent_rl.renamed import hint

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
Domain = Annotated[
    str,
    typer.Option(help="Environment: nat, code, search, math, another name, or an import path such as my_env:MyEnv."),
]


def finite(value: float | None) -> float | None:
    """For an option of a number: refuses infinity, which has no place above any `min`."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not finite; give a number")
    return value


WITH_SHORT_HELP = {"help_option_names": ["--help", "-h"]}
"""Settings of a program; its commands have them too."""


def make_app(command: Callable[..., Any], help_text: str | None = None) -> typer.Typer:
    """A script with one command; the text of `--help` is that of the command's module where none is given."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings=WITH_SHORT_HELP)
    app.command(help=help_text or sys.modules[command.__module__].__doc__)(command)
    return app


def read_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """`load_config`; modules beside the file can be imported, after those of the current folder."""
    folder = os.path.dirname(os.path.realpath(path))
    if folder not in sys.path:
        sys.path.append(folder)
    return load_config(path, list(overrides))


def as_override(key: str, value: object) -> str:
    """`section.key=value` of what a flag gave: a text or a path is that text, whatever YAML would read in it.

    A path that is no Unicode is refused when the override is read.
    """
    return f"{key}={dump_line(value if isinstance(value, int | float) else str(value))}"


def reads(*sections: str, but: Iterable[str] = ()) -> Callable[[CommandT], CommandT]:
    """Marks a command whose overrides name only these sections of a run's configuration, `but` for some keys."""
    keys = {key for key in flatten_keys(Config) if key.partition(".")[0] in sections} - set(but)

    def mark(command: CommandT) -> CommandT:
        command.__dict__["keys"] = keys  # Typer keeps it
        return command

    return mark


def _as_override(option: str, words: Sequence[str], command: Any) -> str:
    """For an option that is a key, of ours or of another library: how `command` is given the key. Else empty."""
    if "overrides" not in [each.name for each in getattr(command, "params", ())]:
        return ""
    keys = getattr(command.callback, "keys", None)
    name = option.removeprefix("--").partition("=")[0].replace("-", "_")
    ours = [key for key in keys_called(name, Config) if keys is None or key in keys]
    if not ours:
        return hint(name, ours=keys)
    at = next((number for number, word in enumerate(words) if word.partition("=")[0] == option), len(words))
    _, is_joined, value = words[at].partition("=") if at < len(words) else ("", "", "")
    if not is_joined:
        value = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("-") else "VALUE"
    return f"; keys need no dashes: write {' or '.join(f'{key}={value}' for key in ours[:3])}"


def _refuse_two_configs(words: Sequence[str]) -> None:
    """ConfigError for a second --config: Typer would take it and drop the first, and no two files are merged."""
    after = [*words[1:], ""]
    pairs = [(word.partition("="), value) for word, value in zip(words, after, strict=False)]  # there may be no word
    files = [joined or value for (option, _, joined), value in pairs if option == "--config"]
    if len(files) > 1:
        raise ConfigError(f"--config is given twice, {files[0]} and {files[1]}; give one file, and section.key=value")


_NAMES_A_FILE = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR}
_REFUSED_BY_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, *_NAMES_A_FILE}


def run_app(app: typer.Typer) -> None:
    """Run a Typer app. A `UserError` is printed as one line (exit 2); Ctrl-C exits 130; bugs keep their traceback.

    So is a disk that refuses a file. Modules in the current folder can be imported: `env.name=my_env:MyEnv`.
    """
    import_working_folder()
    try:
        _refuse_two_configs(sys.argv[1:])
        exit_code = app(standalone_mode=False)
    except UserError as error:
        if is_first_process_here():
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)  # another's text may have lines
        elif not error.is_everywhere:
            print(f"error in process {os.environ.get('RANK', '?')}: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in _REFUSED_BY_DISK or (error.errno in _NAMES_A_FILE and not error.filename):
            raise
        where = error.filename or "a file"
        print(f"error: {where}: {error.strerror}; make room or choose another place, then repeat", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        if is_first_process_here():
            print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's own usage errors
            if message := error.format_message():  # none when help was shown for want of a command
                option = getattr(error, "option_name", "")
                command = getattr(getattr(error, "ctx", None), "command", None)
                print(f"error: {message}{_as_override(option, sys.argv, command)}", file=sys.stderr)
            sys.exit(2)
        raise
    sys.exit(exit_code if isinstance(exit_code, int) else 0)  # Typer returns the code of an exit or an interrupt
