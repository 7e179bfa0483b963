"""What the adapters of other packages' environments share: the package itself, messages and texts, options.

A package is imported when such an environment is opened and not before. Not here: any package's classes.
"""

import importlib
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from agent_rl.agent.message_dicts import read_chat
from agent_rl.agent.messages import Message
from agent_rl.data.rows import no_column
from agent_rl.data.tasks import Task
from agent_rl.errors import ConfigError, DataError
from agent_rl.rewards.numbers import as_number, finite_number
from agent_rl.seeds import derive_seed


class ForeignOptions(BaseModel):
    """`env.options` that all of these environments have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    success_at: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """The reward of an episode from which on it counts as solved (`success`)."""

    def is_success(self, reward: float) -> float:
        """1.0 or 0.0, for the sum of an episode's rewards: to nine digits, as ten times 0.1 are 0.9999999999999999."""
        return float(reward >= self.success_at or math.isclose(reward, self.success_at, rel_tol=1e-9, abs_tol=1e-9))


def import_package(name: str, install: str, env: str | None = None) -> Any:
    """The module of another project; ConfigError with the line that installs it where it is missing. `env` is the name
    of the environment that needs it, where that is another one."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        needed_by = f"env.name = {(env or name)!r} needs its package"
        raise ConfigError(f"{needed_by} ({error}); run `pip install {install}`") from None


def to_messages(raw: Sequence[Any], where: str) -> tuple[Message, ...]:
    """Messages in the OpenAI format, dictionaries or pydantic models of them; ConfigError for what is no text."""
    rows = [each.model_dump() if hasattr(each, "model_dump") else each for each in raw]
    try:
        return read_chat(rows, where)[0] if rows else ()
    except DataError as error:
        raise ConfigError(str(error)) from None


def check_prompt(task: Task, where: str) -> None:
    """DataError unless the row has a `prompt`, a list of chat messages."""
    if "prompt" not in task:
        raise no_column(task, "prompt", where)
    read_chat(task["prompt"], f"{where}: prompt")


def to_reward(value: Any, where: str) -> float:
    """A number of any package (numpy, torch, bool) as a float; ConfigError for what is none."""
    try:
        return as_number(value)
    except ValueError:
        raise ConfigError(f"{where} gave the reward {value!r:.80}, expected a number") from None


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Those of the values that are finite numbers, for the logs."""
    kept = {}
    for name, value in values.items():
        with suppress(ValueError):
            kept[str(name)] = finite_number(value)
    return kept


def seed_rows(name: str, seed: int, num_train: int | None, num_eval: int | None) -> dict[str, list[dict[str, Any]]]:
    """Rows of a seed each for environments that need nothing else; no seed is in both files."""
    counts = {"train": num_train or 400, "eval": num_eval or 150}
    sampled = (derive_seed(name, seed, index) >> 32 for index in range(10 * sum(counts.values())))
    seeds = iter(dict.fromkeys(sampled))
    return {
        split: [{"task_id": f"{split}-{seed}-{index:05d}", "seed": next(seeds)} for index in range(count)]
        for split, count in counts.items()
    }
