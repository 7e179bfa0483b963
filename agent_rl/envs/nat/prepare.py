"""Write the NAT task files (train, val, test_generalisation), divided by what the agent does.

    python agent_rl/scripts/prepare_dataset.py --num-samples 1200 --seed 0 --output-dir dataset/nat_tasks

Writes train (90 %), val (10 %) and test_generalisation (another 10 %), each as .jsonl and .parquet, the same bytes for
the same seed. No fingerprint, and so no renamed copy, is in two files. `--source gemini` turns free requests into specs
with the google-genai planner instead (requirements-gemini.txt, GEMINI_API_KEY), `--source openai` with any
OpenAI-compatible endpoint (`--base-url`, `--planner-model`); both resume where they stopped.
"""

import itertools
import json
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agent_rl.data.tasks import read_tasks, write_tasks
from agent_rl.envs.demonstrations import to_conversation
from agent_rl.errors import ConfigError
from agent_rl.telemetry.files import make_folder, read_lines

if TYPE_CHECKING:
    from agent_rl.envs.nat.spec import NATSpec

PlannerModel = Annotated[
    str | None, typer.Option("--planner-model", "--gemini-model", help="planner: the model; openai needs one.")
]
BaseUrl = Annotated[
    str | None, typer.Option(help="planner: address of the service, such as http://127.0.0.1:8000/v1 for openai.")
]
KeyName = Annotated[
    str | None, typer.Option("--api-key-env", help="openai: environment variable with the key; OPENAI_API_KEY if set.")
]
MaxTools = Annotated[int | None, typer.Option(min=1, max=6, help="planner: most tools of an agent; 1 by default.")]
ExactSplit = Annotated[
    bool, typer.Option("--exact-split", help="planner: exactly a tenth of the specs in train and val is in val.")
]
RequestsPerMinute = Annotated[float | None, typer.Option(help="planner: rate limit; 60 by default.")]
PriceIn = Annotated[float | None, typer.Option(min=0.0, help="planner: price per million tokens read, for the cost.")]
Starter = Annotated[
    bool,
    typer.Option(
        help="Tasks for the shipped small model: its families and levels, without the fingerprints of the "
        "demonstrations it has seen, in requests that leave out what it has learned from them."
    ),
]
Wordings = Annotated[
    Literal["own", "any"],
    typer.Option(help="any: agents of one tool get requests in many wordings and, three of four, names of any words."),
]
PriceOut = Annotated[float | None, typer.Option(min=0.0, help="planner: the same for tokens written.")]


Kind = Annotated[
    Literal["create", "repair", "extend", "demonstrations"],
    typer.Option(
        help="create: projects written from nothing; repair: projects with a planted fault, of the families and "
        "levels of --starter, with test_faults of classes of faults that no other file has; extend: projects of "
        "two tools of which one is there. Both are proven with the toolkit. demonstrations: conversations of a "
        "teacher who repairs, recorded with the toolkit, for `agent-rl sft --recorded`."
    ),
]
Mistakes = Literal["edits", "faults", "misread"]
"""What demonstrations mend: edits among the planted faults, these alone, or what was read or copied wrong."""
Submissions = Annotated[
    Path | None,
    typer.Option(
        help="demonstrations: a folder that `agent-rl eval` wrote; a teacher mends the submissions in it that are not "
        "taken, instead of projects with planted faults."
    ),
]
Misread = Annotated[
    bool,
    typer.Option(
        help="demonstrations: a project whose writer read one rule of the request wrong, or copied a value wrong into "
        "the test, is submitted, and a teacher mends it by the example, instead of projects with planted faults."
    ),
]
Edits = Annotated[
    bool,
    typer.Option(
        help="demonstrations: small edits anywhere in the code among the planted faults, beside the named classes of "
        "faults that the tasks have too."
    ),
]
HiddenCases = Annotated[
    Literal["chosen", "sampled"],
    typer.Option(
        help="chosen: store inputs that tell the rules from wrong ones one step away, which takes one to four "
        "seconds of a core for each spec; sampled: leave them out, so all inputs are sampled when an episode ends."
    ),
]


