"""Text pipelines: the oracle by eye, and the sampled references against it."""

import random

import pytest
from pydantic import ValidationError

from agent_rl.envs.nat.factory.families.text_pipeline import TextPipeline
from agent_rl.envs.nat.factory.oracle.text_pipeline import answer

FAMILY = TextPipeline()


def processed(text: str, *ops: str | dict[str, object], **more: str) -> str:
    return answer({"ops": list(ops)} | more, {"text": text}, {})


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("strip", "Fig  oak2 Fig"),
        ("lower", " fig  oak2 fig"),
        ("upper", " FIG  OAK2 FIG"),
        ("reverse", "giF 2kao  giF "),
        ("squeeze", "Fig oak2 Fig"),
        ("sort_words", "Fig Fig oak2"),
        ("dedupe_words", "Fig oak2"),
        ("drop_digits", " Fig  oak Fig"),
        ("snake", "fig_oak2_fig"),
        ("initials", "FoF"),
        ("title", "Fig Oak2 Fig"),
        ("swap_case", " fIG  OAK2 fIG"),
        ("double", " Fig  oak2 Fig Fig  oak2 Fig"),
        ({"op": "truncate", "n": 6}, " Fig  "),
        ({"op": "repeat", "n": 2}, " Fig  oak2 Fig Fig  oak2 Fig"),
        ({"op": "rotate", "n": 4}, "  oak2 Fig Fig"),
        ({"op": "rotate", "n": 14}, " Fig  oak2 Fig"),
        ({"op": "replace", "old": "Fig", "new": "x"}, " x  oak2 x"),
        ({"op": "prefix", "text": ">"}, "> Fig  oak2 Fig"),
        ({"op": "suffix", "text": "!"}, " Fig  oak2 Fig!"),
        ({"op": "take_words", "first": 2, "last": 5}, "oak2 Fig"),
        ({"op": "take_words", "first": 4, "last": 5}, ""),
    ],
)
def test_each_operation(op: str | dict[str, object], expected: str) -> None:
    assert processed(" Fig  oak2 Fig", op) == expected


def test_operations_come_one_after_the_other() -> None:
    assert processed("ab", "double", "reverse", {"op": "prefix", "text": "<"}) == "<baba"


def test_lines_go_through_the_steps_by_themselves() -> None:
    assert processed("ab\n \ncd", "reverse", scope="lines", blank_lines="drop") == "ba\ndc"
    assert processed("ab\n \ncd", "reverse", scope="lines", blank_lines="keep") == "ba\n \ndc"
    assert processed("ab\ncd", "reverse", scope="text") == "dc\nba"


def test_blank_and_long_texts_are_errors() -> None:
    rules = {"ops": ["upper"]}
    assert answer(rules, {"text": " "}, {"max_length": 3}) == "error: empty text"
    assert answer(rules, {"text": "abc"}, {"max_length": 3}) == "ABC"
    assert answer(rules, {"text": "abcd"}, {"max_length": 3}) == "error: text too long"


@pytest.mark.parametrize(
    ("rules", "place"),
    [
        ({"ops": []}, "ops"),
        ({"ops": ["shuffle"]}, "ops.0"),
        ({"ops": [{"op": "truncate", "n": 0}], "scope": "text"}, "truncate.n"),
        ({"ops": [{"op": "take_words", "first": 3, "last": 2}], "scope": "text"}, "last must not be below first"),
        ({"ops": [{"op": "truncate", "n": 3}]}, "need a scope"),
        ({"ops": ["upper"], "scope": "lines"}, "blank_lines"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place(rules: dict[str, object], place: str) -> None:
    with pytest.raises(ValidationError, match=place):
        FAMILY.Rules.model_validate(rules)


def test_a_sampled_tool_of_level_2_never_changes() -> None:
    draft = FAMILY.draft(random.Random(7), 2)
    assert draft.rules == {"ops": ["drop_digits", "snake", "swap_case"]}
    assert draft.config_field is not None
    assert (draft.config_field.name, draft.config_field.default) == ("max_length", 40)
