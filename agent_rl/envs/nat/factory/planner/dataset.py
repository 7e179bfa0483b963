"""Plan task files from free requests, for `prepare_dataset.py --source gemini` and `openai`.

Reads the requests, has them planned (`planner.py`), and divides the specs as the offline generator does. It
writes nothing but the planner's progress file, from which a run that was stopped goes on.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_rl.envs.nat.errors import PlannerError
from agent_rl.envs.nat.factory.generate import is_held_out, split_of
from agent_rl.envs.nat.factory.planner.planner import plan_specs
from agent_rl.envs.nat.factory.planner.progress import is_finished
from agent_rl.envs.nat.factory.planner.services import PlannerSettings, open_service
from agent_rl.envs.nat.factory.user_requests import requests
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.errors import DataError
from agent_rl.telemetry.files import make_folder, whole_lines

PROGRESS_FILE = "planner_progress.jsonl"
_REQUESTS_PER_SPEC = 3
"""How many of the library's requests may be spent on each spec that is wanted; the rest are refused or duplicates."""


def plan_task_sets(
    output_dir: Path,
    num_samples: int,
    seed: int,
    requests_file: Path | None,
    settings: dict[str, Any],
    *,
    exact_split: bool = False,
) -> dict[str, list[NATSpec]]:
    """train, val and test_generalisation, those that are not empty: `num_samples` specs in all, if requests last.

    `settings` are those of `PlannerSettings` that differ from its defaults. With `exact_split` a tenth of what is in
    train and val together is in val. The folder is made once the service is known to be usable, and a run that ends
    by an error before any request was planned leaves nothing of it behind.
    """
    texts = _read(requests_file) if requests_file else requests(_REQUESTS_PER_SPEC * num_samples, seed)
    chosen = PlannerSettings(**settings)
    service = open_service(chosen)
    is_new = not output_dir.exists()
    make_folder(output_dir, "--output-dir")
    progress = output_dir / PROGRESS_FILE
    try:
        specs = plan_specs(
            texts,
            count=num_samples,
            seed=seed,
            settings=chosen,
            progress_path=progress,
            report=lambda text: print(text, flush=True),
            generate=service,
        )
    except PlannerError as error:
        if is_new and not any(is_finished(line) for line in whole_lines(progress)):
            progress.unlink(missing_ok=True)
            with suppress(OSError):  # somebody else put something there meanwhile
                output_dir.rmdir()
            raise PlannerError(f"{error}; no request was planned, so {output_dir} was removed again") from None
        raise
    sets = divided(specs, exact=exact_split)
    if missing := [name for name in ("train", "val") if not sets[name]]:
        print(f"planner: no spec belongs to {' or '.join(missing)}, which training needs; plan more of them")
    return {name: chosen for name, chosen in sets.items() if chosen}


def divided(specs: Sequence[NATSpec], *, exact: bool) -> dict[str, list[NATSpec]]:
    """The specs by set, in their order.

    By fingerprint as the generator's, so that no planned task of `train` is in the generator's `val`. `exact` puts a
    tenth (rounded) of those that are not held out for generalisation into `val`: first those that belong there, then
    by the order of fingerprints, which may take a few of the generator's `train` or leave a few of its `val` over.
    """
    sets: dict[str, list[NATSpec]] = {"train": [], "val": [], "test_generalisation": []}
    usual = [spec for spec in specs if not is_held_out(spec)]
    val = {spec.fingerprint for spec in usual if split_of(spec.fingerprint) == "val"}
    if exact:
        order = sorted((spec.fingerprint not in val, spec.fingerprint) for spec in usual)
        val = {fingerprint for _, fingerprint in order[: (len(usual) + 5) // 10]}
    for spec in specs:
        name = "test_generalisation" if is_held_out(spec) else "val" if spec.fingerprint in val else "train"
        sets[name].append(spec)
    return sets


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