def main(
    output_dir: Annotated[Path, typer.Option(help="Folder the files are written to.")],
    source: Annotated[
        Literal["offline", "gemini", "openai"], typer.Option(help="Where specs come from; the last two plan requests.")
    ] = "offline",
    num_samples: Annotated[int, typer.Option(min=10, help="Specs in train and val together.")] = 1200,
    seed: Annotated[int, typer.Option(help="Seed of the specs.")] = 0,
    families: Annotated[str | None, typer.Option(help="Only these task families, separated by commas.")] = None,
    levels: Annotated[str | None, typer.Option(help="Only these levels, such as 1,2.")] = None,
    starter: Starter = False,
    wordings: Wordings = "own",
    kind: Kind = "create",
    submissions: Submissions = None,
    misread: Misread = False,
    edits: Edits = True,
    hidden_cases: HiddenCases = "chosen",
    requests_file: Annotated[
        Path | None, typer.Option(help="planner: one request a line, instead of the built-in library.")
    ] = None,
    planner_model: PlannerModel = None,
    base_url: BaseUrl = None,
    api_key_env: KeyName = None,
    max_tools: MaxTools = None,
    exact_split: ExactSplit = False,
    requests_per_minute: RequestsPerMinute = None,
    price_in: PriceIn = None,
    price_out: PriceOut = None,
) -> None:
    start = time.monotonic()
    settings = _given(
        model=planner_model, base_url=base_url, key_name=api_key_env, max_tools=max_tools, price_in=price_in,
        price_out=price_out, requests_per_minute=requests_per_minute,
    )  # fmt: skip
    mistakes = _mistakes(misread, edits, has_others=kind != "demonstrations" or submissions is not None)
    if kind != "create":
        is_chosen = source != "offline" or families or levels or starter or wordings != "own"
        _refuse_beside_kind(kind, is_chosen, settings or requests_file or exact_split)
        made = (output_dir, num_samples, seed)
        num = _write_other_kind(kind, made, submissions, mistakes, has_telling=hidden_cases == "chosen")
        print(f"{num} rows in {time.monotonic() - start:.1f} s")
        return
    if source == "offline":
        if settings or requests_file or exact_split:
            raise ConfigError("options for a planner were given with --source offline; leave them out")
        make_folder(output_dir, "--output-dir")
        num_val = num_samples // 10
        chosen = families.split(",") if families else None
        sets = _offline(num_samples - num_val, num_val, seed, chosen, _levels(levels), starter)
    else:
        if families or levels or starter or wordings != "own":
            raise ConfigError("--families, --levels, --starter and --wordings are for --source offline; leave them out")
        from agent_rl.envs.nat.factory.planner.dataset import plan_task_sets

        settings["source"] = source
        sets = plan_task_sets(output_dir, num_samples, seed, requests_file, settings, exact_split=exact_split)
    if wordings == "any":
        sets = {name: [_in_any_words(spec, seed) for spec in specs] for name, specs in sets.items()}
    for name, specs in sets.items():
        write(output_dir, name, _telling(specs) if hidden_cases == "chosen" else specs)
    print(f"{sum(map(len, sets.values()))} specs in {time.monotonic() - start:.1f} s")


def _mistakes(misread: bool, edits: bool, *, has_others: bool) -> Mistakes:
    """`has_others`: tasks or submissions bring their own."""
    if misread and has_others:
        raise ConfigError("--misread is for --kind demonstrations without --submissions; leave it out")
    if not edits and (misread or has_others):
        raise ConfigError("--no-edits is for faults that --kind demonstrations plants; leave it out")
    return "misread" if misread else "edits" if edits else "faults"


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


# Imported as they are called, because every command of `agent-rl` imports this file for its help.


def _offline(*arguments: Any) -> dict[str, list["NATSpec"]]:
    from agent_rl.envs.nat.factory.task_sets import offline

    return offline(*arguments)


def _telling(specs: list["NATSpec"]) -> list["NATSpec"]:
    from agent_rl.envs.nat.factory.task_sets import with_telling_inputs

    return with_telling_inputs(specs)


def _in_any_words(spec: "NATSpec", seed: int) -> "NATSpec":
    from agent_rl.envs.nat.factory.requests.reword import in_any_words

    if len(spec.tools) != 1 or spec.workflow.kind != "direct":
        return spec
    return in_any_words(spec, random.Random(f"wordings-{seed}-{spec.task_id}"))


def _refuse_beside_kind(kind: str, choice: object, planning: object) -> None:
    if choice or planning:
        raise ConfigError(
            f"--kind {kind} makes its tasks offline and chooses families and levels itself; leave out --source, "
            "--families, --levels, --starter, --wordings and what is for a planner"
        )


