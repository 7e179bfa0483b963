"""Neighbours of rules and programs are one step away, and the chosen cases tell them from what is right."""

from hypothesis import given
from hypothesis import strategies as st

from agent_rl.data.neighbours import changed_programs, changed_values, choose_telling, run_program

LABEL = """
def label(n: int, text: str) -> str:
    if n < 0 or n > 9:
        return "out"
    return text.strip()
"""


def test_values_change_by_one_step() -> None:
    assert list(changed_values(3)) == [2, 4]
    assert list(changed_values(True)) == [False]
    assert list(changed_values("up", ["down", "up", "down"])) == ["down"]
    assert list(changed_values(None, ["newline"])) == ["newline"]


def test_lists_lose_exchange_repeat_and_gain_parts() -> None:
    changed = list(changed_values(["strip", "lower"], [["upper"]]))
    for wanted in (
        ["lower"],
        ["lower", "strip"],
        ["strip", "strip", "lower"],
        ["upper", "lower"],
        ["strip", "lower", "upper"],
    ):
        assert wanted in changed


def test_any_part_of_a_short_list_may_stand_anywhere() -> None:
    changed = list(changed_values([{"n": 1}, {"n": 2}, {"n": 3}]))
    for order in ([3, 1, 2], [2, 3, 1], [2, 1, 3], [1, 3, 2]):
        assert [{"n": number} for number in order] in changed


def test_a_float_of_a_program_changes_in_its_last_digits() -> None:
    answers = [program["f"]() for program in changed_programs("def f():\n    return 0.3048\n") if "f" in program]
    assert {0.3049, 0.30481} <= {each for each in answers if isinstance(each, float)}


def test_mappings_change_in_one_key() -> None:
    changed = list(changed_values({"op": "<", "value": 5}, [{"op": ">=", "value": 9}]))
    for wanted in ({"op": ">=", "value": 5}, {"op": "<", "value": 4}, {"op": "<", "value": 9}, {"value": 5}):
        assert wanted in changed


def test_texts_lose_and_gain_words_and_formulas_change_their_signs() -> None:
    assert "tea" in changed_values("tea pot")
    assert "tea pot lamp" in changed_values("tea pot", ["lamp"])
    assert "tea po." in changed_values("tea pot.")
    changed = list(changed_values("a + 2 * b"))
    assert "a - 2 * b" in changed
    assert "a + 3 * b" in changed


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab ", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("kl", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(json_values, st.lists(json_values, max_size=3))
def test_the_value_itself_stays_as_it_is(value, donors) -> None:
    before = repr(value)
    list(changed_values(value, donors))
    assert repr(value) == before


def test_programs_differ_in_bounds_operands_and_calls() -> None:
    right = run_program(LABEL)["label"]
    programs = [program["label"] for program in changed_programs(LABEL)]
    cases = [(0, "a"), (9, "a"), (10, "a"), (-1, "a"), (3, " a "), (3, "A")]
    told = [sum(_answer(each, *case) != right(*case) for each in programs) for case in cases]
    assert all(told)
    # Dropping either half of the condition is among them.
    assert any(_answer(each, 10, "a") == "a" and _answer(each, -1, "a") == "out" for each in programs)
    assert any(_answer(each, 10, "a") == "out" and _answer(each, -1, "a") == "a" for each in programs)


def _answer(function, *given):
    try:
        return function(*given)
    except Exception as error:
        return type(error).__name__


def test_a_changed_loop_ends() -> None:
    source = "def count(n):\n    done = 0\n    while done < n:\n        done += 1\n    return done\n"
    assert "OverflowError" in [_answer(program["count"], 3) for program in changed_programs(source)]
    assert run_program(source)["count"](3) == 3


def test_what_does_not_run_is_no_program() -> None:
    assert run_program("raise ValueError") is None


def test_few_cases_tell_all_that_can_be_told() -> None:
    wrong = [lambda x, k=k: x == k for k in range(5)]
    chosen = choose_telling(range(100), lambda x: False, [*wrong, lambda x: False], at_most=9)
    assert sorted(chosen) == [0, 1, 2, 3, 4]
    assert choose_telling(range(100), lambda x: False, [lambda x: x > 10, lambda x: x > 50], at_most=9)[0] > 50


def test_what_known_cases_tell_needs_no_other() -> None:
    wrong = [lambda x: x == 1, lambda x: x == 2]
    assert choose_telling(range(9), lambda x: False, wrong, at_most=9, known=[1]) == [2]


def test_a_neighbour_is_told_so_many_times() -> None:
    chosen = choose_telling(range(9), lambda x: False, [lambda x: x > 4, lambda x: x == 2], at_most=9, times=2)
    assert len([x for x in chosen if x > 4]) == 2
    assert 2 in chosen and len(chosen) == 3


def test_no_more_cases_than_asked_for() -> None:
    assert len(choose_telling(range(9), lambda x: False, [lambda x, k=k: x == k for k in range(9)], at_most=4)) == 4
