"""The classes of errors: who can fix one decides its class.

`UserError` and its children are for what a person can fix (a config key, a data row, a missing interpreter):
one sentence with what was got, what was expected, where, and what to do. Scripts print it and exit 2.
`SandboxError`, its `ServiceError`, `EngineError` and `EnvLostError` are infrastructure: never turned into a reward,
retried or raised.
A model's own mistakes (a malformed call, a failing tool) are not exceptions here: they are data in the episode.
"""

import difflib
import functools
import inspect
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agent_rl.parsing import undisturbed

SAME_MEANING = 0.7
"""The likeness below which keys and names of another meaning are offered: `epochs` for `total_epochs`."""
_OWN = str(Path(__file__).parent / "_")[:-1]
_INSTALLED = tuple({str(Path(sysconfig.get_path(name)) / "_")[:-1] for name in ("stdlib", "purelib", "platlib")})
"""Folders, each with the separator behind it."""


class AgentRLError(Exception):
    """Base of every error this package raises on purpose."""

    failed_calls: tuple[Any, ...] = ()
    """Of an error that ends a run because of its episodes: what each of them raised (`failures.FailedCall`)."""


class UserError(AgentRLError):
    """Something the caller can fix; shown as one line, exit code 2."""

    is_everywhere = False
    """Whether all processes of a run raise it, so that one of them may report for all."""


class ConfigError(UserError):
    """A config file, key or override is wrong."""

    is_everywhere = True


class DataError(UserError):
    """A dataset file or row is wrong; the message names the file and the line."""


class CheckpointError(UserError):
    """A model folder or checkpoint is missing, torn, or of another kind."""


class TrainingStoppedError(UserError):
    """A run ended itself: an alarm with that action fired, or updates repeatedly gave numbers that are not finite."""


class EpisodesFailedError(UserError):
    """Every episode failed in code that the caller gave: an environment, a reward, an agent."""

    is_everywhere = True


class ClusterError(UserError):
    """Machines that a run needs are not there, or were away for too long."""


class EnvLostError(AgentRLError):
    """The process or the machine that an environment ran in is gone; its episode can run again from its start."""


class SandboxError(AgentRLError):
    """The sandbox itself failed (not the program in it)."""


class ServiceError(SandboxError):
    """A service that a tool requests (a search provider) refused or did not answer, whatever the query."""


class EngineError(AgentRLError):
    """The generation engine failed or was closed while a request was waiting."""


def nearest(word: str, choices: Iterable[str], likeness: float = 0.6) -> str:
    """Return `"; did you mean 'x'?"` for the closest of `choices`, or `""` when none is close.

    `likeness` is from 0 to 1. Models read hints with its default in the replies of tools.
    """
    matches = difflib.get_close_matches(word, list(choices), n=1, cutoff=likeness)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def nearest_or_all(word: str, choices: Iterable[str], likeness: float = 0.6) -> str:
    """As `nearest`, or `"; known: a, b"` with all `choices` in their order when none is close."""
    known = list(choices)
    return nearest(word, known, likeness) or f"; known: {', '.join(known)}"


def in_one_line(error: BaseException) -> str:
    """`"KeyError: 'oops'"`: class and text of an exception, its lines joined; the class alone where it has no text."""
    name, text = type(error).__name__, " ".join(str(error).split())
    return f"{name}: {text}" if text else name


def defined_at(thing: Any) -> str:
    """`" (my_rewards.py:12)"`: where a function or a class of the user's begins; empty for what is this package's."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    thing = inspect.unwrap(thing) if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)
    try:
        file, (_, line) = inspect.getsourcefile(thing), undisturbed(inspect.getsourcelines, thing)
    except (OSError, TypeError):
        return ""
    return "" if file is None or file.startswith(_OWN) else f" ({file}:{line})"


def raised_at(error: BaseException) -> str:
    """`" at my_rewards.py:12 in helper"`: the innermost line of the user's own code that an exception came through.

    Where all of it is installed packages, their innermost line; empty where only this package was running.
    """
    if isinstance(error, SyntaxError) and error.filename:  # of a file that did not come to run
        return f" at {error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OWN)]
    own = [frame for frame in frames if not frame.filename.startswith((*_INSTALLED, "<frozen"))]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    return f" at {frame.filename}:{frame.lineno} in {frame.name}"


def ends_program(error: BaseException) -> bool:
    """Whether it is the SystemExit of a signal's handler in this package, and not of a user's `sys.exit`."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, SystemExit) and (not frames or frames[-1].filename.startswith(_OWN))
