"""Run what a policy wrote, and judge it where it cannot forge the verdict."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_rl.sandbox.graders import CallGrader as CallGrader
    from agent_rl.sandbox.graders import Case as Case
    from agent_rl.sandbox.graders import SplitPytestGrader as SplitPytestGrader
    from agent_rl.sandbox.limits import Capability as Capability
    from agent_rl.sandbox.limits import Limits as Limits
    from agent_rl.sandbox.limits import RunResult as RunResult
    from agent_rl.sandbox.limits import Status as Status
    from agent_rl.sandbox.mutation import MutationGrader as MutationGrader
    from agent_rl.sandbox.sandbox import Sandbox as Sandbox
    from agent_rl.sandbox.session import Session as Session
    from agent_rl.sandbox.session import SessionEnded as SessionEnded
    from agent_rl.sandbox.verdict import Verdict as Verdict
    from agent_rl.sandbox.workspace import Workspace as Workspace
    from agent_rl.sandbox.workspace import WorkspaceError as WorkspaceError

_MODULES = {
    "graders": ("CallGrader", "Case", "SplitPytestGrader"),
    "limits": ("Capability", "Limits", "RunResult", "Status"),
    "mutation": ("MutationGrader",),
    "sandbox": ("Sandbox",),
    "session": ("Session", "SessionEnded"),
    "verdict": ("Verdict",),
    "workspace": ("Workspace", "WorkspaceError"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:  # on first use: the fork servers import this package too, and need none of it
    if name not in _HOMES:
        raise AttributeError(f"module 'agent_rl.sandbox' has no attribute {name!r}")
    return getattr(importlib.import_module(f"agent_rl.sandbox.{_HOMES[name]}"), name)
