"""`search` over passages: what is read, what is found, and the text that comes back."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.agent.messages import ToolCall
from agent_rl.config import ToolsConfig
from agent_rl.data.tasks import Task
from agent_rl.errors import DataError
from agent_rl.tools.base import ToolRegistry, ToolResult
from agent_rl.tools.passages import Passage, PassageIndex, SearchError, passages_of, read_passages, words_of
from agent_rl.tools.search_tool import SearchTool, clip
from agent_rl.tools.toolset import Toolset

RIVER = {"title": "Velm", "text": "Velm is a river in Toria."}
MAYOR = {"title": "Aldo Brenk", "text": "Aldo Brenk is the mayor of Korrin, a town on the Velm."}
BRIDGE = {"title": "Old Bridge", "text": "The Old Bridge was built in 1731."}
TASK: Task = {"task_id": "t1", "question": "?", "answer": "!", "documents": [RIVER, MAYOR, BRIDGE]}


def toolset(**search: Any) -> Toolset:
    tools = Toolset(ToolsConfig(use=("search",), search={"mode": "corpus", **search}))
    tools.start()
    return tools


def run_search(query: str, task: Task = TASK, **search: Any) -> ToolResult:
    registry = ToolRegistry(toolset(**search).make(task))
    return registry.run(ToolCall(name="search", arguments={"query": query}))


def test_passages_come_one_a_line_the_best_first() -> None:
    result = run_search("river Velm")
    assert result.ok
    assert result.text == (
        "[1] Velm: Velm is a river in Toria.\n[2] Aldo Brenk: Aldo Brenk is the mayor of Korrin, a town on the Velm."
    )


def test_facts_hold_the_query_and_what_the_model_read() -> None:
    result = run_search("built in 1731", max_snippet_chars=16)
    assert result.text == "[1] Old Bridge: The Old..."
    [found] = result.facts["results"]
    assert result.facts["query"] == "built in 1731"
    assert (found["title"], found["text"], sorted(found)) == ("Old Bridge", "The Old...", ["score", "text", "title"])
    assert 0.5 < found["score"] < 3.0


def test_a_query_without_matches_is_reported() -> None:
    result = run_search("zeppelin")
    assert (result.ok, result.text) == (True, "no results; try other words")
    assert result.facts == {"query": "zeppelin", "results": []}
    assert run_search("?!").text == "no results; try other words"


def test_a_blank_query_is_an_error_for_the_model() -> None:
    result = run_search("  ")
    assert (result.ok, result.text) == (False, "error: search: the query is empty; say what to look for")
    assert result.facts == {"query": "  ", "results": []}


def test_only_the_query_is_offered_to_the_model() -> None:
    [tool] = toolset().make(TASK)
    assert tool.spec.parameters == {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
    }


def test_at_most_max_results_come_back() -> None:
    documents = [f"apple number {index}" for index in range(9)]
    assert run_search("apple", {"task_id": "t", "documents": documents}, max_results=3).text == (
        "[1] apple number 0\n[2] apple number 1\n[3] apple number 2"
    )


def test_equal_scores_stay_in_the_order_of_the_documents() -> None:
    texts = ["words same", "same same"] * 100
    index = PassageIndex([Passage(title=str(n), text=text) for n, text in enumerate(texts)], max_results=200)
    twice, once = [str(n) for n in range(1, 200, 2)], [str(n) for n in range(0, 200, 2)]
    assert [passage.title for passage in index("same")] == twice + once


def test_more_of_the_rarer_word_ranks_higher() -> None:
    texts = ["lake lake forest", "lake forest forest", "lake lake lake"]
    index = PassageIndex([Passage(title="", text=text) for text in texts], max_results=3)
    assert [passage.text for passage in index("forest")] == ["lake forest forest", "lake lake forest"]
    first, second = index("forest")
    assert first.score > second.score


def test_scores_are_those_of_bm25() -> None:
    # idf = ln(1 + (2 - 1 + 0.5) / (1 + 0.5)) = ln 2; tf = 1 / (1.5 * (0.25 + 0.75 * 2 / 2) + 1) = 0.4
    index = PassageIndex([Passage(title="", text="red fox"), Passage(title="", text="blue fox")], max_results=2)
    assert [passage.score for passage in index("red")] == [0.2773]


def test_common_words_of_a_query_count_only_where_it_has_no_others() -> None:
    assert run_search("who is the mayor").text.startswith("[1] Aldo Brenk: ")
    assert "Old Bridge" not in run_search("who is the mayor").text
    assert "[1] Old Bridge" in run_search("the was").text


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("ÉCOLE", "une école"),
        ("ecole", "une école"),
        ("STRASSE", "die Straße"),
        ("МОСКВА", "город Москва"),
        ("ｆｕｌｌ", "full width"),
        ("北京", "他住在北京。"),
        ("brenk's", "Brenk came"),
        ("istanbul", "İSTANBUL"),
    ],
)
def test_words_match_without_case_accents_and_width(query: str, text: str) -> None:
    task = {"task_id": "t", "documents": ["nothing here", text]}
    assert run_search(query, task).text == f"[1] {text}"


@given(st.text(max_size=60))
def test_words_are_the_same_in_every_case_and_a_word_is_found_by_itself(text: str) -> None:
    words = words_of(text)
    assert words_of(" ".join(words)) == words
    index = PassageIndex([Passage(title="", text=text), Passage(title="", text="qqqqq")], max_results=5)
    assert (text in [passage.text for passage in index(text)]) == bool(words)


@given(st.text(max_size=80), st.integers(1, 30))
def test_a_clipped_text_is_one_line_within_its_length(text: str, max_chars: int) -> None:
    clipped = clip(text, max_chars)
    assert len(clipped) <= max_chars
    assert clipped.splitlines() in ([], [clipped])
    line = " ".join(text.split())
    assert clipped == line or (len(line) > max_chars and line.startswith(clipped.rstrip(".")))


@pytest.mark.parametrize(
    ("text", "max_chars", "clipped"),
    [
        ("alpha beta gamma", 16, "alpha beta gamma"),
        ("alpha beta gamma", 15, "alpha beta..."),
        ("alpha beta gamma", 13, "alpha beta..."),
        ("alpha beta gamma", 12, "alpha..."),
        ("alpha", 4, "a..."),
        ("alpha", 2, ".."),
        ("a\n\t b", 3, "a b"),
        ("x " + "y" * 100, 60, "x " + "y" * 55 + "..."),
        ("a \ud800 b", 9, "a ? b"),
    ],
)
def test_texts_are_cut_between_words(text: str, max_chars: int, clipped: str) -> None:
    assert clip(text, max_chars) == clipped


def test_a_title_of_any_length_is_cut_too() -> None:
    result = run_search("word", {"task_id": "t", "documents": [{"title": "long " * 100, "text": "word"}]})
    assert result.text == "[1] " + "long " * 18 + "long...: word"


def test_documents_may_be_plain_strings_and_lack_titles() -> None:
    assert passages_of(
        {"task_id": "t", "documents": ["one", {"text": "two"}, {"title": None, "text": "three"}]}, ""
    ) == [
        Passage(title="", text="one"),
        Passage(title="", text="two"),
        Passage(title="", text="three"),
    ]


@pytest.mark.parametrize(
    ("documents", "complaint"),
    [
        ("text", "f.jsonl:3: documents is a str; make it a list of title and text"),
        ([7], "f.jsonl:3: documents[0]: got 7; expected an object with title and text, or a string"),
        (["a", {"title": "T"}], "f.jsonl:3: documents[1]: text is None; make it a string that is not empty"),
        ([{"text": " "}], "f.jsonl:3: documents[0]: text is ' '; make it a string that is not empty"),
        ([""], "f.jsonl:3: documents[0]: text is ''; make it a string that is not empty"),
        ([{"title": 4, "text": "a"}], "f.jsonl:3: documents[0]: title is 4; make it a string"),
    ],
)
def test_bad_documents_are_named(documents: Any, complaint: str) -> None:
    with pytest.raises(DataError) as caught:
        passages_of({"task_id": "t", "documents": documents}, "f.jsonl:3")
    assert str(caught.value) == complaint


@pytest.mark.parametrize("extra", [{}, {"documents": None}, {"documents": []}])
def test_a_task_without_documents_is_named(extra: dict[str, Any]) -> None:
    with pytest.raises(DataError) as caught:
        toolset().make({"task_id": "hop-7", **extra})
    assert str(caught.value) == (
        "task 'hop-7' has no documents to search; add them to the row, or set tools.search.corpus_path"
    )


@pytest.mark.filterwarnings("error")
def test_documents_without_a_single_word_give_no_results() -> None:
    assert run_search("word", {"task_id": "t", "documents": ["?!", "..."]}).text == "no results; try other words"
    assert run_search("word", {"task_id": "t", "documents": ["?!", "a word"]}).text == "[1] a word"


def write_corpus(folder: Path, *rows: Any) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_shared_corpus_is_searched_for_every_task_and_read_once(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, {"title": "Shared", "text": "a river elsewhere", "id": 3}, "plain words")
    tools = toolset(corpus_path=path)
    path.unlink()
    for task in (TASK, {"task_id": "bare"}):
        [tool] = tools.make(task)
        assert tool(query="river").text == "[1] Shared: a river elsewhere"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", ": the file holds no passage; expected one JSON object with title and text per line"),
        (b'"a"\n\n{"text": 3}\n', ":3: text is 3; make it a string that is not empty"),
        (
            b'"a"\n{"text"\n',
            ":2: not valid JSON (Expecting ':' delimiter, column 8); write one object with title and text per line",
        ),
        (b"[" * 100_000, ":1: nested too deeply to be read; write it with fewer brackets"),
        (b"7" * 5000, ":1: an integer has too many digits to be read; write it as text"),
        (b'"a"\n{"text": "b", "score": NaN}', ":2: NaN is no finite number; write one, or null"),
        (b'{"text": "a", "text": "b"}', ":1: the key 'text' stands twice in one object; remove one"),
        (b'"a"\n"\xff"\n', ":2: byte 2 of the line is not UTF-8; save the file as UTF-8"),
        (b"[1]\n", ":1: got [1]; expected an object with title and text, or a string"),
    ],
)
def test_bad_lines_of_a_corpus_are_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_passages(path)
    assert str(caught.value) == f"{path}{complaint}"


def test_a_corpus_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n')
    assert read_passages(path) == [Passage(title="", text="a")]


def test_a_missing_corpus_stops_the_run_at_its_start(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        toolset(corpus_path=tmp_path / "none.jsonl")
    assert str(caught.value) == f"{tmp_path}/none.jsonl: no such file of passages; correct tools.search.corpus_path"


def test_a_search_that_failed_is_an_error_with_the_query_in_its_facts() -> None:
    def fail(_query: str) -> list[Passage]:
        raise SearchError("no answer from nobody")

    result = SearchTool(fail, max_snippet_chars=10)(query="a")
    assert (result.ok, result.text) == (False, "error: search: no answer from nobody")
    assert result.facts == {"query": "a", "results": []}


def test_eight_threads_get_what_one_gets() -> None:
    documents = [{"title": f"T{n}", "text": f"w{n % 7} w{n % 11} w{n % 13} filler"} for n in range(300)]
    tools = toolset()
    [tool] = tools.make({"task_id": "t", "documents": documents})
    queries = [f"w{n % 13} w{n % 5}" for n in range(400)]
    alone = [tool(query=query).text for query in queries]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda query: tool(query=query).text, queries))
    assert together == alone
    assert len(set(alone)) > 10


def test_an_index_of_twenty_documents_takes_a_few_milliseconds() -> None:
    documents = [" ".join(f"w{(n * 31 + k * 17) % 997}" for k in range(80)) for n in range(20)]
    passages = [Passage(title="", text=text) for text in documents]
    times_s = []
    for _ in range(5):
        start_s = time.perf_counter()
        PassageIndex(passages, max_results=5)
        times_s.append(time.perf_counter() - start_s)
    assert min(times_s) < 0.05  # 3 ms on an idle core


QUIET = """
import logging, sys, threading
logging.basicConfig(level=logging.DEBUG)
from agent_rl.config import ToolsConfig
from agent_rl.tools.toolset import Toolset
tools = Toolset(ToolsConfig(use=("search",), search={"mode": "corpus"}))
tools.start()
[tool] = tools.make({"task_id": "t", "documents": ["b a", "c a", "a a a"]})
print(tool(query="a").facts["results"])
assert threading.active_count() == 1, threading.enumerate()
loaded = {"numba", "httpx", "tenacity", "pyrate_limiter", "torch"} & set(sys.modules)
assert not loaded, loaded
"""


def test_indexing_prints_nothing_starts_no_thread_and_does_not_depend_on_hash_seeds() -> None:
    outputs = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", QUIET],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert (done.returncode, done.stderr) == (0, "")
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith("[{'title': '', 'text': 'a a a', 'score': ")
