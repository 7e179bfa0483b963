"""Search in a handful of notes: a corpus, a tokeniser, a score, a rule for ties, and the text shown for each hit.

The corpus is part of the rules and of the request; nothing is read from a disk or learned from a model.
"""

import random
from typing import Any

from agent_rl.envs.nat.factory.families.base import Draft, Family, Inputs, join_names, literal
from agent_rl.envs.nat.factory.families.notes.rules import Note, NoteRules, demand_sense
from agent_rl.envs.nat.factory.families.notes.words import (
    FILLERS,
    TAGS,
    UNKNOWN,
    mixed_queries,
    sample_notes,
    sample_query,
)
from agent_rl.envs.nat.factory.families.probing import select_detectable
from agent_rl.envs.nat.spec import ConfigField, InputField, Tool

EMPTY = "error: empty query"
UNKNOWN_TAG = "error: unknown tag"
NO_HIT = "error: no hit"
_FORMULAS = {
    "tf-idf": "tf * ln(N / df)",
    "bm25": "ln(1 + (N - df + 0.5) / (df + 0.5)) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len / avg))",
}
_TIES = {"ascending": "the smaller id first", "descending": "the larger id first", "corpus": "the order of the list"}


class NoteSearch(Family):
    name = "note_search"
    function = "search"
    summary = "Find the notes that fit a query best."
    Rules = NoteRules

    def draft(self, rng: random.Random, level: int) -> Draft:
        extras = set(rng.sample(["filter", "title", "snippet"], rng.randint(1, 2))) if level >= 3 else set()
        has_field = level == 2 or (level >= 3 and rng.random() < 0.5)
        scoring = rng.choice(["count", "distinct", "tf-idf", "bm25"])
        stop_words = sorted(rng.sample(FILLERS, rng.randint(1, 3))) if rng.random() < 0.6 else []
        is_float = scoring in ("tf-idf", "bm25")
        shows_score = rng.random() < 0.5
        rules = NoteRules(
            notes=[Note(**note) for note in sample_notes(rng, has_tag="filter" in extras, has_title="title" in extras)],
            split=rng.choice(["spaces", "letters"]),
            stop_words=stop_words,
            strip_plural=rng.random() < 0.5,
            scoring=scoring,
            repeats="once" if scoring == "distinct" else rng.choice(["once", "each"]),
            k1=rng.choice(["0.9", "1.2", "1.5", "2.0"]) if scoring == "bm25" else None,
            b=rng.choice(["0.25", "0.5", "0.75", "1.0"]) if scoring == "bm25" else None,
            title_weight=(1 if scoring == "distinct" else rng.randint(2, 3)) if "title" in extras else None,
            filter=rng.choice(["input", "inline"]) if "filter" in extras else None,
            tie=rng.choice(["ascending", "descending", "corpus"]),
            k=rng.randint(2, 4),
            score_format=rng.choice(["{}:{}", "{} ({})", "{}={}"]) if shows_score else None,
            decimals=rng.choice([2, 3]) if shows_score and is_float else None,
            snippet="snippet" in extras,
            separator=rng.choice([", ", "; ", " > ", "|"]),
        )
        return self.complete(rules.model_dump(), rules.k if has_field else None)

    def complete(self, rules: dict[str, Any], config_default: int | None) -> Draft:
        demand_sense(rules)
        names = ["query", "tag"] if rules["filter"] == "input" else ["query"]
        field = None
        if config_default is not None:
            rules = rules | {"k": config_default}
            text = "Most notes that are named."
            field = ConfigField(name="k", default=config_default, low=1, high=8, description=text)
        return Draft(
            rules=rules,
            inputs=tuple(InputField(name=name, type="str") for name in names),
            errors=(EMPTY, UNKNOWN_TAG, NO_HIT) if rules["filter"] == "input" else (EMPTY, NO_HIT),
            config_field=field,
        )

    def is_held_out(self, rules: dict[str, Any]) -> bool:
        return rules["scoring"] == "bm25" and rules["tie"] == "descending"

    def sentences(self, tool: Tool, rng: random.Random) -> list[str]:
        rules = tool.rules
        columns = ["id", *(name for name in ("tag", "title") if rules["notes"][0][name] is not None), "text"]
        notes = [" | ".join(note[name] for name in columns) for note in rules["notes"]]
        count = "`k`" if tool.config_field else rules["k"]
        tie = _TIES[rules["tie"]]
        return [
            rng.choice(
                [
                    f"It searches these notes ({' | '.join(columns)}): {join_names(notes)}.",
                    f"The tool finds the best of these notes ({' | '.join(columns)}) for a query: {join_names(notes)}.",
                    f"Given a query, it ranks these notes ({' | '.join(columns)}): {join_names(notes)}.",
                ]
            ),
            *_term_sentences(rules, rng),
            *_score_sentences(rules),
            *_filter_sentences(rules),
            rng.choice(
                [
                    f"Name at most {count} notes with a score above 0, the highest first, with equal scores {tie}.",
                    f"The answer has the {count} best notes with a score above 0 (or fewer), best first; ties: {tie}.",
                ]
            ),
            _format_sentence(rules),
            rng.choice(
                [
                    f"A query without terms gives `{EMPTY}`, one that no note fits `{NO_HIT}`.",
                    f"Answer `{EMPTY}` when the query has no terms and `{NO_HIT}` when no note is left to name.",
                ]
            ),
        ]

    def body(self, tool: Tool) -> tuple[list[str], list[str]]:
        rules = tool.rules
        lines = []
        query = "plain" if rules["filter"] == "inline" else "query"
        if rules["filter"] == "inline":
            lines += [
                'tags = [word[4:] for word in query.split() if word.startswith("tag:")]',
                'plain = " ".join(word for word in query.split() if not word.startswith("tag:"))',
            ]
        terms = f"note_terms({query})"
        lines.append(f"wanted = list(dict.fromkeys({terms}))" if rules["repeats"] == "once" else f"wanted = {terms}")
        lines += self.forgotten_check(tool)
        if rules["filter"] == "input":
            lines += ["if tag and tag not in TAGS.values():", f'    return "{UNKNOWN_TAG}"']
        lines += ["hits = []", "for note, found in COUNTS.items():"]
        if rules["filter"]:
            condition = "tag and TAGS[note] != tag" if rules["filter"] == "input" else "tags and TAGS[note] not in tags"
            lines += [f"    if {condition}:", "        continue"]
        lines += [f"    {line}" for line in _score_code(rules)]
        lines += ["    if score > 0:", "        hits.append((score, note))"]
        lines += ["if not hits:", f'    return "{NO_HIT}"', *_sort_code(rules["tie"])]
        count = "k" if tool.config_field else rules["k"]
        hits = f"{_hit_code(rules)} for score, note in hits[:{count}]"
        return _head(rules), [*lines, f"return {literal(rules['separator'])}.join({hits})"]

    def forgotten_check(self, tool: Tool) -> list[str]:
        return ["if not wanted:", f'    return "{EMPTY}"']

    def subtle_bodies(self, tool: Tool) -> list[list[str]]:
        _, lines = self.body(tool)
        rules, text = tool.rules, "\n".join(lines)
        count = "k" if tool.config_field else str(rules["k"])
        other = {"ascending": "descending", "descending": "ascending", "corpus": "descending"}[rules["tie"]]
        changes = [
            (f"hits[:{count}]", f"hits[:{count} + 1]"),
            ("\n".join(_sort_code(rules["tie"])), "\n".join(_sort_code(other))),
            ("list(dict.fromkeys(note_terms(query)))", "note_terms(query)"),
            ("wanted = note_terms(query)", "wanted = sorted(set(note_terms(query)))"),
            ("math.log(len(NOTES)", "math.log(1 + len(NOTES)"),
            ("weight = 1 -", "weight = 1 or 1 -"),
            ("found[term] for term in wanted", "term in found for term in wanted"),
        ]
        wrong = [text.replace(old, new) for old, new in changes if old in text]
        return select_detectable(self, tool, [each.split("\n") for each in wrong])

    def valid_inputs(self, tool: Tool, rng: random.Random) -> Inputs:
        rules = tool.rules
        note = rng.choice(rules["notes"])
        query = sample_query(rng, note, rules["stop_words"])
        if rules["filter"] == "input":
            return {"query": query, "tag": note["tag"] if rng.random() < 0.5 else ""}
        if rules["filter"] == "inline" and rng.random() < 0.6:
            tags = [note["tag"], *rng.sample(TAGS, rng.randint(0, 1))]
            query = " ".join(rng.sample([query, *(f"tag:{tag}" for tag in tags)], len(tags) + 1))
        return {"query": query}

    def error_inputs(self, tool: Tool, rng: random.Random) -> dict[str, Inputs]:
        rules = tool.rules
        note = rng.choice(rules["notes"])
        tag: Inputs = {"tag": rng.choice([note["tag"], ""])} if rules["filter"] == "input" else {}
        empty = ["", "  "]
        empty += [" ".join(rules["stop_words"]).upper()] * 4 if rules["stop_words"] else []
        empty += ["?! 7"] * 2 if rules["split"] == "letters" else []
        empty += [f"tag:{note['tag']}"] * 2 if rules["filter"] == "inline" else []
        # A piece of a word is no term.
        pieces = [
            word[:-1] for word in note["text"].split() if word.isalpha() and word not in FILLERS and word[-1] != "s"
        ]
        out: dict[str, Inputs] = {
            EMPTY: {"query": rng.choice(empty), **tag},
            NO_HIT: {"query": rng.choice([*UNKNOWN, *pieces]), **tag},
        }
        if rules["filter"] == "input":
            out[UNKNOWN_TAG] = {
                "query": sample_query(rng, note, rules["stop_words"]),
                "tag": rng.choice(["garage", "hom"]),
            }
        return out

    def edge_inputs(self, tool: Tool, rng: random.Random) -> list[Inputs]:
        """Words of two notes, and words that few notes have."""
        tag: Inputs = {"tag": ""} if tool.rules["filter"] == "input" else {}
        return [{"query": query, **tag} for query in mixed_queries(rng, tool.rules["notes"], tool.rules["stop_words"])]

    def bad_inputs(self, tool: Tool) -> Inputs:
        return {**tool.example.inputs, "query": " "}


