"""YAML that a person hands in, read in bounded time and memory, and written so that it reads back: settings, not data.

Numbers are those of YAML 1.2, `1e-4` among them, which PyYAML takes for a text. Size, nesting and number of values are
measured on the events of the parser, aliases counted as often as they stand for something, before any value is made.
Not here: what the settings are.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from agent_rl.errors import ConfigError

MAX_BYTES = 2**18
MAX_VALUES = 10_000
MAX_DEPTH = 32
_MAX_DIGITS = 40
_UNNAMED = re.compile(r'\s+in "<\w+ string>"')
"""What PyYAML calls a text that it got without a file."""
_BASE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML without libyaml is ten times as slow, and otherwise the same."""


_FLOAT = "tag:yaml.org,2002:float"
_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")


class _Loader(_BASE):  # type: ignore[valid-type, misc]
    """YAML that refuses a key written twice in one mapping (plain YAML keeps the last one silently)."""


class SettingsDumper(yaml.SafeDumper):
    """YAML that `parse_settings` reads back to what it was: a text `1e-4` in quotes."""


_Loader.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))
SettingsDumper.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))


def dump_settings(tree: Any, *, allow_unicode: bool = False) -> str:
    """The YAML of a value, its keys in their order."""
    return yaml.dump(tree, Dumper=SettingsDumper, sort_keys=False, allow_unicode=allow_unicode)


class _OneLine(SettingsDumper):
    """YAML without line breaks."""


_OneLine.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style='"' if len(text.splitlines()) > 1 or text.endswith("\n") else None
    ),
)


def dump_line(value: Any) -> str:
    """The YAML of a value on one line, which `parse_settings` reads back, but for zero bytes and half surrogate pairs,
    which it refuses."""
    text = yaml.dump(
        value, Dumper=_OneLine, default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def read_settings(path: Path) -> Any:
    """The value of a YAML file. ConfigError, one sentence with the file, for what is no bounded YAML."""
    return parse_settings(settings_text(path), str(path))


def settings_text(path: Path) -> str:
    """The text of a file of settings, `-` for the standard input. ConfigError for one that is unreadable, too large or
    not UTF-8."""
    try:
        with path.open("rb") if str(path) != "-" else open(0, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a readable file") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: holds more than {MAX_BYTES // 1024} KiB, expected settings; give another file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None


def parse_settings(text: str, where: str) -> Any:
    """The value of a YAML text; `where` opens the sentence of a ConfigError."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{where}: has more than {MAX_BYTES // 1024} Ki characters, expected settings; shorten it")
    try:
        _measure(yaml.parse(text, Loader=_BASE))
        return yaml.load(text, Loader=_Loader)
    except _BoundError as error:
        raise ConfigError(f"{where}: {error}") from None
    except (
        yaml.YAMLError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        # Besides its own errors PyYAML lets those of Python's int(), date() and so on through.
        detail = " ".join(_UNNAMED.sub("", str(error)).split())[:300]
        raise ConfigError(f"{where}: not valid YAML ({detail}); correct it") from None


class _BoundError(Exception):
    """YAML beyond the bounds; the text says which, and the remedy."""


def _measure(events: Iterator[yaml.Event]) -> None:
    """Raise _BoundError where the values would be more or deeper than settings are."""
    open_nodes: list[list[Any]] = [["", 0, 0]]  # anchor, values, depth below
    known: dict[str, tuple[int, int]] = {}
    for event in events:
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent) and event.tag not in (None, "!", _TEXT):
            raise _BoundError(f"the tag {event.tag!r:.60} on line {_line(event)}; leave it out")
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append([anchor, 1, 1])
            num_values, depth = 0, 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, num_values, depth = open_nodes.pop()
        elif isinstance(event, yaml.ScalarEvent):
            num_values, depth = 1, 0
        elif isinstance(event, yaml.AliasEvent):
            if any(node[0] == anchor for node in open_nodes):
                raise _BoundError(f"{anchor!r:.60} on line {_line(event)} stands within itself; write it out")
            num_values, depth = known.get(anchor, (1, 0))
        else:
            continue
        if anchor and num_values and not isinstance(event, yaml.AliasEvent):
            known[anchor] = num_values, depth
        parent = open_nodes[-1]
        parent[1] += num_values
        parent[2] = max(parent[2], depth + 1)
        if len(open_nodes) + depth > MAX_DEPTH:
            raise _BoundError(f"nested more than {MAX_DEPTH} deep on line {_line(event)}; write it with fewer levels")
        if sum(node[1] for node in open_nodes) > MAX_VALUES:
            raise _BoundError(f"more than {MAX_VALUES} values by line {_line(event)}, expected settings; shorten it")


_TEXT = "tag:yaml.org,2002:str"


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1


def _unique_mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key_node, _ in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise _BoundError(f"a key on line {line} is no text; write a name")
        if key_node.tag in _NO_TEXTS:
            raise _BoundError(f"the key {key_node.value!r:.60} on line {line} is no text; quote it")
        if key_node.value in seen:
            raise _BoundError(
                f"key {key_node.value!r:.60} is given twice, second time on line {line}; remove one of the two"
            )
        seen.add(key_node.value)
    return loader.construct_mapping(node, deep=True)


_NO_TEXTS = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int", "null", "timestamp")}


def _text(loader: Any, node: yaml.ScalarNode) -> str:
    """A text; none with a zero byte, which no path may hold and no terminal shows."""
    if "\0" in node.value:
        raise _BoundError(f"a text with a zero byte on line {node.start_mark.line + 1}; remove it")
    return loader.construct_yaml_str(node)


def _integer(loader: Any, node: yaml.ScalarNode) -> int:
    """An integer as YAML has it; none of more than 64 bits is a setting, and in base 60 its size is not seen."""
    value = loader.construct_yaml_int(node) if len(node.value) <= _MAX_DIGITS else 2**64
    if not -(2**63) <= value < 2**64:
        line = node.start_mark.line + 1
        raise _BoundError(f"an integer of more than 64 bits on line {line}; quote it if it is text")
    return value


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)
_Loader.add_constructor(_TEXT, _text)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
