"""What the service tells Prometheus. docs/service.md lists the metrics; a test compares.

No text of a request, no name of a package and no id is a label. Not here: serving them (`app.py`), alerts.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily

from agent_rl.envs.nat.judge.report import COMPONENT_OF, Stage
from agent_rl.envs.nat.service.records import ENDED, UNDER_WAY, WITH_PROJECT, Verdict

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""Not OpenMetrics, in which the counter `agent_rl_jobs_total` and the gauge `agent_rl_jobs` would be one family."""
SECONDS = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
SHORT_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
SHARES = (0, 0.25, 0.5, 0.75, 0.9, 0.99, 1)
PLANNERS = ("given", "none", "gemini", "openai")
INCIDENTS = ("disk_full", "planner", "sandbox", "engine", "client_gone", "packaging", "restart", "bug")
"""What may go wrong with the machinery."""
JOB_STAGES = ("queue", "plan", "sample", "check", "package")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLoad:
    """What is read when Prometheus asks."""

    jobs: Mapping[str, int]
    """By state."""
    engine: Mapping[str, int]
    """`BasePolicy.load`."""
    store_bytes: int


class ServiceMetrics:
    """All metrics of one service. Safe for threads."""

    def __init__(self) -> None:
        disable_created_metrics()  # a second series for each, which nobody asks for
        self.registry = CollectorRegistry()
        counter, histogram = self._counter, self._histogram
        self._jobs = counter("jobs", "Jobs that ended.", ("state", "planner"))
        self._job_seconds = histogram("job_seconds", "From the request to the end.", SECONDS)
        self._stage_seconds = histogram("stage_seconds", "Of a job, by stage.", SECONDS, ("stage",))
        self._candidates = counter("candidates", "Projects that were written and judged.", ("outcome", "round"))
        self._shares = histogram("check_share", "Share of the points of a component.", SHARES, ("component",))
        self._problems = counter("problems", "Rejected projects that lost points in a stage.", ("stage",))
        self._first = counter("first_candidate_accepted", "Jobs whose first project was right.")
        self._repaired = counter("repaired", "Jobs whose project was right after a repair.")
        self._tokens = counter("tokens", "Tokens of judged projects.", ("kind",))
        self._plans = counter("planner_requests", "Requests that a planner was asked for.", ("outcome",))
        self._plan_seconds = histogram("planner_seconds", "Of one request to the planner.", SECONDS)
        self._plan_tokens = counter("planner_tokens", "Tokens of the planner's service.", ("kind",))
        self._runs = counter("sandbox_runs", "Runs in the sandbox; `failed`: the sandbox itself did.", ("status",))
        self._run_seconds = histogram("sandbox_seconds", "Of one run in the sandbox.", SHORT_SECONDS)
        self._feedback = counter("feedback", "What users say of their agents.", ("verdict", "state"))
        self._http = counter("http_requests", "Requests that were answered.", ("route", "method", "code"))
        self._http_seconds = histogram("http_request_seconds", "Of one answer.", SHORT_SECONDS, ("route", "method"))
        self._limited = counter("rate_limited", "Requests beyond a limit.", ("key_name",))
        self._incidents = counter("incidents", "Failures of the machinery.", ("kind",))
        self._model = Gauge("agent_rl_model_info", "The model.", ("name", "sha256"), registry=self.registry)
        self._begin_at_zero()

    def _counter(self, name: str, about: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"agent_rl_{name}", about, labels, registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(f"agent_rl_{name}", about, labels, buckets=buckets, registry=self.registry)

    def _begin_at_zero(self) -> None:
        """A series that is not there has no rate, so those that are known begin at once."""
        for state in ENDED:
            for planner in PLANNERS:
                self._jobs.labels(state, planner)
        for kind in INCIDENTS:
            self._incidents.labels(kind)
        for stage in get_args(Stage):
            self._problems.labels(stage)
        for stage in JOB_STAGES:
            self._stage_seconds.labels(stage)
        for component in dict.fromkeys(COMPONENT_OF.values()):
            self._shares.labels(component)
        for outcome in ("made", "refused", "failed"):
            self._plans.labels(outcome)
        for kind in ("prompt", "sampled"):
            self._tokens.labels(kind)
            self._plan_tokens.labels(kind)
        for verdict in get_args(Verdict):
            for state in WITH_PROJECT:
                self._feedback.labels(verdict, state)
        self._runs.labels("failed")

    def watch(self, load: Callable[[], ServiceLoad]) -> None:
        """Have `load` asked whenever the metrics are."""
        self.registry.register(_LoadCollector(load))

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)

    # What happened

    def model(self, about: Mapping[str, Any]) -> None:
        self._model.labels(str(about.get("name", "")), str(about.get("sha256", ""))).set(1)

    def job_ended(self, state: str, planner: str, seconds: float) -> None:
        self._jobs.labels(state, planner or "none").inc()
        self._job_seconds.observe(seconds)

    def stage(self, stage: str, seconds: float) -> None:
        self._stage_seconds.labels(stage).observe(seconds)

    def candidates(self, rows: list[dict[str, Any]]) -> None:
        """The projects of a job that has ended, as `Candidate.to_dict` has them."""
        num_sampled: dict[int, int] = {}
        for row in rows:
            self._candidates.labels(_outcome(row), row["kind"]).inc()
            for component, share in row["shares"].items():
                self._shares.labels(component).observe(share)
            if row["verdict"] == "rejected":
                for stage in row["lost_stages"]:
                    self._problems.labels(stage).inc()
            if row["kind"] != "repair":
                self._tokens.labels("prompt").inc(row["num_prompt_tokens"])
            # A repair counts the tokens of what it repairs too.
            self._tokens.labels("sampled").inc(row["num_tokens"] - num_sampled.get(row["seed"], 0))
            num_sampled[row["seed"]] = row["num_tokens"]
        if rows and rows[-1]["verdict"] == "accepted":
            if len(rows) == 1:
                self._first.inc()
            if rows[-1]["kind"] == "repair":
                self._repaired.inc()

    def planned(self, about: Mapping[str, Any], seconds: float) -> None:
        """What a planner's service was asked and gave, as `Planned.about` has it."""
        self._plans.labels(str(about["status"])).inc()
        self._plan_seconds.observe(seconds)
        self._plan_tokens.labels("prompt").inc(about["num_tokens_in"])
        self._plan_tokens.labels("sampled").inc(about["num_tokens_out"])

    def sandbox_run(self, status: str, seconds: float) -> None:
        self._runs.labels(status).inc()
        if status != "failed":
            self._run_seconds.observe(seconds)

    def feedback(self, verdict: str, state: str) -> None:
        self._feedback.labels(verdict, state).inc()

    def http(self, route: str, method: str, code: int, seconds: float) -> None:
        self._http.labels(route, method, str(code)).inc()
        self._http_seconds.labels(route, method).observe(seconds)

    def rate_limited(self, key_name: str) -> None:
        self._limited.labels(key_name).inc()

    def incident(self, kind: str) -> None:
        self._incidents.labels(kind).inc()


