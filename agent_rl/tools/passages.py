"""Passages: reading them from tasks and files, and finding them by BM25.

Does not: build the tool that a model calls (`search_tool.py`), search the web (`web_search_tool.py`).
"""

import logging
import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agent_rl.data.bounds import read_lines
from agent_rl.data.json_rows import decode_values
from agent_rl.data.tasks import Task
from agent_rl.errors import AgentRLError, DataError


class SearchError(AgentRLError):
    """A search gave no answer; the message is for the model and for whoever reads the transcript."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """What a search finds: `Passage(title="Velm", text="Velm is a river in ...")`."""

    title: str
    """May be empty."""
    text: str
    url: str | None = None
    """Where it is on the web."""
    score: float | None = None
    """BM25; higher is better, comparable within one answer only."""


Find = Callable[[str], Sequence[Passage]]
"""Passages for a query that is not blank, best first, none where nothing fits. Called from many threads. Raises
`SearchError` when it cannot tell."""


# ---------------------------------------------------------------------------------------------------------------------
# Passages of tasks and files


def passages_of(task: Task, where: str) -> list[Passage]:
    """A task's own `documents`, none when it brings none: a list of `{"title", "text"}`, or of plain strings.

    Raises DataError, opening with `where`, for anything else.
    """
    documents = task.get("documents")
    if documents is None:
        return []
    if not isinstance(documents, list):
        raise DataError(f"{where}: documents is a {type(documents).__name__}; make it a list of title and text")
    return [_passage(each, f"{where}: documents[{index}]") for index, each in enumerate(documents)]


def read_passages(path: Path) -> list[Passage]:
    """The passages of a JSONL file, one `{"title", "text"}` or one string per line; blank lines are skipped.

    Raises DataError, one sentence with `file:line`, for a missing or empty file and for a line that is none of these.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file of passages; correct tools.search.corpus_path")
    values = decode_values(read_lines(path), str(path), advice="write one object with title and text per line")
    passages = [_passage(value, f"{path}:{number}") for number, value in values]
    if not passages:
        raise DataError(f"{path}: the file holds no passage; expected one JSON object with title and text per line")
    return passages


def _passage(value: Any, where: str) -> Passage:
    row = {"text": value} if isinstance(value, str) else value
    if not isinstance(row, dict):
        raise DataError(f"{where}: got {value!r:.60}; expected an object with title and text, or a string")
    title, text = row.get("title") or "", row.get("text")
    if not isinstance(title, str):
        raise DataError(f"{where}: title is {title!r:.60}; make it a string")
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where}: text is {text!r:.60}; make it a string that is not empty")
    return Passage(title=title, text=text)


# ---------------------------------------------------------------------------------------------------------------------
# BM25

# Chinese and Japanese write no spaces: their characters are words of their own.
_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
_ACCENTS = re.compile(r"[\u0300-\u036f]")


def words_of(text: str) -> list[str]:
    """The words of a text as they are compared: without case, accents, and the difference of wide and narrow forms."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return _WORDS.findall(_ACCENTS.sub("", plain))


class PassageIndex:
    """A `Find` by BM25 over titles and texts. Passages of equal score stay in their order; those that share no word
    with the query are left out, and so are words such as "the" and "who", unless a query has no others."""

    def __init__(self, passages: Sequence[Passage], *, max_results: int) -> None:
        # bm25s reads the variable once, on import; without it, a bar that is off still starts a thread.
        os.environ.setdefault("DISABLE_TQDM", "1")
        import bm25s
        from bm25s.stopwords import STOPWORDS_EN_PLUS

        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets DEBUG itself and reports every index
        self._passages = tuple(passages)
        self._max_results = max_results
        self._common = frozenset(STOPWORDS_EN_PLUS)
        self._vocabulary: dict[str, int] = {}
        numbers = [
            [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in words_of(f"{each.title} {each.text}")]
            for each in self._passages
        ]
        self._bm25 = bm25s.BM25()
        if self._vocabulary:
            self._bm25.index((numbers, self._vocabulary), create_empty_token=False, show_progress=False)

    def __call__(self, query: str) -> list[Passage]:
        words = words_of(query)
        telling = [word for word in words if word not in self._common] or words
        known = [self._vocabulary[word] for word in telling if word in self._vocabulary]
        if not known:
            return []
        scores = self._bm25.get_scores_from_ids(known)
        hits = np.flatnonzero(scores)
        best = hits[np.argsort(-scores[hits], kind="stable")][: self._max_results]
        return [replace(self._passages[index], score=round(float(scores[index]), 4)) for index in best]