def _episodes(kind: str, folder: Path | None) -> tuple[Path, Path] | None:
    """The episodes of an evaluation and their task file, if its folder was given."""
    if folder is None:
        return None
    if kind != "demonstrations":
        raise ConfigError(f"--submissions is for --kind demonstrations, and --kind is {kind}; leave it out")
    try:
        tasks = Path(json.loads((folder / "settings.json").read_bytes())["model"]["tasks"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"--submissions {folder}: give the --output-dir of an `agent-rl eval --tasks`") from None
    return folder / "episodes.jsonl", tasks


def _write_other_kind(
    kind: Literal["repair", "extend", "demonstrations"],
    made: tuple[Path, int, int],
    submissions: Path | None,
    mistakes: Mistakes,
    *,
    has_telling: bool,
) -> int:
    """Into a folder, so many, of a seed; how many rows there are."""
    episodes = _episodes(kind, submissions)
    make_folder(made[0], "--output-dir")
    if kind == "demonstrations":
        return write_demonstrations(*made, episodes, mistakes)
    return write_started(kind, *made, has_telling=has_telling)


def write_started(kind: Literal["repair", "extend"], folder: Path, num: int, seed: int, *, has_telling: bool) -> int:
    """Files of tasks that begin with files; how many rows there are."""
    from agent_rl.envs.nat.judge.toolkit import NatToolkit
    from agent_rl.envs.nat.repair.generate import started_sets

    with NatToolkit.open(processes=2) as toolkit:
        sets = started_sets(toolkit, kind, num - num // 10, num // 10, seed)
    for name, tasks in sets.items():
        specs = [task.spec for task in tasks]
        told = _telling(specs) if has_telling else specs
        rows = [replace(task, spec=spec).to_row() for task, spec in zip(tasks, told, strict=True)]
        write(folder, name, told, rows)
        faults = Counter(task.fault for task in tasks if task.fault)
        print(", ".join(f"{fault} {count}" for fault, count in faults.items()) or "no faults")
    return sum(map(len, sets.values()))


def write_demonstrations(
    folder: Path, num: int, seed: int, episodes: tuple[Path, Path] | None = None, mistakes: Mistakes = "edits"
) -> int:
    """demonstrations.jsonl, of mistakes made on purpose or of the submissions of a model; how many there are."""
    from agent_rl.envs.nat.env import NATEnvFactory, NATEnvOptions
    from agent_rl.envs.nat.repair.demonstrations import (
        REPAIR_TURNS,
        mended_submissions,
        misread_demonstrations,
        recorded_demonstrations,
    )
    from agent_rl.envs.nat.repair.faults import PRACTISED, SHOWN
    from agent_rl.envs.nat.repair.task import read_task

    with NATEnvFactory(NATEnvOptions(repair_turns=REPAIR_TURNS), seed) as factory:
        factory.start()
        if episodes:
            rows = read_tasks(episodes[1], factory.check_task)
            specs = {row["task_id"]: read_task(row, str(episodes[1])).spec for row in rows}
            made = mended_submissions(factory, specs, read_lines(episodes[0], dict, "an episode cannot be read"))
        elif mistakes == "misread":
            made = misread_demonstrations(factory, seed)
        else:
            made = recorded_demonstrations(factory, seed, PRACTISED if mistakes == "edits" else SHOWN)
        shown = list(itertools.islice(made, num))
    rows = [to_conversation(each, f"demonstration-{seed}-{number:06d}") for number, each in enumerate(shown)]
    write_tasks(folder / "demonstrations.jsonl", rows)
    return len(rows)


def _levels(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise ConfigError(f"--levels is {text!r}; give numbers from 1 to 5 separated by commas, such as 1,2")
    return [int(part) for part in text.split(",")]


def write(output_dir: Path, name: str, specs: list["NATSpec"], rows: list[dict[str, Any]] | None = None) -> None:
    """NAME.jsonl and NAME.parquet, and a line with what is in them; `rows` where they are more than the specs."""
    rows = [spec.model_dump(mode="json") for spec in specs] if rows is None else rows
    for suffix in (".jsonl", ".parquet"):
        write_tasks(output_dir / f"{name}{suffix}", rows)
    difficulty = Counter(spec.difficulty for spec in specs)
    families = Counter(spec.family for spec in specs)
    shares = ", ".join(f"{each} {difficulty[each]}" for each in ("easy", "medium", "hard") if difficulty[each])
    print(f"{output_dir / name}: {len(specs)} specs ({shares}); " + ", ".join(f"{k} {v}" for k, v in families.items()))
