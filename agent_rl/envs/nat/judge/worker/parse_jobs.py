"""Jobs that read text a model wrote without running it: YAML, JSON, TOML and the outline of Python source.

They run in a process that never executes the candidate's code, under the caps of every run, because parsers can be made
to hang, to exhaust memory or to crash. YAML loses what makes it dangerous: aliases, merge keys, tags, double keys. The
answer is `{"value": ...}` or `{"refused": why}`; a parser that had to be killed is the host's to report.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

from agent_rl.envs.nat.judge.worker.read_python import read_python
from agent_rl.envs.nat.judge.worker.read_reach import reaches_of_project
from agent_rl.sandbox.guest.run import direct

MAX_CHARS = 64 * 1024
_FILES = 8
"""So many times longer may the sources of a whole project be, as one JSON object."""
_REASON_CHARS = 200
_DEEP_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){64}""")
"""Of TOML: the parser's time grows with the square of the parts."""


class Refused(Exception):
    """The text is refused; the message gives the reason."""


def read_json(text: str) -> Any:
    """The value of a JSON text. Constants that JSON lacks (NaN) and double keys are refused."""

    def constant(name: str) -> Any:
        raise Refused(f"{name} is not JSON")

    return json.loads(text, object_pairs_hook=_without_doubles, parse_constant=constant)


def _without_doubles(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise Refused("a key appears twice in one mapping")
    return values


def read_yaml(text: str) -> Any:
    """The value of a YAML text, as JSON has it: dates and the like as text."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                raise Refused("aliases (*name) are not allowed")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise Refused("merge keys (<<) are not allowed")
            return _without_doubles(
                [(self.construct_object(key, True), self.construct_object(value, True)) for key, value in node.value]
            )

    Loader.add_constructor("tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(node))
    try:
        value = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise Refused(f"not YAML: {error}") from None
    return json.loads(json.dumps(value, default=str))


def read_toml(text: str) -> Any:
    """The value of a TOML text, as JSON has it: dates and times as text."""
    if _DEEP_KEY.search(text):
        raise Refused("a key has more than 64 parts")
    return json.loads(json.dumps(tomllib.loads(text), default=str))


READERS: dict[str, Callable[[str], Any]] = {
    "yaml": read_yaml,
    "json": read_json,
    "toml": read_toml,
    "python": read_python,
    "reach": lambda text: reaches_of_project(json.loads(text)),
}


def read(kind: str, text: str) -> dict[str, Any]:
    """`{"value": ...}` or `{"refused": why}`."""
    try:
        most = MAX_CHARS * (_FILES if kind == "reach" else 1)
        if len(text) > most:
            raise Refused(f"{len(text)} characters are too many; at most {most}")
        return {"value": READERS[kind](text)}
    except (Refused, SyntaxError, ValueError, RecursionError, MemoryError, TypeError, OverflowError) as error:
        name = "" if isinstance(error, Refused) else f"{type(error).__name__}: "
        return {"refused": f"{name}{error}"[:_REASON_CHARS].encode("utf-8", "replace").decode()}


@direct
def parse_texts(request: dict[str, Any], workdir: str) -> Iterator[dict[str, Any]]:
    """Read `texts` (`[kind, text]` each) in order, yielding each answer, so that a killer costs only what follows."""
    for kind, text in request["texts"]:
        yield read(kind, text)


def _single(kind: str) -> Callable[[dict[str, Any], str], dict[str, Any]]:
    return direct(lambda request, workdir: read(kind, request["text"]))


JOBS = {"parse_texts": parse_texts, **{f"parse_{kind}": _single(kind) for kind in READERS}}


def prepare(workdir: str) -> None:
    """Import what the first text would."""
    for kind, text in (
        ("yaml", "a: [1, 2.5, x]"),
        ("json", "{}"),
        ("toml", "a = 1"),
        ("python", "def f(x: int) -> int: return x"),
        ("reach", '{"a/b.py": "import math"}'),
    ):
        read(kind, text)
