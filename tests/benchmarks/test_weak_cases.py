"""benchmarks/hostile/weak_cases.py: cases that are too few let neighbours through, and those are found and counted."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nat_projects import spec_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks/hostile"


@pytest.fixture(autouse=True)
def benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield


def survivors_of(family: str, level: int, num_hidden: int | None) -> set[str]:
    """The steps that survive the first hidden questions of a tool."""
    from weak_nat import nat_subjects
    from weakness import examine

    spec = spec_of(family, level)
    subjects = [replace(each, hidden=each.hidden[:num_hidden]) for each in nat_subjects(spec, 0, 60)]
    return {each.words for each in examine("one", family, subjects).survivors}


def test_one_question_lets_more_neighbours_through_than_all() -> None:
    few, many = survivors_of("text_pipeline", 1, 1), survivors_of("text_pipeline", 1, None)
    assert many < few


def test_a_known_neighbour_survives_exactly_the_questions_that_do_not_tell_it() -> None:
    from weakness import Neighbour, Question, Subject, examine

    def found(hidden: list[int]) -> Any:
        def ask(question: Question) -> bool:
            return question.given >= 5

        subject = Subject(
            name="is above 5",
            hidden=[Question(given=number, expected=number > 5) for number in hidden],
            fresh=[Question(given=number, expected=number > 5) for number in range(10)],
            neighbours=[Neighbour(kind="rules", words="also 5", ask=ask)],
        )
        return examine("one", "limits", [subject])

    assert found([4, 5, 6]).survivors == ()
    (survivor,) = found([4, 6]).survivors
    assert (survivor.words, survivor.rate) == ("also 5", 0.1)
    assert found([4, 6]).num_tried == {"rules": 1}


def test_mutants_change_one_node_and_leave_the_source_as_it_was() -> None:
    from code_mutants import code_mutants
    from running import namespace_of, outcome

    source = "def f(x):\n    while x > 3:\n        x -= 2\n    return x * 2\n"
    answers = {}
    for words, module in code_mutants(source):
        scope = namespace_of(module)
        assert scope is not None
        answers[words] = outcome(lambda s=scope: s["f"](7))
    assert answers["other comparison, line 2: x > 3 -> x >= 3"] == 2
    assert answers["left out, line 3: x -= 2 -> pass"] == ("never ends",)
    assert 6 in answers.values()  # that of the source: a step that one input does not show


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    specs = [spec_of(family, 1) for family in ("calculator", "unit_converter")]
    rows = [spec.model_dump(mode="json") | {"task_id": spec.family} for spec in specs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    command = [sys.executable, str(FOLDER / "weak_cases.py"), str(path), "--limit", "2", "--fresh", "20", "--jobs", "1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "calculator" in done.stdout and "unit_converter" in done.stdout and "all" in done.stdout
