"""What is filled into sentences, said otherwise: it still says the same."""

import itertools
import random
import re

import pytest

from agent_rl.envs.nat.factory.generate import generate_specs
from agent_rl.envs.nat.factory.requests.grammar import choose, read_sections
from agent_rl.envs.nat.factory.requests.reword import reworded
from agent_rl.envs.nat.factory.requests.slots import (
    CONDITIONS,
    NUMBERS,
    SLOTS,
    compared,
    counts_marked,
    defined,
    with_slots_said,
)

OPERATORS = ("=", "!=", ">", ">=", "<", "<=")
KINDS = ("with", "where")
INCLUSIVE = re.compile(
    r"(?<!\bnot )(?<!\bnot at )\b(?:at least|at the least|no less than|no smaller than|no lower than|at most|"
    r"at the most|no more than|no greater than|no larger than|no higher than|or equal to|or exactly|or just|or more|"
    r"or less|and up|and including|minimum|maximum|up to|equal to or|or above|or below)\b|[<>]=|[≥≤]"
)
OF_OPERATOR = {
    "`qty` at least 5": ">=",
    "`qty` 5 or more": ">=",
    "`qty` not below 5": ">=",
    "`qty` no smaller than 5": ">=",
    "`qty` greater than or equal to 5": ">=",
    "`qty` above 5": ">",
    "`qty` over 5": ">",
    "`qty` more than 5": ">",
    "`qty` exceeding 5": ">",
    "`qty` at most 5": "<=",
    "`qty` no more than 5": "<=",
    "`qty` up to and including 5": "<=",
    "`qty` not exceeding 5": "<=",
    "`qty` 5 or less": "<=",
    "`qty` below 5": "<",
    "`qty` under 5": "<",
    "`qty` less than 5": "<",
    "`qty` other than 5": "!=",
    "`qty` anything but 5": "!=",
    "`qty` equal to 5": "=",
    "`qty` is at least 5": ">=",
    "`qty` reaches 5": ">=",
    "`qty` does not fall below 5": ">=",
    "5 is at most `qty`": ">=",
    "`qty` exceeds 5": ">",
    "5 is less than `qty`": ">",
    "`qty` does not exceed 5": "<=",
    "5 is at least `qty`": "<=",
    "`qty` does not reach 5": "<",
    "5 is more than `qty`": "<",
    "`qty` is not 5": "!=",
    "`qty` differs from 5": "!=",
    "`qty` is 5": "=",
    "`qty` reads 5": "=",
}


def ways_of(op: str) -> set[str]:
    return {compared("qty", op, "5", kind, random.Random(seed)) for kind in KINDS for seed in range(1200)}


@pytest.fixture(scope="module")
def said() -> dict[str, set[str]]:
    return {op: ways_of(op) for op in OPERATORS}


def test_every_operator_has_many_ways_which_hold_column_and_value(said: dict[str, set[str]]) -> None:
    for op, ways in said.items():
        assert len(ways) > 50, op
        assert all("`qty`" in way and re.search(r"\b5\b", way) for way in ways)


def test_no_way_belongs_to_two_operators(said: dict[str, set[str]]) -> None:
    for one, other in itertools.combinations(said, 2):
        assert not said[one] & said[other]


def test_words_of_an_operator_belong_to_it(said: dict[str, set[str]]) -> None:
    for way, op in OF_OPERATOR.items():
        assert [each for each, ways in said.items() if way in ways] == [op], way


def test_words_that_include_the_bound_are_of_inclusive_operators(said: dict[str, set[str]]) -> None:
    inclusive = said[">="] | said["<="]
    assert sum(INCLUSIVE.search(way) is not None for way in inclusive) > len(inclusive) / 2
    for op in ("<", ">"):
        turned = [way for way in said[op] if INCLUSIVE.search(way)]
        assert turned == [], turned


def test_a_comparison_of_texts_or_a_setting_keeps_its_backticks() -> None:
    for op, value in (("=", "done"), ("!=", "blue"), (">=", "threshold")):
        for seed, kind in itertools.product(range(200), KINDS):
            way = compared("stats.price", op, value, kind, random.Random(seed))
            assert f"`{value}`" in way and "`stats.price`" in way


