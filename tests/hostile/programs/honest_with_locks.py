# MUST: honest programs that lock files, start processes and wait for them go on working.
import asyncio
import dbm.dumb
import fcntl
import mailbox
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor


def square(n: int) -> int:
    return n * n


for mode in ("delete", "wal", "truncate", "memory"):
    with sqlite3.connect(f"{mode}.db") as base:
        base.execute(f"pragma journal_mode={mode}")
        base.execute("create table t (a integer)")
        base.executemany("insert into t values (?)", [(n,) for n in range(100)])
    with sqlite3.connect(f"{mode}.db") as base:
        assert base.execute("select sum(a) from t").fetchone() == (4950,)
with ProcessPoolExecutor(3) as pool:
    assert list(pool.map(square, range(10))) == [n * n for n in range(10)]
with ThreadPoolExecutor(4) as threads:
    assert sum(threads.map(square, range(5))) == 30
lock, total = multiprocessing.Lock(), multiprocessing.Value("i", 0)


def add() -> None:
    for _ in range(100):
        with lock, total.get_lock():
            total.value += 1


workers = [multiprocessing.Process(target=add) for _ in range(3)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert total.value == 300
with open("a.lock", "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(file, fcntl.LOCK_UN)
box = mailbox.mbox("box")
box.lock()
box.add("From: a\n\nb")
box.flush()
box.unlock()
with dbm.dumb.open("names", "c") as names:
    names["a"] = "b"
assert subprocess.run(["sort"], input="b\na\n", capture_output=True, text=True, check=True).stdout == "a\nb\n"
subprocess.run(["cp", "names.dat", "copy.dat"], check=True)
subprocess.run(["cat", "copy.dat"], check=True, stdout=subprocess.DEVNULL)


async def run() -> bytes:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(7)", stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0]


assert asyncio.run(run()) == b"7\n"
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.pause()
os.sync()
os.nice(1)
assert time.get_clock_info("monotonic").resolution and tempfile.mkdtemp() and os.cpu_count()
print("main done")
