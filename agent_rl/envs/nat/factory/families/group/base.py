"""Interface of a family of function groups: functions that share one state, sampled, worded, rendered and run.

The reference's state is a class in logic.py with one method for each function; NAT's group wraps its methods. The
right answers come from `agent_rl.envs.nat.factory.oracle`, with code of its own.
"""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from agent_rl.envs.nat.factory.families.base import Inputs
from agent_rl.envs.nat.spec import ConfigField, Group, GroupFunction

Sequence = list[tuple[str, Inputs]]
"""Calls in order: the function's bare name and its inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDraft:
    """What a family decides about a new group; names and wording are added by the generator."""

    class_name: str
    functions: tuple[GroupFunction, ...]
    hidden: tuple[str, ...]
    num_instances: int
    """2 when two instances that do not share their state are part of the task."""
    rules: dict[str, Any]
    errors: tuple[str, ...]
    config_field: ConfigField | None


class GroupFamily(ABC):
    name: str
    Rules: type[BaseModel]
    """Shape of `Group.rules`."""

    @abstractmethod
    def draft(self, rng: random.Random, level: int) -> GroupDraft:
        """Sample a state machine: level 4 is plain; level 5 adds a hidden function, undo or a second instance."""

    @abstractmethod
    def sentences(self, group: Group, rng: random.Random) -> list[str]:
        """What the functions do, in a user's words, in one of several phrasings; every error text is in it."""

    @abstractmethod
    def definitions(self, group: Group) -> str:
        """The class in logic.py. The configuration field is an argument of `__init__` with its default; methods take
        the functions' inputs by name and return str; class and methods have docstrings and type hints."""

    @abstractmethod
    def sequence(self, group: Group, rng: random.Random, config: dict[str, int], length: int) -> Sequence:
        """A random sequence on a fresh instance under `config` that visits many branches, errors among them."""

    @abstractmethod
    def example(self, group: Group, rng: random.Random) -> Sequence:
        """Three or four calls that show the state and the first error; the generator adds the answers."""

    @abstractmethod
    def mutants(self, group: Group) -> list[str]:
        """At least four wrong `definitions` that fail tests made of `group.example` alone."""

    @abstractmethod
    def subtle_mutants(self, group: Group) -> list[str]:
        """`definitions` that are wrong only now and then (a bound, an order, a rare branch); at least one."""

    def canonical(self, rules: dict[str, Any]) -> Any:
        """The rules without what is only a name, as a JSON value: equal for groups that differ in names alone."""
        return rules

    def is_held_out(self, rules: dict[str, Any]) -> bool:
        """Whether the rules are a combination reserved for the generalisation set."""
        return False
