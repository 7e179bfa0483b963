"""Greedy success beside pass@k: `python benchmarks/pass_at_k.py "warm start=runs/base" "after RL=runs/rl-0,runs/rl-1"`.

A DIR holds the folders `t0`, one greedy episode a task, and `t1`, several sampled ones (`agent-rl eval --samples 8`).
One row a name and, with `--by family`, one a family of it. What RL's greedy column has and the pass@k of the model that
it began with has not is new; the rest was within that model's reach.
Several folders of a name are training seeds: a task's episodes of all seeds count as samples of it.
Not here: anything else about an evaluation (`agent-rl eval`), comparisons of names (`over_seeds.py`).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from over_seeds import TEMPERATURES, episodes_of, episodes_path

from agent_rl.reports.episodes import Episode
from agent_rl.reports.summary import GROUPINGS, pass_at_k_of, percent, success_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", nargs="+", metavar="NAME=DIR,DIR", help="a name and its folders, one a training seed")
    parser.add_argument("--by", choices=GROUPINGS, help="also a row for each of these")
    options = parser.parse_args()
    named = (side.partition("=") for side in options.sides)
    sides = {name: [Path(folder) for folder in folders.split(",")] for name, _, folders in named}
    for name, folders in sides.items():
        missing = [path for each in folders for t in TEMPERATURES if not (path := episodes_path(each, t)).is_file()]
        if missing:
            parser.error(f"{name}: there is no {missing[0]}; give NAME=DIR,DIR with folders that hold t0 and t1")
    print(
        table(
            {name: tuple(episodes_of(folders, t) for t in TEMPERATURES) for name, folders in sides.items()}, options.by
        )
    )


def table(sides: dict[str, tuple[Sequence[Episode], Sequence[Episode]]], by: str | None = None) -> str:
    """Markdown of `sides`, name -> greedy and sampled episodes; `by` is a label of tasks."""
    rows = [row for name, (greedy, sampled) in sides.items() for row in _rows(name, greedy, sampled, by)]
    ks = sorted({k for _, _, by_k in rows for k in by_k}, key=int)
    lines = [f"| | greedy % | {' | '.join(f'pass@{k} %' for k in ks)} |", "| --- |" + " --- |" * (1 + len(ks))]
    for name, greedy, by_k in rows:
        cells = [name, greedy, *(percent(by_k[k]) if k in by_k else "" for k in ks)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(
    name: str, greedy: Sequence[Episode], sampled: Sequence[Episode], by: str | None
) -> list[tuple[str, str, dict]]:
    """Name, greedy success and pass@k of all tasks, and of those of each value of the label `by`."""
    greedy, sampled = ([episode for episode in side if episode.is_scored] for side in (greedy, sampled))
    rows = [(name, percent(success_of(greedy)), pass_at_k_of(sampled))]
    if by is not None:
        for value in sorted({str(label) for each in (*greedy, *sampled) if (label := getattr(each, by)) is not None}):
            ours, drawn = ([e for e in side if str(getattr(e, by)) == value] for side in (greedy, sampled))
            rows.append((f"{name}, {value}", percent(success_of(ours)), pass_at_k_of(drawn)))
    return rows


if __name__ == "__main__":
    main()
