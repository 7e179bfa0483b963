"""Evaluations of several seeds in one table: `python benchmarks/over_seeds.py "first=DIR,DIR" "second=DIR,DIR"`.

A DIR, one a training seed, holds the folders `t0` and `t1` that `agent-rl eval` wrote at both temperatures. Shown are
the success of all seeds together and of each, and the difference to the first name on the same tasks, with its p-value.

Intervals are over tasks, the episodes of one task counting as alike as they are; how far another training seed would
come out elsewhere, the figures of the seeds show. Not here: anything else about an evaluation (`agent-rl eval`).
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_rl.reports.episodes import Episode, in_common, read_episode_lines, successes
from agent_rl.reports.summary import percent, success_of
from agent_rl.telemetry.statistics import paired_change

TEMPERATURES = (0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", nargs="+", metavar="NAME=DIR,DIR", help="the first is what the others are compared to")
    options = parser.parse_args()
    named = (side.partition("=") for side in options.sides)
    sides = {name: list(map(Path, folders.split(","))) for name, _, folders in named}
    for name, folders in sides.items():
        paths = [episodes_path(folder, temperature) for folder in folders for temperature in TEMPERATURES]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            parser.error(f"{name}: there is no {missing[0]}; give NAME=DIR,DIR with folders that hold t0 and t1")
    if len({len(folders) for folders in sides.values()}) > 1:
        parser.error("the sides have different numbers of folders; give as many seeds of each")
    print(table(sides))


def table(sides: Mapping[str, Sequence[Path]]) -> str:
    """Markdown; a row for each of `sides`, name -> folders by seed."""
    first = next(iter(sides))
    columns = [f"solved %, T={each} | by seed | to `{first}`" for each in TEMPERATURES]
    lines = [f"| {len(sides[first])} seeds | {' | '.join(columns)} |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for name, folders in sides.items():
        cells = [name]
        for temperature in TEMPERATURES:
            episodes = episodes_of(folders, temperature)
            by_seed = [success_of(episodes_of([folder], temperature))["rate"] for folder in folders]
            cells += [percent(success_of(episodes)), ", ".join(f"{100 * rate:.1f}" for rate in by_seed)]
            cells.append("" if name == first else difference(episodes_of(sides[first], temperature), episodes))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def episodes_path(folder: Path, temperature: int) -> Path:
    return folder / f"t{temperature}/episodes.jsonl"


def episodes_of(folders: Sequence[Path], temperature: int) -> list[Episode]:
    """The episodes of all seeds."""
    paths = [episodes_path(folder, temperature) for folder in folders]
    return [Episode.from_record(record, str(path)) for path in paths for record in read_episode_lines(path)]


def difference(before: Sequence[Episode], after: Sequence[Episode]) -> str:
    """`-7.3 [-11.2, -3.9], p = 6e-05`, in points."""
    common = in_common(before, after)
    change = paired_change(successes(common.before), successes(common.after))
    interval = f"[{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
    return f"{100 * change.change:+.1f} {interval}, p = {change.p_value:.1g}"


if __name__ == "__main__":
    main()
