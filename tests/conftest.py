"""Shared by all tests: Ctrl-C works, also where the shell that started pytest ignores it (a background job)."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_delivered() -> Iterator[None]:
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, earlier)
