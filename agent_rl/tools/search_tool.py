"""The tool `search`: passages for a query, by BM25 over a task's own documents or a shared file, or from the web.

`tools.search.mode` selects the source. Does not: index passages (`passages.py`), request a provider on the web
(`web_search_tool.py`), judge an answer.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_rl.config import ToolsConfig
from agent_rl.config.tools import SearchToolConfig
from agent_rl.data.tasks import Task
from agent_rl.errors import DataError
from agent_rl.tools.base import BaseTool, ToolResult
from agent_rl.tools.passages import Find, Passage, PassageIndex, SearchError, passages_of, read_passages
from agent_rl.tools.toolset import ToolMaker

NO_RESULTS = "no results; try other words"
_MAX_TITLE_CHARS = 100
_MAX_CUT_CHARS = 30
"""Longest word that is left out rather than cut in two."""


class SearchTool(BaseTool):
    """One line per passage: `[1] Title: text`. Facts: `query`, and `results` with `title`, `text` (as the model reads
    it) and, where there is one, `score` or `url`."""

    name = "search"
    description = "Find passages that match a query."
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}

    def __init__(self, find: Find, *, max_snippet_chars: int) -> None:
        self._find = find
        self._max_snippet_chars = max_snippet_chars

    def __call__(self, **arguments: Any) -> ToolResult:
        query = arguments["query"]
        if not query.strip():
            return _failure(query, "the query is empty; say what to look for")
        try:
            found = [self._shortened(passage) for passage in self._find(query)]
        except SearchError as error:
            return _failure(query, str(error))
        return ToolResult(text=as_text(found), facts={"query": query, "results": [_as_fact(each) for each in found]})

    def _shortened(self, passage: Passage) -> Passage:
        title, text = clip(passage.title, _MAX_TITLE_CHARS), clip(passage.text, self._max_snippet_chars)
        return replace(passage, title=title, text=text)


def _failure(query: str, why: str) -> ToolResult:
    return ToolResult(text=f"error: search: {why}", ok=False, facts={"query": query, "results": []})


def _as_fact(passage: Passage) -> dict[str, Any]:
    rest = {"score": passage.score, "url": passage.url}
    return {"title": passage.title, "text": passage.text} | {key: is_ for key, is_ in rest.items() if is_ is not None}


def as_text(found: Sequence[Passage]) -> str:
    """What the model reads: numbered lines, best first, or a sentence where there are none."""
    lines = [
        f"[{number}] {': '.join(part for part in (passage.title, passage.text) if part)}"
        for number, passage in enumerate(found, start=1)
    ]
    return "\n".join(lines) or NO_RESULTS


def clip(text: str, max_chars: int) -> str:
    """The text on one line, at most `max_chars` long, cut between words where it has any, and then ending in `...`."""
    # A lone surrogate out of a JSON escape could be neither encoded nor written into a transcript.
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    if len(text) <= max_chars:
        return text
    room = max(max_chars - len("..."), 0)
    end = text.rfind(" ", max(room - _MAX_CUT_CHARS, 0), room + 1)
    return text[: end if end > 0 else room] + "..."[:max_chars]


# ---------------------------------------------------------------------------------------------------------------------
# The maker of the tool


def open_search(config: ToolsConfig) -> ToolMaker:
    """Find passages that match a query, as `tools.search` says: read and index the shared ones, or look for the
    provider's key.

    Raises ConfigError (no key, no such provider) and DataError (a bad file; a task without documents, when its tool is
    made). A file given by `corpus_path` is searched for every task; documents of the tasks are then left alone.
    """
    search = config.search
    if search.mode == "web":
        from agent_rl.tools.web_search_tool import WebSearch

        tool = _tool(WebSearch(search), search)
        return lambda _task: tool
    if search.corpus_path is not None:
        shared = _tool(PassageIndex(read_passages(search.corpus_path), max_results=search.max_results), search)
        return lambda _task: shared
    return lambda task: _tool(PassageIndex(_own_passages(task), max_results=search.max_results), search)


def _tool(find: Find, config: SearchToolConfig) -> SearchTool:
    return SearchTool(find, max_snippet_chars=config.max_snippet_chars)


def _own_passages(task: Task) -> list[Passage]:
    where = f"task {task['task_id']!r}"
    passages = passages_of(task, where)
    if not passages:
        raise DataError(f"{where} has no documents to search; add them to the row, or set tools.search.corpus_path")
    return passages
