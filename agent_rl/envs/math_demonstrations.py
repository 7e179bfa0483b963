"""Demonstrations for the warm start of the math agent: a teacher who calculates and then answers.

The teacher is careless on purpose: a share of its expressions leave out a step. Nothing here is used while training by
reinforcement.
"""

import itertools
import random
from collections.abc import Iterator

from agent_rl.agent.messages import Message, ToolCall, ToolSpec
from agent_rl.envs.nat_demonstrations import Turns
from agent_rl.envs.qa_env import QAEnvOptions
from agent_rl.math_tasks.generate import careless, generate_tasks, reference
from agent_rl.tools.calculator import calculator


def demonstrations(seed: int, *, faulty_share: float) -> Iterator[tuple[list[Message], Turns, tuple[ToolSpec, ...]]]:
    """First messages, the teacher's turns and the tools, without end."""
    system_prompt = QAEnvOptions().system_prompt or ""
    for round_ in itertools.count():
        for task in generate_tasks(1000 * seed + round_, ["sft"]):
            rng = random.Random(f"demo-{seed}-{task['task_id']}")
            expression = (careless if rng.random() < faulty_share else reference)(task)
            messages = [Message.system(system_prompt), Message.user(task["question"])]
            yield messages, _turns(expression), (calculator.spec,)


def _turns(expression: str) -> Turns:
    result = calculator(expression=expression).text
    call = ToolCall(name=calculator.name, arguments={"expression": expression})
    return [
        (Message.assistant("", (call,)), (Message.tool(result, name=calculator.name),)),
        (Message.assistant(f"Answer: {result}"), ()),
    ]