# ---- wording


def _term_sentences(rules: dict[str, Any], rng: random.Random) -> list[str]:
    place = "spaces" if rules["split"] == "spaces" else "everything that is not a letter a-z"
    steps = ["lower case", f"split at {place}"]
    if rules["stop_words"]:
        steps.append(f"leave out {join_names(rules['stop_words'])}")
    if rules["strip_plural"]:
        steps.append("drop one final `s` from terms of four letters or more")
    chain = ", ".join(steps)
    out = [
        rng.choice(
            [
                f"Terms of a query or a note: {chain}.",
                f"To get the terms of a text: {chain}.",
                f"Query and notes are made into terms alike: {chain}.",
            ]
        )
    ]
    if rules["title_weight"] == 1:
        out.append("A note's terms are those of its title and its text.")
    elif rules["title_weight"]:
        out.append(f"A note's terms are those of its title, taken {rules['title_weight']} times, and of its text.")
    return out


def _score_sentences(rules: dict[str, Any]) -> list[str]:
    if rules["scoring"] == "distinct":
        return ["The score is the number of different query terms that the note has."]
    once = "a repeated one counts once" if rules["repeats"] == "once" else "a repeated one counts each time"
    if rules["scoring"] == "count":
        return [f"The score is the sum over the query terms ({once}) of how often the note has the term."]
    names = "tf = how often the note has the term, N = number of notes, df = number of notes with the term"
    if rules["scoring"] == "bm25":
        names += f", len = number of terms of the note, avg = mean len, k1 = {rules['k1']}, b = {rules['b']}"
    return [
        f"The score is the sum over the query terms ({once}) that the note has of `{_FORMULAS[rules['scoring']]}`: "
        f"ln is the natural logarithm, {names}."
    ]


