"""The search environment: the question alone is given, searches are recorded, rows with documents are checked."""

import json
from typing import Any

import pytest
from fakes import ScriptedPolicy

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.config import SearchToolConfig, ToolsConfig
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.check_data import check_data
from agent_rl.envs.opening import offer_tools
from agent_rl.envs.registry import make_env_factory
from agent_rl.envs.search.env import SearchEnv, SearchEnvFactory, SearchEnvOptions
from agent_rl.errors import ConfigError, DataError
from agent_rl.records import StopReason
from agent_rl.rollout.episode import run_episode
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.tools.base import BaseTool, ToolRegistry, ToolResult

DOCUMENTS = [
    {"title": "Velm", "text": "The river Velm flows through Orsk."},
    {"title": "Orsk", "text": "Orsk is a town in Talia."},
    {"title": "Brin", "text": "Brin is a mountain."},
]
TASK = {
    "task_id": "t0",
    "question": "In which country is the town on the Velm?",
    "answer": ["Talia", "Republic of Talia"],
    "documents": DOCUMENTS,
    "metadata": {"num_hops": 2, "supporting": ["Velm", "Orsk"]},
}
TOOLS = ToolsConfig(use=("search",), search=SearchToolConfig(mode="corpus", max_results=1))


class ThreePages(BaseTool):
    """A search with an engine of its own: a page, a page without a title, nothing, or a failure."""

    name = "search"
    description = "Search."
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}

    def __call__(self, **arguments: Any) -> ToolResult:
        pages = {
            "velm": [{"title": "Velm", "text": "A river."}, {"title": "", "text": "The town of Orsk."}],
            "none": [],
        }
        query = arguments["query"]
        if query == "plain":
            return ToolResult(text="a page")
        return ToolResult(text="pages", facts={"query": query, "results": pages[query]})


class FakeSearchEnv(SearchEnv):
    def add_tools(self, task: Any, own: Any) -> ToolRegistry:
        return ToolRegistry([*own, ThreePages()])


class FakeSearchFactory(SearchEnvFactory):
    def __call__(self) -> SearchEnv:
        return FakeSearchEnv(self.options, self.reward)


def begun(**options: Any) -> SearchEnv:
    env = FakeSearchFactory(SearchEnvOptions(**options))()
    env.reset(TASK)
    return env


def started(**options: Any) -> EnvFactory:
    factory = offer_tools(make_env_factory("search_qa", options), TOOLS)
    factory.start()
    return factory


def search(query: str) -> ToolCall:
    return ToolCall(name="search", arguments={"query": query})


def step_info(env: SearchEnv, *queries: str) -> dict:
    return env.step(Message.assistant("", tuple(search(query) for query in queries))).info


def test_the_environment_gives_nothing_but_the_question() -> None:
    messages = SearchEnvFactory(SearchEnvOptions())().reset(TASK)
    assert messages == [
        Message.system("Call search until you know the answer. Then write Answer: and the answer alone."),
        Message.user("In which country is the town on the Velm?"),
    ]


def test_every_step_lists_its_searches_and_the_last_all_of_them() -> None:
    env = begun()
    first = {"query": "velm", "results": ["Velm", "The town of Orsk."]}
    nothing = {"query": "none", "results": []}
    assert step_info(env, "velm")["search_history"] == [first]
    found = step_info(env, "none", "velm")
    assert found == {"tool_calls": 2, "tool_errors": 0, "search_history": [nothing, first]}
    last = env.step(Message.assistant("Answer: Talia"))
    assert last.info == {"prediction": "Talia", "search_history": [first, nothing, first]}
    env = begun(answer_tool=True)
    step_info(env, "velm")
    calls = (search("none"), ToolCall(name="answer", arguments={"answer": "Talia"}))
    assert env.step(Message.assistant("", calls)).info["search_history"] == [first, nothing]


def test_a_search_that_fails_or_returns_no_facts_found_nothing() -> None:
    env = begun()
    found = step_info(env, "unknown", "plain")
    assert found["search_history"] == [{"query": "unknown", "results": []}, {"query": "plain", "results": []}]
    assert found["tool_errors"] == 1
    wrong = env.step(Message.assistant("", (ToolCall(name="search", arguments={"q": "velm"}),)))
    assert wrong.info["search_history"] == [{"query": None, "results": []}]


def test_other_calls_are_no_searches_and_an_episode_begins_without_any() -> None:
    env = begun(answer_tool=True)
    assert step_info(env, "velm")["search_history"]
    env.reset(TASK)
    last = env.step(Message.assistant("", (ToolCall(name="answer", arguments={"answer": "Talia"}),)))
    assert last.reward == 1.0 and last.info["search_history"] == []


def test_an_answer_has_to_match_and_naming_two_earns_nothing() -> None:
    assert begun().step(Message.assistant("Answer: The Republic of Talia.")).reward_parts == {
        "exact_match_reward": 1.0,
        "success": 1.0,
    }
    assert begun().step(Message.assistant("Answer: Talia Velm")).reward == 0.0
    assert begun(reward="qa_f1_reward").step(Message.assistant("Answer: Talia Velm")).reward == pytest.approx(2 / 3)


