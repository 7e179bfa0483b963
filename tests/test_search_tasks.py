"""Questions about invented worlds: one answer each, found by following the passages; the shipped bytes."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from agent_rl.data.tasks import Task, read_tasks, write_tasks
from agent_rl.errors import ConfigError
from agent_rl.scripts.prepare_tasks import DEFAULT_COUNTS, app, corpus, task_sets
from agent_rl.search_tasks.facts import KINDS
from agent_rl.search_tasks.generate import careless, fingerprint_of, generate_tasks, reference, split_of, world_of
from agent_rl.search_tasks.world import World, make_world
from agent_rl.tools.search_tool import Passage, PassageIndex

FOLDER = Path(__file__).resolve().parents[1] / "dataset" / "search_tasks"
TRAIN, EVAL, WITH_DOCUMENTS = (read_tasks(FOLDER / f"{name}.jsonl") for name in ("train", "eval", "with_documents"))
CORPUS = [json.loads(line) for line in (FOLDER / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
TEXTS = {each["title"]: each["text"] for each in CORPUS}
DEMO_WORLD = world_of(5, ["sft"])
SHOWN = list(itertools.islice(generate_tasks(5, ["sft"]), 300))
"""What demonstrations are about."""


def index_of(passages: list[dict[str, str]], max_results: int = 3) -> PassageIndex:
    return PassageIndex([Passage(title=each["title"], text=each["text"]) for each in passages], max_results=max_results)


def share_found(index: PassageIndex, rows: list[Task]) -> float:
    """Of all hops, those whose query finds its supporting passage."""
    hits = [
        title in [passage.title for passage in index(query)]
        for row in rows
        for title, query in zip(row["metadata"]["supporting"], row["metadata"]["queries"], strict=True)
    ]
    return sum(hits) / len(hits)


def test_following_the_queries_finds_every_supporting_passage() -> None:
    assert share_found(index_of(CORPUS), [*TRAIN, *EVAL]) >= 0.99
    assert share_found(index_of(DEMO_WORLD.passages), SHOWN) >= 0.99


def test_searching_for_the_question_alone_does_not_find_the_last_passage() -> None:
    index = index_of(CORPUS)
    rows = [row for row in [*TRAIN, *EVAL] if row["level"] == 3]
    found = [row["metadata"]["supporting"][-1] in [each.title for each in index(row["question"])] for row in rows]
    assert sum(found) < 0.1 * len(rows)


@pytest.mark.parametrize(("rows", "texts"), [(TRAIN, TEXTS), (EVAL, TEXTS), (SHOWN, DEMO_WORLD.texts)])
def test_only_the_last_passage_holds_the_answer(rows: list[Task], texts: dict[str, str]) -> None:
    for row in rows:
        *earlier, last = row["metadata"]["supporting"]
        assert row["answer"] in texts[last], row
        assert row["answer"] not in row["question"], row
        assert not any(row["answer"] in texts[title] for title in earlier), row


@pytest.mark.parametrize(("rows", "texts"), [([*TRAIN, *EVAL], TEXTS), (SHOWN, DEMO_WORLD.texts)])
def test_every_passage_names_the_next_one_and_the_question_only_the_first(
    rows: list[Task], texts: dict[str, str]
) -> None:
    for row in rows:
        first, *following = row["metadata"]["supporting"]
        assert first in row["question"]
        assert not any(title in row["question"] for title in following)
        assert all(then in texts[title] for title, then in itertools.pairwise(row["metadata"]["supporting"]))


def test_the_facts_asked_for_lead_to_the_answer() -> None:
    world = make_world(0)
    for row in [*TRAIN, *EVAL]:
        value = row["metadata"]["supporting"][0]
        for fact in row["metadata"]["facts"]:
            value = world.facts[value][fact]
        assert value == reference(row)


def test_a_careless_answer_is_a_wrong_thing_met_on_the_way() -> None:
    for row in [*TRAIN, *EVAL, *SHOWN]:
        assert careless(row) != row["answer"]
        if row["level"] == 1:
            assert careless(row) in {**TEXTS, **DEMO_WORLD.texts}[row["metadata"]["supporting"][0]]
        else:
            assert careless(row) == row["metadata"]["supporting"][-1]


def test_the_same_seed_gives_the_shipped_bytes(tmp_path: Path) -> None:
    for name, rows in task_sets("search", *DEFAULT_COUNTS["search"], seed=0).items():
        write_tasks(tmp_path / f"{name}.jsonl", rows)
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (FOLDER / f"{name}.jsonl").read_bytes()
    assert "".join(corpus(0)).encode() == (FOLDER / "corpus.jsonl").read_bytes()


def test_no_question_is_in_two_files() -> None:
    fingerprints = [
        [fingerprint_of(row["metadata"]["supporting"][0], row["metadata"]["facts"]) for row in rows]
        for rows in (TRAIN, EVAL)
    ]
    assert [set(map(split_of, each)) for each in fingerprints] == [{"train"}, {"eval"}]
    every = [*fingerprints[0], *fingerprints[1]]
    assert len(set(every)) == len(every)


def names_in(world: World) -> set[str]:
    """Names without what is common to a kind: `Velmar` of `Velmar Bridge`."""
    common = {part for kind in KINDS.values() for name in kind.names for part in name.split()}
    return {name.rsplit(maxsplit=1)[-1] if kind == "person" else (set(name.split()) - common).pop()
            for name, kind in world.kinds.items()}  # fmt: skip


@given(shipped=st.integers(0, 10**6), shown=st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_worlds_of_demonstrations_share_no_name_with_shipped_ones(shipped: int, shown: int) -> None:
    worlds = [make_world(shipped), make_world(shown, for_demonstrations=True)]
    assert [len(names_in(world)) for world in worlds] == [len(world.texts) for world in worlds]
    assert not names_in(worlds[0]) & names_in(worlds[1])


def test_demonstrations_stand_alone() -> None:
    with pytest.raises(ValueError, match="sft stands alone"):
        next(generate_tasks(0, ["sft", "train"]))


def test_passages_are_short_and_many() -> None:
    assert 300 <= len(CORPUS) <= 500
    assert len(TEXTS) == len(CORPUS)
    assert all(each["text"].count(". ") <= 2 and len(each["text"]) <= 250 for each in CORPUS)


def test_rows_are_complete() -> None:
    ids = [row["task_id"] for row in [*TRAIN, *EVAL, *WITH_DOCUMENTS]]
    assert len(set(ids)) == len(ids)
    for row in [*TRAIN, *EVAL]:
        assert set(row) == {"task_id", "question", "answer", "level", "metadata"}
        hops = row["metadata"]["num_hops"]
        assert row["level"] == hops == len(row["metadata"]["supporting"]) == len(row["metadata"]["queries"])
    for rows in (TRAIN, EVAL):
        assert Counter(row["level"] for row in rows)[1] < 0.2 * len(rows)
        assert {row["level"] for row in rows} == {1, 2, 3}


def test_rows_with_documents_hold_their_supporting_passages_among_others() -> None:
    assert len(WITH_DOCUMENTS) == 20
    for row in WITH_DOCUMENTS:
        titles = [each["title"] for each in row["documents"]]
        assert set(row["metadata"]["supporting"]) < set(titles)
        assert not set(titles) & set(TEXTS)
        assert share_found(index_of(row["documents"]), [row]) == 1


def test_the_command_writes_every_file(tmp_path: Path) -> None:
    words = ["--domain", "search", "--output-dir", str(tmp_path), "--num-train", "6", "--num-eval", "4", "--seed", "3"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert {path.name: len(path.read_text().splitlines()) for path in tmp_path.iterdir()} == {
        "train.jsonl": 6,
        "eval.jsonl": 4,
        "with_documents.jsonl": 20,
        "corpus.jsonl": len(CORPUS),
    }


def test_asking_for_more_questions_than_there_are_says_how_many_there_are() -> None:
    with pytest.raises(ConfigError, match=r"--num-eval is 99999, but only \d{3,4} different tasks were found"):
        task_sets("search", 1, 99999, seed=0)
