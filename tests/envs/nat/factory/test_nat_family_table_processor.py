"""Table processors: the oracle by eye, and the sampled references against it."""

import random
from typing import Any

import nat_family_checks as checks
import pytest
from pydantic import ValidationError

from agent_rl.envs.nat.factory.families.tables.processor import TableProcessor
from agent_rl.envs.nat.factory.oracle.table_processor import answer, is_robust

FAMILY = TableProcessor()

SUMS: dict[str, Any] = {
    "source": "csv",
    "delimiter": ";",
    "trim": False,
    "join": None,
    "filters": [],
    "key": "city",
    "aggregate": "sum",
    "value": "qty",
    "decimals": 1,
    "order": "down",
    "tie": "key",
    "top": None,
    "pair": "=",
    "joiner": ", ",
}
TABLE = "city;qty\nRome;2\nOslo;3\nRome;4\nCairo;3"
FROM_3 = {"column": "qty", "op": ">=", "value": 3}
JSON = SUMS | {"source": "json", "delimiter": None, "key": "place.city"}
JOIN = SUMS | {"join": {"on": "code", "missing": "drop", "repeated": "first"}}


def of(table: str = TABLE, config: dict[str, int] | None = None, **changes: Any) -> str:
    return answer(SUMS | changes, {"table": table}, config or {})


def test_groups_are_summed_and_ordered_by_value_then_key() -> None:
    assert of() == "Rome=6.0, Cairo=3.0, Oslo=3.0"
    assert of(tie="appearance") == "Rome=6.0, Oslo=3.0, Cairo=3.0"
    assert of(order="up") == "Cairo=3.0, Oslo=3.0, Rome=6.0"
    assert of(order="key") == "Cairo=3.0, Oslo=3.0, Rome=6.0"
    assert of(order="appearance") == "Rome=6.0, Oslo=3.0, Cairo=3.0"


@pytest.mark.parametrize(
    ("aggregate", "expected"), [("mean", "Rome=3.0"), ("min", "Rome=2.0"), ("max", "Rome=4.0"), (None, "Rome=2.0")]
)
def test_aggregates_of_the_first_group(aggregate: str | None, expected: str) -> None:
    assert of(aggregate=aggregate, order="appearance", top=1) == expected


def test_counts_are_whole_numbers_and_need_no_number_column() -> None:
    assert of("city;qty\nRome;many\nRome;\nOslo;x", aggregate="count", value=None) == "Rome=2, Oslo=1"


def test_one_number_for_the_whole_table() -> None:
    assert of(key=None, filters=[FROM_3]) == "10.0"
    assert of(key=None, filters=[FROM_3 | {"op": "<"}], aggregate="count", value=None) == "1"


@pytest.mark.parametrize(("op", "expected"), [(">", "4.0"), (">=", "10.0"), ("<", "2.0"), ("<=", "8.0"), ("!=", "6.0")])
def test_a_filter_at_its_limit(op: str, expected: str) -> None:
    assert of(key=None, filters=[FROM_3 | {"op": op}]) == expected


def test_the_setting_replaces_the_limit_the_cut_or_the_decimals() -> None:
    assert of(filters=[FROM_3], config={"threshold": 4}) == "Rome=4.0"
    assert of(top=3, config={"limit": 1}) == "Rome=6.0"
    assert of(config={"decimals": 0}) == "Rome=6, Cairo=3, Oslo=3"


def test_nothing_left_is_no_error() -> None:
    assert of(filters=[FROM_3 | {"value": 9}]) == "none"


def test_blank_lines_and_the_order_of_columns_do_not_matter_and_spaces_only_untrimmed() -> None:
    assert of("qty;note;city\n\n1;x;Rome\n \n") == "Rome=1.0"
    assert of("city ; qty\n Rome; 1", trim=True) == "Rome=1.0"
    assert of("city ; qty\n Rome; 1") == "error: missing column"
    assert of("city\tqty\nRome\t1", delimiter="tab") == "Rome=1.0"


