"""The end of a fork server, which two threads may bring about at the same time."""

import socket
import subprocess
import sys
import threading
import time

from agent_rl.sandbox.server_process import Channel, ServerProcess


class SlowLog:
    """A file that takes a while to close, as one that still writes; how many closed it at a time at most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def close(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.1)
        self.now -= 1


def test_two_threads_that_close_a_server_wait_for_each_other() -> None:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    log = SlowLog()
    server = ServerProcess(process, Channel(ours), log)
    threads = [threading.Thread(target=server.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    theirs.close()
    assert process.returncode is not None
    assert log.most == 1
