"""Plays an epoch, and hands on groups of `Trajectory` for the trainer adapter; plays the held-out rows.

A trajectory carries the episode's id, not its tokens: the server has recorded those. Not here: running workflows
(`play.py`), what failures are worth (`worth.py`), sending (`trainer_adapter.py`).
"""

import random
from pathlib import Path
from typing import Any

from nat.data_models.config import Config
from nat.data_models.evaluator import EvalInputItem
from nat.data_models.finetuning import (
    EpisodeItem,
    EpisodeItemRole,
    FinetuneConfig,
    FinetuneRunConfig,
    Trajectory,
    TrajectoryCollection,
)
from nat.finetuning.interfaces.trajectory_builder import TrajectoryBuilder
from nat.runtime.loader import load_config

from nat_agent_rl.configs import AgentRLBuilderConfig
from nat_agent_rl.dataset import read_rows
from nat_agent_rl.episodes import Episode, seed_of
from nat_agent_rl.errors import FinetuneError
from nat_agent_rl.held_out import HeldOut
from nat_agent_rl.options import check_run
from nat_agent_rl.play import Played, Player
from nat_agent_rl.worth import Records, Tally, settle

TRAIN, VALIDATION = "train", "validation"


class AgentRLTrajectoryBuilder(TrajectoryBuilder):
    """One `start_run` and `finalize` per epoch; `meta` needs `epoch`. The trainer sets `server`."""

    def __init__(self, config: AgentRLBuilderConfig) -> None:
        super().__init__(config)
        self.config = config
        self.server: Records | None = None
        self.tally: Tally | None = None
        """Of the last epoch."""
        self._players: dict[str, Player] = {}
        self._rows: dict[str, list[EvalInputItem]] = {}
        self._groups: dict[str, list[list[Played]]] = {}
        self._open: list[str] = []
        """Episodes that the server holds until they are trained or forgotten."""

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """FinetuneError for what the plug-in cannot do, before anything is played."""
        await super().initialize(run_config)
        check_run(run_config)

    async def close(self) -> None:
        """End the workflows; the server forgets what was played and not trained, as far as it still answers."""
        for player in self._players.values():
            await player.close()
        self._players.clear()
        try:
            await self.forget()
        except FinetuneError:
            self._open.clear()  # the server is gone, and its episodes with it

    async def forget(self) -> None:
        """Have the server forget the episodes of the last play."""
        while self._open:
            await self.server.forget(self._open[-1])
            self._open.pop()

    def are_trained(self) -> None:
        """The server has used, and so forgotten, the episodes of the last epoch."""
        self._open.clear()

    async def start_run(self, run_id: str, meta: dict | None = None) -> None:
        """Play the epoch `meta["epoch"]`: `group_size` episodes of each of its rows."""
        epoch = (meta or {})["epoch"]
        player, rows = self._player(TRAIN), self._read(TRAIN)
        groups = [
            [self._new(rows[number], f"{run_id}/{epoch}", number, k) for k in range(self.config.group_size)]
            for number in self._draw(len(rows), epoch)
        ]
        self.tally = await self._play(player, [each for group in groups for each in group], f"epoch {epoch}")
        self._groups[run_id] = groups

    async def finalize(self, run_id: str, meta: dict | None = None) -> TrajectoryCollection:
        """The groups of the epoch; an episode without a reward has `metadata["error"]`."""
        groups = [[self._trajectory(played) for played in group] for group in self._groups.pop(run_id)]
        return TrajectoryCollection(trajectories=groups, run_id=run_id)

    async def evaluate(self, name: str, run_id: str) -> HeldOut:
        """Play the validation rows once each, at temperature 0; nothing is learned from it."""
        own_config = self._options.validation_config_file is not None
        player, rows = self._player(VALIDATION if own_config else TRAIN), self._read(VALIDATION)
        version = (await self.server.health())["weight_version"]
        plays = [self._new(row, f"{run_id}/{name}", number, 0, temperature=0.0) for number, row in enumerate(rows)]
        tally = await self._play(player, plays, f"the evaluation {name!r}", is_held_out=True)
        await self.forget()
        return HeldOut(
            solved={each.task: self._is_solved(each) for each in plays},
            reward=tally.reward,
            num_failed=tally.failed,
            first_error=tally.first_error,
            weight_version=version,
        )

    def log_progress(self, run_id: str, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Nothing: the trainer prints and writes what there is to say about an epoch."""

    @property
    def _options(self) -> FinetuneRunConfig:
        return self.run_config.run_configuration

    async def _play(self, player: Player, plays: list[Played], where: str, *, is_held_out: bool = False) -> Tally:
        self._open = [played.episode.id for played in plays]
        await player.play(plays, self.config.episode_timeout_s)
        await player.score(plays)
        return await settle(
            plays,
            self.server,
            where=where,
            failed_are_zero=is_held_out or self.config.failed_episodes == "zero",
            success_score=self.config.success_score,
        )

    def _config(self, name: str) -> Config:
        own = self._options.validation_config_file
        return self._options.config_file if name == TRAIN or own is None else load_config(own)

    def _player(self, name: str) -> Player:
        if name not in self._players:
            reward, path = self.run_config.reward_function.name, self._options.result_json_path
            self._players[name] = Player(self._config(name), reward, path, self.server.health)
        return self._players[name]

    def _read(self, name: str) -> list[EvalInputItem]:
        if name not in self._rows:
            path: str | Path | None = self._options.dataset if name == TRAIN else self._options.validation_dataset
            self._rows[name] = read_rows(self._config(name), path)
        return self._rows[name]

    def _draw(self, num_rows: int, epoch: int) -> list[int]:
        wanted = self.config.rows_per_epoch
        if wanted is None:
            return list(range(num_rows))
        if wanted > num_rows:
            raise FinetuneError(f"rows_per_epoch is {wanted}, the dataset has {num_rows} rows; make it at most that")
        return random.Random(seed_of(self.config.seed, epoch)).sample(range(num_rows), wanted)

    def _new(self, row: EvalInputItem, play: str, number: int, sample: int, temperature: float | None = None) -> Played:
        task = str(row.id) or str(number)
        name = f"{play}/{number}/{sample}"
        seed = seed_of(self.config.seed, *name.split("/")[1:])  # not of the run's name: a repeated run repeats
        item = row.model_copy(update={"id": f"{task}_rep{sample}"})
        return Played(episode=Episode(id=name, seed=seed, temperature=temperature), item=item, task=task)

    def _is_solved(self, played: Played) -> bool | None:
        return None if played.score is None else played.score >= self.config.success_score

    def _trajectory(self, played: Played) -> Trajectory:
        items = [EpisodeItem(role=EpisodeItemRole.USER, content=str(played.item.input_obj))]
        if played.error is None:
            answer = str(played.item.output_obj)
            items.append(EpisodeItem(role=EpisodeItemRole.ASSISTANT, content=answer, logprobs={}))
        metadata = {
            "episode": played.episode.id,
            "task": played.task,
            "success": self._is_solved(played),
            "error": played.unscored,
            "token_ids": played.episode.token_ids or None,
        }
        return Trajectory(episode=items, reward=played.score or 0.0, metadata=metadata)
