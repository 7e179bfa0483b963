"""Sandboxes for tests, on machines where some isolation works; elsewhere the tests are skipped with the reason."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from agent_rl.envs.code.env import CodeExecEnvFactory, CodeExecEnvOptions
from agent_rl.errors import SandboxError
from agent_rl.sandbox import Sandbox
from agent_rl.sandbox.limits import Limits
from agent_rl.sandbox.sandbox import BASE_JOBS


@contextmanager
def sandbox_or_skip(limits: Limits, jobs: Sequence[str] = BASE_JOBS) -> Iterator[Sandbox]:
    try:
        opened = Sandbox.open(python=sys.executable, limits=limits, jobs=jobs)
    except SandboxError as error:
        pytest.skip(f"no isolation tier is available here: {error}")
    with opened:
        yield opened


def sandbox_fixture(limits: Limits, jobs: Sequence[str] = BASE_JOBS) -> Any:
    """A fixture `sandbox` with these limits, shared by the tests of a module."""

    @pytest.fixture(scope="module", name="sandbox")
    def opened() -> Iterator[Sandbox]:
        with sandbox_or_skip(limits, jobs) as sandbox:
            yield sandbox

    return opened


@contextmanager
def code_factory_or_skip(**options: Any) -> Iterator[CodeExecEnvFactory]:
    opened = CodeExecEnvFactory(CodeExecEnvOptions(**options))
    try:
        opened.start()
    except SandboxError as error:
        pytest.skip(f"no isolation tier is available here: {error}")
    try:
        yield opened
    finally:
        opened.close()
