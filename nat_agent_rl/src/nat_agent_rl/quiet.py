"""What the toolkit logs about single episodes, and twice about an error that ends the run, is left out.

An episode that fails is counted and its error is kept (`play.py`); without this a server that is lost while 64 episodes
run fills the terminal with tracebacks. `nat --log-level debug` shows everything.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from nat_agent_rl.episodes import EPISODE
from nat_agent_rl.errors import FinetuneError

LIBRARIES = ("nat", "httpx", "openai", "langchain", "langchain_core", "langgraph")
REPEATERS = ("nat.finetuning.finetuning_runtime", "nat.cli.commands.finetune")
"""Loggers that repeat the error of a run, which `nat` prints at its end anyhow."""
TALKERS = ("httpx", "nat.runtime.session", "nat.plugins.eval.evaluator.base_evaluator")
"""Loggers with the same line for every request or epoch."""


def _is_about_the_run(record: logging.LogRecord) -> bool:
    return EPISODE.get() is None or record.name.split(".")[0] not in LIBRARIES


def _is_new(record: logging.LogRecord) -> bool:
    return not any(isinstance(argument, FinetuneError) for argument in record.args or ())


def quiet_command() -> None:
    """The sentence of a FinetuneError is printed by `nat` alone; requests and evaluators say nothing of success."""
    if not logging.getLogger().isEnabledFor(logging.DEBUG):
        for name in TALKERS:
            logging.getLogger(name).setLevel(logging.WARNING)
    for name in REPEATERS:
        logger = logging.getLogger(name)
        if _is_new not in logger.filters:
            logger.addFilter(_is_new)


@contextmanager
def quiet_episodes() -> Iterator[None]:
    """Inside of it, libraries log nothing about episodes. The workflow's own loggers are left alone."""
    handlers = [] if logging.getLogger().isEnabledFor(logging.DEBUG) else list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(_is_about_the_run)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_about_the_run)
