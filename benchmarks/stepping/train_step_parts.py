"""What the programs of the training-step benchmark share: the workload, the reward, readings of time and memory.

Standard library only, because TRL's interpreter imports it too. Not here: any trainer, tables.
"""

import json
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What both trainers do; written by one program, read by the others."""

    name: str
    model: str
    """Folder with weights and tokenizer."""
    policy: str
    """Our `policy.type`."""
    prompts: list[str]
    """User messages, `num_prompts` for each step."""
    num_prompts: int
    group_size: int
    num_new: int
    """Tokens of every completion: none stops early."""
    longest_prompt: int
    """Tokens of the longest prompt with its chat template."""
    learning_rate: float = 1e-6

    @property
    def num_steps(self) -> int:
        return len(self.prompts) // self.num_prompts

    @property
    def num_episodes(self) -> int:
        """Of one step."""
        return self.num_prompts * self.group_size

    @property
    def num_drawn(self) -> int:
        """Tokens of one step."""
        return self.num_episodes * self.num_new

    @classmethod
    def read(cls, path: str | Path) -> "Workload":
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


@dataclass(kw_only=True)
class Readings:
    """What one run of a trainer showed."""

    libraries: int = 0
    """Resident bytes with all libraries loaded and no model."""
    weights: int = 0
    """Bytes of the model's weights."""
    peak: int = 0
    """Most resident bytes up to the end of the last update."""
    num_prompt_tokens: int = 0
    """Of all episodes of the run."""
    ends: list[float] = field(default_factory=list)
    """When each update was done, on a clock of its own; a whole step is from one to the next."""
    rollout_s: list[float] = field(default_factory=list)
    """Generation, rewards and advantages where they belong to it, for each step."""
    update_s: list[float] = field(default_factory=list)
    extra: dict[str, float] = field(default_factory=dict)

    def end_step(self) -> None:
        self.ends.append(time.perf_counter())
        self.peak = max(self.peak, peak_of_tree())

    @classmethod
    def read(cls, path: Path) -> "Readings":
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def write(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(asdict(self)), encoding="utf-8")


def share_of_vowels(text: str) -> float:
    """The reward: a number that differs between completions and costs nothing."""
    return sum(character in "aeiouAEIOU" for character in text) / max(1, len(text))


def require_lengths(lengths: Sequence[int], wanted: int) -> None:
    """Stop the run when a completion is not as long as all must be."""
    if any(length != wanted for length in lengths):
        raise SystemExit(f"completions of {min(lengths)} to {max(lengths)} tokens, expected {wanted} in each")


def cpu_seconds() -> tuple[float, float]:
    """CPU time that everybody has used since the machine started, and of it that of our ended child processes."""
    user, nice, system = map(int, Path("/proc/stat").read_text(encoding="ascii").split()[1:4])
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system) / os.sysconf("SC_CLK_TCK"), children.ru_utime + children.ru_stime


def reset_peak() -> None:
    """Begin `VmHWM` anew: how a file of weights is read is not what is compared."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def resident() -> int:
    """Bytes of this process that are resident now."""
    return _status_bytes(Path("/proc/self"), "VmRSS")


def peak_of_tree() -> int:
    """Peaks of this process and of those below it that are alive, in bytes, added up."""
    return sum(_status_bytes(process, "VmHWM") for process in _tree(Path("/proc/self")))


def _tree(process: Path) -> list[Path]:
    found = [process]
    for thread in process.glob("task/*/children"):
        for child in thread.read_text(encoding="ascii").split():
            found += _tree(Path("/proc") / child)
    return found


def _status_bytes(process: Path, name: str) -> int:
    lines = (process / "status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
