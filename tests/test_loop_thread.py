"""An event loop beside blocking code: results, errors, an end that leaves nothing running."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from agent_rl.loop_thread import LoopThread


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def fail() -> None:
    raise KeyError("lost")


def test_many_threads_get_their_own_results() -> None:
    with LoopThread("test") as loop, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda number: loop.result(double(number)), range(50))) == [2 * n for n in range(50)]


def test_what_a_coroutine_raises_is_raised_where_it_is_waited_for() -> None:
    with LoopThread("test") as loop, pytest.raises(KeyError, match="lost"):
        loop.result(fail())


def test_the_end_cancels_what_still_runs_and_ends_the_thread() -> None:
    loop = LoopThread("ending")
    waiting = loop.start(asyncio.sleep(60))
    loop.close()
    loop.close()
    with pytest.raises(CancelledError):
        waiting.result()
    assert "ending" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_ends_its_own_coroutine_and_neither_the_loop_nor_the_others(kind: type[BaseException]) -> None:
    async def leave() -> None:
        raise kind(3)

    loop = LoopThread("left")
    other = loop.start(asyncio.sleep(0.05, "other"))
    with pytest.raises(kind, match="3"):
        loop.start(leave()).result(20)
    assert other.result(20) == "other"
    assert loop.start(double(4)).result(20) == 8
    loop.close()
    assert "left" not in {thread.name for thread in threading.enumerate()}


def test_the_end_waits_for_coroutines_that_exit_as_they_are_cancelled() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            sys.exit(3)

    loop = LoopThread("stubborn")
    started = [loop.start(stubborn()) for _ in range(3)]
    assert loop.start(double(4)).result(20) == 8
    closing = threading.Thread(target=loop.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert all(each.done() for each in started)


FORKS = """
import asyncio, os
from agent_rl.loop_thread import shared_loop
first = shared_loop("one")
print(shared_loop("one") is first, shared_loop("two") is first, flush=True)
if os.fork() == 0:
    print(shared_loop("one").result(asyncio.sleep(0, "child")), flush=True)
    os._exit(0)
os.wait()
"""


def test_a_name_has_one_loop_in_a_process_and_a_fork_has_its_own() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True, timeout=400)
    assert ran.stdout.split() == ["True", "False", "child"]
