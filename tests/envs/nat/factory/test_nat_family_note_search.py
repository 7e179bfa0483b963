"""Note search: the oracle by eye, the reference against it, and requests that state what decides an answer."""

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nat_family_checks import cases_of, tool_of
from pydantic import ValidationError

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families.notes.search import NoteSearch
from agent_rl.envs.nat.factory.oracle.note_search import answer, is_robust
from agent_rl.envs.nat.spec import Tool

FAMILY = NoteSearch()
NUM_TOOLS = 150


def rules_of(texts: dict[str, str], **changes: object) -> dict:
    notes = [{"id": name, "tag": None, "title": None, "text": text} for name, text in texts.items()]
    plain = {
        "notes": notes, "split": "spaces", "stop_words": [], "strip_plural": False, "scoring": "count",
        "repeats": "once", "k1": None, "b": None, "title_weight": None, "filter": None, "tie": "ascending", "k": 3,
        "score_format": "{}:{}", "decimals": None, "snippet": False, "separator": ", ",
    }  # fmt: skip
    return {**plain, **changes}


FOUR = {"n20": "red tea red", "n10": "red pot", "n30": "tea pot tea", "n40": "blue"}


def compiled(definitions: str, tool: Tool) -> Callable[..., str | None]:
    """The function of a logic.py; it answers None where it raises."""
    namespace: dict = {}
    exec(definitions, namespace)

    def run(**given: object) -> str | None:
        try:
            return namespace[tool.function](**given)
        except (LookupError, ValueError, TypeError, StopIteration):
            return None

    return run


def test_a_count_adds_up_and_equal_scores_go_by_id() -> None:
    assert answer(rules_of(FOUR), {"query": "red"}, {}) == "n20:2, n10:1"
    assert answer(rules_of(FOUR), {"query": "TEA pot"}, {}) == "n30:3, n10:1, n20:1"
    assert answer(rules_of(FOUR, tie="descending"), {"query": "TEA pot"}, {}) == "n30:3, n20:1, n10:1"
    assert answer(rules_of(FOUR, tie="corpus"), {"query": "TEA pot"}, {"k": 2}) == "n30:3, n20:1"


def test_a_repeated_term_counts_by_the_rules() -> None:
    assert answer(rules_of(FOUR), {"query": "red red"}, {}) == "n20:2, n10:1"
    assert answer(rules_of(FOUR, repeats="each"), {"query": "red red"}, {}) == "n20:4, n10:2"
    assert answer(rules_of(FOUR, scoring="distinct"), {"query": "red tea"}, {}) == "n20:2, n10:1, n30:1"


def test_tf_idf_is_occurrences_times_the_logarithm_of_rarity() -> None:
    rules = rules_of(FOUR, scoring="tf-idf", decimals=3)
    # ln(4 / 2) = 0.693, twice it is 1.386; ln(4 / 1) = 1.386.
    assert answer(rules, {"query": "red"}, {}) == "n20:1.386, n10:0.693"
    assert answer(rules, {"query": "blue"}, {}) == "n40:1.386"
    everywhere = rules_of({"n10": "red", "n20": "red", "n30": "red tea"}, scoring="tf-idf", decimals=3)
    assert answer(everywhere, {"query": "red"}, {}) == "error: no hit"


def test_bm25_follows_its_formula() -> None:
    rules = rules_of({"n10": "red pot", "n20": "tea"}, scoring="bm25", k1="1.0", b="1.0", decimals=3)
    # rarity = ln(1 + 1.5 / 1.5) = 0.6931; length 2 of 1.5: 0.6931 * 2 / (1 + 4 / 3) = 0.594; 0.6931 * 2 / (1 + 2 / 3).
    assert answer(rules, {"query": "red"}, {}) == "n10:0.594"
    assert answer(rules, {"query": "tea"}, {}) == "n20:0.832"


def test_terms_come_out_of_a_text_by_the_rules() -> None:
    notes = {"n10": "Red-teas of 7x", "n20": "of bus"}
    letters = rules_of(notes, split="letters", stop_words=["of"], strip_plural=True)
    assert answer(letters, {"query": "TEA"}, {}) == "n10:1"
    assert answer(letters, {"query": "x?"}, {}) == "n10:1"
    assert answer(letters, {"query": "bu"}, {}) == "error: no hit"
    assert answer(letters, {"query": "OF, 7"}, {}) == "error: empty query"
    assert answer(rules_of(notes), {"query": "red-teas bus"}, {}) == "n10:1, n20:1"
    assert answer(rules_of(notes), {"query": "red"}, {}) == "error: no hit"


