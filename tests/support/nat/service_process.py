"""A service in a process of its own, on a scripted model that takes its time and the real toolkit: to be killed.

python service_process.py STORE SECONDS_OF_A_PROJECT
"""

import sys
import threading
import time
from pathlib import Path
from typing import Any

from created_agents import creator, reference
from nat_projects import spec_of

from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.service.service import AgentService


def main(store: str, seconds: float) -> None:
    text = reference(spec_of("unit_converter", 1))

    def script(_turn: int, _sampling: Any) -> str:
        time.sleep(seconds)
        return text

    with NatToolkit.open(processes=1) as toolkit:
        service = {"port": 0, "metrics_port": None, "store": store, "workers": 3, "max_deadline_s": 600}
        with AgentService(creator(toolkit, script, service=service)) as running:
            print(running.address, flush=True)
            threading.Event().wait()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main(sys.argv[1], float(sys.argv[2]))
