"""The terminal output of a training run: a live bar on a terminal, one printed line per step anywhere else.

The loop calls the same methods either way. Nothing is stored here (`metrics.py`).
"""

from collections import deque
from collections.abc import Mapping
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

    Live when `enabled` and standard output is a terminal, plain lines otherwise. `num_steps_done` are the steps of an
    earlier run that this one continues.
    """

    def __init__(
        self, total_steps: int, *, enabled: bool = True, num_steps_done: int = 0, console: Console | None = None
    ) -> None:
        console = console or Console()
        self._total_steps = total_steps
        self._latest_s: deque[float] = deque(maxlen=10)
        # On a narrow terminal the numbers go on in a second line; nothing is cut off.
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[status]}", table_column=Column(overflow="fold")),
            console=console,
            disable=not (enabled and console.is_terminal),
        )
        self._task = self._bar.add_task("train", total=total_steps, completed=num_steps_done, status="")

    def __enter__(self) -> "TrainingProgress":
        self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._bar.stop()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show that `step` steps are done (the first step is 1). The ETA is the mean of the latest `time/step_s`."""
        shown = [text.format(metrics[key]) for key, text in _SHOWN if key in metrics]
        if "perf/tokens_per_s" in metrics:
            shown.append(f"{_short(metrics['perf/tokens_per_s'])} tok/s")
        if "time/step_s" in metrics:
            self._latest_s.append(metrics["time/step_s"])
            shown.append(f"ETA {_clock(fmean(self._latest_s) * (self._total_steps - step))}")
        status = "  ".join(shown)
        if self._bar.disable:
            print(f"step {step}/{self._total_steps}  {status}", flush=True)
        else:
            self._bar.update(self._task, completed=step, status=status)

    def message(self, text: str) -> None:
        """Print a line without disturbing the bar."""
        if self._bar.disable:
            print(text, flush=True)
        else:
            self._bar.console.print(text, markup=False, highlight=False)


def _short(number: float) -> str:
    """Three to four digits: 9876, 12k, 3.4M."""
    if number >= 1e6:
        return f"{number / 1e6:.1f}M"
    return f"{number / 1e3:.0f}k" if number >= 1e4 else f"{number:.0f}"


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds: 31:04:09."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
