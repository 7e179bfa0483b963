"""Equal questions are answered once, whoever asks and when."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import wait_for

from agent_rl.memo import Memo


def test_equal_questions_are_run_once_and_others_each() -> None:
    memo, runs = Memo(), []

    def run() -> tuple[int, bool]:
        runs.append(1)
        return len(runs), True

    questions = [["add", {"b": 1, "a": b"x"}], ["add", {"a": b"x", "b": 1}], ["add", {"a": b"y", "b": 1}], ["add", "x"]]
    assert [memo.answer(question, run) for question in questions] == [1, 1, 2, 3]
    assert memo.counters() | {"seconds": 0.0} == {"asked": 4, "run": 3, "seconds": 0.0}


def test_bytes_are_not_the_text_that_they_spell() -> None:
    memo = Memo()
    answers = [memo.answer([value], lambda value=value: (value, True)) for value in (b"a", "a", {"bytes": "61x"})]
    assert answers == [b"a", "a", {"bytes": "61x"}]


def test_what_asks_meanwhile_waits_for_the_first() -> None:
    memo, started, go_on = Memo(), threading.Event(), threading.Event()

    def run() -> tuple[object, bool]:
        started.set()
        assert go_on.wait(60)
        return object(), False

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(memo.answer, ["q"], run)
        assert started.wait(60)
        others = [pool.submit(memo.answer, ["q"], run) for _ in range(2)]
        wait_for(lambda: memo.counters()["asked"] == 3)
        go_on.set()
        assert {each.result() for each in others} == {first.result()}
    assert memo.counters()["run"] == 1


def test_what_is_not_kept_or_fails_is_asked_again() -> None:
    memo, answers = Memo(), iter([(1, False), (2, True)])
    with pytest.raises(ZeroDivisionError):
        memo.answer(["q"], lambda: 1 // 0)
    assert [memo.answer(["q"], lambda: next(answers)) for _ in range(3)] == [1, 2, 2]


def test_the_oldest_answers_make_room() -> None:
    memo = Memo(max_entries=2)
    for number in (1, 2, 1, 3, 1, 2):
        assert memo.answer([number], lambda number=number: (number, True)) == number
    assert memo.counters()["run"] == 4  # 2 was forgotten for 3


def test_switched_off_everything_is_run() -> None:
    memo = Memo(is_on=False)
    assert [memo.answer(["q"], lambda number=number: (number, True)) for number in (1, 2)] == [1, 2]
    assert memo.counters()["run"] == 2


def test_a_question_that_cannot_be_written_down_is_refused() -> None:
    with pytest.raises(TypeError, match="a set cannot be part of a question"):
        Memo().answer([{1}], lambda: (1, True))
