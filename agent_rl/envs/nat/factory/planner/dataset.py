"""Plan task files from free requests, for `prepare_dataset.py --source gemini`.

Reads the requests, has them planned (`planner.py`), and divides the specs as the offline generator does. It
writes nothing but the planner's progress file, from which a run that was stopped goes on.
"""

from pathlib import Path
from typing import Any

from agent_rl.envs.nat.factory.generate import is_held_out, split_of
from agent_rl.envs.nat.factory.planner.planner import PlannerSettings, plan_specs
from agent_rl.envs.nat.factory.user_requests import requests
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.errors import DataError

PROGRESS_FILE = "planner_progress.jsonl"
_REQUESTS_PER_SPEC = 3
"""How many of the library's requests may be spent on each spec that is wanted; the rest are refused or duplicates."""


def plan_task_sets(
    output_dir: Path,
    num_samples: int,
    seed: int,
    requests_file: Path | None,
    settings: dict[str, Any],
) -> dict[str, list[NATSpec]]:
    """train, val and test_generalisation, those that are not empty: `num_samples` specs in all, if requests last.

    `settings` are those of `PlannerSettings` that differ from its defaults.
    """
    texts = _read(requests_file) if requests_file else requests(_REQUESTS_PER_SPEC * num_samples, seed)
    specs = plan_specs(
        texts,
        count=num_samples,
        seed=seed,
        settings=PlannerSettings(**settings),
        progress_path=output_dir / PROGRESS_FILE,
        report=lambda text: print(text, flush=True),
    )
    sets: dict[str, list[NATSpec]] = {"train": [], "val": [], "test_generalisation": []}
    for spec in specs:
        sets[_set_of(spec)].append(spec)
    if missing := [name for name in ("train", "val") if not sets[name]]:
        print(f"planner: no spec belongs to {' or '.join(missing)}, which training needs; plan more of them")
    return {name: chosen for name, chosen in sets.items() if chosen}


def _set_of(spec: NATSpec) -> str:
    if is_held_out(spec):
        return "test_generalisation"
    return "val" if split_of(spec.fingerprint) == "val" else "train"


def _read(path: Path) -> list[str]:
    """One request a line; blank lines do not count."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: the requests cannot be read ({error}); give a UTF-8 text, one request a line"
        ) from None
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise DataError(f"{path}: the file holds no request; write one request a line")
    return texts
