"""Whole NAT trainings whose episodes are sampled by vLLM: ZeRO-3 over two processes, servers, an engine inside."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from waiting import free_port

ROOT = Path(__file__).resolve().parents[3]
ZERO3 = "configs/accelerate/zero3_2cpu.yaml"
STEPS = 3
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one server that is started again when it dies."""
    from watched_servers import one_server

    from agent_rl.inference.vllm.server.launch_plan import ServeOptions

    options = ServeOptions(
        model=str(ROOT / "model/nat_minimind"),
        port=free_port(),
        max_context=768,
        max_batch_size=32,
        dtype="float32",
        log_dir=tmp_path_factory.mktemp("servers"),
    )
    with one_server(options) as address:
        yield address


def write_config(folder: Path, **sections: dict[str, Any]) -> Path:
    """The default run, smaller, sampled by vLLM."""
    raw = yaml.safe_load((ROOT / "configs/nat_grpo.yaml").read_text(encoding="utf-8"))
    raw["run"] |= {"name": "run", "output_dir": str(folder), "device": "cpu"}
    raw["policy"] = {"type": "vllm", "max_new_tokens": 300, "max_context": 768}
    raw["env"]["options"]["checkers"] = 1
    raw["algorithm"] = {}
    raw["rollout"] |= {"group_size": 4, "groups_per_step": 4, "async_workers": 16}
    raw["train"] |= {"steps": STEPS, "micro_batch_tokens": 4096}
    raw["eval"] = {"temperatures": []}
    raw["log"] = {"progress": False, "trackers": [], "transcripts_per_step": 0}
    for name, values in sections.items():
        raw[name] = raw.get(name, {}) | values
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def start(config: Path, *, launcher: str | None = None, script: str = "nat") -> "subprocess.Popen[str]":
    command = [sys.executable]
    if launcher:
        command += ["-m", "accelerate.commands.launch", "--config_file", launcher, "--main_process_port"]
        command.append(str(free_port()))
    command += [f"agent_rl/scripts/train_{script}_agent.py", "--config", str(config)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(process: "subprocess.Popen[str]", folder: Path) -> list[dict[str, float]]:
    """Metrics of its steps."""
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output[-20_000:]
    return rows_of(folder)


def rows_of(folder: Path) -> list[dict[str, float]]:
    path = folder / "run/metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def assert_exact(rows: list[dict[str, float]]) -> None:
    """Every step learned, from tokens that the sampler sampled with the trainer's own weights."""
    assert [row["step"] for row in rows] == [*range(1, STEPS + 1)]
    for row in rows:
        assert row["optim/skipped"] == 0
        assert row["mismatch/abs_log_diff_max"] < 1e-3
        assert row["sync/probe_gap"] < 1e-3
        assert row["rollout/env_errors"] == 0
        assert row["reward/mean"] > 0


def test_two_shards_train_and_a_server_samples(server: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, vllm={"servers": [server]})
    assert_exact(finish(start(config, launcher=ZERO3), tmp_path))
    saved = tmp_path / "run/checkpoints/step_00003/model"
    from agent_rl.policies.hf_policy import HuggingFaceModel

    whole = HuggingFaceModel.from_pretrained(saved).module
    before = HuggingFaceModel.from_pretrained(ROOT / "model/nat_minimind").module
    moved = [not a.equal(b) for a, b in zip(whole.parameters(), before.parameters(), strict=True)]
    assert all(moved)


def test_two_shards_train_and_each_samples_with_an_engine_of_its_own(tmp_path: Path) -> None:
    config = write_config(tmp_path, policy={"max_batch_size": 16})
    assert_exact(finish(start(config, launcher=ZERO3), tmp_path))


def test_two_shards_of_adapters_train_and_are_sampled_with(tmp_path: Path) -> None:
    config = write_config(tmp_path, model={"lora": {"rank": 4}}, policy={"max_batch_size": 16})
    assert_exact(finish(start(config, launcher=ZERO3), tmp_path))


AGENT_OF_ANY_LENGTH = """
import httpx
from agent_rl import Reward

async def agent(task, base_url, api_key):
    headers = {"Authorization": f"Bearer {api_key}"}
    messages = [{"role": "user", "content": task["question"]}]
    async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=300, headers=headers) as client:
        reply = await client.post("/chat/completions", json={"model": "policy", "messages": messages})
    return Reward(value=reply.raise_for_status().json()["usage"]["completion_tokens"] % 5)
"""


def test_an_agent_outside_trains_on_two_processes_with_a_server_and_stale_weights(tmp_path: Path) -> None:
    from watched_servers import one_server

    from agent_rl.inference.vllm.server.launch_plan import ServeOptions

    raw = yaml.safe_load((ROOT / "configs/math_grpo.yaml").read_text(encoding="utf-8"))
    raw["tools"] = {}
    # The reward differs in every group: a step without signal has no metrics of its sampler.
    (tmp_path / "agents.py").write_text(AGENT_OF_ANY_LENGTH, encoding="utf-8")
    options = ServeOptions(
        model=str(ROOT / raw["model"]["path"]),
        port=free_port(),
        max_context=640,
        max_batch_size=32,
        dtype="float32",
        log_dir=tmp_path / "servers",
    )
    with one_server(options) as address:
        config = write_config(
            tmp_path,
            data=raw["data"],
            model=raw["model"],
            tools={"use": []},
            env={"name": "external", "options": {"agent": f"{tmp_path}/agents.py:agent"}},
            policy={"max_new_tokens": 64, "max_context": 640},
            vllm={"servers": [address]},
            rollout={"max_staleness": 1},
            algorithm={"correction": {"kind": "token_tis"}},
        )
        rows = finish(start(config, launcher=ZERO3, script="math"), tmp_path)
    assert [row["step"] for row in rows] == [*range(1, STEPS + 1)]
    for row in rows:
        assert (row["rollout/env_errors"], row["workers/agents_failed"]) == (0, 0)
        assert row["sync/probe_gap"] < 1e-3
        assert row["async/staleness_max"] <= 1
        assert row["optim/skipped"] == 0
    assert rows[0]["mismatch/abs_log_diff_max"] < 1e-3


def test_a_server_killed_during_a_rollout_comes_back_with_the_weights_of_then(server: str, tmp_path: Path) -> None:
    # A step's episodes take far longer than one look at the busy server, and two steps have weights of their own.
    config = write_config(tmp_path, vllm={"servers": [server]}, rollout={"groups_per_step": 8})
    process = start(config)
    deadline = time.monotonic() + 200
    # In the middle of a later step's episodes: its weights are not those that the server was started with.
    while not (0 < len(rows_of(tmp_path)) < STEPS and num_running(server) > 0):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    kill_server()
    rows = finish(process, tmp_path)
    assert_exact(rows)
    assert [row["batch/num_samples"] for row in rows] == [32.0] * STEPS


def test_episodes_go_on_while_the_trainer_updates(server: str, tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        vllm={"servers": [server]},
        rollout={"max_staleness": 1},
        algorithm={"correction": {"kind": "token_tis"}},
        train={"steps": 5},
    )
    rows = finish(start(config, launcher=ZERO3), tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(row["async/staleness_max"] <= 1 for row in rows)
    assert any(row["async/staleness_max"] == 1 for row in rows)
    assert all(row["sync/probe_gap"] < 1e-3 for row in rows)


def num_running(server: str) -> float:
    """Completions running on a server."""
    import httpx

    lines = httpx.get(f"{server}/metrics", timeout=5).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))


def kill_server() -> None:
    """The one that this process supervises, with all its children."""
    (guard,) = (
        child for child in psutil.Process().children() if any("launch_guard" in word for word in child.cmdline())
    )
    os.killpg(guard.pid, signal.SIGKILL)
