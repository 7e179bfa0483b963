"""Run what a policy wrote, and judge it where it cannot forge the verdict."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_rl.sandbox.graders import (
        CallGrader,
        Case,
        MutationGrader,
        SplitPytestGrader,
        StdioCase,
        StdioGrader,
        Verdict,
    )
    from agent_rl.sandbox.limits import Capability, Limits, RunResult, Status
    from agent_rl.sandbox.sandbox import Sandbox
    from agent_rl.sandbox.session import Session, SessionEnded
    from agent_rl.sandbox.workspace import Workspace, WorkspaceError

_MODULES = {
    "graders": ("CallGrader", "Case", "MutationGrader", "SplitPytestGrader", "StdioCase", "StdioGrader", "Verdict"),
    "limits": ("Capability", "Limits", "RunResult", "Status"),
    "sandbox": ("Sandbox",),
    "session": ("Session", "SessionEnded"),
    "workspace": ("Workspace", "WorkspaceError"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "CallGrader",
    "Capability",
    "Case",
    "Limits",
    "MutationGrader",
    "RunResult",
    "Sandbox",
    "Session",
    "SessionEnded",
    "SplitPytestGrader",
    "Status",
    "StdioCase",
    "StdioGrader",
    "Verdict",
    "Workspace",
    "WorkspaceError",
]


def __getattr__(name: str) -> Any:  # on first use: the fork servers import this package too, and need none of it
    if name not in _HOMES:
        raise AttributeError(f"module 'agent_rl.sandbox' has no attribute {name!r}")
    return getattr(importlib.import_module(f"agent_rl.sandbox.{_HOMES[name]}"), name)
