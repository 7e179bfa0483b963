"""The terminal output of a training run: a line per step everywhere, and on a terminal a live line below them.

The lines stay in the terminal's scroll-back; the live one shows what the run does now, how many of the episodes are
over, and the time that is left. The loop calls the same methods either way. Nothing is stored here (`metrics.py`).
"""

from collections import deque
from collections.abc import Callable, Mapping
from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

_SHOWN = (
    ("reward/mean", "reward {:.3f}"),
    ("success/mean", "success {:.0%}"),
    ("loss/policy", "loss {:+.3f}"),
    ("loss/kl", "KL {:.0e}"),
    ("policy/entropy", "H {:.3f}"),
    ("optim/learning_rate", "lr {:.1e}"),
)
"""Metrics shown, in order; one that a step does not have is left out. `H` is the entropy, in nats a token."""


class TrainingProgress:
    """Context manager around the loop: `with TrainingProgress(200) as progress: progress.step(1, metrics)`.

    The live line is shown when `enabled` and standard output is a terminal. `num_steps_done` are the steps of an
    earlier run that this one continues; `on_line` gets every line that is shown, the live one left out.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        enabled: bool = True,
        num_steps_done: int = 0,
        console: Console | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        console = console or Console()
        self._total_steps = total_steps
        self._on_line = on_line
        self._latest_s: deque[float] = deque(maxlen=10)
        self._evaluations_s: list[float] = []
        self._activity, self._eta = "", ""
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[status]}", table_column=Column(overflow="fold")),
            console=console,
            disable=not (enabled and console.is_terminal),
            transient=True,
        )
        self._task = self._bar.add_task("train", total=total_steps, completed=num_steps_done, status="")

    def __enter__(self) -> "TrainingProgress":
        self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._bar.stop()

    def step(self, step: int, metrics: Mapping[str, float], *, evaluations_left: int = 0) -> None:
        """Show that `step` steps are done (the first step is 1), and `evaluations_left` evaluations are to come.

        The ETA is the mean of the latest `time/step_s` for each step to come, and of the evaluations so far for each
        evaluation; `+ evaluations` behind it where none has been measured.
        """
        shown = [text.format(metrics[key]) for key, text in _SHOWN if key in metrics]
        if "perf/tokens_per_s" in metrics:
            shown.append(f"{_short(metrics['perf/tokens_per_s'])} tok/s")
        if "time/step_s" in metrics:
            self._latest_s.append(metrics["time/step_s"])
            seconds = fmean(self._latest_s) * (self._total_steps - step)
            if self._evaluations_s:
                seconds += fmean(self._evaluations_s) * evaluations_left
            is_unknown = evaluations_left and not self._evaluations_s
            self._eta = f"ETA {_clock(seconds)}{' + evaluations' if is_unknown else ''}"
            shown.append(self._eta)
        self._bar.update(self._task, completed=step)
        self.message(f"step {step}/{self._total_steps}  {'  '.join(shown)}")

    def evaluated(self, seconds: float) -> None:
        """An evaluation took so long; the ETA counts with it from the next step on."""
        self._evaluations_s.append(seconds)

    def activity(self, name: str) -> None:
        """Show on a terminal what is done from now on."""
        self._activity = name
        self._show(name)

    def tally(self, num_done: int, total: int, unit: str) -> None:
        """Show on a terminal how far that is; from any thread."""
        self._show(f"{self._activity} {num_done}/{total} {unit}".lstrip())

    def message(self, text: str) -> None:
        """Print a line, above the live one."""
        if self._bar.disable:
            print(text, flush=True)
        else:
            self._bar.console.print(text, markup=False, highlight=False)
        if self._on_line is not None:
            self._on_line(text)

    def _show(self, status: str) -> None:
        if not self._bar.disable:
            self._bar.update(self._task, status="  ".join(filter(None, [status, self._eta])))


def _short(number: float) -> str:
    """Three to four digits: 9876, 12k, 3.4M."""
    if number >= 1e6:
        return f"{number / 1e6:.1f}M"
    return f"{number / 1e3:.0f}k" if number >= 1e4 else f"{number:.0f}"


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds: 31:04:09."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
