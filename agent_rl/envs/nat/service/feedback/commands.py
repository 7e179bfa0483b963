"""`agent-rl feedback export`: task files of what users said of their agents, for a person to review before training.

Reads the store of a service, which may be running. What is written: task files by set, `evidence.jsonl`,
`planner_disputes.jsonl`, `wanted.jsonl` and `summary.json`. Nothing is trained.
"""

import json
import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_rl.data.tasks import write_tasks
from agent_rl.envs.nat.service.schema import open_to_read
from agent_rl.errors import ConfigError, UserError
from agent_rl.telemetry.files import make_folder, write_json, write_text

if TYPE_CHECKING:
    from agent_rl.envs.nat.service.feedback.export import FeedbackExport, JobFeedback

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SQL = """
SELECT f.job_id, f.key_name, f.verdict, f.comment, f.cases, f.created_at,
    j.request, j.spec, j.state, j.reason, j.planner
FROM feedback f JOIN jobs j ON j.id = f.job_id WHERE f.consent = 1 ORDER BY f.created_at, f.job_id, f.key_name
"""

app = typer.Typer(no_args_is_help=True, help="What users say of the agents that a service made for them.")


class VerdictChoice(StrEnum):
    """What a user may say."""

    WORKS = "works"
    FAILS = "fails"
    PARTLY = "partly"


@app.callback()
def feedback() -> None:
    """What users say of the agents that a service made for them."""


@app.command("export", help="Write task files, disputes and wishes from the feedback of users who agreed.")
def export_command(
    store: Annotated[Path, typer.Option(help="Folder of service.store; its service may be running.")],
    output_dir: Annotated[Path, typer.Option(help="Folder of the files, which must not exist or be empty.")],
    since: Annotated[str | None, typer.Option(help="Only feedback from this day on, such as 2026-11-01 (UTC).")] = None,
    verdict: Annotated[list[VerdictChoice] | None, typer.Option(help="Only this verdict; may be repeated.")] = None,
    min_age: Annotated[
        str, typer.Option(help="Only feedback that is older: 30m, 12h, 1d. Until then a user may change it.")
    ] = "1d",
    max_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Most tasks of one key, as a share of all; 1 where all are yours.")
    ] = 0.2,
    terse: Annotated[
        bool, typer.Option("--terse", help="Requests in the wording of the shipped small model's tasks.")
    ] = False,
) -> None:
    """Read the store, divide, write."""
    from agent_rl.envs.nat.service.feedback.export import export

    newest = time.time() - _age(min_age)
    oldest = _day(since) if since else 0.0
    chosen = {each.value for each in verdict or VerdictChoice}
    given, refused = _read(store)
    used = [each for each in given if oldest <= each.created_at <= newest and each.verdict in chosen]
    found = export(used, refused, max_share=max_share, terse=terse)
    _check_not_empty(found, max_share, len({each.key_name for each in used}))
    _write(found, output_dir)
    for name, count in {"left_out": len(given) - len(used), **found.counts}.items():
        print(f"{name.replace('_', ' ')}: {count}")
    sizes = ", ".join(f"{name} {len(specs)}" for name, specs in found.sets.items())
    print(f"tasks by set: {sizes}; written to {output_dir}")


def _age(text: str) -> float:
    """Seconds."""
    match = re.fullmatch(r"(\d{1,6})([smhd])", text) or re.fullmatch(r"(0)()", text)
    if match is None:
        raise ConfigError(f"--min-age is {text!r}; give a number with s, m, h or d, such as 12h")
    return int(match[1]) * _SECONDS.get(match[2], 1)


def _day(text: str) -> float:
    """UNIX seconds."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ConfigError(f"--since is {text!r}; give a day such as 2026-11-01") from None


def _read(store: Path) -> tuple[list["JobFeedback"], list[str]]:
    """Feedback with consent, the oldest first, and the reasons of refused jobs. DataError where there is no store."""
    with closing(open_to_read(store)) as db:
        rows = [_feedback(row) for row in db.execute(_SQL)]
        return rows, [row["reason"] for row in db.execute("SELECT reason FROM jobs WHERE state = 'refused'")]


def _feedback(row: sqlite3.Row) -> "JobFeedback":
    from agent_rl.envs.nat.service.feedback.export import JobFeedback

    values: dict[str, Any] = dict(row)
    values["cases"] = json.loads(values["cases"])
    values["spec"] = json.loads(values["spec"]) if values["spec"] else None
    return JobFeedback(**values)


def _check_not_empty(found: "FeedbackExport", max_share: float, num_keys: int) -> None:
    if not found.counts["tasks"] and found.counts["over_share"]:
        raise UserError(
            f"the feedback is of {num_keys} keys, and none may have more than {max_share:g} of the tasks; give a "
            "larger --max-share, 1 where all keys are yours"
        )
    if not any((found.counts["tasks"], found.disputes, found.wanted)):
        raise UserError("there is nothing to export: no feedback with consent fits --since, --verdict and --min-age")


def _write(found: "FeedbackExport", folder: Path) -> None:
    make_folder(folder, "--output-dir")
    if any(folder.iterdir()):
        raise ConfigError(f"--output-dir is {folder}, which is not empty; name another folder")
    for name, specs in found.sets.items():
        if specs:
            write_tasks(folder / f"{name}.jsonl", [spec.model_dump(mode="json") for spec in specs])
    lists = {"evidence": found.evidence, "planner_disputes": found.disputes, "wanted": found.wanted}
    for name, rows in lists.items():
        _write_lines(folder / f"{name}.jsonl", rows)
    write_json(folder / "summary.json", found.counts)


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        write_text(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