def test_tags_titles_and_snippets() -> None:
    rules = rules_of({"n10": "a red pot here", "n20": "tea"}, snippet=True, score_format=None, filter="inline")
    rules["notes"][0] |= {"tag": "home", "title": "Tea time"}
    rules["notes"][1] |= {"tag": "work", "title": "Red"}
    rules["title_weight"] = 2
    assert answer(rules, {"query": "red"}, {}) == "n20 [Red tea], n10 [a red pot]"
    assert answer(rules, {"query": "tag:home tea"}, {}) == "n10 [Tea time]"
    assert answer(rules, {"query": "tag:home"}, {}) == "error: empty query"
    rules["filter"] = "input"
    assert answer(rules, {"query": "here", "tag": ""}, {}) == "n10 [pot here]"
    assert answer(rules, {"query": "here", "tag": "work"}, {}) == "error: no hit"
    assert answer(rules, {"query": "here", "tag": "garage"}, {}) == "error: unknown tag"


def test_equal_scores_are_robust_only_when_floats_must_agree() -> None:
    # Both notes have one term that two notes have; the tie is one by construction.
    assert is_robust(rules_of(FOUR, scoring="tf-idf"), {"query": "red tea"}, {})
    # 2 * ln(4 / 2) equals ln(4 / 1), but only on paper.
    assert not is_robust(rules_of(FOUR, scoring="tf-idf"), {"query": "red blue"}, {})
    assert is_robust(rules_of(FOUR), {"query": "red blue"}, {})


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_the_reference_agrees_with_the_oracle(level: int) -> None:
    caught, answers = [], []
    for seed in range(NUM_TOOLS):
        tool, rng = tool_of(FAMILY, level, seed), random.Random(seed)
        reference = compiled(FAMILY.definitions(tool), tool)
        expected = [
            (case, oracle.answer(tool, case, tool.defaults)) for case in cases_of(FAMILY, tool, rng, tool.defaults)
        ]
        assert [reference(**case) for case, _ in expected] == [text for _, text in expected], tool
        for config in ({"k": 1}, {"k": 8}) if tool.config_field else ():
            for case in cases_of(FAMILY, tool, rng, config):
                assert reference(**case, **config) == oracle.answer(tool, case, config), (tool, case)
        assert {text for _, text in expected} >= set(tool.errors)
        answers.append(len({text for _, text in expected if not text.startswith("error")}))
        for wrong in FAMILY.subtle_mutants(tool):
            answer_of = compiled(wrong, tool)
            caught.append(any(answer_of(**case) != text for case, text in expected))
    assert sum(caught) >= 0.99 * len(caught) >= 0.99 * NUM_TOOLS
    assert sum(count >= 6 for count in answers) >= 0.9 * NUM_TOOLS


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), level=st.integers(1, 5))
def test_a_sample_is_repeatable_and_its_request_is_complete(seed: int, level: int) -> None:
    tool = tool_of(FAMILY, level, seed)
    assert tool == tool_of(FAMILY, level, seed)
    assert json.loads(json.dumps(tool.rules)) == NoteSearch.Rules.model_validate(tool.rules).model_dump() == tool.rules
    text = " ".join(FAMILY.sentences(tool, random.Random(seed)))
    wanted = [*tool.errors, tool.rules["separator"], *(note["text"] for note in tool.rules["notes"])]
    wanted += [*tool.rules["stop_words"], *(tool.rules[name] or "" for name in ("k1", "b"))]
    assert [each for each in wanted if each not in text] == []
    assert '"' not in text and "\\" not in text
    assert 5 <= len(tool.rules["notes"]) <= 12
    assert {len(note["text"].split()) for note in tool.rules["notes"]} <= {4, 5, 6, 7, 8}
    if level <= 2:
        assert (tool.config_field is not None) == (level == 2)


def test_a_tenth_of_the_drafts_is_held_out() -> None:
    rng = random.Random(1)
    held = [FAMILY.is_held_out(FAMILY.draft(rng, 1 + number % 5).rules) for number in range(1000)]
    assert 60 <= sum(held) <= 120


def test_a_wrong_row_is_refused_with_its_field() -> None:
    rules = tool_of(FAMILY, 1, 0).rules
    with pytest.raises(ValidationError, match="scoring"):
        NoteSearch.Rules.model_validate({**rules, "scoring": "magic"})
    with pytest.raises(ValidationError, match=r"notes\.0\.id"):
        NoteSearch.Rules.model_validate({**rules, "notes": [{**rules["notes"][0], "id": "7"}, *rules["notes"][1:]]})
