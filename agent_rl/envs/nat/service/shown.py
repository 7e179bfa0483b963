"""A job as clients see it, in plain JSON. Not here: the fields of requests (`requests.py`), HTTP."""

from collections.abc import Mapping
from typing import Any

from agent_rl.envs.nat.service.records import WITH_PROJECT, AgentJob

TITLES = {
    "refused": "Refused",
    "rejected": "No project passed",
    "failed": "The service failed",
    "cancelled": "Cancelled",
    "expired": "Too late",
}


def shown_plan(spec: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a plan says, from its row."""
    if spec is None:
        return None
    return {
        "family": spec["family"],
        "level": spec["level"],
        "package": spec["package"],
        "structure": spec["plan"]["scaffold_type"],
        "request": spec["request"],
        "tools": [
            {
                "name": tool["instance"],
                "family": tool["family"],
                "inputs": {each["name"]: each["type"] for each in tool["inputs"]},
            }
            for tool in spec["tools"]
        ],
        "test_cases": spec["plan"]["test_cases"],
    }


def links(job: AgentJob) -> dict[str, str]:
    """Addresses of what there is of a job."""
    here = f"/v1/agents/{job.id}"
    found = {"self": here, "events": f"{here}/events"}
    if job.state in WITH_PROJECT:
        found |= {"project": f"{here}/project.zip", "files": f"{here}/files/", "feedback": f"{here}/feedback"}
        if job.result.get("wheel"):
            found["package"] = f"{here}/package.whl"
    return found


def brief(job: AgentJob) -> dict[str, Any]:
    """For lists, and for the answer to a request."""
    about = {"id": job.id, "state": job.state, "request": job.request, "created_at": job.created_at}
    return {**about, "ended_at": job.ended_at, "links": links(job)}


def whole(job: AgentJob) -> dict[str, Any]:
    """All of it but the files."""
    result = job.result
    error = {"title": TITLES[job.state], "detail": job.reason} if job.state in TITLES else None
    return {
        **brief(job),
        "seed": job.seed,
        "deadline_s": job.deadline_s,
        "attempts": job.attempts,
        "planner": job.planner,
        "plan": shown_plan(job.spec),
        "candidates": result.get("candidates", []),
        "chosen": result.get("chosen"),
        "report": result.get("report"),
        "error": error,
        "model": dict(job.model),
        "provenance": result.get("provenance"),
        "timings": dict(job.timings),
        "files": result.get("files", {}),
    }
