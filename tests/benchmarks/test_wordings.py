"""benchmarks/wordings: held-out requests say what their specs need, in words that no training data has."""

import ast
import json
import random
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from nat_projects import SharedFactory, row
from wordings.facts import missing
from wordings.names import VOCABULARIES, Vocabulary
from wordings.originals import COUNTS, FOLDER, SEEDS, SHIPPED, Twin, path_of, read_specs
from wordings.phrasing import FRAMES, TERMS, phrased, sentences_of
from wordings.rewording import LITERAL, has_order, is_small_change, reordered, sentences
from wordings.slots import slots
from wordings.small_talk import AFTER, BEFORE
from wordings.synonyms import SYNONYMS
from wordings.write import MADE, main

from agent_rl.envs.check_data import check_reference
from agent_rl.envs.nat.factory.generate import STARTER_FAMILIES, STARTER_LEVELS, fingerprint_of, split_of
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.prompts import initial_messages
from agent_rl.envs.nat.spec import NATSpec

ROOT = Path(__file__).resolve().parents[2]
TWINS: tuple[Twin, ...] = ("test", "val")
BY_HAND: list[tuple[Twin, str]] = [("test", "by_hand"), ("val", "by_hand"), ("val", "in_haste")]
TOLD = [*MADE, ("test", "original"), ("val", "original"), *BY_HAND]
FROM_CODE: tuple[Twin, str] = ("val", "from_code")
"""Of authors who saw no request: formulas and formats may be told in words that no list of ours has."""
FILES = [*TOLD, FROM_CODE]
NAMES: list[tuple[Twin, str, Vocabulary]] = [
    ("test", "names", "test"),
    ("val", "names", "val"),
    ("test", "fresh_names", "fresh"),
    ("val", "fresh_names", "fresh_val"),
]


@cache
def specs_of(twin: Twin, kind: str) -> list[NATSpec]:
    return read_specs(path_of(twin, kind))


def masked(sentence: str) -> str:
    """The shape of a sentence: its words, whatever its literals and numbers."""
    return re.sub(r"\d+(\.\d+)?", "0", LITERAL.sub("_", sentence)).lower()


def test_the_files_are_written_again_byte_for_byte(tmp_path: Path) -> None:
    main(output_dir=tmp_path)
    for twin, kind in MADE:
        assert (tmp_path / path_of(twin, kind).name).read_bytes() == path_of(twin, kind).read_bytes(), (twin, kind)


