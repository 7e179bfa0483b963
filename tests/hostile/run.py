"""Play the whole corpus and print what held and what fell, by kind and isolation tier: `python tests/hostile/run.py`.

Arguments go to pytest (`-k`, `-m slow`). The exit code is 0 when nothing fell. What a tier does not promise is counted
apart, with the reasons below the table. Started by root, a part of every kind is played once more as an ordinary user
(`python tests/hostile/run.py AS_USER ...` is that part alone).
"""

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from as_user import become
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
AS_USER = "as-ordinary-user"
ORDINARY_USER = 12345
"""Without an entry in passwd."""
EVERY = {
    "tests/hostile/test_hostile_answers.py": 3,
    "tests/hostile/test_hostile_chance.py": 4,
    "tests/hostile/test_hostile_names.py": 2,
    "tests/hostile/test_hostile_nat.py": 2,
    "tests/sandbox/test_graders.py": 6,
}
"""What an ordinary user plays beside the programs, and every which of a file's cases in a sandbox: the last, too."""
SECONDS_AS_USER = 600


class Tally:
    """Pytest plugin: counts outcomes by kind and tier."""

    def __init__(self, *, is_a_part: bool = False) -> None:
        self._is_a_part = is_a_part
        self.counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.fell: list[str] = []
        self.reasons: Counter[str] = Counter()
        self._tiers: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if not self._is_a_part:
            return
        chosen: list[pytest.Item] = []
        for path, step in EVERY.items():
            own = [item for item in items if item.path == ROOT / path and _tier_of(item) != TIERS[0]]
            chosen += own[::-1][::step][::-1]
        items[:] = chosen

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

    def as_json(self) -> str:
        return json.dumps([[[*key, dict(count)] for key, count in self.counts.items()], self.fell])

    def add(self, text: str) -> None:
        """Count what `as_json` of another process says."""
        counts, fell = json.loads(text)
        for kind, tier, count in counts:
            self.counts[kind, tier] += Counter(count)
        self.fell += [f"as an ordinary user: {line}" for line in fell]

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


def _play_as_user(tally: Tally, arguments: list[str]) -> int:
    """Have another process play a part as an ordinary user, and count it; 1 where something fell."""
    command = [sys.executable, __file__, AS_USER, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SECONDS_AS_USER, check=False)
    *shown, last = done.stdout.splitlines() or [""]
    print("\n".join(shown))
    try:
        tally.add(last)
    except ValueError:
        tally.fell.append(f"as an ordinary user: the run broke off with exit code {done.returncode}")
        return 1
    return int(done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED))


def main() -> int:
    os.chdir(ROOT)
    arguments = sys.argv[1:]
    if is_a_part := arguments[:1] == [AS_USER]:
        del arguments[0]
        if USER == "root":
            become(ORDINARY_USER, __file__, [AS_USER, *arguments])
    tally = Tally(is_a_part=is_a_part)
    files = EVERY if is_a_part else CORPUS
    code = pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", "--tb=short", *files, *arguments], [tally])
    if is_a_part:
        print(tally.as_json())
        return int(code)
    if USER == "root":
        code = max(int(code), _play_as_user(tally, arguments))
    console = Console(width=150)
    console.print(tally.table())
    for line in tally.fell:
        console.print(f"fell: {line}", style="red", markup=False)
    for reason, count in sorted(tally.reasons.items()):
        console.print(f"not promised ({count}): {reason}", style="dim", markup=False)
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())
