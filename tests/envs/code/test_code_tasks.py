"""Generated and hand-written function tasks: sound tests, right references, believable mistakes, the shipped bytes."""

import ast
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.data.splits import split_of
from agent_rl.data.tasks import read_tasks, write_tasks
from agent_rl.envs.code.families.base import CONDITIONS, condition_code, holds
from agent_rl.envs.code.generate import (
    CELLS,
    FAMILIES,
    MAX_MORE,
    MIN_HIDDEN,
    buggy,
    fingerprint_of,
    generate_tasks,
    reference,
)
from agent_rl.envs.registry import make_env_factory
from agent_rl.sandbox.graders import CallGrader, Case
from agent_rl.sandbox.guest.codec import same
from agent_rl.sandbox.limits import Limits
from agent_rl.sandbox.sandbox import Sandbox

FOLDER = Path(__file__).resolve().parents[3] / "dataset" / "code_tasks"
TRAIN, EVAL = (read_tasks(FOLDER / f"{name}.jsonl") for name in ("train", "eval"))
HANDWRITTEN = read_tasks(FOLDER / "handwritten.jsonl")
SHOWN = list(itertools.islice(generate_tasks(7, ["sft"]), 2 * len(CELLS)))
"""What demonstrations are about."""
RUNNER = """
import json, sys
for code, tests in json.load(sys.stdin):
    scope, out = {}, []
    exec(code, scope)
    for test in tests:
        try:
            out.append("gave " + repr(scope[test["function"]](*test["args"])))
        except Exception as error:
            out.append("raised " + type(error).__name__)
    print(json.dumps(out))
"""


def passed(pairs: list[tuple[str, list[dict[str, Any]]]]) -> list[list[bool]]:
    """For every code and its tests, which of them it passes; all run in one child process."""
    command = [sys.executable, "-I", "-c", RUNNER]
    done = subprocess.run(command, input=json.dumps(pairs), capture_output=True, text=True, timeout=400, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        [is_right(test, got) for test, got in zip(tests, outcomes, strict=True)]
        for (_, tests), outcomes in zip(pairs, lines, strict=True)
    ]


def is_right(test: dict[str, Any], got: str) -> bool:
    if "raises" in test:
        return got == f"raised {test['raises']}"
    return got.startswith("gave ") and same(ast.literal_eval(got.removeprefix("gave ")), test["expected"])


def test_every_reference_solution_passes_all_its_tests() -> None:
    rows = [*TRAIN, *EVAL, *HANDWRITTEN, *SHOWN]
    wrong = [
        (row["task_id"], results)
        for row, results in zip(rows, passed([(reference(row), row["tests"]) for row in rows]), strict=True)
        if not all(results)
    ]
    assert wrong == []


def test_every_buggy_solution_passes_the_examples_and_fails_a_hidden_test() -> None:
    rows = [*TRAIN, *EVAL, *SHOWN]
    wrong = [
        (row["task_id"], results)
        for row, results in zip(rows, passed([(buggy(row), row["tests"]) for row in rows]), strict=True)
        if not all(results[:2]) or all(results[2:])
    ]
    assert wrong == []


def test_one_answer_for_every_call_is_never_enough() -> None:
    for row in [*TRAIN, *EVAL, *HANDWRITTEN]:
        assert len({json.dumps([test.get("expected"), test.get("raises")]) for test in row["tests"]}) > 1, row[
            "task_id"
        ]


def test_the_same_seed_gives_the_shipped_bytes(tmp_path: Path) -> None:
    for name, rows in make_env_factory("code").task_files(0, None, None).items():
        write_tasks(tmp_path / f"{name}.jsonl", rows)
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (FOLDER / f"{name}.jsonl").read_bytes()


def test_shipped_tasks_and_demonstrations_are_different_tasks() -> None:
    fingerprints = [
        [fingerprint_of(row["metadata"]["family"], row["metadata"]["rules"]) for row in rows]
        for rows in (TRAIN, EVAL, SHOWN)
    ]
    assert [Counter(map(split_of, each)) for each in fingerprints] == [
        Counter(train=len(TRAIN)),
        Counter(eval=len(EVAL)),
        Counter(sft=len(SHOWN)),
    ]
    every = list(itertools.chain(*fingerprints))
    assert len(set(every)) == len(every)


