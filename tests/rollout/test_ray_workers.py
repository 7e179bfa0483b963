"""Environments in Ray actors on two nodes: the groups of local workers, node by node lost or not."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]
ray = pytest.importorskip("ray")

from builders import ROOT, run_program  # noqa: E402
from distributed.ray_cluster import (  # noqa: E402
    CPUS,
    TASKS,
    WhereEnv,
    WorkFactory,
    lines,
    local,
    ray_cluster,
    ray_config,
    roll_out,
    seeded_policy,
    slow,
    without_times,
)
from fakes import LETTER_TASKS, EchoEnv, LetterEnv, save_tiny_model  # noqa: E402
from run_outcomes import lasting_metrics  # noqa: E402
from waiting import wait_for  # noqa: E402

from agent_rl.agent.messages import Message  # noqa: E402
from agent_rl.config import load_config  # noqa: E402
from agent_rl.core.evaluation import evaluate_policy  # noqa: E402
from agent_rl.core.trainer_grpo import GRPOTrainer  # noqa: E402
from agent_rl.data.tasks import read_tasks  # noqa: E402
from agent_rl.envs.base import EnvFactory  # noqa: E402
from agent_rl.envs.check_data import check_reference  # noqa: E402
from agent_rl.envs.opening import open_environment  # noqa: E402
from agent_rl.envs.step_result import StepResult  # noqa: E402
from agent_rl.errors import ClusterError, ConfigError, SandboxError  # noqa: E402
from agent_rl.records import StopReason, TrajectoryGroup  # noqa: E402
from agent_rl.rollout.rollout import RolloutRequest, make_worker  # noqa: E402


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """For tests that leave its nodes alone."""
    with ray_cluster() as (made, _nodes):
        yield made


def infos(groups: list[TrajectoryGroup], name: str) -> Counter[Any]:
    """A fact of every turn, counted by episode."""
    return Counter(turn.info[name] for group in groups for episode in group.trajectories for turn in episode.turns)


@pytest.mark.parametrize("async_workers", [0, 16])
def test_groups_are_those_of_local_workers_and_run_on_both_nodes(cluster: Any, tmp_path: Path, async_workers: int):
    config = ray_config(tmp_path, rollout={"async_workers": async_workers})
    groups, factory = roll_out(config, WorkFactory())
    expected, _ = roll_out(local(config), WorkFactory())
    assert without_times(groups) == without_times(expected)
    assert len({episode.reward for group in groups for episode in group.trajectories}) > 12
    nodes, pids = infos(groups, "node"), infos(groups, "pid")
    assert set(nodes) == {node["NodeID"] for node in ray.nodes() if node["Resources"].get("CPU")}
    assert len(pids) == 2 and os.getpid() not in pids
    if async_workers == 0:  # one episode after the other: the least loaded actor that was used least recently is next
        assert len(set(nodes.values())) == 1
    assert factory.counters() == {"asked": 24.0}
    assert factory.worker_counters() == {"lost_episodes": 0.0, "lost_actors": 0.0}
    assert factory.describe()["summary"].startswith("in process ") and factory.describe()["workers"] == "ray"


def test_the_actors_end_with_the_factory(cluster: Any, tmp_path: Path) -> None:
    groups, _ = roll_out(ray_config(tmp_path), WhereEnv)
    pids = list(infos(groups, "pid"))
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    wait_for(lambda: ray.available_resources().get("CPU") == 2 * CPUS)


class LockedMessage(Message):
    """Cannot be pickled."""

    def __reduce_ex__(self, protocol):
        raise TypeError("it holds a lock")


class FailsEnv(EchoEnv):
    """Fails as its question says."""

    def step(self, message):
        if self.question == "sandbox":
            raise SandboxError("no namespaces here")
        if self.question == "own":
            raise OwnError("mine")
        if self.question == "lock in info":
            return StepResult(info={"lock": threading.Lock()}, terminated=True)
        if self.question == "unsendable":
            return StepResult(messages=(LockedMessage(role="user", content="wait"),))
        return super().step(message)

    def reset(self, task):
        self.question = task["question"]
        if self.question == "config":
            raise ConfigError("env.options.depth is 3; use 2")
        return super().reset(task)

    def close(self):
        if self.question == "close":
            raise OSError("still open")


class OwnError(Exception):
    """Of an environment."""


@pytest.mark.parametrize("question", ["sandbox", "own", "close"])
def test_an_environments_failure_is_the_same_data(cluster: Any, tmp_path: Path, question: str) -> None:
    tasks = [{"task_id": "bad", "question": question}, *TASKS[:1]]
    request = RolloutRequest(tasks=tasks, group_size=2, step=1, temperature=1.0)
    config = ray_config(tmp_path, rollout={"max_turns": 2})
    groups, factory = roll_out(config, FailsEnv, request)
    expected, _ = roll_out(local(config), FailsEnv, request)
    assert without_times(groups) == without_times(expected)
    assert {episode.stop_reason for episode in groups[0].trajectories} == {StopReason.ENV_ERROR}
    assert {episode.stop_reason for episode in groups[1].trajectories} == {StopReason.MAX_TURNS}
    assert factory.worker_counters() == {"lost_episodes": 0.0, "lost_actors": 0.0}


def test_a_result_that_cannot_be_sent_is_a_failure_of_its_episode(cluster: Any, tmp_path: Path) -> None:
    tasks = [{"task_id": "bad", "question": "unsendable"}]
    groups, _ = roll_out(
        ray_config(tmp_path), FailsEnv, RolloutRequest(tasks=tasks, group_size=1, step=1, temperature=1)
    )
    (episode,) = groups[0].trajectories
    assert episode.stop_reason is StopReason.ENV_ERROR and "it holds a lock" in episode.error


def test_info_that_cannot_be_sent_is_kept_as_its_repr(cluster: Any, tmp_path: Path) -> None:
    tasks = [{"task_id": "t", "question": "lock in info"}]
    groups, _ = roll_out(
        ray_config(tmp_path), FailsEnv, RolloutRequest(tasks=tasks, group_size=1, step=1, temperature=1)
    )
    (episode,) = groups[0].trajectories
    assert episode.stop_reason is StopReason.FINISHED and "lock" in episode.turns[0].info["lock"]


def test_a_mistake_in_the_configuration_ends_the_run_with_its_sentence(cluster: Any, tmp_path: Path) -> None:
    request = RolloutRequest(tasks=[{"task_id": "t", "question": "config"}], group_size=2, step=1, temperature=1.0)
    with pytest.raises(ConfigError, match=r"^env.options.depth is 3; use 2$"):
        roll_out(ray_config(tmp_path), FailsEnv, request)


class NotHere(WorkFactory):
    def start(self) -> None:
        raise SandboxError("no interpreter on this node")


def test_what_an_actor_cannot_start_is_raised_at_the_start(cluster: Any, tmp_path: Path) -> None:
    with open_environment(ray_config(tmp_path), NotHere()) as factory, pytest.raises(SandboxError, match="no interp"):
        factory.start()


def test_a_folder_that_a_node_lacks_is_named(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_rl.envs.remote.actors.os.getcwd", lambda: "/no/such/folder")
    with open_environment(ray_config(tmp_path), WhereEnv) as factory, pytest.raises(ConfigError) as caught:
        factory.start()
    assert "/no/such/folder" in str(caught.value) and "same paths" in str(caught.value)


def test_an_environment_that_cannot_be_sent_is_a_sentence(tmp_path: Path) -> None:
    lock = __import__("threading").Lock()
    with pytest.raises(ConfigError, match="cannot be sent to other machines"):
        open_environment(ray_config(tmp_path), EnvFactory(lambda: (lock, WhereEnv())[1]))


def test_too_few_cpus_for_any_actor_is_a_sentence_after_the_limit(cluster: Any, tmp_path: Path) -> None:
    config = ray_config(tmp_path, cpus=64, timeout_s=2.0)
    with open_environment(config, WhereEnv) as factory, pytest.raises(ClusterError) as caught:
        factory.start()
    assert "2 s (rollout.ray.timeout_s)" in str(caught.value) and "cpus_per_actor (64)" in str(caught.value)


# Environments by name, in every kind of run

OWN_ENV = """
from agent_rl import AgentEnv, Message, StepResult, register_env
from own_words import GREETING

