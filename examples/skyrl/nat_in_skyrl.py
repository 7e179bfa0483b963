"""NAT tasks as an environment of SkyRL: rows, registration, and an episode that a policy written by hand plays.

    pip install skyrl-gym
    python nat_in_skyrl.py 3        # in any folder; how many tasks, 1 without it

Writes skyrl_rows.parquet, the data set that SkyRL would train on, and plays its rows through skyrl_gym alone.
"""

import sys
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import skyrl_gym

from agent_rl import resources
from agent_rl.agent.messages import ToolCall
from agent_rl.agent.tool_parser import dump_call
from agent_rl.data.tasks import Task, read_tasks
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.skyrl import dataset_row, register

Policy = Callable[[list[dict[str, str]]], str]
"""The conversation -> what is said next; a model would read the same messages."""


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{dump_call(ToolCall(name=name, arguments=arguments))}\n</tool_call>\n"


def careful_policy(task: Task) -> Policy:
    """Writes the reference project of a task, and submits it once its tests pass."""
    files = render_project(parse_spec(task, "skyrl_rows.parquet"))

    def reply(conversation: list[dict[str, str]]) -> str:
        if "passed" in conversation[-1]["content"] and conversation[-1]["content"].startswith("<tool_response>"):
            return "The tests pass. " + call("submit")
        return "".join(call("file_write", path=path, content=text) for path, text in files.items()) + call("pytest_run")

    return reply


def play(row: dict[str, str], policy: Policy) -> dict:
    """One episode, as SkyRL's generator plays it: text in, messages and a reward out."""
    with skyrl_gym.make(row["env_class"], env_config={}, extras={"spec": row["spec"], "max_turns": 4}) as env:
        conversation, _ = env.init(row["prompt"])
        while True:
            action = policy(conversation)
            step = env.step(action)
            conversation += [{"role": "assistant", "content": action}, *step["observations"]]
            if step["done"]:
                return {"reward": step["reward"], **env.get_metrics()}


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    settings = {"checkers": 1, "seed": 1}
    tasks = read_tasks(resources.find("dataset/nat_tasks/val.jsonl"))[:count]
    pq.write_table(pa.Table.from_pylist([dataset_row(task, settings) for task in tasks]), "skyrl_rows.parquet")
    register(settings)
    for task, row in zip(tasks, pq.read_table("skyrl_rows.parquet").to_pylist(), strict=True):
        episode = play(row, careful_policy(task))
        print(f"{task['task_id']}: reward {episode['reward']:.2f}, success {episode['success']:g}, "
              f"{episode['num_turns']} turns")  # fmt: skip
