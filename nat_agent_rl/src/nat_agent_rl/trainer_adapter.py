"""Sends groups to `agent-rl serve-trainer` and waits for their update. Not here: HTTP and its errors (`server.py`)."""

import asyncio
import time
from typing import Any

from nat.data_models.finetuning import (
    FinetuneConfig,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    Trajectory,
    TrajectoryCollection,
)
from nat.finetuning.interfaces.trainer_adapter import TrainerAdapter

from nat_agent_rl.configs import AgentRLAdapterConfig
from nat_agent_rl.episodes import function_name
from nat_agent_rl.errors import FinetuneError, key_of
from nat_agent_rl.server import TrainerServer

BACKEND = "agent_rl"
WHOLE_WORKFLOW = "<workflow>"
"""The toolkit's default of `finetuning.target_functions`: everything is trained."""
POLL_S = 0.5


class AgentRLTrainerAdapter(TrainerAdapter):
    """One update per `submit`."""

    def __init__(self, config: AgentRLAdapterConfig) -> None:
        super().__init__(config)
        self.config = config
        self.server: TrainerServer | None = None

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """FinetuneError unless a server answers and takes the key."""
        await super().initialize(run_config)
        self.server = TrainerServer(self.config.server, key_of(self.config.api_key_env), self.config.timeout_s)
        try:
            await self.server.health()
        except FinetuneError:
            await self.close()
            raise

    async def close(self) -> None:
        if self.server is not None:
            await self.server.close()

    async def is_healthy(self) -> bool:
        try:
            return (await self.server.health()).get("status") == "ok"
        except FinetuneError:
            return False

    async def submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        """Start the update with the groups in their order; the reference holds its number."""
        reward = self.run_config.reward_function.name
        groups = [
            {"task_id": group[0].metadata["task"], "episodes": [_episode(each, reward) for each in group]}
            for group in trajectories.trajectories
        ]
        targets = self.run_config.target_functions
        only = None if WHOLE_WORKFLOW in targets else [function_name(name) for name in targets]
        number = await self.server.submit(groups, only)
        return TrainingJobRef(run_id=trajectories.run_id, backend=BACKEND, metadata={"update": number})

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """How the update stands; `metadata` has `update`, `weight_version` and `metrics`."""
        update = await self.server.update(ref.metadata["update"])
        return TrainingJobStatus(
            run_id=ref.run_id,
            backend=BACKEND,
            status=TrainingStatusEnum(update["state"]),
            progress=None if update["state"] == "running" else 100.0,
            message=update.get("error"),
            metadata={key: update[key] for key in ("update", "weight_version", "metrics")},
        )

    async def wait_until_complete(self, ref: TrainingJobRef, poll_interval: float = POLL_S) -> TrainingJobStatus:
        """The status once the update has ended. FinetuneError when it failed, or takes more than `update_timeout_s`."""
        number, started = ref.metadata["update"], time.monotonic()
        while (status := await self.status(ref)).status == TrainingStatusEnum.RUNNING:
            if time.monotonic() - started > self.config.update_timeout_s:
                raise FinetuneError(
                    f"update {number} of the trainer at {self.config.server} still runs after "
                    f"{self.config.update_timeout_s:g} s; see what it prints, or raise update_timeout_s"
                )
            await asyncio.sleep(poll_interval)
        if status.status != TrainingStatusEnum.COMPLETED:
            raise FinetuneError(
                f"update {number} of the trainer at {self.config.server} failed ({status.message or 'no reason'}); "
                "fix that, start the server again, then repeat the command, which continues behind the last update"
            )
        return status

    def log_progress(self, ref: TrainingJobRef, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Nothing: the trainer prints and writes what there is to say about an epoch."""


def _episode(trajectory: Trajectory, reward: str) -> dict[str, Any]:
    """One episode of a group, as the server takes it; without a reward where it has none."""
    about = trajectory.metadata
    is_scored = about["error"] is None
    return {
        "id": about["episode"],
        "reward": trajectory.reward if is_scored else None,
        "parts": {reward: trajectory.reward} if is_scored else {},
        "success": about["success"],
        "error": about["error"],
        "token_ids": about["token_ids"],
    }
