"""`agent-rl serve-trainer`: a trainer for agents that run elsewhere.

    AGENT_RL_KEY=... agent-rl serve-trainer --config configs/math_grpo.yaml train.steps=30

Agents sample through its OpenAI-compatible endpoint, each under the name of an episode; a client sends the rewards of
groups of episodes and gets an update. The sections `env`, `data` and `tools` of the file are not read: tasks, tools and
rewards are the client's. After `train.steps` updates the last weights are served until Ctrl-C.
"""

import os
import secrets
import threading
from pathlib import Path
from typing import Annotated

import typer

from agent_rl.config import Config
from agent_rl.config.load import read_yaml
from agent_rl.endpoint.errors import check_installed
from agent_rl.errors import ConfigError
from agent_rl.resources import find
from agent_rl.scripts.common import read_config

KEY_VARIABLE = "AGENT_RL_KEY"


def main(
    config: Annotated[Path, typer.Option(help="YAML file with the model, the policy and how it learns.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, applied in order.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8601,
) -> None:
    """Serve until training is done and Ctrl-C is pressed (exit code 0), or until Ctrl-C before that (130)."""
    resolved = read_served_config(config, overrides or [])
    given = os.environ.get(KEY_VARIABLE, "")
    key = given or secrets.token_urlsafe(24)
    check_installed()
    from agent_rl.core.trainer_grpo import GRPOTrainer
    from agent_rl.serving.trainer_service import SERVED_TASKS, ServedFactory, TrainerService

    service = TrainerService(resolved, key=key, host=host, port=port)
    with (
        GRPOTrainer.from_config(
            resolved, env_factory=ServedFactory(), train_tasks=SERVED_TASKS, make_source=service.make_source
        ) as trainer,
        service.serving(trainer),
    ):
        if trainer.is_main_process:
            print(f"serving the trainer on {service.address}", flush=True)
            if not given:
                print(f"{KEY_VARIABLE}={key}", flush=True)
        trainer.train()
        if not trainer.is_main_process:
            return
        service.finish()
        print("training is done; the last weights are served until Ctrl-C", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


def read_served_config(path: Path, overrides: list[str]) -> Config:
    """The configuration without what a served trainer does not read; ConfigError for what it cannot do."""
    raw = read_yaml(find(path))
    config = read_config(path, [*([] if "env" in raw else ["env.name=external"]), *overrides])
    if config.rollout.max_staleness:
        raise ConfigError(
            f"rollout.max_staleness is {config.rollout.max_staleness}, but a served trainer waits for its clients' "
            "groups; leave it out"
        )
    return config