@pytest.mark.parametrize(("twin", "kind"), FILES)
def test_every_file_has_each_family_and_level_alike_and_loads_as_tasks(twin: Twin, kind: str) -> None:
    specs = specs_of(twin, kind)
    cells = Counter((spec.family, spec.level) for spec in specs)
    assert len(cells) == len(STARTER_FAMILIES) * len(STARTER_LEVELS) - 1
    assert set(cells.values()) == {4 if (twin, kind) in [*BY_HAND, FROM_CODE] else COUNTS[twin] // 15}
    assert len({spec.task_id for spec in specs}) == len({spec.request for spec in specs}) == len(specs)
    assert initial_messages(specs[0])[1].content == specs[0].request


@pytest.mark.parametrize(("twin", "kind"), TOLD)
def test_every_request_holds_all_facts(twin: Twin, kind: str) -> None:
    lacking = {spec.task_id: lacks for spec in specs_of(twin, kind) if (lacks := missing(spec, spec.request))}
    assert lacking == {}


def test_requests_written_from_code_hold_names_errors_and_the_example() -> None:
    for spec in specs_of(*FROM_CODE):
        tool = spec.tools[0]
        inputs = [each.name for each in tool.inputs]
        for text in (spec.package, tool.type_name, tool.instance, *inputs, *tool.errors, tool.example.output):
            assert text in spec.request or json.dumps(text, ensure_ascii=False)[1:-1] in spec.request, spec.task_id


@pytest.mark.parametrize("kind", ["original", "phrasing", "by_hand"])
def test_a_lost_literal_is_noticed(kind: str) -> None:
    for spec in specs_of("test", kind):
        tool = spec.tools[0]
        output = tool.example.output
        for name in (spec.package, tool.type_name, *tool.errors, *([] if output == "ok" else [output])):
            without = spec.request.replace(name, "").replace(json.dumps(name, ensure_ascii=False), "")
            assert missing(spec, without), (spec.task_id, name)
        assert missing(spec, "") != []


def test_a_lost_sentence_with_an_error_a_name_or_a_formula_is_noticed() -> None:
    num_noticed = 0
    for spec in [*specs_of("test", "original"), *specs_of("val", "original")]:
        said, tool = sentences(spec.request), spec.tools[0]
        names = (spec.package, tool.type_name, spec.server.name, tool.rules.get("formula") or spec.package)
        for sentence in said:
            if "`error: " in sentence or any(name in sentence for name in names):
                assert missing(spec, " ".join(each for each in said if each != sentence)), sentence
                num_noticed += 1
    assert num_noticed > 600


def test_a_literal_has_to_occur_as_it_is_and_a_word_in_either_case() -> None:
    spec = next(each for each in specs_of("test", "original") if each.tools[0].example.output == "KIWI")
    assert missing(spec, spec.request.replace("KIWI", "kiwi")) != []
    assert missing(spec, spec.request.replace("(str)", "(STRING)").replace("Config", "CONFIG")) == []


def test_fingerprints_are_held_out_and_in_no_shipped_file_nor_in_both_twins() -> None:
    found = [re.findall(r'"fingerprint": ?"(\w+)"', path.read_text(encoding="utf-8")) for path in SHIPPED]
    assert all(found)
    shipped = {each for fingerprints in found for each in fingerprints}
    own = {twin: [spec.fingerprint for spec in specs_of(twin, "original")] for twin in TWINS}
    assert {split_of(each) for each in own["test"] + own["val"]} == {"val"}
    assert not shipped & {*own["test"], *own["val"]}
    assert len({*own["test"], *own["val"]}) == sum(COUNTS.values())
    for twin, kind in FILES:
        fingerprints = [spec.fingerprint for spec in specs_of(twin, kind)]
        assert fingerprints == own[twin][: len(fingerprints)], (twin, kind)
        assert [fingerprint_of(spec) for spec in specs_of(twin, kind)] == fingerprints, (twin, kind)


@pytest.mark.parametrize(
    ("twin", "kind"), [each for each in FILES if each[1] not in ("names", "fresh_names", "original")]
)
def test_only_the_words_differ_from_the_original(twin: Twin, kind: str) -> None:
    for spec, original in zip(specs_of(twin, kind), specs_of(twin, "original"), strict=False):
        assert spec.task_id == f"{kind}-{original.task_id}"
        assert spec.request != original.request
        assert spec.model_copy(update={"task_id": original.task_id, "request": original.request}) == original


# ---------------------------------------------------------------- other sentences


@pytest.mark.parametrize(("twin", "least"), [("test", 12), ("val", 6)])
def test_every_slot_has_many_sentences(twin: Twin, least: int) -> None:
    assert FRAMES["test"].keys() == FRAMES["val"].keys()
    counts = {
        name: len({each for frame in frames for each in sentences_of(frame)}) for name, frames in FRAMES[twin].items()
    }
    assert {name: count for name, count in counts.items() if count < least} == {}


def test_the_twins_have_no_sentence_frame_or_term_in_common() -> None:
    for name in FRAMES["test"]:
        test, val = ({each for frame in FRAMES[twin][name] for each in sentences_of(frame)} for twin in TWINS)
        assert not test & val, name
    assert {name for name in TERMS["test"] if TERMS["test"][name] == TERMS["val"][name]} == set()


@pytest.mark.parametrize("twin", TWINS)
def test_no_sentence_has_the_shape_of_one_of_the_generator(twin: Twin) -> None:
    known = {masked(each) for side in TWINS for spec in specs_of(side, "original") for each in sentences(spec.request)}
    templates = [each for frames in FRAMES[twin].values() for frame in frames for each in sentences_of(frame)]
    shapes = {masked(re.sub(r"`?\{\w+\}`?", "_", each)) for each in templates}
    assert len(known) > 100
    assert known & shapes == set()


def test_a_slot_is_said_once_in_the_words_of_its_twin() -> None:
    spec = next(each for each in specs_of("test", "original") if each.family == "calculator")
    assert [slot.name for slot in slots(spec, TERMS["val"])] == [
        "opening", "naming", "formula", "digits", "zero", "inputs", "example",
    ]  # fmt: skip
    text = phrased(spec, "val", random.Random(0))
    assert text.count(spec.tools[0].rules["formula"]) == 1
    assert missing(spec, text) == []


# ---------------------------------------------------------------- order, small talk, synonyms


@pytest.mark.parametrize("twin", TWINS)
def test_another_order_keeps_the_sentences_and_the_order_of_errors(twin: Twin) -> None:
    for spec, original in zip(specs_of(twin, "order"), specs_of(twin, "original"), strict=True):
        was, now = sentences(original.request), sentences(spec.request)
        order = [was.index(sentence) for sentence in now]
        assert sorted(order) == list(range(len(was)))
        assert [each for each in now if has_order(each)] == [each for each in was if has_order(each)]
        assert is_small_change(order) == (twin == "val"), spec.task_id


def test_a_small_change_of_order_is_a_rotation_or_one_move() -> None:
    assert all(map(is_small_change, ([0, 1, 2, 3], [2, 3, 0, 1], [0, 2, 3, 1], [3, 0, 1, 2])))
    assert not any(map(is_small_change, ([3, 2, 1, 0], [1, 0, 3, 2], [2, 0, 3, 1])))


def test_sentences_are_not_cut_within_literals() -> None:
    text = 'It asks `GET a. Bc`. For instance, "x. Y" gives "a\\". Z". There, it is raised. logic.py has `f`.'
    assert sentences(text) == [
        "It asks `GET a. Bc`.",
        'For instance, "x. Y" gives "a\\". Z". There, it is raised.',
        "logic.py has `f`.",
    ]
    assert sorted(sentences(reordered(text + " A b. C d.", "test", random.Random(1)))) == sorted(
        [*sentences(text), "A b.", "C d."]
    )


def test_small_talk_stands_around_the_original_and_differs_between_the_twins() -> None:
    for twin in TWINS:
        for spec, original in zip(specs_of(twin, "greeting"), specs_of(twin, "original"), strict=True):
            before, after = (part.strip() for part in spec.request.split(original.request))
            assert (before in BEFORE[twin], after in AFTER[twin]) in {(True, True), (True, False), (False, True)}
    for talk in (BEFORE, AFTER):
        assert len(talk["test"]) >= 12
        assert not {*talk["test"]} & {*talk["val"]}


@pytest.mark.parametrize("twin", TWINS)
def test_synonyms_replace_words_and_no_literal(twin: Twin) -> None:
    for spec, original in zip(specs_of(twin, "synonyms"), specs_of(twin, "original"), strict=True):
        assert LITERAL.findall(spec.request) == LITERAL.findall(original.request)
        kept = sum(masked(each) in map(masked, sentences(original.request)) for each in sentences(spec.request))
        assert kept <= len(sentences(original.request)) / 4, spec.request


def test_synonyms_of_the_twins_are_disjoint_and_no_word_of_the_generator() -> None:
    for phrase, others in SYNONYMS.items():
        assert not {*others["test"]} & {*others["val"]}, phrase
        assert phrase not in (*others["test"], *others["val"])


# ---------------------------------------------------------------- names


def test_names_are_made_of_words_that_the_generator_never_has() -> None:
    factory = ROOT / "agent_rl/envs/nat/factory"
    files = [path for pattern in ("*.py", "*.txt") for path in factory.rglob(pattern)]
    known = {word for path in files for word in re.findall(r"[a-z]+", path.read_text(encoding="utf-8").lower())}
    words = [word for each in VOCABULARIES.values() for word in each["words"]]
    assert not {*words} & known
    assert len({*words}) == len(words)


@pytest.mark.parametrize(("twin", "kind", "vocabulary"), NAMES)
def test_no_name_of_the_original_is_left(twin: Twin, kind: str, vocabulary: Vocabulary) -> None:
    for spec, original in zip(specs_of(twin, kind), specs_of(twin, "original"), strict=True):
        was, now = original.tools[0], spec.tools[0]
        assert original.package not in spec.model_dump_json()
        for name in (
            was.type_name,
            f"`{was.instance}`",
            f"`{was.function}",
            original.tools[0].rules.get("host", "\x00"),
        ):
            assert name not in spec.request, (spec.task_id, name)
        assert now.function.isidentifier() and now.instance.isidentifier()
        assert (spec.server.name == spec.package) == (original.server.name == original.package)
        words = "|".join(VOCABULARIES[vocabulary]["words"])
        assert all(re.search(words, name, re.IGNORECASE) for name in (spec.package, now.type_name, now.instance))
        if was.family == "calculator":
            assert not {each.name for each in was.inputs} & {each.name for each in now.inputs}
            assert [*now.example.inputs.values()] == [*was.example.inputs.values()]


# ---------------------------------------------------------------- by hand, and what may not read any of it


@pytest.mark.parametrize(("twin", "kind"), [*BY_HAND, FROM_CODE])
def test_requests_by_hand_are_sixty_of_a_kind(twin: Twin, kind: str) -> None:
    texts = [spec.request for spec in specs_of(twin, kind)]
    assert len(texts) >= 60
    openings = Counter(" ".join(re.findall(r"\w+", text.lower())[:3]) for text in texts)
    assert max(openings.values()) == 1
    lines = Counter(masked(line) for text in texts for line in text.splitlines() if len(line.split()) > 8)
    assert max(lines.values()) == 1
    known = {masked(each) for spec in specs_of(twin, "original") for each in sentences(spec.request)}
    assert not known & {masked(each) for text in texts for each in sentences(text)}


def test_no_training_code_imports_or_reads_the_held_out_wordings() -> None:
    folders = ("agent_rl", "model", "dataset", "scripts", "examples", "nat_agent_rl")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 100
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert "nat_tasks/wordings" not in text, path
        for node in ast.walk(ast.parse(text)) if "wordings" in text else ():
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any("wordings" in name.split(".") for name in names), path
    for config in (ROOT / "configs").rglob("*.yaml"):
        assert str(FOLDER.relative_to(ROOT)) not in config.read_text(encoding="utf-8"), config


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("twin", "kind"), [("test", "original"), *[each[:2] for each in NAMES]])
def test_references_of_each_family_and_level_pass_the_checker(nat_toolkit: NatToolkit, twin: Twin, kind: str) -> None:
    factory = SharedFactory(nat_toolkit)
    start = {"test": 0, "val": 15}[twin]
    problems = {
        spec.task_id: why
        for spec in specs_of(twin, kind)[start : start + 15]
        if (why := check_reference(factory, row(spec)))
    }
    assert problems == {}
    assert SEEDS["test"] != SEEDS["val"]
