"""Demonstrations for the warm start of the math agent: a teacher who calculates and then answers.

The teacher makes mistakes on purpose: a share of its expressions leave out a step. Does not: serve
reinforcement learning.
"""

import random
from collections.abc import Iterator

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.envs.demonstrations import Demonstration, Turns, endless_tasks
from agent_rl.envs.math.generate import buggy, generate_tasks, reference
from agent_rl.envs.qa_env import QAEnvOptions
from agent_rl.tools.calculator import calculator


def demonstrations(seed: int, *, faulty_share: float) -> Iterator[Demonstration]:
    """Endless."""
    system_prompt = QAEnvOptions().system_prompt or ""
    for task in endless_tasks(generate_tasks, seed):
        rng = random.Random(f"demo-{seed}-{task['task_id']}")
        expression = (buggy if rng.random() < faulty_share else reference)(task)
        messages = [Message.system(system_prompt), Message.user(task["question"])]
        yield Demonstration(messages, _turns(expression), (calculator.spec,))


def _turns(expression: str) -> Turns:
    result = calculator(expression=expression).text
    call = ToolCall(name=calculator.name, arguments={"expression": expression})
    return [
        (Message.assistant("", (call,)), (Message.tool(result, name=calculator.name),)),
        (Message.assistant(f"Answer: {result}"), ()),
    ]