def _filter_sentences(rules: dict[str, Any]) -> list[str]:
    scope = ", but N, df and avg are of all notes" if rules["scoring"] == "bm25" else ""
    scope = ", but N and df are of all notes" if rules["scoring"] == "tf-idf" else scope
    if rules["filter"] == "input":
        return [
            f"With a `tag` only notes with that tag are named{scope}; an empty one means all; after the check for an "
            f"empty query, a tag that no note has gives `{UNKNOWN_TAG}`."
        ]
    if rules["filter"] == "inline":
        return [
            "Words of the query (split at spaces) that begin with `tag:` are not searched for: only notes with one of "
            f"the tags they name are named{scope}."
        ]
    return []


def _format_sentence(rules: dict[str, Any]) -> str:
    shape = (rules["score_format"] or "{}").format("ID", "SCORE")
    if rules["snippet"]:
        shape += " [SNIPPET]"
    out = f"Write each as `{shape}`, joined by `{rules['separator']}`"
    if rules["decimals"]:
        out += f", scores with {rules['decimals']} decimals"
    if rules["snippet"]:
        whole = "title and text (title first, one space between)" if rules["title_weight"] else "text"
        out += (
            f"; the snippet is the first word of the {whole}, split at spaces, that has a query term, as written, "
            "with the word before and the word after it if there are any, joined by spaces"
        )
    return f"{out}."


