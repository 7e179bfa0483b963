"""A policy with versions of its own, slow or held on purpose, and asynchronous sources that roll out with it.

`run_steps` and `run_failing` are what a rank of tests/rollout/test_async_source.py does.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from fakes import END, ByteChatFormat, LetterEnv, tiny_config

from agent_rl.config import Config
from agent_rl.data.sampler import TaskSampler
from agent_rl.data.tasks import Task
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.processes import Processes
from agent_rl.envs.base import AgentEnv, EnvFactory
from agent_rl.errors import AgentRLError, EngineError
from agent_rl.inference.base import Cancel
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Completion, FinishReason, SamplingParams, TrajectoryGroup
from agent_rl.rollout.async_source import AsyncSource
from agent_rl.seeds import derive_seed

TASKS: list[Task] = [{"task_id": f"t{i}", "question": f"q{i}", "level": 1} for i in range(100)]
ORDER = TaskSampler(len(TASKS), seed=0).next(len(TASKS))
"""Slot i is a group of the task `TASKS[ORDER[i]]`, as long as no more than one epoch is sampled."""


def question_of(slot: int) -> str:
    return TASKS[ORDER[slot]]["question"]


class VersionedPolicy(BasePolicy):
    """Replies `a` or `b`, by the seed; the version of the weights is looked up for the letter and for the turn's end.

    Between the two it waits while its question is held, and for `delay_s(seed)` seconds.
    """

    def __init__(self, delay_s: Callable[[int], float] = lambda _seed: 0.0) -> None:
        self.chat_format = ByteChatFormat()
        self.max_context = 10_000
        self.version = 0
        self.held: set[str] = set()
        self.always: dict[str, str] = {}
        """The reply to a question, whatever the seed."""
        self.failing_question: str | None = None
        self.seeds: list[int] = []
        self.num_sampled = self.num_cancelled = self.num_running = 0
        self._delay_s = delay_s
        self._lock = threading.Lock()

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        question = bytes(prompt_ids[1 : prompt_ids.index(END)]).decode()
        with self._lock:
            self.seeds.append(sampling.seed)
            self.num_running += 1
        try:
            return self._generate(question, sampling, cancel)
        finally:
            with self._lock:
                self.num_running -= 1

    def _generate(self, question: str, sampling: SamplingParams, cancel: Cancel | None) -> Completion:
        first_version, ends = self.version, time.monotonic() + self._delay_s(sampling.seed)
        while question in self.held or time.monotonic() < ends:
            if cancel is not None and cancel.is_set():
                with self._lock:
                    self.num_cancelled += 1
                return Completion(
                    token_ids=(), logprobs=(), finish_reason=FinishReason.CANCELLED, weight_version=first_version
                )
            time.sleep(0.001)
        if question == self.failing_question:
            raise EngineError(f"no memory for {question}")
        letter = self.always.get(question, "ab"[sampling.seed % 2])
        versions = (first_version, self.version)
        with self._lock:
            self.num_sampled += 1
        return Completion(
            token_ids=(ord(letter), END),
            logprobs=(-0.5, -0.25),
            finish_reason=FinishReason.STOP,
            weight_version=first_version,
            token_versions=versions if len(set(versions)) > 1 else (),
        )

    def refresh_weights(self, version: int) -> None:
        self.version = version

    def close(self) -> None:
        return None


NUM_STEPS = 500
"""More than any test makes: after the last step of a run nothing goes on."""


def async_config(folder: Path, **rollout: Any) -> Config:
    """Two groups of three episodes a step, one update of staleness."""
    chosen = {"group_size": 3, "groups_per_step": 2, "max_staleness": 1, "async_workers": 16} | rollout
    correction = {"correction": {"kind": "token_tis"}}
    return tiny_config(
        folder, policy={"type": "vllm"}, algorithm=correction, rollout=chosen, train={"steps": NUM_STEPS}
    )


def make_async(
    config: Config,
    policy: BasePolicy,
    *,
    tasks: Sequence[Task] = TASKS,
    env: type[AgentEnv] = LetterEnv,
    processes: Processes | None = None,
) -> AsyncSource:
    return AsyncSource(
        config,
        tasks,
        policy=policy,
        env_factory=EnvFactory(env),
        processes=processes or Processes(device=torch.device("cpu"), timeout_s=60),
    )


def update(source: AsyncSource, policy: VersionedPolicy, step: int) -> None:
    """What the trainer does with the groups of `step`."""
    policy.refresh_weights(step)
    source.commit()


def text_of(group: TrajectoryGroup) -> str:
    return "".join(episode.turns[0].message.content for episode in group.trajectories)


def run_steps(folder: Path, num_steps: int) -> None:
    """Steps of one rank with episodes of random lengths, and a checkpoint after each; `FOLDER/<rank>.json`."""
    processes = Backend("cpu", timeout_s=60)
    rank = processes.rank
    policy = VersionedPolicy(lambda seed: derive_seed(seed, rank) % 20 / 1000)
    source = make_async(async_config(folder, groups_per_step=3, max_staleness=2), policy, processes=processes)
    rows = []
    for step in range(1, num_steps + 1):
        batch = source.collect(step=step)
        update(source, policy, step)
        metrics = {name: value for name, value in batch.metrics.items() if name != "async/wait_s"}
        rows.append({"metrics": metrics, "groups": [asdict(group) for group in batch.groups]})
        state = source.state_dict()
        rows[-1]["state"] = state
    num_seeds = len(policy.seeds)
    source.close()
    (folder / f"{rank}.json").write_text(json.dumps({"rows": rows, "num_seeds": num_seeds}))
    processes.close()


def run_failing(folder: Path) -> None:
    """Slot 1 is rolled out by rank 1, where it fails; every rank writes its errors to `FOLDER/<rank>.json`."""
    processes = Backend("cpu", timeout_s=60)
    policy = VersionedPolicy()
    policy.held = {question_of(0)}
    policy.failing_question = question_of(1)
    source = make_async(async_config(folder), policy, processes=processes)
    try:
        source.collect(step=1)
    except AgentRLError as error:
        (folder / f"{processes.rank}.json").write_text(json.dumps([type(error).__name__, str(error)]))
    source.close()
    processes.close()
