"""The share of the library's lines that tests ran, by room, from the JSON that `coverage json` writes.

    python scripts/coverage_by_room.py .coverage.json --at-least 90

Exit code 1 where the whole library has less. `make coverage` runs the fast tests first.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path


def lines_by_room(report: dict) -> dict[str, tuple[int, int]]:
    """Room -> (lines that ran, lines in all). Files at the top of the package are the room `(top)`; an environment is
    a room."""
    ran, all_lines = Counter(), Counter()
    for name, file in report["files"].items():
        below = Path(name).as_posix().rpartition("agent_rl/")[2].split("/")
        rooms = below[:-1][: 2 if below[0] == "envs" else 1]
        room = "/".join(rooms) or "(top)"
        ran[room] += file["summary"]["covered_lines"]
        all_lines[room] += file["summary"]["num_statements"]
    return {room: (ran[room], all_lines[room]) for room in sorted(all_lines) if all_lines[room]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--at-least", type=float, default=90.0, help="per cent of all lines")
    given = parser.parse_args()
    rooms = lines_by_room(json.loads(given.report.read_text(encoding="utf-8")))
    rooms["all"] = tuple(sum(column) for column in zip(*rooms.values(), strict=True))
    print("| room | lines | ran |\n| --- | --- | --- |")
    for room, (ran, lines) in rooms.items():
        print(f"| {room} | {lines} | {100 * ran / lines:.1f} % |")
    share = 100 * rooms["all"][0] / rooms["all"][1]
    if share < given.at_least:
        print(f"error: {share:.1f} % of the library ran, expected at least {given.at_least:g} %", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
