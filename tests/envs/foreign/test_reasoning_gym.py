"""Questions of Reasoning Gym: rows, answers, scores; with the package itself, every data set that it has."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cpu_time import cpu_s
from foreign_fakes import load_fake, load_real

from agent_rl.agent.messages import Message
from agent_rl.data.tasks import read_tasks, write_tasks
from agent_rl.envs.base import EnvFactory, StepResult
from agent_rl.envs.check_data import check_data
from agent_rl.envs.foreign.harmless import RUN_AS_PYTHON, is_harmless
from agent_rl.envs.foreign.reasoning_gym import _in_last_tags
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError

NO_REFERENCE = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Data sets whose generator gives no answer, only a scorer."""


@pytest.fixture(params=["fake", "real"])
def package(request: pytest.FixtureRequest) -> str:
    {"fake": load_fake, "real": load_real}[request.param]("reasoning_gym", request)
    return request.param


@pytest.fixture
def real(request: pytest.FixtureRequest) -> None:
    load_real("reasoning_gym", request)


OPENED: list[EnvFactory] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Ends the processes of all scorers."""
    yield
    while OPENED:
        OPENED.pop().close()


def opened(dataset: Any, **options: Any) -> EnvFactory:
    OPENED.append(make_env_factory("reasoning_gym", {"dataset": dataset, **options}))
    return OPENED[-1]


def answer(factory: EnvFactory, task: dict[str, Any], text: str) -> StepResult:
    env = factory()
    env.reset(task)
    return env.step(Message.assistant(text))


def test_rows_go_through_a_file_and_their_references_succeed(package: str, tmp_path: Path) -> None:
    factory = opened({"spell_backward": {"min_word_len": 3, "max_word_len": 6}})
    files = factory.task_files(0, 20, 8)
    assert {name: len(rows) for name, rows in files.items()} == {"train": 20, "eval": 8}
    questions = [{row["question"] for row in rows} for rows in files.values()]
    assert len(questions[0] | questions[1]) == 28
    assert factory.task_files(0, 20, 8) == files != factory.task_files(1, 20, 8)
    write_tasks(tmp_path / "train.jsonl", files["train"])
    tasks = read_tasks(tmp_path / "train.jsonl", factory.check_task)
    assert tasks[0]["parameters"] == {"min_word_len": 3, "max_word_len": 6}
    outcomes = list(check_data(factory, tasks, workers=2, group_by=lambda task: task["dataset"]))
    assert len(outcomes) == 40 and all(outcome.is_as_expected for outcome in outcomes)


def test_an_answer_is_what_stands_behind_the_marker_or_between_tags(package: str) -> None:
    factory = opened("spell_backward")
    (task,) = factory.task_files(0, 1, 1)["train"]
    right = task["answer"]
    assert factory().reset(task) == [
        Message.system("Solve the problem. Then write Answer: and the answer alone."),
        Message.user(task["question"]),
    ]
    for text in (right, f"So it is.\nAnswer: {right}", f"<answer>x</answer> no, <answer>\n{right} </answer>."):
        result = answer(factory, task, text)
        assert (result.reward, result.reward_parts) == (1.0, {"spell_backward": 1.0, "success": 1.0})
        assert result.terminated
    partly = answer(factory, task, f"Answer: {right}!!")
    assert 0.0 < partly.reward < 1.0 and partly.reward_parts["success"] == 0.0
    assert answer(opened("spell_backward", success_at=0.001), task, f"{right}!!").reward_parts["success"] == 1.0
    assert opened("spell_backward", system_prompt=None)().reset(task) == [Message.user(task["question"])]


def test_several_data_sets_take_turns(package: str) -> None:
    rows = opened(["spell_backward", "countdown"]).task_files(0, 6, 2)["train"]
    assert [row["dataset"] for row in rows] == ["spell_backward", "countdown"] * 3
    with pytest.raises(ConfigError, match=r"--num-train is 90000|cannot be made"):
        opened({"spell_backward": {"min_word_len": 1, "max_word_len": 1}}).task_files(0, 90_000, 2)


def test_a_scorer_that_fails_gives_nothing_and_one_that_runs_answers_gets_plain_ones_only(
    package: str, tmp_path: Path
) -> None:
    factory = opened("countdown")
    (task,) = factory.task_files(0, 1, 1)["train"]
    made = tmp_path / "made"
    hostile = answer(factory, task, f"Answer: open({str(made)!r}, 'w').write('x')")
    assert not made.exists()
    assert hostile.reward < 0.1 and hostile.info["refused"]
    plain = answer(factory, task, "Answer: 1 / 0")
    assert plain.reward < 0.1 and "refused" not in plain.info


@pytest.mark.parametrize(
    ("dataset", "parameters"),
    [
        ("binary_matrix", {"min_n": 14, "max_n": 15}),
        ("spiral_matrix", {"min_n": 14, "max_n": 15}),
        ("polynomial_multiplication", {"min_degree": 11, "max_degree": 12}),
        ("simple_integration", {"min_degree": 20, "max_degree": 25}),
    ],
)
def test_right_answers_of_harder_questions_are_read(real: None, dataset: str, parameters: dict[str, Any]) -> None:
    with opened({dataset: parameters}) as factory:
        for task in factory.task_files(1, 4, 1)["train"]:
            result = answer(factory, task, f"Answer: {task['answer']}")
            assert (result.reward, "refused" in result.info) == (1.0, False)


def test_what_may_be_read_grows_with_the_rows_own_answer() -> None:
    matrix = "\n".join(["0 1 " * 7 + "0"] * 15)
    as_list = str([[int(cell) for cell in line.split()] for line in matrix.splitlines()])
    assert len(matrix) > 300 and is_harmless("binary_matrix", matrix, matrix)
    assert is_harmless("binary_matrix", as_list, matrix) and not is_harmless("binary_matrix", as_list, "0 1\n1 0")
    assert not is_harmless("binary_matrix", "0 " * 450, matrix)
    reference = "5*x**33 + 2*x**19"
    for text, is_read in [
        ("2*x**19 + 5*x ** 33", True),
        ("x**34", False),
        ("x**330", False),
        ("x**3300", False),
        ("9**33**33", False),
        ("(9**33)**20", False),  # powers of powers stay as low as they are
        ("(((9**19)**19)**19)**19", False),
        ("x.__class__**33", False),
    ]:
        assert is_harmless("polynomial_multiplication", text, reference) == is_read, text
    assert not is_harmless("polynomial_multiplication", reference)
    assert is_harmless("simple_integration", "(x + 1)**21/21 + C", "(x + 1)**21/21 + C")


def test_the_scorers_own_variables_are_out_of_an_answers_reach() -> None:
    for text in ("entry['answer']", "[[entry['answer']]]", "oracle_answer", "[entry['metadata']['valid_answers'][0]]"):
        assert not is_harmless("n_queens", text, "_ Q"), text
    for text in ("['A', 'B']", "AB", "_ Q\nQ _", "[[1, -2], [3]]"):
        assert is_harmless("n_queens", text, "AB"), text


def test_the_scores_come_from_another_process_which_sees_none_of_the_keys(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "abc")
    factory = opened("spell_backward")
    (task,) = factory.task_files(0, 1, 1)["train"]
    made = "reasoning_gym.algorithmic.spell_backward" if package == "real" else "reasoning_gym.factory"
    monkeypatch.setattr(f"{made}.SpellBackwardDataset.score_answer", lambda *_: 0.5)
    assert answer(factory, task, task["answer"]).reward == 1.0
    environ = Path(f"/proc/{factory._scorer._process.pid}/environ").read_bytes()
    assert b"PATH=" in environ and b"SECRET_KEY" not in environ


def test_a_scorers_process_that_ended_is_started_again(package: str) -> None:
    factory = opened("spell_backward")
    (task,) = factory.task_files(0, 1, 1)["train"]
    for _ in range(2):
        assert answer(factory, task, task["answer"]).reward == 1.0
        factory._scorer._process.kill()


def test_a_fork_has_a_scorers_process_of_its_own(package: str) -> None:
    factory = opened("spell_backward")
    (task,) = factory.task_files(0, 1, 1)["train"]
    assert answer(factory, task, task["answer"]).reward == 1.0
    process = factory._scorer._process
    if (child := os.fork()) == 0:
        is_right = answer(factory, task, task["answer"]).reward == 1.0
        is_own = factory._scorer._process.pid != process.pid
        factory._scorer.close()
        os._exit(0 if is_right and is_own else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert answer(factory, task, task["answer"]).reward == 1.0
    assert factory._scorer._process is process


@pytest.mark.parametrize("is_begun", [False, True])
def test_an_answer_that_was_interrupted_is_not_taken_for_the_next_ones(
    package: str, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    def interrupt(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    factory = opened("spell_backward")
    (task,) = factory.task_files(0, 1, 1)["train"]
    if is_begun:
        assert answer(factory, task, task["answer"]).reward == 1.0
    with monkeypatch.context() as interrupted, pytest.raises(KeyboardInterrupt):
        interrupted.setattr("agent_rl.envs.foreign.scorer.select.select", interrupt)
        answer(factory, task, task["answer"])
    for said, is_right in [("?", False), (task["answer"], True), ("?", False)]:
        assert (answer(factory, task, said).reward == 1.0) == is_right


def test_a_scorers_process_that_was_stopped_is_ended(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = opened("spell_backward")
    (task,) = factory.task_files(0, 1, 1)["train"]
    assert answer(factory, task, task["answer"]).reward == 1.0
    monkeypatch.setattr("agent_rl.envs.foreign.scorer._GRACE_S", 0.1)
    factory._scorer._timeout_s = 0.1
    stopped = factory._scorer._process
    stopped.send_signal(signal.SIGSTOP)
    assert answer(factory, task, task["answer"]).reward == 0.0
    assert stopped.poll() == -signal.SIGKILL
    factory._scorer._timeout_s = 30.0
    assert answer(factory, task, task["answer"]).reward == 1.0


def test_an_answer_without_end_or_bound_earns_nothing_and_the_next_one_is_scored(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_fake("reasoning_gym", request)
    monkeypatch.setattr("agent_rl.envs.foreign.scorer.TIMEOUT_S", 2.0)
    monkeypatch.setattr("agent_rl.envs.foreign.harmless.RUN_AS_PYTHON", {})
    factory = opened("countdown")
    (task,) = factory.task_files(0, 1, 1)["train"]
    for text, error in (
        ("[0] * 10**9", "MemoryError"),
        ("sum(range(10**15))", "no score within 2 s"),
        ("__import__('os')._exit(3)", "ended with status 3"),
    ):
        result = answer(factory, task, f"Answer: {text}")
        assert result.reward == 0.0 and error in result.info["scorer_error"]
        assert answer(factory, task, f"Answer: {task['metadata']['target']}").reward == 1.0


def test_a_data_set_that_somebody_added_is_scored_where_it_is(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_fake("reasoning_gym", request)
    from reasoning_gym.factory import DATASETS, SpellBackwardConfig, SpellBackwardDataset

    class Own(SpellBackwardDataset):
        def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
            assert isinstance(entry["metadata"]["word"], tuple)
            return 0.25

    monkeypatch.setitem(DATASETS, "own", (Own, SpellBackwardConfig))
    factory = opened("own")
    (task,) = factory.task_files(0, 1, 1)["train"]
    assert answer(factory, task, "x").reward == 0.25


@pytest.mark.parametrize(
    ("dataset", "texts"),
    [("coin_flip", ["0", "0.0", "0/1", "0."]), ("complex_arithmetic", ["nan", "nan+nani", "NaN"])],
)
def test_what_a_scorer_takes_for_every_right_answer_earns_nothing(real: None, dataset: str, texts: list[str]) -> None:
    factory = opened(dataset)
    for task in factory.task_files(1, 3, 1)["train"]:
        assert [answer(factory, task, f"Answer: {text}").reward for text in texts] == [0.0] * len(texts)
        assert answer(factory, task, f"Answer: {task['answer']}").reward == 1.0


def test_tags_are_read_in_time_however_many_stay_open() -> None:
    texts = {
        "<answer>" * 20_000: None,
        "</answer>" * 20_000: None,
        "</answer><answer>": None,
        "<answer>a</answer> b </answer>": "a",
        "<answer>a<answer>b</answer>": "b",
    }
    assert cpu_s(lambda: [_in_last_tags(text) for text in texts], 1.0) < 1.0
    assert {text: _in_last_tags(text) for text in texts} == texts


@pytest.fixture
def every_task(real: None) -> Iterator[tuple[EnvFactory, list[dict[str, Any]]]]:
    from reasoning_gym.factory import DATASETS

    names = [name for name in DATASETS if name not in ("composite", "game_of_life_halting")]  # one only holds others
    assert len(names) > 100
    with opened(names) as factory:
        rows = factory.task_files(5, 2 * len(names), 1)["train"]
        yield factory, [json.loads(json.dumps(row)) for row in rows]


def test_every_data_set_takes_its_reference_and_no_wrong_answer(
    every_task: tuple[EnvFactory, list[dict[str, Any]]],
) -> None:
    factory, tasks = every_task
    assert {task["dataset"] for task in tasks if task["answer"] is None} == NO_REFERENCE
    outcomes = {}
    for task in tasks:
        factory.check_task(task, "row")
        for solution in factory.solutions(task):
            result = answer(factory, task, solution.messages[0].content)
            outcomes[task["task_id"], solution.name] = result.reward
    references = {key: reward for key, reward in outcomes.items() if key[1] == "reference"}
    assert {key: reward for key, reward in references.items() if reward != 1.0} == {}
    assert len(references) == len(tasks) - 2 * len(NO_REFERENCE) > 190
    assert {key: reward for key, reward in outcomes.items() if key not in references and reward >= 1.0} == {}


def test_the_data_set_that_takes_every_answer_is_refused(real: None) -> None:
    import reasoning_gym

    entry = reasoning_gym.create_dataset("game_of_life_halting", seed=1, size=1)
    scores = {entry.score_answer(text, entry[0]) for text in ("True", "False", "no such answer")}
    assert scores == {1.0}, "the package has fixed it: allow it here"
    with pytest.raises(ConfigError, match="takes every answer for right"):
        opened("game_of_life_halting")


def test_a_scorer_that_takes_too_long_is_ended_and_the_next_answer_is_scored(real: None) -> None:
    from agent_rl.envs.foreign.scorer import Scorer

    slow = "sin(" * 24 + "x**19" + ")" * 24  # 12 of them took 30 s
    (task,) = opened("intermediate_integration").task_files(0, 1, 1)["train"]
    assert is_harmless(task["dataset"], slow)
    scorer = Scorer(timeout_s=30.0)
    with pytest.raises(TimeoutError):
        scorer.score(task["dataset"], {}, slow, task)
    assert scorer.score(task["dataset"], {}, task["answer"], task) == 1.0
    scorer.close()


def test_the_scorers_that_run_answers_are_known_and_read_all_references(real: None) -> None:
    import inspect

    from reasoning_gym.factory import DATASETS

    runs = {
        name
        for name, (made, _config) in DATASETS.items()
        if any(call in inspect.getsource(made.score_answer) for call in ("eval(answer)", "parse_expr(answer", "exec("))
    }
    assert runs == set(RUN_AS_PYTHON)
    references = [row for name in runs for row in opened(name).task_files(1, 40, 1)["train"]]
    refused = [row["answer"] for row in references if not is_harmless(row["dataset"], row["answer"])]
    assert all("Integral(" in text for text in refused) and len(refused) < 20
