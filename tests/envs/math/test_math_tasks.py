"""Word problems: the expression gives the answer, the buggy one does not, the files can be made again."""

import ast
import itertools
import operator
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from agent_rl.data.splits import split_of
from agent_rl.data.tasks import Task, read_tasks, write_tasks
from agent_rl.envs.math.generate import CELLS, FAMILIES, buggy, fingerprint_of, generate_tasks, reference
from agent_rl.envs.math.terms import Term, as_text, number
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import DataError
from agent_rl.scripts.check_data import app as check_data_app
from agent_rl.tools.calculator import calculate

FOLDER = Path(__file__).resolve().parents[3] / "dataset" / "math_tasks"
TRAIN, EVAL, GSM8K = (read_tasks(FOLDER / f"{name}.jsonl") for name in ("train", "eval", "gsm8k_format"))
SHOWN = list(itertools.islice(generate_tasks(4, ["sft"]), 300))
"""What demonstrations are about."""
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value_of(expression: str) -> Fraction:
    """What an expression of whole numbers gives, exactly."""

    def walk(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return OPERATIONS[type(node.op)](walk(node.left), walk(node.right))
        assert isinstance(node, ast.Constant), expression
        return Fraction(node.value)

    return walk(ast.parse(expression, mode="eval").body)


def test_the_expression_gives_the_answer() -> None:
    for row in [*TRAIN, *EVAL, *SHOWN]:
        assert value_of(reference(row)) == Fraction(row["answer"]), row


def test_the_calculator_tool_gives_the_answer_as_it_is_written() -> None:
    for row in [*TRAIN, *EVAL, *SHOWN]:
        assert calculate(reference(row)) == row["answer"]


def test_the_buggy_expression_gives_another_answer() -> None:
    many = itertools.islice(generate_tasks(8, ["sft"]), 4000)  # now and then both would be the same number
    for row in [*TRAIN, *EVAL, *many]:
        assert value_of(buggy(row)) != Fraction(row["answer"]), row


def test_answers_are_positive_and_short() -> None:
    for row in [*TRAIN, *EVAL, *SHOWN]:
        assert Fraction(row["answer"]) > 0
        assert len(row["answer"]) <= 7


def test_every_number_of_the_expression_is_in_the_question_or_well_known() -> None:
    known = {"2", "7", "24", "60", "100"}  # a half or both, units of time, percent
    for row in [*TRAIN, *EVAL]:
        in_question = set("".join(c if c.isdigit() else " " for c in row["question"]).split())
        used = set("".join(c if c.isdigit() else " " for c in reference(row)).split())
        assert used <= in_question | known, row


@pytest.mark.parametrize(
    ("family", "level", "question", "expression"),
    [
        (
            "shopping",
            4,
            "Vera buys 21 stamps for 16 dollars each. The delivery costs 15 dollars. A coupon takes 4 dollars off the "
            "bill. Vera gives the cashier 350 dollars. How many dollars does Vera get back?",
            "350-(21*16+15-4)",
        ),
        (
            "areas",
            4,
            "A field is 21 metres long and 22 metres wide. A part of 5 by 2 metres is under water. Seed for the rest "
            "costs 5 dollars a square metre. How many dollars is that in all?",
            "(21*22-5*2)*5",
        ),
    ],
)
def test_two_problems_to_check_by_eye(family: str, level: int, question: str, expression: str) -> None:
    row = next(
        row for row in TRAIN if (row["metadata"]["family"], row["level"], reference(row)) == (family, level, expression)
    )
    assert row["question"] == question


MISREAD = {
    r"costs \d+ dollars more": "a price, or more than another one",
    r"\b(it|them|they) away|of them away": "boxes, or what is in them",
    r"away\..*\bthem\b": "what is given away, or what is left",
    r"off\.(?! )|\d dollars off\.(?! What| How)": "off each, or off all",
    r"tap gives .* are in it": "in the tap",
    r"(?<![\d.])1 [a-z]+s\b": "one of many",
    r"\bare in after\b|cut in half": "no English",
    r"days of \d+ hours(?! each)": "hours each, or together",
}
"""What no problem may say, and what it would be taken for."""


def test_no_problem_can_be_misread() -> None:
    many = itertools.islice(generate_tasks(8, ["sft"]), 4000)
    for row in [*TRAIN, *EVAL, *many]:
        assert not [why for words, why in MISREAD.items() if re.search(words, row["question"])], row["question"]


def test_what_is_shared_after_a_loss_is_the_rest() -> None:
    rows = [row for row in [*TRAIN, *EVAL] if (row["metadata"]["family"], row["level"]) == ("sharing", 3)]
    assert len(rows) > 5
    assert all(re.search(r"(share|get) the rest ", row["question"]) for row in rows)


def check_shipped(rows: list[Task], folder: Path) -> tuple[int, str]:
    """Exit code and output of `agent-rl check-data`."""
    write_tasks(folder / "rows.jsonl", rows)
    done = CliRunner().invoke(check_data_app, ["--config", "configs/math_grpo.yaml", str(folder / "rows.jsonl")])
    return done.exit_code, done.output


def test_checking_the_data_finds_answers_that_their_expression_does_not_give(tmp_path: Path) -> None:
    code, output = check_shipped([*EVAL, *GSM8K], tmp_path)
    assert code == 0, output
    code, output = check_shipped([{**row, "answer": "1"} for row in EVAL], tmp_path)
    assert code == 1
    assert "should succeed" in output
    assert check_shipped([*EVAL[:9], {**EVAL[9], "answer": "1"}], tmp_path)[0] == 1


def test_an_expression_without_a_value_is_named(tmp_path: Path) -> None:
    broken = {**EVAL[0], "metadata": {"expression": "2*x"}}
    message = r"metadata.expression is '2\*x', which has no value \(unknown name 'x'"
    write_tasks(tmp_path / "rows.jsonl", [broken])
    words = ["--config", "configs/math_grpo.yaml", str(tmp_path / "rows.jsonl")]
    with pytest.raises(DataError, match=message):
        CliRunner().invoke(check_data_app, words, catch_exceptions=False)


def test_the_same_seed_gives_the_shipped_bytes(tmp_path: Path) -> None:
    for name, rows in make_env_factory("math").task_files(0, None, None).items():
        write_tasks(tmp_path / f"{name}.jsonl", rows)
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (FOLDER / f"{name}.jsonl").read_bytes()


def test_shipped_problems_and_demonstrations_are_different_problems() -> None:
    fingerprints = [
        [fingerprint_of(row["metadata"]["family"], reference(row)) for row in rows] for rows in (TRAIN, EVAL, SHOWN)
    ]
    assert [set(map(split_of, each)) for each in fingerprints] == [{"train"}, {"eval"}, {"sft"}]
    every = list(itertools.chain(*fingerprints))
    assert len(set(every)) == len(every)


def test_rows_are_complete_and_of_every_family_and_level() -> None:
    ids = [row["task_id"] for row in [*TRAIN, *EVAL, *GSM8K]]
    assert len(set(ids)) == len(ids)
    assert len(FAMILIES) >= 12
    for rows in (TRAIN, EVAL):
        assert {(row["metadata"]["family"], row["level"]) for row in rows} == set(CELLS)
        assert min(Counter(row["level"] for row in rows).values()) > 0.1 * len(rows)
        for row in rows:
            assert set(row) == {"task_id", "question", "answer", "level", "metadata"}
            assert set(row["metadata"]) == {"family", "expression", "careless"}


def test_the_last_line_of_a_gsm8k_answer_is_a_number() -> None:
    assert len(GSM8K) == 10
    for row in GSM8K:
        assert set(row) == {"task_id", "question", "answer"}
        *steps, last = row["answer"].split("\n")
        assert steps
        mark, _, value = last.partition(" ")
        assert mark == "####"
        assert float(value.replace(",", "")) > 0


def test_brackets_stand_where_they_are_needed_only() -> None:
    assert ((number(12) + 3) * 4 - (number(5) - 2)).text == "(12+3)*4-(5-2)"
    assert (number(12) * 3 / (number(4) * 2)).text == "12*3/(4*2)"
    assert (number(100) - number(8) * 3 + 2).text == "100-8*3+2"


TERMS = st.recursive(
    st.integers(1, 50).map(number),
    lambda inner: (
        st.builds(
            lambda operation, left, right: operation(left, right),
            st.sampled_from([Term.__add__, Term.__sub__, Term.__mul__]),
            inner,
            inner,
        )
        | st.builds(lambda term, by: term / by, inner, st.integers(1, 9))
    ),
    max_leaves=8,
)


@given(TERMS)
def test_the_text_of_a_term_has_its_value(term: Term) -> None:
    assert value_of(term.text) == term.value


@given(st.integers(-(10**6), 10**6), st.sampled_from([1, 2, 4, 5, 10, 100]))
def test_a_value_of_at_most_two_decimals_is_written_exactly(top: int, bottom: int) -> None:
    text = as_text(Fraction(top, bottom))
    assert text is not None
    assert Fraction(text) == Fraction(top, bottom)
    assert not ("." in text and text.endswith("0"))


def test_a_value_of_more_decimals_is_not_written() -> None:
    assert as_text(Fraction(1, 3)) is None
    assert as_text(Fraction(1, 8)) is None
