"""From a request in a person's words to a judged project: plan, write, check, repair.

    with AgentCreator.open("configs/serve.yaml") as creator:
        creation = creator.create("Convert kilometres, miles and metres, two decimals")
        print(creation.state, creation.reason)

Not here: which projects are written (`attempt.py`), writing to disk (`package.py`), starting what was made
(`running.py`), HTTP.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import agent_rl
from agent_rl.agent.messages import Message
from agent_rl.closing import Closing
from agent_rl.config import validate_section
from agent_rl.envs.nat.create.attempt import CreationAttempt, Event, WrittenProject
from agent_rl.envs.nat.create.judging import ProjectJudge
from agent_rl.envs.nat.create.planning import NO_PLANNER, Planned, RequestPlanner
from agent_rl.envs.nat.create.result import Creation
from agent_rl.envs.nat.create.scope import Scope, bad_request, cannot_be_judged
from agent_rl.envs.nat.create.settings import CreationConfig, ServeConfig, as_serve_config
from agent_rl.envs.nat.create.writing import Deadline, Stops
from agent_rl.envs.nat.factory.planner.client import Generate
from agent_rl.envs.nat.factory.user_test_cases import UserTestCase
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.policies.model_files.trained_for import TrainedFor, read_trained_for
from agent_rl.policies.model_source import ModelSource
from agent_rl.policies.policy import BasePolicy
from agent_rl.policies.served_policy import open_served_policy
from agent_rl.records import SamplingParams


class AgentCreator(Closing):
    """A model, the checks and a planner, for any number of requests, from many threads at once. `close` frees all."""

    def __init__(
        self,
        config: ServeConfig,
        *,
        policy: BasePolicy,
        toolkit: NatToolkit,
        planner: RequestPlanner | None,
        model: Mapping[str, Any],
        trained_for: TrainedFor | None = None,
    ) -> None:
        """`AgentCreator.open` makes all of these; `model` describes the weights, for provenance."""
        self.config = config
        self.scope = Scope.of(config.writes, trained_for, model["name"])
        """What the model is asked for."""
        self.toolkit = toolkit
        self._policy = policy
        self._planner = planner
        self._model = dict(model)
        self._opened = ExitStack()

    @classmethod
    def open(
        cls,
        config: ServeConfig | str | Path | Mapping[str, Any],
        *,
        checkpoint: str | None = None,
        planner: Generate | None = None,
    ) -> "AgentCreator":
        """Load the model and start the checks. `checkpoint` names another model than `model.path`; `planner` replaces
        the service of the section `planner`, whose pace holds all the same.

        Raises a UserError for anything that is missing or does not fit.
        """
        serve = as_serve_config(config)
        settings = serve.planner.settings
        asker = RequestPlanner(settings, generate=planner) if settings else None
        source = ModelSource.find(serve.run_config, checkpoint)
        trained_for = read_trained_for(source.weights or source.config.model.path)
        Scope.of(serve.writes, trained_for, source.name)  # refuses another environment's model before it is loaded
        with ExitStack() as opened:
            checker = serve.checker
            toolkit = opened.enter_context(
                NatToolkit.open(
                    python=checker.nat_python,
                    react_python=checker.nat_react_python,
                    processes=checker.checkers,
                    tier=checker.sandbox_tier,
                )
            )
            policy = open_served_policy(source)
            opened.callback(policy.close)
            about = {"model": _describe(source), "trained_for": trained_for}
            creator = cls(serve, policy=policy, toolkit=toolkit, planner=asker, **about)
            creator._opened = opened.pop_all()
        return creator

    def close(self) -> None:
        self._opened.close()

    @property
    def policy(self) -> BasePolicy:
        return self._policy

    @property
    def model(self) -> dict[str, Any]:
        """The weights, as provenance has them."""
        return dict(self._model)

    def check_ready(self) -> None:
        """Sample a token and ask the toolkit. EngineError or SandboxError where they do not answer."""
        prompt = self._policy.chat_format.render_prompt((Message.user("ready?"),), ())
        self._policy.generate(prompt, SamplingParams(max_new_tokens=1, temperature=0.0))
        self.toolkit.parse([("toml", f"asked = {time.time()}")])  # another text each time, else a memory answers

    def plan(self, request: str, *, seed: int = 0) -> Planned:
        """The plan of a request, as `create` makes it; a reason where there is none."""
        if why := bad_request(request):
            return Planned(spec=None, reason=why, about={})
        if self._planner is None:
            return Planned(spec=None, reason=NO_PLANNER, about={})
        return self._planner.plan(request, seed=seed, **self.config.writes.of_plans)

    def create(
        self,
        request: str = "",
        *,
        spec: NATSpec | Mapping[str, Any] | None = None,
        cases: Sequence[UserTestCase] = (),
        candidates: int | None = None,
        repairs: int | None = None,
        seed: int = 0,
        deadline_s: float | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
        cancelled: Stops | None = None,
        keep_tokens: bool = False,
    ) -> Creation:
        """Plan, write and judge. Blocks; may be called from many threads.

        With `spec` nothing is planned, and `request` may be left out. `cases` are judged beside the plan, or instead of
        one. The rest overrides the section `creation`. `cancelled`, once set, ends it by CreationCancelledError;
        `keep_tokens` keeps every reply's ids and log-probs in the candidates.

        Raises UserError for values that make no sense, EngineError and SandboxError when the machinery fails. A request
        that cannot be served is no error: the state is `refused`.
        """
        limits = self._limits(candidates, repairs, deadline_s)
        start_s = time.monotonic()
        deadline = Deadline(at_s=start_s + limits.deadline_s, cancelled=cancelled)
        given = parse_spec(dict(spec), "spec") if isinstance(spec, Mapping) else spec
        request = request or (given.request if given else "")
        planned = self._planned(request, given, seed)
        creation = Creation(
            state="refused",
            request=request,
            seed=seed,
            spec=planned.spec,
            provenance=self._provenance(planned),
        )
        why = planned.reason or self._refusal(planned.spec, seed, limits.repairs)
        on_event(_plan_event(planned, why or ""))
        if not why:
            judge = ProjectJudge(self.toolkit, planned.spec, cases, seed=seed)
            attempt = CreationAttempt(
                self._policy,
                self.config,
                judge,
                request=request,
                limits=limits,
                seed=seed,
                deadline=deadline,
                on_event=on_event,
            )
            why = attempt.too_long(self.scope.max_context)
        if why:
            creation = replace(creation, reason=why)
        else:
            creation = _concluded(creation, attempt.run(), keep_tokens=keep_tokens)
        end_s = time.monotonic()
        seconds = {"plan": planned.seconds, "create": round(end_s - start_s - planned.seconds, 3)}
        creation = replace(creation, seconds={**seconds, "all": round(end_s - start_s, 3)})
        on_event({"event": "end", "state": creation.state, "reason": creation.reason})
        return creation

    def _limits(self, candidates: int | None, repairs: int | None, deadline_s: float | None) -> CreationConfig:
        """The section `creation` with what the caller gave; UserError for what it would refuse."""
        given = {"candidates": candidates, "repairs": repairs, "deadline_s": deadline_s}
        changes = {name: value for name, value in given.items() if value is not None}
        section = self.config.creation
        raw = {**section.model_dump(), **changes}
        return validate_section(type(section), raw, source="request", prefix="creation")

    def _planned(self, request: str, given: NATSpec | None, seed: int) -> Planned:
        if why := bad_request(request):
            return Planned(spec=None, reason=why, about={})
        if given is not None:
            return Planned(spec=given, about={"source": "given"})
        if self._planner is None and self.config.writes.free_words:
            return Planned(spec=None, about={"source": "none"})
        return self.plan(request, seed=seed)

    def _refusal(self, spec: NATSpec | None, seed: int, num_repairs: int) -> str | None:
        why = self.scope.beyond_work(has_plan=spec is not None, num_repairs=num_repairs)
        return why or (None if spec is None else self.scope.beyond(spec) or cannot_be_judged(spec, seed))

    def _provenance(self, planned: Planned) -> dict[str, Any]:
        about = self.toolkit.describe()
        return {
            "model": self._model,
            "planner": planned.about,
            "versions": {"agent_rl": agent_rl.__version__, "nvidia-nat-core": about["nat"]},
            "sandbox": about["sandbox"]["tier"],
        }


def _plan_event(planned: Planned, refused: str) -> Event:
    row = planned.spec.model_dump(mode="json") if planned.spec else None
    return {"event": "plan", "plan": row, "refused": refused}


def _concluded(creation: Creation, written: Sequence[WrittenProject], *, keep_tokens: bool) -> Creation:
    """The creation with the good one among what was written, else with the best."""
    last = written[-1]
    best = last if last.is_good else max(written, key=lambda each: each.judged.rank)
    candidates = [each.candidate if keep_tokens else replace(each.candidate, replies=()) for each in written]
    reason = ""
    if not last.is_good:
        problems = best.candidate.problems
        why = f" ({best.candidate.why_ended})" if best.candidate.why_ended else ""
        reason = f"none of {len(written)} projects passed{why}; the best one: {problems[0] if problems else 'no file'}"
    return replace(
        creation,
        state=best.judged.verdict,
        reason=reason,
        files=best.files,
        report=best.judged.report,
        chosen=best.candidate.number,
        candidates=tuple(candidates),
    )


def _describe(source: ModelSource) -> dict[str, Any]:
    """The weights, for provenance. Servers loaded theirs themselves, so only what they should have is known."""
    servers = list(source.config.vllm.servers) if source.config.policy.type == "vllm" else []
    about: dict[str, Any] = {"name": source.name, "sha256": source.digest(), "policy": source.config.policy.type}
    if base := source.base_digest():
        about["base_sha256"] = base
    if servers:
        about["servers"] = servers
        about["note"] = "the servers loaded the weights themselves; the checksum is of the named files"
    return about
