"""A Ray cluster of several nodes on this machine, and environments and policies for episodes that run in its actors."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from fakes import ScriptedPolicy, tiny_config
from ray.cluster_utils import Cluster
from waiting import wait_for

from agent_rl.agent.messages import Message
from agent_rl.config import Config
from agent_rl.config.sections import RolloutConfig
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult
from agent_rl.envs.opening import open_environment
from agent_rl.records import SamplingParams, StopReason, TrajectoryGroup
from agent_rl.rollout.rollout import RolloutRequest, make_worker

CPUS = 2
"""Of a node, as Ray counts them; the head has none, so that no actor is there."""
TASKS: list[dict[str, Any]] = [{"task_id": f"t{i}", "question": f"q{i}"} for i in range(6)]
REQUEST = RolloutRequest(tasks=TASKS, group_size=4, step=1, temperature=1.0)


@contextmanager
def ray_cluster(num_nodes: int = 2) -> Iterator[tuple[Cluster, list[Any]]]:
    """The cluster, to which this process is connected, and its nodes beside the head."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=CPUS) for _ in range(num_nodes)]
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster, nodes
    finally:
        ray.shutdown()
        cluster.shutdown()


def ray_config(folder: Path, *, actors: int = 2, cpus: int = CPUS, timeout_s: float = 60.0, **sections: Any) -> Config:
    """The tiny configuration with environments in actors, by default one for each node."""
    ray_keys = {"actors": actors, "cpus_per_actor": cpus, "timeout_s": timeout_s}
    rollout = {"workers": "ray", "ray": ray_keys} | sections.pop("rollout", {})
    return tiny_config(folder, rollout=rollout, **sections)


class WhereEnv(AgentEnv):
    """Three turns; tells in which process and node it runs. A step takes as long as the task says.

    Writes a line to the task's `log`, if it has one, when it is made and when it has ended.
    """

    def __init__(self) -> None:
        self.rewards: list[float] = []

    def reset(self, task: dict[str, Any]) -> list[Message]:
        self.task = task
        self._log("began")
        return [Message.user(f"{task['question']} {self.case_seed}")]

    def step(self, message: Message) -> StepResult:
        time.sleep(self.task.get("seconds", 0.0))
        self.rewards.append(sum(message.content.encode()) % 97 / 97)
        info = {"pid": os.getpid(), "node": ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""}
        is_over = len(self.rewards) == 3
        parts = {"success": float(self.rewards[-1] > 0.5)}
        if is_over:
            self._log("ended")
        return StepResult(
            messages=(Message.tool(f"{self.rewards[-1]:.3f}"),),
            reward=self.rewards[-1],
            reward_parts=parts,
            terminated=is_over,
            info=info,
        )

    def truncate(self, reason: StopReason) -> StepResult:
        return StepResult(reward=-1.0, terminated=True)

    def _log(self, word: str) -> None:
        if "log" in self.task:
            with open(self.task["log"], "a", encoding="utf-8") as log:
                log.write(f"{word} {self.task['task_id']}\n")


class WorkFactory(EnvFactory):
    """Of `WhereEnv`; counts every environment as a verdict."""

    def __init__(self) -> None:
        super().__init__(WhereEnv)
        self.num_made = 0
        self.is_started = False

    def start(self) -> None:
        self.is_started = True

    def __call__(self) -> AgentEnv:
        assert self.is_started
        self.num_made += 1
        return super().__call__()

    def counters(self) -> dict[str, float]:
        return {"asked": float(self.num_made)}

    def describe(self) -> dict[str, Any]:
        return {"summary": f"in process {os.getpid()}"}


def seeded_policy() -> ScriptedPolicy:
    """Replies depend on the seed and the turn alone."""

    def reply(turn: int, sampling: SamplingParams) -> str:
        return f"{turn}:{sampling.seed}"

    return ScriptedPolicy(reply)


def without_times(groups: Sequence[TrajectoryGroup]) -> list[Any]:
    """Everything of the episodes but how long they took and where they ran."""
    return [
        (
            group.task_id,
            [
                (
                    episode.group_id,
                    [
                        (turn.prompt_token_ids, turn.completion, turn.message, turn.env_messages)
                        for turn in episode.turns
                    ],
                    episode.stop_reason,
                    episode.reward,
                    episode.reward_parts,
                    episode.flags,
                    episode.initial_messages,
                    episode.error,
                )
                for episode in group.trajectories
            ],
        )
        for group in groups
    ]


def local(config: Config) -> Config:
    """The same configuration with environments in this process."""
    keys = {key: value for key, value in config.rollout.model_dump().items() if key not in ("workers", "ray")}
    return config.model_copy(update={"rollout": RolloutConfig(**keys)})


def roll_out(config: Config, env: Any, request: RolloutRequest = REQUEST) -> tuple[list[TrajectoryGroup], EnvFactory]:
    """The groups, and the factory, closed."""
    with open_environment(config, env) as factory:
        factory.start()
        if config.rollout.workers == "ray":  # it starts with the first actor
            wait_for(lambda: len(factory._actors._up()) == config.rollout.ray.actors)
        return make_worker(config, seeded_policy(), factory).roll_out(request), factory


def slow(folder: Path, seconds: float = 0.3) -> list[dict[str, Any]]:
    """The tasks with steps that take so long, and a log."""
    return [{**task, "seconds": seconds, "log": str(folder / "log")} for task in TASKS]


def lines(folder: Path, word: str) -> list[str]:
    """Of the log of `slow` tasks, those with `began` or `ended`."""
    log = folder / "log"
    return [line for line in log.read_text().splitlines() if line.startswith(word)] if log.exists() else []