def test_the_answer_can_earn_its_f1_and_succeeds_when_it_matches() -> None:
    half = begun(reward="qa_f1_reward").step(Message.assistant("Answer: the country of Talia"))
    assert half.reward == pytest.approx(2 / 3)  # with "Republic of Talia": 2 words in common, of 3 and 3
    assert half.reward_parts["success"] == 0.0
    full = begun(reward="qa_f1_reward").step(Message.assistant("Answer: The Republic of Talia."))
    assert (full.reward, full.reward_parts["success"]) == (1.0, 1.0)


def test_searching_can_be_rewarded_beside_the_answer() -> None:
    rewards = ["exact_match_reward", {"name": "searched_reward", "weight": 0.1}]
    env = begun(reward=rewards)
    assert env.step(Message.assistant("Talia")).reward == 1.0
    env = begun(reward=rewards)
    step_info(env, "unknown")
    assert env.step(Message.assistant("Brin")).reward_parts["searched_reward"] == 0.0
    env = begun(reward=rewards)
    step_info(env, "none")
    last = env.step(Message.assistant("Brin"))
    cut_off = env.truncate(StopReason.MAX_TURNS)
    assert (cut_off.reward, cut_off.reward_parts["success"]) == (0.1, 0.0)
    assert last.reward_parts == {"exact_match_reward": 0.0, "searched_reward": 0.1, "success": 0.0}


def test_the_search_tool_has_to_be_offered() -> None:
    with pytest.raises(ConfigError, match=r"needs the tool 'search'.*; add search to tools.use"):
        offer_tools(make_env_factory("search_qa"), ToolsConfig())


# Rows


def row(**changes: Any) -> dict:
    return {key: value for key, value in {**TASK, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    "good",
    [
        TASK,
        row(answer="Talia"),
        row(documents=None),
        row(metadata=None),
        row(metadata={"keywords": ["river"]}),
        row(documents=[*DOCUMENTS, "a passage without a title"]),
    ],
)
def test_rows_with_or_without_documents_are_tasks(good: dict) -> None:
    started().check_task(good, "tasks.jsonl:1")


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (row(question=""), "question is ''"),
        (row(answer=[]), r"answer is \[\]"),
        (row(documents="Velm"), "documents is a str"),
        (row(documents=[{"title": "Velm"}]), r"documents\[0\]: text is None"),
        (row(metadata={"supporting": "Velm"}), "metadata.supporting is 'Velm'; make it a list of titles"),
        (row(metadata={"supporting": ["Velm", 3]}), r"metadata.supporting is \['Velm', 3\]"),
        (row(metadata=["Velm", 3]), r"metadata is \['Velm', 3\]; make it an object"),
        (row(metadata={"supporting": ["Vlem"]}), "metadata.supporting names 'Vlem', which is no document's title"),
    ],
)
def test_other_rows_are_refused_with_a_sentence(bad: dict, complaint: str) -> None:
    with pytest.raises(DataError, match=f"^tasks.jsonl:3: {complaint}"):
        started().check_task(bad, "tasks.jsonl:3")


def test_the_reference_looks_up_what_supports_the_answer_and_a_wrong_one_names_something_else() -> None:
    factory = started()
    reference, wrong = factory.solutions(TASK)
    lookups = (Message.assistant("", (search("Velm"),)), Message.assistant("", (search("Orsk"),)))
    assert reference.messages == (*lookups, Message.assistant("Answer: Talia")) and reference.succeeds
    assert wrong.messages == (*lookups, Message.assistant("Answer: Velm")) and not wrong.succeeds
    outcomes = list(check_data(factory, [TASK], workers=1, group_by=lambda task: "all"))
    assert [(each.solution, each.succeeded) for each in outcomes] == [("reference", True), ("wrong answer", False)]


def test_a_title_that_is_an_accepted_answer_is_not_taken_for_a_wrong_one() -> None:
    factory = started()
    assert factory.solutions(row(answer=["velm", "The Orsk"]))[1].messages[-1].content == "Answer: Brin"
    only = row(answer="Velm", documents=DOCUMENTS[:1], metadata=None)
    assert [solution.messages[-1].content for solution in factory.solutions(only)] == [
        "Answer: Velm",
        "Answer: no such answer",
    ]
    assert factory.solutions(only)[0].messages[0].tool_calls == (search(TASK["question"]),)


# Through the rollout's loop


def test_an_episode_searches_twice_and_answers() -> None:
    queries = ("river Velm", "Orsk")
    calls = [f"<tool_call>{json.dumps({'name': 'search', 'arguments': {'query': q}})}</tool_call>" for q in queries]
    limits = EpisodeLimits(max_new_tokens=1000, timeout_s=60.0)
    policy = ScriptedPolicy([*calls, "Orsk is in Talia.\nFinal Answer: Talia"])
    episode = run_episode(policy, started()(), TASK, group_id="1/0", seed=7, limits=limits, temperature=1.0)
    assert (episode.stop_reason, episode.reward, episode.error) == (StopReason.FINISHED, 1.0, None)
    assert episode.reward_parts == {"exact_match_reward": 1.0, "success": 1.0}
    assert "Orsk is a town in Talia." in episode.turns[1].env_messages[0].content
    history = [{"query": "river Velm", "results": ["Velm"]}, {"query": "Orsk", "results": ["Orsk"]}]
    assert [turn.info["search_history"] for turn in episode.turns] == [history[:1], history[1:], history]