def test_two_conditions_are_both_said() -> None:
    for seed in range(200):
        text = with_slots_said(
            "Only rows with `qty >= 5` and `team != blue` count.", random.Random(seed), of_table=True
        )
        assert "qty" in text and "5" in text and "team" in text and "blue" in text


def test_conditions_are_said_otherwise_about_half_of_the_time_and_in_code_never() -> None:
    plain, code = "Take only the rows with `qty < 5`.", "In SQL terms: WHERE `qty < 5`."
    num = sum(with_slots_said(plain, random.Random(seed), of_table=True) != plain for seed in range(400))
    assert 0.4 * 400 < num < 0.65 * 400
    assert {with_slots_said(code, random.Random(seed), of_table=True) for seed in range(50)} == {code}
    assert {with_slots_said(plain, random.Random(seed), of_table=False) for seed in range(50)} == {plain}


@pytest.mark.parametrize(
    ("way", "value", "told"),
    [
        ("Always give {n} decimals.", "3", {"3", "{3}"}),
        ("at most {n}, no more", "12", {"12", "{12}"}),
        ("Always give {n} decimals.", "13", {"13"}),
        ("Always give {n} decimals.", "1", {"1"}),
        ("Only the first {n} are written.", "`limit`", {"`limit`"}),
        ("len(code) < {n} means", "5", {"5"}),
        ("as LIMIT {n}.", "3", {"3"}),
        ("like %.{n}f in C", "3", {"3"}),
        ("round(x, {n}) with {n} decimals", "3", {"3"}),
    ],
)
def test_only_counts_become_words(way: str, value: str, told: set[str]) -> None:
    found = set()
    for seed in range(60):
        marked, parts = counts_marked(way, {"n": value}, random.Random(seed))
        found |= {parts[name] for name in re.findall(r"\{(\w+)\}", marked)}
    assert found == told


def test_a_marked_count_becomes_its_word() -> None:
    for value in range(2, 13):
        text = with_slots_said(f"exactly {{{value}}} decimals", random.Random(0), of_table=False)
        assert text == f"exactly {NUMBERS[value]} decimals"


def test_the_sign_between_cells_is_named_by_its_own_name() -> None:
    names = {";": "semicolon", ",": "comma", "|": "pipe|bar"}
    for sign, name in names.items():
        texts = {
            with_slots_said(f"cells split by `{sign}`, joined by `{sign} `", random.Random(seed), of_table=True)
            for seed in range(100)
        }
        assert len(texts) > 5
        assert all(text.endswith(f"joined by `{sign} `") for text in texts)
        assert all(f"`{sign}`" in text or re.search(name, text) for text in texts)


def test_definitions_keep_names_and_numbers() -> None:
    names = (
        "tf = how often the note has the term, len = number of terms of the note, avg = mean len, k1 = 1.5, b = 0.75"
    )
    texts = {defined(names, random.Random(seed)) for seed in range(300)}
    assert len(texts) > 100
    for text in texts:
        assert all(
            re.search(rf"\b{re.escape(fact)}\b", text) for fact in ("tf", "len", "avg", "k1", "1.5", "b", "0.75")
        )


def test_kinds_of_characters_are_those_that_the_code_asks_for() -> None:
    ways = {
        section.sources[0]: {choose(way, random.Random(seed)) for way in section.ways for seed in range(30)}
        for section in read_sections(SLOTS)
    }
    letters, digits = re.compile("letter|alphabet|alphanum"), re.compile("digit|numer|number|alphanum")
    assert all(letters.search(way) and not digits.search(way) for way in ways["letters"])
    assert all(digits.search(way) and not letters.search(way) for way in ways["digits"])
    assert all(letters.search(way) and digits.search(way) for way in ways["letters and digits"])


def test_every_comparison_has_a_column_and_a_value() -> None:
    for section in read_sections(CONDITIONS):
        assert len(section.ways) >= 12 or section.sources[0].startswith("with {column} =")
        for way in section.ways:
            assert {*re.findall(r"\{(\w+)\}", way)} == {"column", "value"} and way.count("[") == way.count("]")


def test_nothing_stays_marked_in_a_request() -> None:
    made = generate_specs(5, ["sft"], families=["table_processor", "note_search"], levels=[1, 2], terse=True)
    for number, spec in enumerate(itertools.islice(made, 60)):
        assert not re.search(r"\{\d+\}", reworded(spec, random.Random(number)))
