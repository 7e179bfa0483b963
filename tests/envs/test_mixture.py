"""Several environments in one: who gets a task, whose tools and prompts, where tasks come from, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.config import DataConfig, ToolsConfig
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, Solution, StepResult, ToolEnv
from agent_rl.envs.blank_answers import BlankAnswersFactory
from agent_rl.envs.check_data import check_data
from agent_rl.envs.failure_modes import FailureModes, FailureRule
from agent_rl.envs.mixture import MixtureFactory, MixtureMember
from agent_rl.envs.opening import check_agent_type, offer_tools
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError, DataError
from agent_rl.records import StopReason


class SumEnv(ToolEnv):
    """Rewards the right number; takes tools."""

    rows: list[Task] = []

    def reset(self, task: Task) -> list[Message]:
        type(self).rows.append(task)
        self.task = task
        self.registry = self.add_tools(task, [])
        return [Message.system("Calculate."), Message.user(task["question"])]

    def no_call(self, message: Message) -> StepResult:
        right = float(message.content == task_answer(self.task))
        return StepResult(reward=right, reward_parts={"success": right}, terminated=True)


def task_answer(task: Task) -> str:
    return str(task["answer"])


class WordEnv(AgentEnv):
    """Rewards one point a letter, tells its case seed and the reply it did not get, and wants two turns."""

    closed: list[str] = []

    def reset(self, task: Task) -> Any:
        self.word, self.num_turns = task["word"], 0
        return f"Say {self.word}, {self.case_seed}."

    def step(self, message: Message) -> Any:
        self.num_turns += 1
        return StepResult(reward=float(len(message.content)), terminated=True) if self.num_turns == 2 else "Again."

    def truncate(self, reason: StopReason) -> Any:
        return StepResult(
            reward=-1.0, terminated=True, info={"unanswered": self.unanswered and self.unanswered.content}
        )

    def close(self) -> None:
        type(self).closed.append(self.word)


class Factory(EnvFactory):
    """Notes what is done to it."""

    def __init__(self, env: type[AgentEnv], name: str, log: list[str], *, column: str) -> None:
        super().__init__(env)
        self.name, self.log, self.column = name, log, column
        self.failure_rules = (FailureRule(f"{name} failed", "of course", lambda _episode: True),)

    def check_task(self, task: Task, where: str) -> None:
        if "env" in task:
            raise DataError(f"{where}: the environment sees the column env")
        if self.column not in task:
            raise DataError(f"{where}: no {self.column}")

    def solutions(self, task: Task) -> list[Solution]:
        reply = Message.assistant(str(task.get("answer")))
        return [Solution(name="reference", messages=(reply,), succeeds="answer" in task)]

    def preflight_tasks(self, tasks: Any) -> dict[str, Task]:
        return {"first": tasks[0]}

    def start(self) -> None:
        self.log.append(f"start {self.name}")

    def describe(self) -> dict[str, Any]:
        return {"summary": f"is {self.name}"}

    def counters(self) -> dict[str, float]:
        return {"asked": 2.0}

    def close(self) -> None:
        self.log.append(f"close {self.name}")
        if self.name == "words":
            raise OSError("the last one fails to close")


TASKS = [
    {"task_id": "1", "env": "sums", "question": "1 + 1", "answer": 2},
    {"task_id": "2", "env": "words", "word": "hello"},
]


def make(log: list[str] | None = None, **members: dict[str, Any]) -> MixtureFactory:
    log = [] if log is None else log
    factories = {
        "sums": Factory(SumEnv, "sums", log, column="question"),
        "words": Factory(WordEnv, "words", log, column="word"),
    }
    return MixtureFactory(
        {name: MixtureMember(factory=each, **members.get(name, {})) for name, each in factories.items()}
    )


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# Episodes


def test_a_task_is_played_in_its_environment_with_its_prompt_and_its_tools() -> None:
    mixture = offer_tools(make(sums={"tools": ToolsConfig(use=("calculator",))}), ToolsConfig())
    sums, words = mixture(), mixture()
    words.case_seed = 7
    assert [m.content for m in sums.reset(TASKS[0])] == ["Calculate.", "1 + 1"]
    assert [m.content for m in words.reset(TASKS[1])] == ["Say hello, 7."]
    assert [tool.name for tool in sums.tools] == ["calculator"]
    assert words.tools == ()
    called = sums.step(Message.assistant("", (ToolCall(name="calculator", arguments={"expression": "1 + 1"}),)))
    assert [m.content for m in called.messages] == ["2"]
    assert sums.step(Message.assistant("2")).reward == 1.0
    assert [m.content for m in words.step(Message.assistant("hm")).messages] == ["Again."]
    assert words.step(Message.assistant("hello")).reward == 5.0
    assert SumEnv.rows[-1] == {"task_id": "1", "question": "1 + 1", "answer": 2}


def test_an_episode_that_is_cut_off_and_closed_is_so_inside() -> None:
    env = make()()
    env.reset(TASKS[1])
    env.unanswered = Message.assistant("hel")
    result = env.truncate(StopReason.MAX_TOKENS)
    assert (result.reward, result.info["unanswered"]) == (-1.0, "hel")
    env.close()
    assert WordEnv.closed[-1] == "hello"
    make()().close()  # an episode that never began holds nothing


def test_failures_are_named_by_the_rules_of_the_episodes_environment() -> None:
    modes = FailureModes(make().failure_rules)
    record = {"reward": 0.0, "reward_parts": {}, "stop_reason": "finished"}
    assert [modes.label({**record, "env": name}) for name in ("sums", "words", "others")] == [
        "sums failed",
        "words failed",
        "other",
    ]


def test_scripted_solutions_and_references_are_those_of_the_tasks_environment() -> None:
    mixture = make()
    outcomes = list(check_data(mixture, TASKS, workers=1, group_by=lambda task: task["env"]))
    assert [(each.task_id, each.succeeded, each.is_as_expected) for each in outcomes] == [
        ("1", True, True),
        ("2", False, True),
    ]
    assert mixture.preflight_tasks(TASKS) == {"sums: first": TASKS[0], "words: first": TASKS[1]}


def test_a_control_around_a_mixture_has_its_tasks_and_environments(tmp_path: Path) -> None:
    paths = {"eval": write(tmp_path / "words.jsonl", {"task_id": "1", "word": "yes"})}
    control = BlankAnswersFactory(make(words={"paths": paths}))
    (task,) = control.read_tasks(DataConfig(), "eval")
    assert control.environments == {"sums": 1.0, "words": 1.0}
    assert [m.content for m in control().reset(task)] == ["Say yes, None."]


# Tasks


def test_files_of_environments_are_read_in_turn_and_say_whose_they_are(tmp_path: Path) -> None:
    one = write(
        tmp_path / "one.jsonl", {"task_id": "1", "q": "1"}, {"task_id": "2", "q": "2"}, {"task_id": "3", "q": ""}
    )
    two = write(tmp_path / "two.jsonl", {"word": "yes"})
    mixture = make(
        sums={"paths": {"train": one, "eval": one}, "columns": {"question": "q"}},
        words={"paths": {"train": two}},
    )
    rows = mixture.read_tasks(DataConfig(), "train")
    assert [(row["env"], row["task_id"].partition("/")[0]) for row in rows] == [
        ("sums", "sums"),
        ("words", "words"),
        ("sums", "sums"),
        ("sums", "sums"),
    ]
    assert rows[0] == {"task_id": "sums/1", "question": "1", "env": "sums"}
    assert mixture.task_source(DataConfig(), "train") == f"{one} (sums), {two} (words)"
    assert [row["env"] for row in mixture.read_tasks(DataConfig(), "eval")] == ["sums"] * 3  # words: none held out


def test_one_file_may_have_the_rows_of_all(tmp_path: Path) -> None:
    path = write(tmp_path / "all.jsonl", {**TASKS[0], "task_id": "0"}, *TASKS)
    rows = make().read_tasks(DataConfig(train_path=path), "train")
    assert [row["task_id"] for row in rows] == ["0", "2", "1"]
    assert make().task_source(DataConfig(train_path=path), "train") == str(path)


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"task_id": "1", "env": "sum"}, "did you mean 'sums'"),
        ({"task_id": "1", "question": "?"}, "env is None"),
        ({"task_id": "1", "env": "words", "question": "?"}, "no word"),
    ],
)
def test_a_row_without_an_environment_or_of_another_kind_is_named(tmp_path: Path, row: Task, place: str) -> None:
    path = write(tmp_path / "all.jsonl", TASKS[0], row | {"task_id": "9"})
    with pytest.raises(DataError) as caught:
        make().read_tasks(DataConfig(train_path=path), "train")
    assert str(caught.value).startswith(f"{path}:2: ") and place in str(caught.value)


def test_a_row_of_a_file_that_names_another_environment_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "one.jsonl", TASKS[0], {**TASKS[0], "task_id": "b", "env": "words"})
    with pytest.raises(DataError) as caught:
        make(sums={"paths": {"eval": path}}).read_tasks(DataConfig(), "eval")
    assert str(caught.value).startswith(f"{path}:2: env is 'words'")


def test_a_path_that_is_missing_or_given_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "one.jsonl", TASKS[0])
    mixture = make(sums={"paths": {"train": path}})
    for data, split, key in (
        (DataConfig(), "train", "environments.words.train_path is missing"),
        (DataConfig(), "eval", "environments.sums.eval_path is missing"),
        (DataConfig(train_path=path), "train", "environments.sums.train_path is"),
    ):
        with pytest.raises(ConfigError) as caught:
            mixture.read_tasks(data, split)
        assert key in str(caught.value)
    both = make(sums={"paths": {"train": path}}, words={"paths": {"train": path}})
    with pytest.raises(ConfigError, match=r"data\.columns"):
        both.read_tasks(DataConfig(columns={"question": "q"}), "train")


# Resources


def test_all_environments_are_started_described_counted_and_closed_whatever_one_of_them_does() -> None:
    log: list[str] = []
    mixture = make(log)
    mixture.start()
    assert mixture.describe()["summary"] == "sums: is sums; words: is words"
    assert mixture.counters() == {"asked": 4.0}
    with pytest.raises(OSError, match="fails to close"):
        mixture.close()
    assert log == ["start sums", "start words", "close words", "close sums"]


def test_tools_are_closed_with_their_environment_and_where_another_one_cannot_be_opened() -> None:
    log: list[str] = []
    mixture = make(log, sums={"tools": ToolsConfig(use=("calculator",))}, words={"tools": ToolsConfig(use=("answer",))})
    with pytest.raises(OSError, match="fails to close"):
        offer_tools(mixture, ToolsConfig())  # words takes no tools
    assert log == ["close words", "close sums"]


# What is refused


def options(**members: dict[str, Any]) -> dict[str, Any]:
    return {"environments": {name: {"name": "math_qa", **each} for name, each in members.items()}}


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({}, "env.options.environments"),
        ({"environments": {}}, "env.options.environments"),
        (options(a={"weight": 0}), "env.options.environments.a.weight"),
        (options(a={"weight": -1}), "env.options.environments.a.weight"),
        (options(a={"weights": 1}), "did you mean 'weight'"),
        (options(**{"a/b": {}}), "env.options.environments.a/b"),
        (options(a={"name": "math_qq"}), "environment 'a': unknown environment 'math_qq'"),
        (options(a={"options": {"rewards": "x"}}), "environment 'a': config: unknown key 'env.options.rewards'"),
        (options(a={"name": "mixture"}), "env.options.environments.a.name"),
    ],
)
def test_wrong_options_are_named(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_env_factory("mixture", given)
    assert key in str(caught.value)


def test_tools_belong_to_an_environment_and_are_checked_there() -> None:
    with pytest.raises(ConfigError, match="section tools"):
        offer_tools(make_env_factory("mixture", options(a={})), ToolsConfig(use=("calculator",)))
    for member, text in (
        ({"tools": ["calculatr"]}, "environment 'a': unknown tool 'calculatr'"),
        ({"name": "hello"}, "environment 'a': the environment needs the tool 'calculator'"),
        ({"tools": ["answer"], "options": {"answer_tool": True}}, "environment 'a': section tools"),
    ):
        with pytest.raises(ConfigError) as caught:
            offer_tools(make_env_factory("mixture", options(a=member)), ToolsConfig())
        assert text in str(caught.value)
    offered = offer_tools(make_env_factory("mixture", options(a={"tools": ["calculator"]}, b={})), ToolsConfig())
    with pytest.raises(ConfigError, match=r"environment 'a': agent\.type = 'code'"):
        check_agent_type("code", offered)


def test_weights_and_paths_do_not_make_evaluations_different_but_tools_do(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus.jsonl", {"title": "t", "text": "x"})
    search = {"use": ["search"], "search": {"mode": "corpus", "corpus_path": str(corpus)}}
    one = options(
        a={"weight": 2, "eval_path": "x", "tools": search}, b={"name": "code_exec", "options": {"workers": 4}}
    )
    other = options(a={"tools": search}, b={"name": "code_exec", "options": {"workers": 1}})
    mixture = make_env_factory("mixture", one)
    compared = mixture.compared_options(one)
    assert compared == mixture.compared_options(other)
    assert compared["environments"]["b"] == {"name": "code_exec", "options": {}}
    write(corpus, {"title": "t", "text": "y"})
    assert compared != mixture.compared_options(other)
