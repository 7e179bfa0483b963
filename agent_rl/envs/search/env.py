"""Questions whose answers have to be looked up: the agent calls `search`, reads passages, and answers.

The environment only asks; passages come from the tool `search`, which the configuration offers (`tools.use`). What was
searched for and found is in `info["search_history"]`: of the episode's last step all of it, of the others what is new.
Not here: how passages are found (`tools/search_tool.py`).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.config import validate_section
from agent_rl.data.splits import take
from agent_rl.envs.base import AgentEnv, Row, StepResult, Task
from agent_rl.envs.demonstrations import Demonstration
from agent_rl.envs.qa_env import NO_ANSWER, QAEnv, QAEnvFactory, QAEnvOptions, prompt_that_ends
from agent_rl.envs.search import demonstrations, generate
from agent_rl.errors import DataError
from agent_rl.rewards import RewardSpec, RewardSpecs
from agent_rl.rewards.answers import accepted_answers, matches, normalize_answer
from agent_rl.tools.base import ToolResult
from agent_rl.tools.passages import passages_of
from agent_rl.tools.search_tool import SearchTool

NUM_WITH_DOCUMENTS = 20
"""Generated rows that bring their passages with them."""
_VERDICTS = ("yes", "no", "noanswer")
"""Answers that stand in no passage."""


class SearchEnvOptions(QAEnvOptions):
    """`env.options` of `search_qa`."""

    system_prompt: str | None = prompt_that_ends("Call search until you know the answer.")
    """The first message; null: the conversation begins with the question."""
    reward: RewardSpecs = (RewardSpec(name="exact_match_reward"),)
    """Registered rewards whose weighted sum scores the final answer: a name, `{name, weight}`, or a list of them."""


class SearchEnv(QAEnv):
    """One question and what was searched for it."""

    def reset(self, task: Task) -> list[Message]:
        self._history: list[dict[str, Any]] = []
        return super().reset(task)

    def step(self, message: Message) -> StepResult:
        num_known = len(self._history)
        result = super().step(message)
        history = self._history[0 if result.terminated else num_known :]
        return replace(result, info={**result.info, "search_history": history})

    def on_result(self, call: ToolCall, result: ToolResult) -> None:
        if call.name == SearchTool.name:
            found = [each["title"] or each["text"] for each in result.facts.get("results", ())]
            self._history.append({"query": call.arguments.get("query"), "results": found})


class SearchEnvFactory(QAEnvFactory):
    needed_tools = (SearchTool.name,)

    def __call__(self) -> AgentEnv:
        return SearchEnv(self.options, self.reward)

    def check_task(self, task: Task, where: str) -> None:
        super().check_task(task, where)
        titles = {passage.title for passage in passages_of(task, where)}
        for title in _supporting(task, where):
            if titles and title not in titles:
                raise DataError(f"{where}: metadata.supporting names {title!r:.80}, which is no document's title")

    def lookups(self, task: Task) -> tuple[Message, ...]:
        """A search for every supporting title, or for the question where none is named."""
        queries = _supporting(task, f"task {task.get('task_id')}") or [task["question"]]
        calls = (ToolCall(name=SearchTool.name, arguments={"query": query}) for query in queries)
        return tuple(Message.assistant("", (call,)) for call in calls)

    def evidence(self, task: Task) -> tuple[str, ...]:
        """The accepted answers, where the row names what supports them and they are no verdicts such as yes."""
        accepted = accepted_answers(task["answer"])
        is_verdict = any(normalize_answer(each) in _VERDICTS for each in accepted)
        return () if is_verdict or not _supporting(task, f"task {task.get('task_id')}") else tuple(accepted)

    def right_and_wrong(self, task: Task) -> tuple[str, str]:
        """An accepted answer, and one that is not: the title of one of the documents, or `NO_ANSWER`."""
        titles = [passage.title for passage in passages_of(task, f"task {task.get('task_id')}") if passage.title]
        wrong = [title for title in titles if not matches(title, task["answer"])]
        return accepted_answers(task["answer"])[0], (wrong or [NO_ANSWER])[0]

    def demonstrations(self, seed: int, *, faulty_share: float) -> Iterator[Demonstration]:
        prompt = SearchEnvOptions().system_prompt or ""
        return demonstrations.demonstrations(seed, faulty_share=faulty_share, system_prompt=prompt)

    def task_files(self, seed: int, num_train: int | None, num_eval: int | None) -> Mapping[str, Sequence[Row]]:
        """Besides train and eval: the passages of their world, and rows about another world that bring their own."""
        other = generate.world_of(seed + 1, ["eval"])
        rows = itertools.islice(generate.generate_tasks(seed + 1, ["eval"]), NUM_WITH_DOCUMENTS)
        return {
            "train": take(generate.generate_tasks(seed, ["train"]), num_train or 300, "train"),
            "eval": take(generate.generate_tasks(seed, ["eval"]), num_eval or 100, "eval"),
            "with_documents": [generate.with_documents(row, other, seed) for row in rows],
            "corpus": generate.world_of(seed, ["train"]).passages,
        }


def _supporting(task: Task, where: str) -> list[str]:
    """Titles under `metadata.supporting`; DataError when they are no list of texts."""
    metadata = task.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise DataError(f"{where}: metadata is {metadata!r:.80}; make it an object")
    titles = metadata.get("supporting", [])
    if not isinstance(titles, list) or not all(isinstance(title, str) for title in titles):
        raise DataError(f"{where}: metadata.supporting is {titles!r:.80}; make it a list of titles")
    return titles


def make_search_factory(options: dict[str, Any], seed: int) -> SearchEnvFactory:
    """`env.name: search_qa`."""
    return SearchEnvFactory(validate_section(SearchEnvOptions, options, source="config", prefix="env.options"))
