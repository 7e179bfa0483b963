"""The environment that a run's configuration names, as far as reports need it: how it names failures.

Not here: what an environment knows (`envs/base.py`).
"""

from collections.abc import Mapping
from typing import Any

from agent_rl.envs.failure_modes import FailureModes
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import UserError


def failure_modes_of(config: Mapping[str, Any], notes: list[str]) -> FailureModes:
    """The failure modes of the environment of a `config.yaml`; those of any environment, with a note, if it cannot be
    made, as for a configuration of another version."""
    env = config.get("env") or {}
    if "name" not in env:
        return FailureModes()
    try:
        return FailureModes(make_env_factory(env["name"], env.get("options") or {}, seed=0).failure_rules)
    except UserError as error:
        notes.append(f"failures are named by the ends of episodes alone, as the environment cannot be made: {error}")
        return FailureModes()
