"""A program between the launcher and one server, so that nothing of a server outlives either of them.

    python launch_guard.py COMMAND...    (leader of a process group of its own, standard input a pipe from the launcher)

It starts the command in its own group and waits. When the pipe closes, because the launcher closed it or is dead, the
command gets a signal to end; when the command has ended, for any reason, the rest of the group is killed, this
program with it. Standard library only, because it is run by its path.
Not here: starting a server again (`launch.py`).
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 8.0
"""A server gets this long to end by itself, so that it removes its shared memory."""
_REST_S = 0.3


def main(command: list[str]) -> None:
    """Never returns: ends with the whole process group."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_await_launcher, args=[server], daemon=True).start()
    code = server.wait()
    print(f"the server ended with exit code {code}", flush=True)
    time.sleep(_REST_S)
    os.killpg(0, signal.SIGKILL)


def _await_launcher(server: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 1):
        pass
    server.terminate()
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(sys.argv[1:])
