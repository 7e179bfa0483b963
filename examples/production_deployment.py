"""From a checkpoint to packaged agents, in Python: open the model once, create several, save those that are right.

    python examples/production_deployment.py dataset/nat_tasks/starter/val.jsonl my_agents 3
    python examples/production_deployment.py TASKS FOLDER NUMBER runs/nat_grpo/checkpoints/step_00080

The plans are rows of a task file, so no planner and no key are needed; `creator.create("free words")` asks the planner
of configs/serve.yaml. Requests run at the same time, and the engine batches what they sample. Exit code 1 where an
agent is not accepted. For others over HTTP: `agent-rl serve` (docs/DEPLOYMENT.md).
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent_rl.data.tasks import Task, read_tasks
from agent_rl.envs.nat.create.creator import AgentCreator
from agent_rl.envs.nat.create.package import save
from agent_rl.envs.nat.create.result import Creation


def main(tasks: str, folder: str, number: str, checkpoint: str | None = None) -> int:
    with (
        AgentCreator.open("configs/serve.yaml", checkpoint=checkpoint) as creator,
        ThreadPoolExecutor(max_workers=8) as threads,
    ):

        def create(row: Task) -> Creation:
            return creator.create(spec=row, deadline_s=300)

        created = list(threads.map(create, read_tasks(tasks)[: int(number)]))
        for count, creation in enumerate(created):
            about = f"{creation.seconds['all']:.1f} s, {len(creation.candidates)} projects written"
            print(f"{count}: {creation.state} ({about}) {creation.reason}")
            if creation.state == "accepted":
                save(creation, creator.toolkit, Path(folder, f"agent_{count}"), with_zip=True)
    return 0 if all(creation.state == "accepted" for creation in created) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
