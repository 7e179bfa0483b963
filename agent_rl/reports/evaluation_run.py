"""An evaluation as it is played: chunk after chunk of tasks, each saved, with a line of progress.

Seeds are those of an evaluation in training (`core/evaluation.py`): the first episode of a task is the one that a run
plays at that temperature. Not here: the model (`core/evaluated_policy.py`), figures.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from agent_rl.core.evaluation import EVAL_SEED_STEP, evaluated_record
from agent_rl.core.rollout import RolloutWorker, checked
from agent_rl.data.tasks import Task
from agent_rl.records import TrajectoryGroup
from agent_rl.reports.episodes import Episode
from agent_rl.reports.evaluation_files import EvaluationFolder, to_episodes

Record = dict[str, Any]


def play(
    rollout: RolloutWorker,
    tasks: Sequence[Task],
    folder: EvaluationFolder,
    done: Sequence[Record],
    *,
    samples: int,
    temperature: float,
    tasks_per_chunk: int,
    say: Callable[[str], None],
) -> list[Episode]:
    """Play `samples` episodes of every task that is not among the records `done`; all episodes, in task order.

    `folder` gets each chunk when it is over, `say` a line. SandboxError when not one episode could be scored.
    """
    records = list(done)
    finished = {record["task_id"] for record in done}
    open_positions = [position for position, task in enumerate(tasks) if task["task_id"] not in finished]
    if finished:
        say(f"{len(finished)} of {len(tasks)} tasks were played before; going on with {len(open_positions)}")
    started, num_open = time.monotonic(), len(open_positions)
    for first in range(0, num_open, tasks_per_chunk):
        positions = open_positions[first : first + tasks_per_chunk]
        chosen = [tasks[position] for position in positions]
        groups = rollout.play(
            chosen,
            group_size=samples,
            step=EVAL_SEED_STEP,
            temperature=temperature,
            positions=positions,
            with_greedy=False,
        )
        if all(record["reward"] is None for record in records):
            checked(groups)
        new = _records(groups, chosen)
        folder.append(new)
        records += new
        say(_progress(records, len(tasks), samples, time.monotonic() - started, first + len(chosen), num_open))
    place = {task["task_id"]: position for position, task in enumerate(tasks)}
    records.sort(key=lambda record: (place[record["task_id"]], record["sample"]))
    return to_episodes(records, folder.episodes_file)


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
    solved = sum(record["reward_parts"].get("success", 0.0) >= 1.0 for record in scored)
    rate = num_now * samples / seconds
    left = (num_open - num_now) * seconds / num_now
    share = f"{100 * solved / len(scored):5.1f} % solved" if scored else "nothing scored"
    minutes, rest = divmod(round(left), 60)
    return f"{len(records) // samples:5} of {num_tasks} tasks  {share}  {rate:.1f} episodes/s  {minutes}:{rest:02} left"
