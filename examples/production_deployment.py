"""From a checkpoint to packaged agents, in Python: open the model once, create several, save those that are right.

    python examples/production_deployment.py dataset/nat_tasks/starter/val.jsonl my_agents 3
    python examples/production_deployment.py TASKS FOLDER NUMBER runs/nat_grpo/checkpoints/step_00080

The plans are rows of a task file, so no planner and no key are needed; `creator.create("free words")` asks the planner
of configs/serve.yaml. Requests run at the same time, and the engine batches what they sample. Exit code 1 where an
agent is not accepted. For others over HTTP: `agent-rl serve` (docs/DEPLOYMENT.md).
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent_rl.data.tasks import Task, read_tasks
from agent_rl.envs.nat.create.creator import AgentCreator
from agent_rl.envs.nat.create.package import save
from agent_rl.envs.nat.create.result import Creation


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", help="task file")
    parser.add_argument("folder", type=Path, help="where the agents are written, each to a folder of its own")
    parser.add_argument("number", type=int, help="agents, from the first rows of the file")
    parser.add_argument("checkpoint", nargs="?", help="model; by default that of configs/serve.yaml")
    given = parser.parse_args()
    with (
        AgentCreator.open("configs/serve.yaml", checkpoint=given.checkpoint) as creator,
        ThreadPoolExecutor(max_workers=8) as threads,
    ):

        def create(row: Task) -> Creation:
            return creator.create(spec=row, deadline_s=300)

        created = list(threads.map(create, read_tasks(given.tasks)[: given.number]))
        for count, creation in enumerate(created):
            about = f"{creation.seconds['all']:.1f} s, {len(creation.candidates)} projects written"
            print(f"{count}: {creation.state} ({about}) {creation.reason}")
            if creation.state == "accepted":
                save(creation, creator.toolkit, given.folder / f"agent_{count}", with_zip=True)
    return 0 if all(creation.state == "accepted" for creation in created) else 1


if __name__ == "__main__":
    sys.exit(main())
