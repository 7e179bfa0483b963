"""A finished or running evaluation: its folder, its settings, and what is written in the end.

`settings.json  environment.json  episodes.jsonl  report.json  report.csv  report.html  plots/*.png`. Episodes are
appended chunk by chunk, so that a stopped evaluation continues where it was. Not here: running episodes
(`core/evaluation.py`), figures (`summary.py`), plots (`plots.py`), markup (`templates/`).
"""

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from agent_rl.config import Config, DataConfig, load_config
from agent_rl.core.run.lock import RunLock
from agent_rl.data.tasks import Task
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.failure_modes import FailureModes
from agent_rl.envs.registry import DOMAINS
from agent_rl.errors import ConfigError, DataError, UserError
from agent_rl.redacted import redacted
from agent_rl.reports import summary
from agent_rl.reports.episodes import GENERAL, Episode, read_episode_lines, to_episodes
from agent_rl.reports.page import render, transcripts
from agent_rl.reports.plots import evaluation_plots, save_png, svg_uri
from agent_rl.telemetry.files import write_json, write_text
from agent_rl.telemetry.trajectory_json import json_line, write_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from agent_rl.core.checkpoint_policy import PolicySource

FORMAT = 1
Settings = dict[str, Any]
"""`format`; `model`, what is evaluated; `protocol`, how; comparable evaluations have equal protocols."""
_METHODS = {
    "McNemar": "Success is compared by McNemar's exact test and Newcombe's interval for pairs",
    "sign-flip": "Success is compared by an exact sign-flip test and Student's t, both over tasks",
}
"""By `PairedChange.method`."""
_COLUMNS = (
    "task_id", "sample", "family", "level", "difficulty", "success", "reward", "stop_reason", "failure_mode",
    "num_turns", "num_tokens", "duration_s", "flags", "error",
)  # fmt: skip
_OF_A_RUN = ("config.yaml", "metrics.jsonl", "checkpoints")
"""Any of these marks the folder of a training run."""


# Settings


def make_settings(
    model: "PolicySource",
    factory: EnvFactory,
    *,
    tasks: Sequence[Task],
    samples: int,
    temperature: float,
    served: bool = False,
) -> Settings:
    """The settings of an evaluation of `tasks`, as they come back from a file; `served`: with what servers have.

    Addresses are shown as `redacted` shows them. DataError for a file that cannot be read.
    """
    config = model.config
    protocol = {
        "tasks_sha256": _digest_of_tasks(config.data, tasks),
        "num_tasks": len(tasks),
        "samples": samples,
        "temperature": temperature,
        **episode_settings(config, factory),
    }
    evaluated = {
        "name": f"{model.name} ({factory.control})" if factory.control else model.name,
        "sha256": model.digest(),
        "base_sha256": model.base_digest(),
        "path": config.model.path,
        "policy": config.policy.type,
        "dtype": config.model.dtype,
        "lora_rank": config.model.lora.rank,
        **({"load_in_4bit": True} if config.model.load_in_4bit else {}),
        **({"weights": "as vllm.servers had them"} if served else {}),
        "tasks": factory.task_source(config.data, "eval"),
    }
    return json.loads(json.dumps({"format": FORMAT, "model": evaluated, "protocol": protocol}, default=str))


def episode_settings(config: Config, factory: EnvFactory) -> dict[str, Any]:
    """The settings that decide how episodes run and are scored, as plain JSON values."""
    options = factory.compared_options(config.env.options)
    tools = config.tools.model_dump(mode="json")
    found = {
        "seed": config.run.seed,
        "env": DOMAINS.get(config.env.name, config.env.name),
        "env_options": redacted(options),
        "tools": redacted(tools),
        "agent": config.agent.model_dump(mode="json"),
        "max_new_tokens": config.policy.max_new_tokens,
        "max_context": config.policy.max_context,
        "max_turns": config.rollout.max_turns,
        "max_tool_calls": config.rollout.max_tool_calls,
        "max_invalid_turns": config.rollout.max_invalid_turns,
        "episode_timeout_s": config.rollout.episode_timeout_s,
    }
    if (redacted(options), redacted(tools)) != (options, tools):  # compared all the same
        text = json.dumps([options, tools], sort_keys=True, default=str)
        found["not_shown_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    if "search" in config.tools.use and (corpus := config.tools.search.corpus_path) is not None:
        found["corpus_sha256"] = _digest_of(corpus)
    return json.loads(json.dumps(found, default=str))


def _digest_of_tasks(data: DataConfig, tasks: Sequence[Task]) -> str:
    """Of the file, or of the tasks where they are not just its rows."""
    if isinstance(data.eval_path, Path) and data.eval_path.is_file() and not data.columns:
        return _digest_of(data.eval_path)
    return hashlib.sha256(json.dumps(tasks, sort_keys=True, default=str).encode()).hexdigest()


def _digest_of(path: Path) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); correct the path") from None


def difference_from_run(model: "PolicySource", factory: EnvFactory) -> str | None:
    """The first of `episode_settings` that differs from the run that made the model; None if none is known to."""
    if model.run_config_file is None:
        return None
    try:
        own = episode_settings(load_config(model.run_config_file, []), factory)
    except UserError:  # of another version, or with paths of another machine
        return None
    return difference(own, episode_settings(model.config, factory))


