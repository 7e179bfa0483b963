"""Shared by the tests of the plug-in: a fake trainer in a process of its own, and `nat` in another."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

HERE = Path(__file__).resolve().parent
KEY = "key-of-the-test"
BIN = Path(sys.executable).parent


def free_port() -> int:
    """A port below those that systems hand out by themselves, so that no process takes it before its server listens."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


class FakeTrainer:
    """The fake server as a process."""

    def __init__(self, **knobs: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, str(HERE / "fake_trainer.py"), str(self.port), KEY, json.dumps(knobs)]
        self.process = subprocess.Popen(command)
        deadline = time.monotonic() + 20
        while True:
            with suppress(httpx.TransportError):
                httpx.get(f"{self.url}/health")
                return
            assert time.monotonic() < deadline, "the fake trainer never came up"
            time.sleep(0.02)

    def seen(self, **knobs: Any) -> dict[str, Any]:
        """What it was asked so far; sets knobs."""
        return httpx.post(f"{self.url}/fake", json=knobs).json()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def fake_trainer() -> Iterator[Callable[..., FakeTrainer]]:
    """Starts fake trainers with knobs; ends them."""
    started: list[FakeTrainer] = []

    def start(**knobs: Any) -> FakeTrainer:
        started.append(FakeTrainer(**knobs))
        return started[-1]

    yield start
    for each in started:
        each.end()


def rows(*questions: str) -> list[dict[str, Any]]:
    """Rows `What is 3 * 4?` with ids and answers; more text stands behind the question."""
    made = []
    for number, question in enumerate(questions):
        one, other = (int(word) for word in question.split()[:3] if word.isdigit())
        made.append({"id": f"row-{number}", "question": f"What is {question}", "answer": str(one * other)})
    return made


SUMS = ["1 * 2", "2 * 3", "3 * 4", "4 * 5"]


class Finetuning:
    """A folder with a configuration and datasets, and the command that uses them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        agent = {"_type": "tool_calling_agent", "llm_name": "policy", "tool_names": ["calculator"]}
        self.config: dict[str, Any] = {
            "llms": {"policy": {"_type": "agent_rl_policy", "server": url, "request_timeout_s": 20}},
            "functions": {"calculator": {"_type": "example_calculator"}},
            "workflow": agent,
            "eval": {
                "general": {"max_concurrency": 8, "dataset": {"_type": "jsonl", "file_path": "train.jsonl"}},
                "evaluators": {"answer": {"_type": "example_answer"}},
            },
            "trajectory_builders": {"builder": {"_type": "agent_rl_trajectory_builder", "group_size": 4}},
            "trainer_adapters": {"adapter": {"_type": "agent_rl_trainer_adapter", "server": url, "timeout_s": 5}},
            "trainers": {"trainer": {"_type": "agent_rl_trainer"}},
            "finetuning": {
                "enabled": True,
                "trainer": "trainer",
                "trajectory_builder": "builder",
                "trainer_adapter": "adapter",
                "reward_function": {"name": "answer"},
                "output_dir": "out",
            },
        }
        self.write("train.jsonl", rows(*SUMS))

    def write(self, name: str, lines: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.folder / name).write_text(text, encoding="utf-8")

    def plain(self) -> "Finetuning":
        """The workflow without a framework instead of the agent."""
        self.config["workflow"] = {"_type": "test_plain", "server": self.url}
        del self.config["llms"], self.config["functions"]
        return self

    def start(self, *options: str, key: str | None = KEY) -> subprocess.Popen[str]:
        (self.folder / "config.yml").write_text(yaml.safe_dump(self.config), encoding="utf-8")
        parts = self.folder / "parts/nat_agent_rl_tests-0.dist-info"
        parts.mkdir(parents=True, exist_ok=True)
        (parts / "METADATA").write_text("Metadata-Version: 2.1\nName: nat-agent-rl-tests\nVersion: 0\n")
        (parts / "entry_points.txt").write_text("[nat.components]\nnat_agent_rl_tests = workflows\n")
        environment = {name: value for name, value in os.environ.items() if name != "AGENT_RL_KEY"}
        environment |= {"NAT_TELEMETRY_ENABLED": "false", "PYTHONPATH": f"{HERE}:{parts.parent}"}
        if key is not None:
            environment["AGENT_RL_KEY"] = key
        command = [str(BIN / "nat"), "finetune", "--config_file", "config.yml", *options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.folder, env=environment, start_new_session=True, **pipes)

    def run(self, *options: str, key: str | None = KEY) -> subprocess.CompletedProcess[str]:
        process = self.start(*options, key=key)
        try:
            output, errors = process.communicate(timeout=120)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def epochs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "out/epochs.jsonl").read_text().splitlines()]


@pytest.fixture
def finetuning(tmp_path: Path) -> Callable[[str], Finetuning]:
    return lambda url: Finetuning(tmp_path, url)


def the_error(done: subprocess.CompletedProcess[str]) -> str:
    """The sentence that a failed command ends with, which it prints once, without any traceback."""
    assert done.returncode == 1, done.stdout + done.stderr
    last = done.stderr.replace("\x1b[0m", "").strip().splitlines()[-1]
    assert last.startswith("Error: "), done.stderr
    sentence = last.removeprefix("Error: ")
    assert done.stderr.count(sentence) == 1, done.stderr
    assert "Traceback" not in done.stderr and "recursion" not in done.stderr, done.stderr
    return sentence
