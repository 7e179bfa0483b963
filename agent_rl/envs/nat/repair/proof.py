"""Prove a task that begins with files: what is there fails the hidden check, and a tool shows that something is wrong.

A fault is shown when `nat_check` or `pytest_run` says so: it does not build, the example of the request comes out
otherwise, the server does not answer as requested, a test fails. Neither tool knows a hidden case. That the reference
passes is the business of `agent-rl check-data`.
"""

from dataclasses import dataclass

from agent_rl.envs.nat.judge.checker import check_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.repair.task import NATTask
from agent_rl.envs.nat.visible import visible_checks

_SAID_BY = {"nat_check": ("built", "example", "served"), "pytest_run": ("tests",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found for one task."""

    fails: bool
    """The files that are there are no success under the hidden check."""
    shown_by: tuple[str, ...]
    """Tools whose reply says that something is wrong."""

    @property
    def holds(self) -> bool:
        return self.fails and bool(self.shown_by)


def prove(toolkit: NatToolkit, task: NATTask, *, seed: int) -> Proof:
    """Run the tools, then the hidden check, which is left out where no tool shows anything. SandboxError when the
    sandbox fails."""
    passed = visible_checks(toolkit, task.spec, task.start_files).passed
    shown_by = tuple(tool for tool, names in _SAID_BY.items() if not all(passed[name] for name in names))
    if not shown_by:
        return Proof(fails=False, shown_by=())
    return Proof(fails=not check_project(toolkit, task.spec, task.start_files, seed=seed).complete, shown_by=shown_by)