def test_only_keys_or_one_pair_on_a_line() -> None:
    assert of(pair=None) == "Rome, Cairo, Oslo"
    assert of(pair=": ", joiner="newline", top=2) == "Rome: 6.0\nCairo: 3.0"


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ("", "empty table"),
        ("city;qty\n", "empty table"),
        ("city;sum\nRome", "missing column"),
        ("city;qty\nRome;x\nRome;1;2", "ragged row"),
        ("city;qty\nRome;1\nRome;x", "bad number"),
        ("city;qty\nRome;1e3", "bad number"),
    ],
)
def test_faults_are_found_in_order(table: str, error: str) -> None:
    assert of(table) == f"error: {error}"


def test_a_bad_number_counts_in_rows_that_the_filter_drops() -> None:
    late = {"column": "status", "op": "=", "value": "late"}
    assert of("city;qty;status\nRome;1;late\nOslo;x;new", filters=[late]) == "error: bad number"


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('[{"place": {"city": "Rome"}, "qty": 2.5}, {"place": {"city": "Rome"}, "qty": 1}]', "Rome=3.5"),
        ('[{"place": "Rome", "qty": 1}]', "error: missing field"),
        ('[{"place": {"city": "Rome"}, "qty": "1"}]', "error: bad number"),
        ("[]", "error: empty table"),
        ("[1]", "error: bad json"),
        ("{}", "error: bad json"),
        ("[", "error: bad json"),
    ],
)
def test_paths_lead_into_json_objects(table: str, expected: str) -> None:
    assert answer(JSON, {"table": table}, {}) == expected


def test_a_join_takes_the_key_from_the_lookup() -> None:
    def joined(lookup: str = "code;city\na1;Rome\na1;Lima\nb2;Oslo", **change: str) -> str:
        rules = JOIN | {"join": JOIN["join"] | change}
        return answer(rules, {"table": "code;qty\na1;1\nb2;2\nc3;4\na1;8", "lookup": lookup}, {})

    assert joined() == "Rome=9.0, Oslo=2.0"
    assert joined(repeated="last") == "Lima=9.0, Oslo=2.0"
    assert joined(missing="unknown") == "Rome=9.0, unknown=4.0, Oslo=2.0"
    assert joined("code;city\nd4;Rome") == "none"
    assert joined("code;city") == "error: empty table"
    assert joined("code;town\na1;Rome") == "error: missing column"
    assert joined("code;city\na1") == "error: ragged row"


def test_what_floats_could_round_or_order_otherwise_is_not_sampled() -> None:
    def clear(table: str, **changes: Any) -> bool:
        return is_robust(SUMS | changes, {"table": table}, {})

    assert clear(TABLE)
    assert not clear("city;qty\nRome;0.25")
    assert clear("city;qty\nRome;0.26")
    # 0.1 + 0.2 is not 0.3 in floats, so the tie of the two groups would be broken.
    tie = "city;qty\nRome;0.1\nRome;0.2\nOslo;0.3"
    assert not clear(tie)
    assert clear(tie, order="key")
    assert not clear("city;qty\nRome;0.1\nRome;0.2\nRome;-0.3", order="key")
    assert clear("city;qty\nRome;3\nRome;-3")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"delimiter": None}, "delimiter"),
        ({"delimiter": "tabs"}, "delimiter"),
        ({"value": None}, "value"),
        ({"key": None, "aggregate": None}, "key"),
        ({"key": "City"}, "key"),
        ({"top": 0}, "top"),
        ({"filters": [FROM_3 | {"op": "like"}]}, "filters.0.op"),
        ({"quote": "'"}, "quote"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place(change: dict[str, object], place: str) -> None:
    FAMILY.Rules.model_validate(SUMS)
    with pytest.raises(ValidationError, match=place):
        FAMILY.Rules.model_validate(SUMS | change)


def test_joins_and_nested_paths_come_from_level_3_on() -> None:
    def hard(level: int) -> int:
        drafts = [FAMILY.draft(random.Random(seed), level).rules for seed in range(60)]
        return sum(rules["join"] is not None or "." in str(rules["key"]) for rules in drafts)

    assert (hard(1), hard(2), hard(3), hard(5)) == (0, 0, 60, 60)


def test_examples_are_answered_with_more_than_none() -> None:
    outputs = [tool.example.output for tool, _ in checks.tools_of(FAMILY, 3, 40)]
    assert "none" not in outputs
    assert len(set(outputs)) > 30
