"""Demonstrations for the warm start of the search agent: a teacher who looks up one fact after the other.

Their worlds are others than that of the shipped questions, so no fact can be memorised. The teacher makes
mistakes on purpose: a share of the answers comes a look-up too early. Nothing here is used while training by
reinforcement.
"""

import itertools
import random
from collections.abc import Iterator

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.data.tasks import Task
from agent_rl.envs.demonstrations import Demonstration, Turns, endless_seeds
from agent_rl.envs.search.generate import buggy, generate_tasks, reference, world_of
from agent_rl.tools.passages import Passage, PassageIndex
from agent_rl.tools.search_tool import SearchTool

MAX_RESULTS, MAX_SNIPPET_CHARS = 2, 200
"""As in `configs/search_qa_grpo.yaml`: what the tool answers has to look the same later."""
TASKS_PER_WORLD = 400


def demonstrations(seed: int, *, faulty_share: float, system_prompt: str) -> Iterator[Demonstration]:
    """Endless."""
    for world_seed in endless_seeds(seed):
        world = world_of(world_seed, ["sft"])
        passages = [Passage(title=title, text=text) for title, text in world.texts.items()]
        tool = SearchTool(PassageIndex(passages, max_results=MAX_RESULTS), max_snippet_chars=MAX_SNIPPET_CHARS)
        for task in itertools.islice(generate_tasks(world_seed, ["sft"]), TASKS_PER_WORLD):
            rng = random.Random(f"demo-{seed}-{task['task_id']}")
            messages = [Message.system(system_prompt), Message.user(task["question"])]
            turns = _turns(task, tool, is_faulty=rng.random() < faulty_share)
            yield Demonstration(messages, turns, (tool.spec,))


def _turns(task: Task, tool: SearchTool, *, is_faulty: bool) -> Turns:
    queries = task["metadata"]["queries"]
    if is_faulty and len(queries) > 1:
        queries = queries[:-1]
    turns: Turns = []
    for query in queries:
        call = ToolCall(name=tool.name, arguments={"query": query})
        turns.append((Message.assistant("", (call,)), (Message.tool(tool(query=query).text, name=tool.name),)))
    answer = (buggy if is_faulty else reference)(task)
    return [*turns, (Message.assistant(f"Answer: {answer}"), ())]
