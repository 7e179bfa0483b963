"""Demonstrations for the warm start of the code agent: conversations in which a teacher writes the function.

The teacher is careless on purpose: a share of its first programs pass the examples and forget a case. Of these some
are mended after the tool's answer, the others called done. Nothing here is used while training by reinforcement.
"""

import random
from collections.abc import Iterator

from agent_rl.agent.messages import Message
from agent_rl.data.tasks import Task
from agent_rl.envs.code.call_tests import parse_call_task
from agent_rl.envs.code.generate import NUM_EXAMPLES, careless, generate_tasks, reference
from agent_rl.envs.code.prompts import SYSTEM_PROMPT, TOOL_SPECS, handed_in
from agent_rl.envs.demonstrations import Demonstration, Turns, tasks_without_end
from agent_rl.tools.code_task import NOT_ALL_HIDDEN_PASS

MENDED_SHARE = 0.3
"""Of the careless programs, those that the teacher mends."""
GIVES_UP = "The examples pass, so this is done."
"""What it says of the others."""
_REPLY = f"examples: {NUM_EXAMPLES} of {NUM_EXAMPLES} passed\n{NOT_ALL_HIDDEN_PASS}"


def demonstrations(seed: int, *, faulty_share: float) -> Iterator[Demonstration]:
    """Without end."""
    for task in tasks_without_end(generate_tasks, seed):
        request = parse_call_task(task, task["task_id"]).request
        messages = [Message.system(SYSTEM_PROMPT), Message.user(request)]
        turns = _turns(task, random.Random(f"demo-{seed}-{task['task_id']}"), faulty_share)
        yield Demonstration(messages, turns, TOOL_SPECS)


def _turns(task: Task, rng: random.Random, faulty_share: float) -> Turns:
    right = (handed_in(reference(task)), ())
    if rng.random() >= faulty_share:
        return [right]
    first = (handed_in(careless(task)), (Message.tool(_REPLY, name="code_exec"),))
    return [first, right if rng.random() < MENDED_SHARE else (Message.assistant(GIVES_UP), ())]
