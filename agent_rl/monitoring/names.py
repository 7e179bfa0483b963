"""Names for Prometheus, by rule from the table of docs/metrics.md.

    group/name               ->  agent_rl_group_name
    a share                  ->  ..._ratio, without the words share, frac and rate
    seconds, GiB, 10⁹ bytes  ->  ..._seconds, ..._bytes: Prometheus has base units
    group/<flag>/name        ->  agent_rl_group_name{flag="..."}, likewise with several of them

`metric_table.json` holds the rows of the table; `scripts/make_monitoring.py` writes it. Not here: values
(`run_series.py`).
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PREFIX = "agent_rl_"
_TABLE = Path(__file__).with_name("metric_table.json")
_EXCEPTIONS = {"time": "last_step_timestamp_seconds", "hacks/<flag>": "hacks_flagged_episodes"}
"""Where the rule would give a name without meaning, or one that two rows share."""
_PLACEHOLDER = re.compile(r"<(\w+)>")
_OWN_NAMES = ("part", "flag", "environment")
"""Placeholders for what a user calls something; a slash may be in it, as in the part `share/behaviour`."""


@dataclass(frozen=True, slots=True)
class DocumentedMetric:
    """A row of the table; `name` may hold placeholders: `rollout/stop/<reason>`."""

    name: str
    unit: str
    meaning: str

    @property
    def exported_name(self) -> str:
        """Of the family of series that Prometheus gets."""
        words = _EXCEPTIONS.get(self.name) or re.sub(r"/t?<\w+>", "", self.name).replace("/", "_")
        if self.unit == "share":
            return PREFIX + _as_ratio(words)
        words = re.sub(r"_per_s$", "_per_second", words)
        words = re.sub(r"_s(?=_|$)", "_seconds", words)
        return PREFIX + re.sub(r"(gib|gigabytes)$", "bytes", words)

    @property
    def labels(self) -> tuple[str, ...]:
        """What its placeholders stand for."""
        return tuple(_PLACEHOLDER.findall(self.name))

    @property
    def factor(self) -> float:
        """From the unit of the table to Prometheus's."""
        return {"GiB": 2.0**30, "10⁹ bytes": 1e9}.get(self.unit, 1.0)

    @property
    def pattern(self) -> re.Pattern[str]:
        """Of the names in `metrics.jsonl`; its groups are the values of the labels."""
        return re.compile(_PLACEHOLDER.sub(lambda found: "(.+)" if found[1] in _OWN_NAMES else "([^/]+)", self.name))


@dataclass(frozen=True, slots=True)
class Exported:
    """What one name of `metrics.jsonl` is for Prometheus."""

    family: str
    help: str
    labels: tuple[tuple[str, str], ...]
    factor: float


OTHER = "other_metric"
"""Family of what an environment counts beyond the table: `agent_rl_other_metric{name="mine/count"}`."""


@cache
def documented_metrics() -> tuple[DocumentedMetric, ...]:
    """The rows of the table, in its order."""
    return tuple(DocumentedMetric(**row) for row in json.loads(_TABLE.read_text(encoding="utf-8")))


@cache
def _exact() -> dict[str, DocumentedMetric]:
    return {row.name: row for row in documented_metrics()}


def exported(name: str) -> Exported:
    """The family, label and factor of a name in `metrics.jsonl`; any name has one."""
    row, labels = _exact().get(name), ()
    if row is None or row.labels:
        for row in documented_metrics():
            if row.labels and (found := row.pattern.fullmatch(name)):
                labels = tuple(zip(row.labels, found.groups(), strict=True))
                break
        else:
            return Exported(PREFIX + OTHER, "A metric that docs/metrics.md does not list", (("name", name),), 1.0)
    return Exported(row.exported_name, f"{row.name}: {row.meaning}", labels, row.factor)


def read_table(page: str) -> list[DocumentedMetric]:
    """The rows of all tables of docs/metrics.md before its section about alarms."""
    tables = page.split("## Alarms", maxsplit=1)[0]
    found = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", tables, re.MULTILINE)
    return [DocumentedMetric(*row) for row in found]


def as_json(rows: Iterable[DocumentedMetric]) -> str:
    """The text of `metric_table.json`: one row a line."""
    lines = (
        json.dumps({"name": row.name, "unit": row.unit, "meaning": row.meaning}, ensure_ascii=False) for row in rows
    )
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _as_ratio(words: str) -> str:
    end = ""
    if bound := re.search(r"_(low|high)$", words):
        words, end = words[: bound.start()], bound[0]
    words = re.sub(r"_(share|frac|rate)$", "", words).replace("_frac_", "_")
    return f"{words}_ratio{end}"
