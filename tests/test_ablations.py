"""The table of benchmarks/ablations.py, from run folders written by hand."""

import json
from pathlib import Path

from agent_rl import load_config
from benchmarks.ablations import AS_IT_IS, VARIANTS, table


def write_run(folder: Path, solved: dict[int, list[int]]) -> Path:
    """`solved`: temperature -> 1 or 0 by task, in another order than task ids have."""
    for temperature, by_task in solved.items():
        target = folder / f"t{temperature}/episodes.jsonl"
        target.parent.mkdir(parents=True)
        lines = [
            json.dumps({"task_id": f"task-{index}", "reward_parts": {"success": float(each)}})
            for index, each in enumerate(by_task)
        ]
        target.write_text("\n".join(reversed(lines)) + "\n", encoding="utf-8")
    return folder


def test_table_shows_rates_and_changes_of_all_seeds(tmp_path: Path) -> None:
    recipe = tuple(write_run(tmp_path / f"recipe-{seed}", {0: [1, 1, 1, 1], 1: [1, 1, 1, 0]}) for seed in (0, 1))
    worse = tuple(write_run(tmp_path / f"worse-{seed}", {0: [1, 1, 0, seed], 1: [1, 1, 1, 0]}) for seed in (0, 1))

    head, _, first, second = table({AS_IT_IS: recipe, "worse": worse}).splitlines()

    assert head.startswith("| 2 seeds |")
    assert [cell.split(" [")[0].strip() for cell in first.split("|")[1:-1]] == [
        "as it is",
        "100.0",
        "+0.0",
        "75.0",
        "+0.0",
    ]
    assert [cell.split(" [")[0].strip() for cell in second.split("|")[1:-1]] == [
        "worse",
        "62.5",
        "-37.5",
        "75.0",
        "+0.0",
    ]


def test_every_variant_is_a_configuration_of_its_own() -> None:
    configs = {name: repr(load_config(Path("configs/nat_grpo.yaml"), settings)) for name, settings in VARIANTS.items()}

    assert len(set(configs.values())) == len(VARIANTS)
