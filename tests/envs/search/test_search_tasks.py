"""Questions about invented worlds: one answer each, found by following the passages; the shipped bytes."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from agent_rl.data.tasks import Task, read_tasks, write_tasks
from agent_rl.envs.registry import make_env_factory
from agent_rl.envs.search.facts import KINDS
from agent_rl.envs.search.generate import buggy, fingerprint_of, generate_tasks, reference, split_of, world_of
from agent_rl.envs.search.world import World, make_world
from agent_rl.errors import ConfigError
from agent_rl.scripts.check_data import app as check_data_app
from agent_rl.scripts.prepare_tasks import app
from agent_rl.tools.passages import Passage, PassageIndex

FOLDER = Path(__file__).resolve().parents[3] / "dataset" / "search_tasks"
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


def test_the_facts_of_a_question_lead_to_the_answer() -> None:
    world = make_world(0)
    for row in [*TRAIN, *EVAL]:
        value = row["metadata"]["supporting"][0]
        for fact in row["metadata"]["facts"]:
            value = world.facts[value][fact]
        assert value == reference(row)


def test_a_buggy_answer_is_a_wrong_thing_met_on_the_way() -> None:
    for row in [*TRAIN, *EVAL, *SHOWN]:
        assert buggy(row) != row["answer"]
        if row["level"] == 1:
            assert buggy(row) in {**TEXTS, **DEMO_WORLD.texts}[row["metadata"]["supporting"][0]]
        else:
            assert buggy(row) == row["metadata"]["supporting"][-1]


def test_the_same_seed_gives_the_shipped_bytes(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--domain", "search", "--output-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for name in ("train", "eval", "with_documents", "corpus"):
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (FOLDER / f"{name}.jsonl").read_bytes()


def passed(row: Task) -> list[tuple[str, str]]:
    """Things and the facts requested of them, in order."""
    return list(zip(row["metadata"]["supporting"], row["metadata"]["facts"], strict=True))


def test_no_question_to_train_on_passes_a_fact_that_a_held_out_one_ends_with() -> None:
    asked = {passed(row)[-1] for row in EVAL}
    assert len(asked) > 70
    assert not asked & {step for row in TRAIN for step in passed(row)}


def test_a_held_out_fact_divides_the_questions() -> None:
    # Of the facts below only the mayor of Kelmar is held out.
    assert split_of(["Kelmar"], ["mayor"]) == "eval"
    assert split_of(["Kelmar", "Ida Kelmar"], ["mayor", "year"]) is None
    assert split_of(["Ida Kelmar"], ["year"]) == "train"
    assert split_of(["Ida Kelmar", "Kelmar"], ["birthplace", "mayor"]) == "eval"


def test_hops_are_as_often_in_both_files() -> None:
    for rows in (TRAIN, EVAL):
        shares = [round(6 * sum(row["level"] == hops for row in rows) / len(rows)) for hops in (1, 2, 3)]
        assert shares == [1, 3, 2]


def test_no_question_is_in_two_files() -> None:
    fingerprints = [
        [fingerprint_of(row["metadata"]["supporting"][0], row["metadata"]["facts"]) for row in rows]
        for rows in (TRAIN, EVAL)
    ]
    splits = [{split_of(*map(list, zip(*passed(row), strict=True))) for row in rows} for rows in (TRAIN, EVAL)]
    assert splits == [{"train"}, {"eval"}]
    every = [*fingerprints[0], *fingerprints[1]]
    assert len(set(every)) == len(every)


ROLES = {"employer": ("employer", "head", "director", "mayor"), "maker": ("maker", "inventor")}
"""Words that fit several facts, whatever kind of thing these lead to."""
VAGUE = re.compile(r"\{\}|\b(?:the|of|in|which|what|who|is|has|does|did|was)\b|[?]")
"""Words that tell no fact."""


def answers(world: World, name: str, target: str, wording: str) -> set[str]:
    """Every meaning of `wording` for a thing.

    Where it names only the kind of the answer ("the school of {}"), any link of the two will do, of either
    direction; where it names a relation between persons, all its facts will. Else the one fact it names: empty.
    """
    spoken = VAGUE.sub(" ", wording.lower()).split()
    links = [(fact, value) for fact, value in world.facts[name].items()]
    links += [(fact, owner) for owner, facts in world.facts.items() for fact, value in facts.items() if value == name]
    if not set(spoken) - {target}:
        return {value for _, value in links if world.kinds.get(value) == target}
    return {value for word in spoken for fact, value in links if fact in ROLES.get(word, ())}


def test_no_wording_fits_a_second_thing_of_the_world() -> None:
    for world in (make_world(0), DEMO_WORLD):
        for name, kind in world.kinds.items():
            for fact, info in KINDS[kind].facts.items():
                for wording in filter(None, (info.noun, *info.questions)):
                    meant = answers(world, name, info.target, wording)
                    assert meant <= {world.facts[name][fact]}, (wording, name, meant)


@pytest.mark.parametrize(
    ("kind", "target", "wording"),
    [
        ("person", "school", "the school of {}"),
        ("person", "company", "the company of {}"),
        ("person", "town", "Which town has {}?"),
        ("person", "company", "the employer of {}"),
        ("invention", "company", "the maker of {}"),
    ],
)
def test_a_wording_that_fits_two_things_is_noticed(kind: str, target: str, wording: str) -> None:
    world = make_world(0)
    named = [name for name, of in world.kinds.items() if of == kind]
    assert any(len(answers(world, name, target, wording)) > 1 for name in named)


def test_no_two_facts_of_a_kind_share_a_wording() -> None:
    for kind, info in KINDS.items():
        wordings = [each for fact in info.facts.values() for each in {fact.noun, *fact.questions} if each]
        assert len(set(wordings)) == len(wordings), kind


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


def check_shipped(rows: list[Task], folder: Path) -> tuple[int, str]:
    """Exit code and output of `agent-rl check-data`."""
    write_tasks(folder / "rows.jsonl", rows)
    done = CliRunner().invoke(check_data_app, ["--config", "configs/search_qa_grpo.yaml", str(folder / "rows.jsonl")])
    return done.exit_code, done.output


def test_checking_the_data_finds_answers_missing_from_every_passage(tmp_path: Path) -> None:
    assert check_shipped(EVAL, tmp_path)[0] == 0
    code, output = check_shipped([{**row, "answer": "Nowhere"} for row in EVAL], tmp_path)
    assert code == 1
    assert "no reply of the tools holds 'Nowhere'" in " ".join(output.split())
    assert check_shipped([*EVAL[:9], {**EVAL[9], "answer": "Nowhere"}], tmp_path)[0] == 1


@pytest.mark.parametrize(
    ("answer", "supporting", "evidence"),
    [
        (["Velm", "The Velm"], ["Orsk"], ("Velm", "The Velm")),
        ("Yes", ["Orsk"], ()),  # stands in no passage
        ("Velm", [], ()),  # no fact is given
    ],
)
def test_what_a_reference_has_to_find(answer: object, supporting: list[str], evidence: tuple[str, ...]) -> None:
    row = {"task_id": "a", "question": "?", "answer": answer, "metadata": {"supporting": supporting}}
    reference, wrong = make_env_factory("search_qa", {}, seed=0).solutions(row)
    assert (reference.evidence, wrong.evidence) == (evidence, ())


def test_a_request_for_too_many_questions_reports_the_available_number() -> None:
    with pytest.raises(ConfigError, match=r"--num-eval is 99999, but only \d{3,4} different tasks were found"):
        make_env_factory("search").task_files(0, 1, 99999)