def check_comparable(settings: Settings, other: Settings, where: str) -> None:
    """DataError unless both evaluations have the same protocol; `where` names the other."""
    if (found := difference(other["protocol"], settings["protocol"])) is not None:
        raise DataError(
            f"{where} was evaluated with other settings ({found}), so that the difference would not be the model's; "
            "evaluate both alike"
        )


def difference(earlier: Any, now: Any, key: str = "") -> str | None:
    """The first value that differs, as `protocol.samples: 1 there, 4 here`; None when all are equal."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        names = [*earlier, *(name for name in now if name not in earlier)]
        inner = (difference(earlier.get(name), now.get(name), f"{key}.{name}" if key else name) for name in names)
        return next((found for found in inner if found is not None), None)
    return None if earlier == now else f"{key}: {earlier!r:.60} there, {now!r:.60} here"


# Files


@dataclass(frozen=True, slots=True)
class EvaluationFolder:
    """`EvaluationFolder(Path("runs/eval"))`."""

    path: Path

    @property
    def settings_file(self) -> Path:
        return self.path / "settings.json"

    @property
    def episodes_file(self) -> Path:
        return self.path / "episodes.jsonl"

    def check_place(self) -> None:
        """ConfigError for the folder of a run."""
        if any((self.path / name).exists() for name in _OF_A_RUN):
            raise ConfigError(f"{self.path} is the folder of a run; name another --output-dir")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other evaluations out of the folder. ConfigError while one of them is in it."""
        lock = RunLock(self.path, holder="an evaluation", remedy="name another --output-dir")
        lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def check(self, settings: Settings) -> list[dict[str, Any]]:
        """The saved records of an evaluation with `settings`; nothing is written.

        ConfigError for the folder of a run or of another evaluation; DataError for damaged files.
        """
        self.check_place()
        records = read_episode_lines(self.episodes_file)
        if records and (other := difference(self.settings(), settings)) is not None:
            raise ConfigError(
                f"{self.path} holds an evaluation with other settings ({other}); name another --output-dir, or remove "
                "this one"
            )
        return records

    def begin(self, settings: Settings) -> list[dict[str, Any]]:
        """Start with `settings`, or continue; the records of the tasks that are complete.

        Raises as `check`, and DataError when nothing can be written. A task with missing episodes, or with episodes
        that were not scored because their environment failed, is removed from the file, to be evaluated again.
        """
        records = self.check(settings)
        self.save("settings.json", write_json, settings)
        scored = Counter(record.get("task_id") for record in records if record.get("reward") is not None)
        complete = [record for record in records if scored[record.get("task_id")] == settings["protocol"]["samples"]]
        self.save("episodes.jsonl", write_lines, complete)
        return complete

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add episodes, on disk when this returns. DataError when they cannot be written, as on a full disk."""
        self.save("episodes.jsonl", _append_lines, records)

    def save(self, name: str, write: Callable[[Path, Any], None], content: Any) -> None:
        """`write` a file of the folder. DataError when that fails."""
        path = self.path / name
        try:
            write(path, content)
        except OSError as error:
            raise DataError(
                f"{path} cannot be written ({error.strerror}); make room, then start the same command again"
            ) from None

    def settings(self) -> Settings:
        """DataError when this is no evaluation's folder."""
        try:
            settings = json.loads(self.settings_file.read_text(encoding="utf-8"))
            if settings["format"] == FORMAT and isinstance(settings["protocol"], dict):
                return settings
        except FileNotFoundError:
            raise DataError(f"{self.path} is no evaluation: it has no settings.json; name an --output-dir") from None
        except (OSError, ValueError, KeyError, TypeError):
            pass
        raise DataError(f"{self.settings_file} cannot be read by this version; evaluate again in another folder")

    def episodes(self, failures: FailureModes = GENERAL) -> list[Episode]:
        """All episodes of a finished evaluation. DataError when some are missing."""
        protocol = self.settings()["protocol"]
        episodes = to_episodes(read_episode_lines(self.episodes_file), f"{self.episodes_file}:", failures)
        wanted = protocol["num_tasks"] * protocol["samples"]
        if len(episodes) != wanted:
            raise DataError(f"{self.path} has {len(episodes)} of {wanted} episodes; let that evaluation end first")
        return episodes

    def environment(self) -> dict[str, Any]:
        """Machine, versions and isolation, which are not compared; empty without that file."""
        try:
            found = json.loads((self.path / "environment.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_page(self, page: str, plots: Mapping[str, tuple["Figure", str]], *, file: str = "report.html") -> None:
        """The page as `file`, and each plot as `plots/NAME.png`. DataError when they cannot be written."""
        self.save(file, write_text, page)
        for name, (figure, _) in plots.items():
            self.save(f"plots/{name}.png", save_png, figure)


def _append_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    with path.open("ab") as file:
        file.writelines(map(json_line, records))


def as_csv(episodes: Sequence[Episode]) -> str:
    """One row per episode; parts of the reward have columns of their own, `part:NAME`."""
    parts = sorted({name for episode in episodes for name in episode.reward_parts if name != "success"})
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow([*_COLUMNS, *(f"part:{name}" for name in parts)])
    for episode in episodes:
        made = {"success": int(episode.is_success) if episode.is_scored else None, "flags": " ".join(episode.flags)}
        row = [made[name] if name in made else getattr(episode, name) for name in _COLUMNS]
        writer.writerow([*row, *(episode.reward_parts.get(name) for name in parts)])
    return held.getvalue()


# The report


def write_report(
    folder: EvaluationFolder,
    episodes: Sequence[Episode],
    factory: EnvFactory,
    *,
    baseline: EvaluationFolder | None = None,
    name: str | None = None,
    is_printed: bool = True,
) -> dict[str, Any]:
    """Write everything beside the episodes and print the tables; returns the content of `report.json`.

    That is `format`; `settings` as in settings.json, `environment` as in environment.json; `summary` as
    `summary.summarize` makes it; `baseline_name`, `baseline` (its summary) and `comparison` (`summary.compare`), null
    without one. `baseline` is a finished evaluation, `name` its name for readers. DataError when its tasks are others,
    or when something cannot be written.
    """
    failures, weights = FailureModes(factory.failure_rules), factory.part_weights()
    others = baseline.episodes(failures) if baseline else None
    report = {
        "format": FORMAT,
        "settings": folder.settings(),
        "environment": folder.environment(),
        "summary": summary.summarize(episodes, part_weights=weights),
        "baseline_name": name,
        "baseline": summary.summarize(others, part_weights=weights) if others else None,
        "comparison": summary.compare(others, episodes, str(name)) if others else None,
    }
    folder.save("report.json", write_json, report)
    folder.save("report.csv", write_text, as_csv(episodes))
    plots = evaluation_plots(report["summary"], report["baseline"], episodes)
    folder.write_page(evaluation_page(report, episodes, plots, failures.meanings), plots)
    if is_printed:
        _print(report)
        Console().print(f"Report: {folder.path / 'report.html'}", highlight=False, soft_wrap=True, markup=False)
    return report


def _print(report: dict[str, Any]) -> None:
    figures, protocol, baseline = report["summary"], report["settings"]["protocol"], report["baseline"]
    console = Console()
    console.print(summary.group_table(figures, baseline))
    if summary.pass_rows(figures):
        console.print(summary.pass_table(figures))
    console.print(summary.figure_table(figures, baseline))
    success, samples = figures["success"], protocol["samples"]
    lines = [
        f"Solved {summary.percent(success)} % of {success['num_tasks']} tasks, {samples} episode{'s' * (samples > 1)} "
        f"each, temperature {protocol['temperature']:g}.",
        *summary.dropped(figures, baseline),
    ]
    if served := report["environment"].get("weights"):
        lines.append(served)
    if report["comparison"]:
        lines.append(f"Against {report['baseline_name']}: {report['comparison']['sentence']}")
    for line in lines:
        console.print(line, highlight=False, markup=False)


def evaluation_page(
    report: Mapping[str, Any],
    episodes: Sequence[Episode],
    plots: Mapping[str, tuple["Figure", str]],
    meanings: Mapping[str, str],
) -> str:
    """The page of what `write_report` makes; `meanings` explains failure modes."""
    figures, baseline, comparison = report["summary"], report["baseline"], report["comparison"]
    columns = ["baseline"] if baseline else []
    sections = dict(summary.figure_rows(figures, baseline))
    modes = sections.pop(summary.FAILURE_MODES, [])
    success = []
    for name, ours, other in summary.group_rows(figures, baseline):
        before = [summary.percent(other) if other else ""] if baseline else []
        success.append((name, ours["num_tasks"], ours["num_episodes"], *before, summary.percent(ours)))
    ks = list(figures["pass_at_k"])
    pass_rates = [
        (name, *(summary.percent(by_k[k]) if k in by_k else "" for k in ks))
        for name, by_k in summary.pass_rows(figures)
    ]
    shown, num_left_out = transcripts(episodes)
    return render(
        "evaluation.html",
        title=f"Evaluation of {report['settings']['model']['name']}",
        **report["settings"],
        environment=report.get("environment"),
        solved=summary.percent(figures["success"]),
        dropped=summary.dropped(figures, baseline),
        comparison=comparison,
        baseline_name=report["baseline_name"],
        method=_METHODS[comparison["method"]] if comparison else None,
        success=(["", "tasks", "episodes", *(f"{name} %" for name in columns), "solved %"], success),
        failures=(
            ["mode", "meaning", *columns, "episodes"],
            [(name, meanings.get(name, ""), *counts) for name, *counts in modes],
            2,
        ),
        pass_rates=(["", *(f"pass@{k} %" for k in ks)], pass_rates),
        figure_headers=["", "baseline", "this model"] if baseline else ["", ""],
        figures=sections.items(),
        plots={name: (svg_uri(figure), caption) for name, (figure, caption) in plots.items()},
        transcripts=shown,
        num_left_out=num_left_out,
    )
