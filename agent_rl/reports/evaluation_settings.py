"""What an evaluation was made with: kept beside its episodes, and asked before it goes on or is compared.

Not here: the files (`evaluation_files.py`).
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_rl.config import Config, validate_section
from agent_rl.errors import DataError

FORMAT = 1
Settings = dict[str, Any]
"""`format`; `model`, what is evaluated; `protocol`, how, in which evaluations that are compared have to agree."""
_SPEED_ONLY = ("checkers", "workers", "nat_python", "nat_react_python")
"""Options of environments that say how a machine does the work."""


def make_settings(
    config: Config, *, name: str, digest: str | None, num_tasks: int, samples: int, temperature: float
) -> Settings:
    """The settings, as they come back from a file. `digest` is of the model's files, `name` what the caller gave."""
    protocol = {
        "tasks_sha256": hashlib.sha256(Path(config.data.eval_path).read_bytes()).hexdigest(),
        "num_tasks": num_tasks,
        "samples": samples,
        "temperature": temperature,
        "seed": config.run.seed,
        "env": config.env.name,
        "env_options": {key: value for key, value in config.env.options.items() if key not in _SPEED_ONLY},
        "tools": config.tools.model_dump(mode="json"),
        "agent": config.agent.model_dump(mode="json"),
        "max_new_tokens": config.policy.max_new_tokens,
        "max_context": config.policy.max_context,
        "max_turns": config.rollout.max_turns,
        "max_tool_calls": config.rollout.max_tool_calls,
        "max_invalid_turns": config.rollout.max_invalid_turns,
        "episode_timeout_s": config.rollout.episode_timeout_s,
    }
    model = {
        "name": name,
        "sha256": digest,
        "path": config.model.path,
        "policy": config.policy.type,
        "dtype": config.model.dtype,
        "lora_rank": config.model.lora.rank,
        "tasks": str(config.data.eval_path),
    }
    return json.loads(json.dumps({"format": FORMAT, "model": model, "protocol": protocol}, default=str))


def part_weights(config: Config) -> Mapping[str, float]:
    """Weights of the parts of the reward that are weighted shares; empty where an environment has none."""
    if config.env.name != "nat_agent_creation":
        return {}
    from agent_rl.envs.nat_agent_env import NATEnvOptions

    options = validate_section(NATEnvOptions, config.env.options, source="config", prefix="env.options")
    return {name: getattr(options.reward, name) for name in ("tools", "integration", "workflow")}


def check_comparable(settings: Settings, other: Settings, where: str) -> None:
    """DataError unless both evaluations played alike; `where` names the other."""
    if (found := difference(other["protocol"], settings["protocol"])) is not None:
        raise DataError(
            f"{where} was evaluated with other settings ({found}), so that the difference would not be the model's; "
            "evaluate both alike"
        )


def difference(earlier: Any, now: Any, key: str = "") -> str | None:
    """The first value that differs, as `protocol.samples: 1 there, 4 here`; None when all are equal."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        names = [*earlier, *(name for name in now if name not in earlier)]
        inner = (difference(earlier.get(name), now.get(name), f"{key}.{name}" if key else name) for name in names)
        return next((found for found in inner if found is not None), None)
    return None if earlier == now else f"{key}: {earlier!r:.60} there, {now!r:.60} here"