# ---- reference code


def _head(rules: dict[str, Any]) -> list[str]:
    columns = ["id", *(name for name in ("tag", "title") if rules["notes"][0][name] is not None), "text"]
    rows = [", ".join(literal(note[name]) for name in columns) for note in rules["notes"]]
    names = ", ".join({"id": "note", "tag": "_"}.get(name, name) for name in columns)
    weight = rules["title_weight"] or 1
    title = f"note_terms(title) * {weight}" if weight > 1 else "note_terms(title)"
    terms = f"{title} + note_terms(text)" if "title" in columns else "note_terms(text)"
    is_float = rules["scoring"] in ("tf-idf", "bm25")
    out = ["import math"] if is_float else []
    out += ["import re"] if rules["split"] == "letters" else []
    out += ["from collections import Counter", "", "NOTES = [", *(f"    ({row})," for row in rows), "]", "", ""]
    out += [*_terms_code(rules), "", "", f"COUNTS = {{note: Counter({terms}) for {names} in NOTES}}"]
    if is_float:
        out.append("SPREAD = Counter(term for found in COUNTS.values() for term in found)")
    if rules["scoring"] == "bm25":
        out.append("MEAN = sum(found.total() for found in COUNTS.values()) / len(NOTES)")
    if rules["filter"]:
        out.append("TAGS = {note: tag for note, tag, *_ in NOTES}")
    if rules["snippet"]:
        text = 'f"{title} {text}"' if "title" in columns else "text"
        out += [
            f"TEXTS = {{note: {text} for {names} in NOTES}}",
            "",
            "",
            "def note_snippet(note: str, wanted: list[str]) -> str:",
            '    """The first word of a note with a wanted term, and its neighbours."""',
            "    words = TEXTS[note].split()",
            "    place = next(place for place, word in enumerate(words) if set(note_terms(word)) & set(wanted))",
            '    return " ".join(words[max(place - 1, 0) : place + 2])',
        ]
    return out


def _terms_code(rules: dict[str, Any]) -> list[str]:
    split = "text.lower().split()" if rules["split"] == "spaces" else 're.findall("[a-z]+", text.lower())'
    out = ["def note_terms(text: str) -> list[str]:", '    """The terms of a text, in order."""']
    if rules["stop_words"]:
        words = ", ".join(map(literal, rules["stop_words"]))
        split = f"[term for term in {split} if term not in {{{words}}}]"
    if not rules["strip_plural"]:
        return [*out, f"    return {split}"]
    return [
        *out,
        f"    terms = {split}",
        '    return [term[:-1] if len(term) > 3 and term.endswith("s") else term for term in terms]',
    ]


def _score_code(rules: dict[str, Any]) -> list[str]:
    if rules["scoring"] == "count":
        return ["score = sum(found[term] for term in wanted)"]
    if rules["scoring"] == "distinct":
        return ["score = sum(term in found for term in wanted)"]
    if rules["scoring"] == "tf-idf":
        each = "found[term] * math.log(len(NOTES) / SPREAD[term])"
        return [f"score = sum({each} for term in wanted if term in found)"]
    k1, b = rules["k1"], rules["b"]
    return [
        "score = 0.0",
        f"weight = 1 - {b} + {b} * found.total() / MEAN",
        "for term in wanted:",
        "    if term in found:",
        "        rarity = math.log(1 + (len(NOTES) - SPREAD[term] + 0.5) / (SPREAD[term] + 0.5))",
        f"        score += rarity * found[term] * ({k1} + 1) / (found[term] + {k1} * weight)",
    ]


def _sort_code(tie: str) -> list[str]:
    by_id = {
        "ascending": ["hits.sort(key=lambda hit: hit[1])"],
        "descending": ["hits.sort(key=lambda hit: hit[1], reverse=True)"],
    }
    return [*by_id.get(tie, []), "hits.sort(key=lambda hit: -hit[0])"]


def _hit_code(rules: dict[str, Any]) -> str:
    score = f"{{score:.{rules['decimals']}f}}" if rules["decimals"] else "{score}"
    text = (rules["score_format"] or "{}").format("{note}", score)
    return (
        f'f"{text} [{{note_snippet(note, wanted)}}]"'
        if rules["snippet"]
        else f'f"{text}"'
        if rules["score_format"]
        else "note"
    )
