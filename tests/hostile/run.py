"""Play the whole corpus and print what held and what fell, by kind and isolation tier: `python tests/hostile/run.py`.

Arguments go to pytest (`-k`, `-m slow`). The exit code is 0 when nothing fell. What a tier does not promise is counted
apart, with the reasons below the table.
"""

import os
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
CORPUS = (
    "tests/hostile",
    "tests/sandbox/test_graders.py",
    "tests/envs/nat/judge/test_nat_cheats.py",
    "tests/envs/nat/judge/test_nat_cheats_wiring.py",
    "tests/inference/vllm/server/test_key_guard.py",
)
USER = "root" if os.getuid() == 0 else "user"
TIERS = ("no sandbox", "namespaces, root", "namespaces, user", "landlock", "rlimits")
_OPENS_A_SANDBOX = {"sandbox", "bench", "nat_toolkit", "hasty_toolkit", "grader", "graders", "mutation"}
_SHOWN_CHARS = 160


class Tally:
    """Pytest plugin: counts outcomes by kind and tier."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.fell: list[str] = []
        self.reasons: Counter[str] = Counter()
        self._tiers: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._tiers[item.nodeid] = _tier_of(item)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        path, _, name = report.nodeid.partition("::")
        kind = Path(path).stem.removeprefix("test_").removeprefix("hostile_").replace("_", " ")
        key = kind, self._tiers.get(report.nodeid, TIERS[0])
        word = {"passed": "held", "skipped": "not promised"}.get(report.outcome, "fell")
        self.counts[key][word] += 1
        if word == "fell":
            self.fell.append(f"{kind}: {name}"[:_SHOWN_CHARS])
        elif word == "not promised" and isinstance(report.longrepr, tuple):
            self.reasons[f"{key[1]}: {report.longrepr[2].removeprefix('Skipped: ')}"[:_SHOWN_CHARS]] += 1

    def table(self) -> Table:
        """Kinds in rows, tiers in columns; held, and where there are any, fell and not promised."""
        table = Table(title="hostile corpus", title_justify="left", header_style="bold")
        table.add_column("kind")
        for tier in TIERS:
            table.add_column(tier, justify="right")
        for kind in sorted({kind for kind, _ in self.counts}):
            table.add_row(kind, *(_cell(self.counts.get((kind, tier), Counter())) for tier in TIERS))
        total = [sum((count for (_, at), count in self.counts.items() if at == tier), Counter()) for tier in TIERS]
        table.add_section()
        table.add_row("all", *map(_cell, total))
        return table


def _tier_of(item: pytest.Item) -> str:
    name = item.nodeid
    for tier in ("landlock", "rlimits"):
        if f"[{tier}" in name or f"-{tier}" in name:
            return tier
    if "ordinary_user_in_its_own_namespaces" in name:
        return "namespaces, user"
    is_inside = _OPENS_A_SANDBOX & set(getattr(item, "fixturenames", ())) or item.path.stem == "test_hostile_load"
    return f"namespaces, {USER}" if is_inside else TIERS[0]


def _cell(count: Counter[str]) -> str:
    if not count:
        return ""
    fell = f" [red]{count['fell']} fell[/red]" if count["fell"] else ""
    rest = f" [dim]({count['not promised']} not promised)[/dim]" if count["not promised"] else ""
    return f"{count['held']} held{fell}{rest}"


def main() -> int:
    os.chdir(ROOT)
    tally = Tally()
    code = pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", "--tb=short", *CORPUS, *sys.argv[1:]], [tally])
    console = Console(width=150)
    console.print(tally.table())
    for line in tally.fell:
        console.print(f"fell: {line}", style="red", markup=False)
    for reason, count in sorted(tally.reasons.items()):
        console.print(f"not promised ({count}): {reason}", style="dim", markup=False)
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())