class _LoadCollector:
    """Gauges that are read rather than kept. Without `describe`, so that `agent_rl_jobs` may stand beside the counter
    `agent_rl_jobs_total`."""

    def __init__(self, load: Callable[[], ServiceLoad]) -> None:
        self._load = load

    def collect(self) -> Iterator[GaugeMetricFamily]:
        load = self._load()
        jobs = GaugeMetricFamily("agent_rl_jobs", "Jobs that have not ended.", labels=("state",))
        for state in UNDER_WAY:
            jobs.add_metric((state,), load.jobs.get(state, 0))
        yield jobs
        yield GaugeMetricFamily("agent_rl_store_bytes", "Size of the store.", load.store_bytes)
        for name, key, about in (
            ("engine_in_flight", "in_flight", "Completions asked for and not yet given."),
            ("engine_waiting", "waiting", "Those of them that wait for a row of the batch."),
            ("cache_slots_used", "cache_slots", "Slots of the key/value cache that hold something."),
        ):
            if key in load.engine:
                yield GaugeMetricFamily(f"agent_rl_{name}", about, load.engine[key])


def _outcome(row: Mapping[str, Any]) -> str:
    if row["verdict"] != "rejected":
        return "complete"
    if row["why_ended"]:
        return "cut"
    return "crashed" if "build" in row["lost_stages"] else "incomplete"
