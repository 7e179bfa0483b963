"""Demonstrations for the warm start of the code agent: conversations in which a teacher writes the function.

The teacher makes mistakes on purpose: a share of its first programs pass the examples and miss a case. Some of
these are fixed after the tool's reply, the others are declared done. Does not: serve reinforcement learning.
"""

import random
from collections.abc import Iterator

from agent_rl.agent.messages import Message
from agent_rl.data.tasks import Task
from agent_rl.envs.code.call_tests import parse_call_task
from agent_rl.envs.code.generate import NUM_EXAMPLES, buggy, generate_tasks, reference
from agent_rl.envs.code.prompts import SYSTEM_PROMPT, TOOL_SPECS, submission
from agent_rl.envs.code.task import NOT_ALL_HIDDEN_PASS
from agent_rl.envs.demonstrations import Demonstration, Turns, endless_tasks

FIXED_SHARE = 0.3
"""Share of the buggy programs that the teacher fixes."""
GIVES_UP = "The examples pass, so this is done."
"""Its last message after the others."""
_REPLY = f"examples: {NUM_EXAMPLES} of {NUM_EXAMPLES} passed\n{NOT_ALL_HIDDEN_PASS}"


def demonstrations(seed: int, *, faulty_share: float) -> Iterator[Demonstration]:
    """Endless."""
    for task in endless_tasks(generate_tasks, seed):
        request = parse_call_task(task, task["task_id"]).request
        messages = [Message.system(SYSTEM_PROMPT), Message.user(request)]
        turns = _turns(task, random.Random(f"demo-{seed}-{task['task_id']}"), faulty_share)
        yield Demonstration(messages, turns, TOOL_SPECS)


def _turns(task: Task, rng: random.Random, faulty_share: float) -> Turns:
    right = (submission(reference(task)), ())
    if rng.random() >= faulty_share:
        return [right]
    first = (submission(buggy(task)), (Message.tool(_REPLY, name="code_exec"),))
    return [first, right if rng.random() < FIXED_SHARE else (Message.assistant(GIVES_UP), ())]
