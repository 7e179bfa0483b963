"""From a person's words to a plan, or to the reason why there is none.

Not here: how a plan is made (`factory/planner/`), whether the model can write it (`scope.py`).
"""

import time
from dataclasses import dataclass
from typing import Any

from agent_rl.envs.nat.factory.planner.client import Generate
from agent_rl.envs.nat.factory.planner.planner import plan_request
from agent_rl.envs.nat.factory.planner.services import PlannerSettings, open_service, paced
from agent_rl.envs.nat.factory.telling import with_telling
from agent_rl.envs.nat.spec import NATSpec

NO_PLANNER = (
    "there is no planner: set planner.source to gemini (with GEMINI_API_KEY) or to openai (with planner.base_url and "
    "planner.model), or give a plan with --spec"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What became of one request."""

    spec: NATSpec | None
    reason: str = ""
    """Why there is no plan."""
    seconds: float = 0.0
    about: dict[str, Any]
    """For the provenance: status (`failed` where the service did), service, model, tokens, how many of the service's
    own test cases were right."""


class RequestPlanner:
    """A planner service behind one door. Thread-safe."""

    def __init__(self, settings: PlannerSettings, *, generate: Generate | None = None) -> None:
        """`generate` replaces the service. PlannerError when an address, a model, a key or the SDK is missing."""
        self.settings = settings
        self._service = open_service(settings) if generate is None else generate
        self._generate = paced(self._service, settings)

    def plan(
        self, request: str, *, seed: int = 0, terse: bool = False, own_names: bool = True, with_cases: bool = True
    ) -> Planned:
        """The plan of a request; the same answers of the service give the same plan. `terse` and `own_names` are those
        of `plan_request`.

        `with_cases` stores inputs with it that tell its rules from wrong ones one step away, which takes a second or
        more for each tool and makes the verdict stricter.
        """
        start_s = time.monotonic()
        line = plan_request(
            request,
            index=0,
            task_id=f"{self.settings.source}-{seed}-000000",
            generate=self._generate,
            max_tools=self.settings.max_tools,
            terse=terse,
            own_names=own_names,
        )
        spec = with_telling(line.spec) if line.spec and with_cases else line.spec
        reason = "" if line.status == "made" else str(line.reason)
        if line.status == "failed":
            reason = f"the planner did not answer: {reason}"
        return Planned(
            spec=spec,
            reason=reason,
            seconds=round(time.monotonic() - start_s, 3),
            about={
                "status": line.status,
                "source": self.settings.source,
                "model": self.settings.model,
                "num_tokens_in": line.num_tokens_in,
                "num_tokens_out": line.num_tokens_out,
                "own_cases": [line.num_right_answers, line.num_answers],
                "took_schemas": getattr(self._service, "takes_schemas", True),
            },
        )
