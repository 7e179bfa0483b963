"""What warm starts see is what episodes show later: the same first messages, tools and replies, word by word."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from agent_rl.agent.messages import Message
from agent_rl.config import load_config
from agent_rl.data.tasks import Task, read_tasks, write_tasks
from agent_rl.envs.base import AgentEnv, StepResult
from agent_rl.envs.code import demonstrations as code_demonstrations
from agent_rl.envs.code import generate as code_tasks
from agent_rl.envs.demonstrations import TASKS_PER_SEED, Turns, endless_tasks
from agent_rl.envs.math import demonstrations as math_demonstrations
from agent_rl.envs.math import generate as math_tasks
from agent_rl.envs.opening import open_environment
from agent_rl.envs.search import demonstrations as search_demonstrations
from agent_rl.envs.search import generate as search_tasks
from agent_rl.envs.search.env import SearchEnvFactory, SearchEnvOptions

SEED = 3
NUM = 25


def env_factory(config_path: str) -> Any:
    return open_environment(load_config(config_path))


@pytest.fixture(scope="module")
def code_env() -> Iterator[Any]:
    factory = env_factory("configs/code_exec_grpo.yaml")
    factory.start()
    yield factory
    factory.close()


@pytest.fixture(scope="module")
def math_env() -> Iterator[Any]:
    factory = env_factory("configs/math_grpo.yaml")
    factory.start()
    yield factory
    factory.close()


def last_of(env: AgentEnv, task: Task, messages: list[Message], turns: Turns) -> StepResult:
    """The end of the episode that the demonstration shows."""
    assert env.reset(task) == messages
    for message, replies in turns[:-1]:
        result = env.step(message)
        assert not result.terminated
        assert result.messages == replies
    message, replies = turns[-1]
    assert replies == ()
    result = env.step(message)
    assert result.terminated
    return result


@pytest.mark.parametrize("faulty_share", [0.0, 1.0])
def test_the_code_teachers_programs_are_answered_as_shown(code_env: Any, faulty_share: float) -> None:
    tasks = code_tasks.generate_tasks(1000 * SEED, ["sft"])
    ends = []
    for task, (messages, turns, tools, *_) in zip(
        islice(tasks, NUM), code_demonstrations.demonstrations(SEED, faulty_share=faulty_share), strict=False
    ):
        env = code_env()
        gives_up = turns[-1][0].content == code_demonstrations.GIVES_UP
        ends.append((len(turns), gives_up, last_of(env, task, messages, turns).reward_parts["success"]))
        assert env.tools == tools
    if faulty_share == 0.0:
        assert ends == [(1, False, 1.0)] * NUM
    else:  # one program that fails a hidden test, which is called done, or fixed in a second turn
        assert set(ends) == {(2, True, 0.0), (2, False, 1.0)}


def test_families_are_shown_alike_often_when_some_have_few_rules() -> None:
    def generate(seed: int, splits: Any) -> Iterator[Task]:
        assert splits == ["sft"]
        yield {"task_id": f"rare-{seed}"}
        yield from ({"task_id": f"common-{seed}-{index}"} for index in range(5 * TASKS_PER_SEED))

    shown = [task["task_id"] for task in islice(endless_tasks(generate, seed=2), 3 * TASKS_PER_SEED)]
    assert [name for name in shown if "rare" in name] == ["rare-2000", "rare-2001", "rare-2002"]
    assert len(set(shown)) == len(shown)


@pytest.mark.parametrize("faulty_share", [0.0, 1.0])
def test_the_math_teachers_answers_are_right_unless_it_is_faulty(math_env: Any, faulty_share: float) -> None:
    tasks = math_tasks.generate_tasks(1000 * SEED, ["sft"])
    for task, (messages, turns, tools, *_) in zip(
        islice(tasks, NUM), math_demonstrations.demonstrations(SEED, faulty_share=faulty_share), strict=False
    ):
        env = math_env()
        end = last_of(env, task, messages, turns)
        assert env.tools == tools
        assert end.reward == 1.0 - faulty_share


@pytest.mark.parametrize("faulty_share", [0.0, 1.0])
def test_the_search_teacher_stops_too_early_when_it_is_faulty(faulty_share: float, tmp_path: Any) -> None:
    config = load_config("configs/search_qa_grpo.yaml")
    shown = (config.tools.search.max_results, config.tools.search.max_snippet_chars)
    assert shown == (search_demonstrations.MAX_RESULTS, search_demonstrations.MAX_SNIPPET_CHARS)
    world = search_tasks.world_of(1000 * SEED, ["sft"])
    corpus = [{"task_id": title, "title": title, "text": text} for title, text in world.texts.items()]
    write_tasks(tmp_path / "corpus.jsonl", corpus)
    search = config.tools.search.model_copy(update={"corpus_path": tmp_path / "corpus.jsonl"})
    tools = config.tools.model_copy(update={"search": search})
    factory = open_environment(config.model_copy(update={"tools": tools}))
    factory.start()
    tasks = search_tasks.generate_tasks(1000 * SEED, ["sft"])
    demonstrations = SearchEnvFactory(SearchEnvOptions()).demonstrations(SEED, faulty_share=faulty_share)
    for task, (messages, turns, specs, *_) in zip(islice(tasks, NUM), demonstrations, strict=False):
        env = factory()
        end = last_of(env, task, messages, turns)
        assert env.tools == specs
        assert end.reward_parts["success"] == 1.0 - faulty_share
        assert len(turns) == task["level"] + 1 - (task["level"] > 1 and faulty_share == 1.0)
    factory.close()


@pytest.mark.parametrize("folder", ["code_tasks", "math_tasks"])
def test_no_demonstration_is_of_a_shipped_task(folder: str) -> None:
    module = {"code_tasks": code_tasks, "math_tasks": math_tasks}[folder]
    shipped = {task["question" if folder == "math_tasks" else "prompt"] for task in both_sets(folder)}
    shown = {task["question" if folder == "math_tasks" else "prompt"] for task in islice_of(module)}
    assert not shipped & shown


def both_sets(folder: str) -> list[Task]:
    return [task for name in ("train", "eval") for task in read_tasks(f"dataset/{folder}/{name}.jsonl")]


def islice_of(module: Any) -> list[Task]:
    return list(islice(module.generate_tasks(0, ["sft"]), 2000))
