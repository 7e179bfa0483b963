"""Shared by all tests: Ctrl-C works, also where the shell that started pytest ignores it (a background job); one warm
toolkit; vLLM servers without a model; another device for the tests that choose `on_test_device`."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest
from fake_vllm_server import FakeVLLMServer

from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.sandbox.limits import Limits

with suppress(ImportError):  # interpreters for other people's packages are without it
    from hypothesis import settings

    settings.register_profile("any machine", deadline=None)  # a slow machine is no failure
    settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_delivered() -> Iterator[None]:
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, earlier)


@pytest.fixture(scope="module")
def on_test_device() -> Iterator[None]:
    """`AGENT_RL_TEST_DEVICE=cuda`: tensors and models that a test makes without naming a device are there."""
    device = os.environ.get("AGENT_RL_TEST_DEVICE", "cpu")
    if device == "cpu":
        yield
        return
    import torch

    torch.set_default_device(device)
    yield
    torch.set_default_device(None)


@pytest.fixture(scope="session")
def nat_toolkit() -> Iterator[NatToolkit]:
    """A missing `.venv-nat` fails the tests that need it instead of skipping them: without it nothing is scored."""
    with NatToolkit.open(processes=1) as toolkit:
        yield toolkit


@pytest.fixture(scope="session")
def hasty_toolkit() -> Iterator[NatToolkit]:
    """The same with a short deadline, for projects that never end."""
    limits = Limits(wall_s=1.5, cpu_s=3, memory_mb=512, output_kb=16, output_hard_kb=256)
    with NatToolkit.open(processes=1, limits=limits) as toolkit:
        yield toolkit


@pytest.fixture
def server() -> Iterator[FakeVLLMServer]:
    with FakeVLLMServer() as fake:
        yield fake


@pytest.fixture
def other() -> Iterator[FakeVLLMServer]:
    with FakeVLLMServer() as fake:
        yield fake
