"""benchmarks/ablations.py and the table of benchmarks/over_seeds.py, from folders written by hand."""

import json
from collections.abc import Mapping
from pathlib import Path

from ablations import ROOT, VARIANTS
from over_seeds import table

from agent_rl import load_config


def write_run(folder: Path, solved: Mapping[int, Mapping[str, int]]) -> Path:
    """`solved`: temperature -> task id -> 1 or 0, in the order of the file."""
    for temperature, by_task in solved.items():
        target = folder / f"t{temperature}/episodes.jsonl"
        target.parent.mkdir(parents=True)
        lines = [
            {"task_id": task_id, "reward": 0.5, "reward_parts": {"success": each}, "stop_reason": "done"}
            for task_id, each in by_task.items()
        ]
        target.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def cells_of(line: str) -> list[str]:
    """Without the intervals."""
    return [cell.split(" [")[0].strip() for cell in line.split("|")[1:-1]]


def test_table_shows_rates_and_changes_of_all_seeds(tmp_path: Path) -> None:
    greedy, sampled = {"a": 1, "b": 1, "c": 1, "d": 1}, {"a": 1, "b": 1, "c": 1, "d": 0}
    recipe = [write_run(tmp_path / f"recipe-{seed}", {0: greedy, 1: sampled}) for seed in (0, 1)]
    worse = [
        write_run(tmp_path / f"worse-{seed}", {0: {"d": seed, "c": 0, "b": 1, "a": 1}, 1: sampled}) for seed in (0, 1)
    ]

    head, _, first, second = table({"recipe": recipe, "worse": worse}).splitlines()

    assert head.startswith("| 2 seeds |")
    assert cells_of(first) == ["recipe", "100.0", "100.0, 100.0", "", "75.0", "75.0, 75.0", ""]
    assert cells_of(second) == ["worse", "62.5", "50.0, 75.0", "-37.5", "75.0", "75.0, 75.0", "+0.0"]


def test_tasks_are_paired_by_id_whatever_their_order_in_the_files(tmp_path: Path) -> None:
    by_task = {f"task-{index}": index % 2 for index in range(40)}
    backwards = dict(reversed(by_task.items()))
    recipe = [write_run(tmp_path / "recipe", {0: by_task, 1: by_task})]
    same = [write_run(tmp_path / "same", {0: backwards, 1: backwards})]

    last = table({"recipe": recipe, "same": same}).splitlines()[-1]

    differences = [cell.strip() for cell in last.split("|")[4:8:3]]
    assert differences == ["+0.0 [-4.7, +4.7], p = 1"] * 2


def test_every_variant_is_a_configuration_of_its_own() -> None:
    path = ROOT / "configs/nat_grpo.yaml"
    configs = {name: repr(load_config(path, settings)) for name, settings in VARIANTS.items()}

    assert len(set(configs.values())) == len(VARIANTS)
