"""Nodes of a Ray cluster that are lost in the middle of a rollout: no sample is lost, none counts twice."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]
pytest.importorskip("ray")

import torch  # noqa: E402
from distributed.async_run import async_config  # noqa: E402
from distributed.ray_cluster import (  # noqa: E402
    CPUS,
    REQUEST,
    WhereEnv,
    lines,
    local,
    ray_cluster,
    ray_config,
    roll_out,
    seeded_policy,
    slow,
    without_times,
)
from fakes import ScriptedPolicy  # noqa: E402
from waiting import wait_for  # noqa: E402

from agent_rl.config import Config  # noqa: E402
from agent_rl.distributed.processes import Processes  # noqa: E402
from agent_rl.envs.opening import open_environment  # noqa: E402
from agent_rl.errors import ClusterError  # noqa: E402
from agent_rl.records import Completion, SamplingParams  # noqa: E402
from agent_rl.rollout.async_source import AsyncSource  # noqa: E402
from agent_rl.rollout.rollout import RolloutRequest, make_worker  # noqa: E402


def test_a_node_that_is_lost_in_the_middle_of_a_rollout_changes_nothing(tmp_path: Path) -> None:
    with ray_cluster() as (cluster, nodes):
        config = ray_config(tmp_path, timeout_s=15.0, rollout={"async_workers": 24})
        request = RolloutRequest(tasks=slow(tmp_path, 0.5), group_size=4, step=1, temperature=1.0)
        expected, _ = roll_out(local(config), WhereEnv)
        with open_environment(config, WhereEnv) as factory:
            factory.start()
            wait_for(lambda: len(factory._actors._up()) == 2, timeout_s=60)
            with ThreadPoolExecutor(1) as pool:
                rolled = pool.submit(make_worker(config, seeded_policy(), factory).roll_out, request)
                wait_for(lambda: len(lines(tmp_path, "began")) == 24)
                cluster.remove_node(nodes[0], allow_graceful=False)
                groups = rolled.result(timeout=400)
            assert without_times(groups) == without_times(expected)
            assert len({id(e) for group in groups for e in group.trajectories}) == 24
            counters = factory.worker_counters()
            assert (counters["lost_actors"], counters["lost_episodes"]) == (1.0, 12.0)
            assert (len(lines(tmp_path, "began")), len(lines(tmp_path, "ended"))) == (36, 24)
            # A node that joins gets the actor that the other one lost.
            added = cluster.add_node(num_cpus=CPUS)
            wait_for(lambda: len(factory._actors._up()) == 2, timeout_s=60)
            for node in (nodes[1], added):
                cluster.remove_node(node, allow_graceful=False)
            # An actor answers for most of a second after its node is gone, long enough for a whole short rollout.
            wait_for(lambda: not factory._actors._up(), timeout_s=60)
            began = time.monotonic()
            with pytest.raises(ClusterError) as caught:
                make_worker(config, seeded_policy(), factory).roll_out(REQUEST)
            assert time.monotonic() - began < 90
            assert "15 s (rollout.ray.timeout_s)" in str(caught.value)


class AlwaysNew(ScriptedPolicy):
    """Of so new a version that nothing is too old for its slot."""

    def __init__(self) -> None:
        super().__init__(lambda turn, sampling: f"{turn}:{sampling.seed}")

    def generate(self, prompt_ids: Any, sampling: SamplingParams, cancel: Any = None) -> Completion:
        return replace(super().generate(prompt_ids, sampling, cancel), weight_version=99)


def test_asynchronous_groups_survive_a_lost_node(tmp_path: Path) -> None:
    """What is sampled depends on slot, task and sample alone, so two runs have the same groups for the same slots."""
    tasks = [{"task_id": f"t{i}", "question": f"q{i}", "seconds": 0.3, "log": str(tmp_path / "log")} for i in range(40)]

    def collect(config: Config, kill: Any = None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with open_environment(config, WhereEnv) as factory:
            factory.start()
            if kill is not None:
                wait_for(lambda: len(factory._actors._up()) == 2, timeout_s=60)
            processes = Processes(device=torch.device("cpu"), timeout_s=60)
            source = AsyncSource(config, tasks, policy=AlwaysNew(), env_factory=factory, processes=processes)
            try:
                for step in range(1, 7):
                    groups = source.collect(step=step).groups
                    found |= {g.trajectories[0].group_id: without_times([g]) for g in groups}
                    source.commit()
                    if step == 2 and kill is not None:
                        kill()
            finally:
                source.close()
            lost = factory.worker_counters().get("lost_episodes")
        return {"groups": found, "lost": lost}

    ray_keys = {"workers": "ray", "ray": {"actors": 2, "cpus_per_actor": CPUS, "timeout_s": 60}}
    with ray_cluster() as (cluster, nodes):
        expected = collect(async_config(tmp_path))
        found = collect(async_config(tmp_path, **ray_keys), lambda: cluster.remove_node(nodes[0], allow_graceful=False))
    both = expected["groups"].keys() & found["groups"].keys()
    assert len(found["groups"]) == 12 and len(both) >= 8
    assert {slot: found["groups"][slot] for slot in both} == {slot: expected["groups"][slot] for slot in both}
    assert found["lost"] > 0