def test_rows_are_complete() -> None:
    ids = [row["task_id"] for row in [*TRAIN, *EVAL, *HANDWRITTEN]]
    assert len(set(ids)) == len(ids)
    for row in [*TRAIN, *EVAL, *HANDWRITTEN]:
        expected = {"task_id", "prompt", "starter_code", "tests", "reference_solution", "level", "metadata"}
        assert set(row) == expected
        assert row["metadata"]["num_examples"] == 2
        assert MIN_HIDDEN <= len(row["tests"]) - 2 <= 10 + MAX_MORE
        for test in row["tests"]:
            assert f"`{test['function']}(" in row["prompt"]
            assert f"def {test['function']}(" in row["starter_code"]
            assert set(test) in ({"function", "args", "expected"}, {"function", "args", "raises"})


def test_every_family_and_level_is_in_both_files() -> None:
    assert len(FAMILIES) >= 12
    for rows in (TRAIN, EVAL):
        assert {(row["metadata"]["family"], row["level"]) for row in rows} == set(CELLS)
        assert sum(row["level"] <= 2 for row in rows) > 0.6 * len(rows)


def test_hand_written_tasks_are_harder_and_many() -> None:
    assert len(HANDWRITTEN) >= 40
    assert {row["level"] for row in HANDWRITTEN} == {4, 5}
    assert len({row["prompt"] for row in HANDWRITTEN}) == len(HANDWRITTEN)


def test_prompts_and_solutions_are_short() -> None:
    assert max(len(row["prompt"]) for row in [*TRAIN, *EVAL, *SHOWN]) <= 300
    assert max(len(reference(row)) for row in [*TRAIN, *EVAL, *SHOWN]) <= 320


@given(
    kind=st.sampled_from(sorted(CONDITIONS)),
    limit=st.integers(2, 9),
    number=st.integers(-40, 40),
)
@settings(deadline=None)
def test_the_code_of_a_condition_means_the_condition(kind: str, limit: int, number: int) -> None:
    part = {"is": kind, "k": limit}
    assert eval(condition_code(part, "number"), {"number": number}) is holds(part, number)


@pytest.mark.parametrize(("seed", "splits"), [(1, ["train", "eval"]), (2, ["sft"])])
def test_a_stream_begins_the_same_however_far_it_is_read(seed: int, splits: Any) -> None:
    short = list(itertools.islice(generate_tasks(seed, splits), 20))
    assert list(itertools.islice(generate_tasks(seed, splits), 60))[:20] == short
    assert short != list(itertools.islice(generate_tasks(seed + 10, splits), 20))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.open(python=sys.executable, limits=Limits(wall_s=5.0, cpu_s=5, memory_mb=256)) as opened:
        yield opened


def grader_of(row: dict[str, Any]) -> CallGrader:
    cases = [
        Case(
            function=test["function"],
            args=tuple(test["args"]),
            expected=test.get("expected"),
            raises=test.get("raises"),
        )
        for test in row["tests"]
    ]
    return CallGrader("solution", cases)


def check_in_sandbox(sandbox: Sandbox, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        grader = grader_of(row)
        assert grader.grade(sandbox, {"solution.py": reference(row)}).full, row["task_id"]
        if row["metadata"]["family"] in FAMILIES:
            assert not grader.grade(sandbox, {"solution.py": buggy(row)}).full, row["task_id"]


def test_the_sandbox_agrees_on_a_sample(sandbox: Sandbox) -> None:
    check_in_sandbox(sandbox, [*TRAIN[::20], *EVAL[::12], *HANDWRITTEN[::5]])


@pytest.mark.slow
def test_the_sandbox_agrees_on_all_tasks(sandbox: Sandbox) -> None:
    check_in_sandbox(sandbox, [*TRAIN, *EVAL, *HANDWRITTEN])