class Own(AgentEnv):
    def reset(self, task):
        return [Message.user(GREETING + task["question"])]
    def step(self, message):
        return StepResult(reward=float(len(message.content)), terminated=True)
"""
OWN_PLUGIN = """
from agent_rl import EnvFactory, register_env
from own_env import Own

@register_env("own_registered")
def make(options, seed):
    return EnvFactory(Own)
"""


@pytest.mark.parametrize("name", ["own_env.py:Own", "own_env:Own", "own_registered"])
def test_own_environments_and_plugins_of_the_current_folder_are_found(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "own_env.py").write_text(OWN_ENV)
    (tmp_path / "own_words.py").write_text("GREETING = 'well, '\n")
    (tmp_path / "own_plugin.py").write_text(OWN_PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    from agent_rl.envs import registry

    monkeypatch.setattr(registry.ENVIRONMENTS, "_entries", {})
    monkeypatch.delitem(__import__("sys").modules, "own_plugin", raising=False)
    sections = {"env": {"name": name}} | ({"plugins": ["own_plugin"]} if name == "own_registered" else {})
    plugins = sections.pop("plugins", [])
    config = ray_config(tmp_path, **sections)
    if plugins:
        __import__("own_plugin")
        config = config.model_copy(update={"plugins": tuple(plugins)})
    groups, _ = roll_out(config, None)
    expected, _ = roll_out(local(config), None)
    assert without_times(groups) == without_times(expected)
    assert groups[0].trajectories[0].initial_messages[0].content == "well, q0"


@pytest.mark.parametrize("name", ["code_exec", "nat"])
def test_verdicts_come_from_checkers_and_sandboxes_of_the_actor(cluster: Any, name: str) -> None:
    file, tasks = {
        "code_exec": ("configs/code_exec_grpo.yaml", "dataset/code_tasks/eval.jsonl"),
        "nat": ("configs/nat_grpo.yaml", "dataset/nat_tasks/val.jsonl"),
    }[name]
    words = ["rollout.workers=ray", "rollout.ray.actors=1", "rollout.ray.timeout_s=120"]
    config = load_config(ROOT / file, words)
    with open_environment(config) as factory:
        factory.start()
        task = read_tasks(ROOT / tasks, factory.check_task)[0]
        assert check_reference(factory, task) == ()
        (wrong, *_) = [each for each in factory.solutions(task) if not each.succeeds]
        env = factory()
        env.reset(task)
        rewards = [env.step(message).reward_parts.get("success", 0.0) for message in wrong.messages]
        env.close()
        assert max(rewards) == 0.0
        assert factory.counters()["asked"] >= 2.0
        assert factory.inner.describe is not factory.describe


def test_an_evaluation_is_the_same(cluster: Any, tmp_path: Path) -> None:
    rows = [{"task_id": f"m{i}", "question": f"{i} + {i}?", "answer": str(2 * i)} for i in range(6)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = ray_config(
        tmp_path,
        env={"name": "math_qa"},
        data={"eval_path": str(tmp_path / "tasks.jsonl")},
        policy={"max_new_tokens": 500, "max_context": 5000},
    )
    results = [evaluate_policy(each, seeded_policy()) for each in (config, local(config))]
    assert results[0][0] == results[1][0]
    assert [e.turns for e in results[0][1]] == [e.turns for e in results[1][1]]


def test_a_run_is_the_same_to_the_last_bit_and_counts_its_workers(cluster: Any, tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    outcomes = []
    for name in ("local", "ray"):
        config = ray_config(
            tmp_path, run={"name": name}, rollout={"async_workers": 0}, train={"steps": 2}, eval={"temperatures": [1.0]}
        )
        config = config if name == "ray" else local(config)
        with GRPOTrainer.from_config(
            config, env_factory=LetterEnv, train_tasks=LETTER_TASKS, eval_tasks=LETTER_TASKS
        ) as trainer:
            trainer.train()
        run = tmp_path / "runs" / name
        metrics = lasting_metrics(run)
        workers = [{k: row.pop(k) for k in list(row) if k.startswith("workers/")} for row in metrics]
        outcomes.append((metrics, (run / "checkpoints/step_00002/model/model.safetensors").read_bytes()))
        counted = {"workers/lost_episodes": 0.0, "workers/lost_actors": 0.0} if name == "ray" else {}
        assert counted in workers
    assert outcomes[0] == outcomes[1]


def test_the_command_trains_with_workers_of_the_cluster(cluster: Any, tmp_path: Path) -> None:
    words = ["rollout.workers=ray", f"rollout.ray.address={cluster.address}", "rollout.ray.actors=2"]
    words += ["train.steps=1", "rollout.groups_per_step=2", "rollout.group_size=4", "train.warmup_steps=0"]
    words += [f"run.output_dir={tmp_path}", "run.name=own", "data.max_eval_tasks=2", "run.device=cpu"]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = ["-m", "agent_rl.scripts.cli", "train", "--config", "configs/hello.yaml", *words]
    done = run_program(*command, timeout_s=200, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "own/metrics.jsonl").read_text().splitlines()]
    assert [row["workers/lost_episodes"] for row in rows if "reward/mean" in row] == [0.0]
    assert (tmp_path / "own/config.yaml").read_text().count("workers: ray") == 1


def test_without_a_cluster_the_command_ends_with_one_sentence(tmp_path: Path) -> None:
    words = ["rollout.workers=ray", "rollout.ray.address=127.0.0.1:1", f"run.output_dir={tmp_path}"]
    command = ["-m", "agent_rl.scripts.cli", "train", "--config", "configs/hello.yaml", *words]
    done = run_program(*command, timeout_s=200, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "rollout.ray.address" in line and "ray start" in line


# Lost actors and nodes


def test_a_killed_actor_is_replaced_and_its_episodes_run_again(cluster: Any, tmp_path: Path) -> None:
    config = ray_config(tmp_path, rollout={"async_workers": 24})
    request = RolloutRequest(tasks=slow(tmp_path), group_size=4, step=1, temperature=1.0)
    expected, _ = roll_out(local(config), WhereEnv)
    with open_environment(config, WorkFactory()) as factory:
        factory.start()  # returns with the first actor; the one that comes last is killed below, and needs episodes
        wait_for(lambda: len(factory._actors._up()) == 2, timeout_s=60)
        with ThreadPoolExecutor(1) as pool:
            rolled = pool.submit(make_worker(config, seeded_policy(), factory).roll_out, request)
            wait_for(lambda: len(lines(tmp_path, "began")) == 24)
            os.kill(int(factory.describe()["summary"].split()[-1]), signal.SIGKILL)
            groups = rolled.result(timeout=400)
        assert without_times(groups) == without_times(expected)
        counters = factory.worker_counters()
        assert counters["lost_actors"] == 1.0 and 0.0 < counters["lost_episodes"] <= 24.0
        assert len(lines(tmp_path, "began")) == 24 + counters["lost_episodes"]
        wait_for(lambda: len(factory._actors._up()) == 2)
