"""A long evaluation as it is played: chunk after chunk of tasks, each saved, with a line of progress.

Seeds are those of an evaluation in training (`evaluation.py`): the first episode of a task is the one that a run plays
at that temperature. Not here: the model (`evaluated_policy.py`), files, figures.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from agent_rl.core.evaluation import EVAL_SEED_STEP
from agent_rl.data.tasks import Task
from agent_rl.records import TrajectoryGroup
from agent_rl.rollout.workers import RolloutWorker, checked
from agent_rl.telemetry.statistics import is_success
from agent_rl.telemetry.trajectory_json import evaluated_record

Record = dict[str, Any]
MIN_EPISODES_PER_CHUNK = 32
"""A chunk ends with its slowest episode, so it holds many; and it is what is played again after a stop."""


def tasks_per_chunk(num_workers: int, samples: int) -> int:
    """Tasks of a chunk: as many as fill all workers once, or so often that it holds `MIN_EPISODES_PER_CHUNK`."""
    workers = max(1, num_workers)
    return max(1, workers * -(-MIN_EPISODES_PER_CHUNK // workers) // samples)


def play_in_chunks(
    rollout: RolloutWorker,
    tasks: Sequence[Task],
    done: Sequence[Record],
    *,
    samples: int,
    temperature: float,
    chunk: int,
    save: Callable[[Sequence[Record]], None],
    say: Callable[[str], None],
) -> list[Record]:
    """Play `samples` episodes of every task that is not among the records `done`; all records, in task order.

    `save` gets the records of each `chunk` tasks when they are over, `say` a line. SandboxError, before the chunk is
    saved, when not one of its episodes could be scored; a single task, or fewer than a chunk, may fail once others were
    scored.
    """
    records = list(done)
    finished = {record["task_id"] for record in done}
    open_positions = [position for position, task in enumerate(tasks) if task["task_id"] not in finished]
    if finished:
        say(f"{len(finished)} of {len(tasks)} tasks were played before; going on with {len(open_positions)}")
    started, num_open = time.monotonic(), len(open_positions)
    for first in range(0, num_open, chunk):
        positions = open_positions[first : first + chunk]
        chosen = [tasks[position] for position in positions]
        groups = rollout.play(
            chosen,
            group_size=samples,
            step=EVAL_SEED_STEP,
            temperature=temperature,
            positions=positions,
            with_greedy=False,
        )
        if 1 < len(chosen) == chunk or all(record["reward"] is None for record in records):
            checked(groups)
        new = _records(groups, chosen)
        save(new)
        records += new
        say(_progress(records, len(tasks), samples, time.monotonic() - started, first + len(chosen), num_open))
    place = {task["task_id"]: position for position, task in enumerate(tasks)}
    return sorted(records, key=lambda record: (place[record["task_id"]], record["sample"]))


def _records(groups: Sequence[TrajectoryGroup], tasks: Sequence[Task]) -> list[Record]:
    return [
        {"sample": sample, **evaluated_record(episode, task)}
        for group, task in zip(groups, tasks, strict=True)
        for sample, episode in enumerate(group.trajectories)
    ]


def _progress(
    records: Sequence[Record], num_tasks: int, samples: int, seconds: float, num_now: int, num_open: int
) -> str:
    scored = [record for record in records if record["reward"] is not None]
    solved = sum(is_success(record["reward_parts"]) for record in scored)
    rate = num_now * samples / seconds
    left = (num_open - num_now) * seconds / num_now
    share = f"{100 * solved / len(scored):5.1f} % solved" if scored else "nothing scored"
    lost = f", {len(records) - len(scored)} not scored" if len(scored) < len(records) else ""
    minutes, rest = divmod(round(left), 60)
    counted = f"{len(records) // samples:5} of {num_tasks} tasks  {share}{lost}"
    return f"{counted}  {rate:.1f} episodes/s  {minutes}:{rest:02} left"
