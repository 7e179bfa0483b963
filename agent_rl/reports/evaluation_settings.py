"""What an evaluation was made with: kept beside its episodes, and asked before it goes on or is compared.

Not here: the files (`evaluation_files.py`).
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_rl.config import Config, load_config
from agent_rl.envs.base import EnvFactory
from agent_rl.errors import DataError, UserError
from agent_rl.reports.redacted import redacted

FORMAT = 1
Settings = dict[str, Any]
"""`format`; `model`, what is evaluated; `protocol`, how, in which evaluations that are compared have to agree."""


def make_settings(
    config: Config,
    factory: EnvFactory,
    *,
    name: str,
    digest: str | None,
    base_digest: str | None = None,
    num_tasks: int,
    samples: int,
    temperature: float,
) -> Settings:
    """The settings, as they come back from a file.

    `digest` is of the model's files, `base_digest` of those of the model that adapters belong to, `name` what the
    caller gave. Addresses stand in them as `redacted` shows them. DataError for a file that cannot be read.
    """
    protocol = {
        "tasks_sha256": _digest_of(config.data.eval_path),
        "num_tasks": num_tasks,
        "samples": samples,
        "temperature": temperature,
        **episode_settings(config, factory),
    }
    model = {
        "name": name,
        "sha256": digest,
        "base_sha256": base_digest,
        "path": config.model.path,
        "policy": config.policy.type,
        "dtype": config.model.dtype,
        "lora_rank": config.model.lora.rank,
        "tasks": str(config.data.eval_path),
    }
    return json.loads(json.dumps({"format": FORMAT, "model": model, "protocol": protocol}, default=str))


def episode_settings(config: Config, factory: EnvFactory) -> dict[str, Any]:
    """What of a configuration decides how episodes are played and judged, as plain JSON values."""
    options = {key: value for key, value in config.env.options.items() if key not in factory.speed_options}
    tools = config.tools.model_dump(mode="json")
    found = {
        "seed": config.run.seed,
        "env": config.env.name,
        "env_options": redacted(options),
        "tools": redacted(tools),
        "agent": config.agent.model_dump(mode="json"),
        "max_new_tokens": config.policy.max_new_tokens,
        "max_context": config.policy.max_context,
        "max_turns": config.rollout.max_turns,
        "max_tool_calls": config.rollout.max_tool_calls,
        "max_invalid_turns": config.rollout.max_invalid_turns,
        "episode_timeout_s": config.rollout.episode_timeout_s,
    }
    if (redacted(options), redacted(tools)) != (options, tools):  # compared all the same
        text = json.dumps([options, tools], sort_keys=True, default=str)
        found["not_shown_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    if "search" in config.tools.use and (corpus := config.tools.search.corpus_path) is not None:
        found["corpus_sha256"] = _digest_of(corpus)
    return json.loads(json.dumps(found, default=str))


def _digest_of(path: Path) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); correct the path") from None


def difference_from_run(settings: Mapping[str, Any], config_file: Path | None, factory: EnvFactory) -> str | None:
    """The first of `episode_settings` that differs from the run's `config_file`; None if none is known to."""
    if config_file is None:
        return None
    try:
        own = episode_settings(load_config(config_file, []), factory)
    except UserError:  # of another version, or with paths of another machine
        return None
    return difference(own, settings)


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
