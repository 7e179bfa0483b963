"""The online planner: a plan becomes a spec only where family and oracle agree with it, and no paid call is lost."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_rl.envs.nat.errors import PlannerError
from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.generate import fingerprint_of
from agent_rl.envs.nat.factory.planner.client import CallError, PatientCaller, Usage
from agent_rl.envs.nat.factory.planner.plan import plan_of
from agent_rl.envs.nat.factory.planner.planner import PlannerSettings, plan_request, plan_specs
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.spec import Direct, McpServer, NATSpec

KILOMETRES = {
    "dimension": "length",
    "units": {"m": "1.0", "km": "1000.0", "cm": "0.01", "mm": "0.001"},
    "precision": 2,
    "nonnegative": True,
}
QUICK = PlannerSettings(requests_per_minute=1e9, max_attempts=1, max_failures=2, report_every=1)


def planned(rules: dict[str, Any] = KILOMETRES, **changes: Any) -> dict[str, Any]:
    """What the model answers to the second call."""
    return {
        "rules": rules,
        "config_default": None,
        "left_out": [],
        "package": "nat_length_helper",
        "plan": {
            "scaffold_type": "simple_tool",
            "mcp_servers": [{"name": "length-server", "transport": "stdio", "tools": ["length_tool"]}],
            "custom_tools": [{"name": "length_tool", "description": "Converts.", "inputs": {"value": "float"}}],
            "test_cases": [
                case(3.0, "km", "m", "3000.00"),
                case(1.0, "m", "km", "0.001"),
                {"tool": "length_tool", "inputs": {"value": 1.0}, "expected": "1.00"},
            ],
        },
        **changes,
    }


def case(value: float, source: str, target: str, expected: str) -> dict[str, Any]:
    return {
        "tool": "length_tool",
        "inputs": {"value": value, "from_unit": source, "to_unit": target},
        "expected": expected,
    }


class FakePlanner:
    """Chooses the unit converter for every request, then gives the next of its plans; an error is raised instead."""

    def __init__(self, *plans: dict[str, Any] | CallError, family: str = "unit_converter") -> None:
        self.plans = list(plans)
        self.family = family
        self.num_plans = 0

    def __call__(self, prompt: str, schema: dict[str, Any]) -> tuple[str, Usage]:
        usage = Usage(num_tokens_in=100, num_tokens_out=10)
        if "family" in schema["properties"]:
            return json.dumps({"reason": "because", "family": self.family}), usage
        answer = self.plans[min(self.num_plans, len(self.plans) - 1)]
        self.num_plans += 1
        if isinstance(answer, CallError):
            raise answer
        return json.dumps(answer), usage


def plan_one(answer: dict[str, Any], family: str = "unit_converter") -> Any:
    return plan_request("a converter", index=7, task_id="gemini-0-000007", generate=FakePlanner(answer, family=family))


def plan_all(
    path: Path, generate: Any, requests: list[str], *, count: int = 99, seed: int = 0, **settings: Any
) -> tuple[list[NATSpec], list[str]]:
    """The specs and what was reported."""
    messages: list[str] = []
    specs = plan_specs(
        requests,
        count=count,
        seed=seed,
        settings=replace(QUICK, **settings),
        progress_path=path,
        report=messages.append,
        generate=generate,
    )
    return specs, messages


def statuses(path: Path) -> list[str]:
    return [json.loads(line)["status"] for line in path.read_text().splitlines()]


# ---------------------------------------------------------------- from a plan to a spec


def test_a_plan_becomes_a_spec_with_our_inputs_errors_and_answers() -> None:
    line = plan_one(planned())
    spec = line.spec
    assert (spec.task_id, spec.family, spec.level) == ("gemini-0-000007", "unit_converter", 1)
    tool = spec.tools[0]
    assert tool.rules == KILOMETRES
    assert [field.name for field in tool.inputs] == ["value", "from_unit", "to_unit"]
    assert tool.errors == ("error: unknown unit", "error: negative value")
    assert tool.example.output == oracle.answer(tool, tool.example.inputs, {})
    assert spec.plan.test_cases[0].expected == tool.example.output
    assert all(text in spec.request for text in ("nat_length_helper", "length_tool", *tool.errors))
    assert NATSpec.model_validate_json(spec.model_dump_json()) == spec


def test_the_models_names_are_used_where_they_are_valid() -> None:
    spec = plan_one(planned()).spec
    names = (spec.package, spec.tools[0].type_name, spec.tools[0].instance, spec.server.name)
    assert names == ("nat_length_helper", "nat_length_helper_tool", "length_tool", "nat_length_helper")


@pytest.mark.parametrize(
    "name", ["length", "Length_Tool", "length-tool", "class", "../length_tool", "length_" * 30, ""]
)
def test_names_that_are_none_are_replaced_by_sampled_ones(name: str) -> None:
    plan = planned(package=name)
    plan["plan"]["custom_tools"][0]["name"] = name
    plan["plan"]["mcp_servers"] = []
    spec = plan_one(plan).spec
    assert name not in (spec.package, spec.tools[0].instance)
    assert spec.server.name == spec.package


def test_the_models_own_test_cases_are_counted_and_not_believed() -> None:
    line = plan_one(planned())
    assert (line.num_answers, line.num_right_answers) == (2, 1)  # the third lacks inputs, the second is 0.00
    assert "0.001" not in {case.expected for case in line.spec.plan.test_cases}


def test_tokens_of_both_calls_are_counted() -> None:
    line = plan_one(planned())
    assert (line.num_tokens_in, line.num_tokens_out) == (200, 20)


def test_a_configuration_default_makes_level_2() -> None:
    spec = plan_one(planned(config_default=4)).spec
    assert (spec.level, spec.tools[0].defaults) == (2, {"precision": 4})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rules": {**KILOMETRES, "precision": 99}}, "rules.precision"),
        ({"rules": {**KILOMETRES, "colour": "red"}}, "rules.colour"),
        ({"rules": {**KILOMETRES, "units": {"m": "__import__('os')"}}}, "rules.units.m"),
        ({"rules": {**KILOMETRES, "units": {"m": "1.0", "km": "1024.0"}}}, "not {'km': '1024.0'}"),
        ({"rules": {**KILOMETRES, "units": {"m": "1.0", "km": "1000.0\u2028"}}}, "rules.units.km"),
        ({"config_default": 99}, "config_default"),
        ({"left_out": ["a light year"]}, "the rules cannot say: a light year"),
        ({"plan": {**planned()["plan"], "scaffold_type": "router"}}, "planned a router"),
        ({"plan": {**planned()["plan"], "custom_tools": []}}, "0 tools"),
        ({"plan": "none"}, "plan:"),
    ],
)
def test_a_plan_that_is_no_sound_tool_is_refused_with_its_reason(change: dict[str, Any], reason: str) -> None:
    line = plan_one({**planned(), **change})
    assert (line.status, line.spec) == ("refused", None)
    assert reason in line.reason


@pytest.mark.parametrize("bad", ['"', "\\", "`", "\n", "\u2028", "\xa0"])
def test_free_text_that_would_break_out_of_code_or_yaml_is_refused(bad: str) -> None:
    draft = FAMILIES["note_search"].draft(random.Random(0), 1)
    draft.rules["notes"][0]["text"] += bad
    line = plan_one(planned(draft.rules), family="note_search")
    assert (line.status, line.spec) == ("refused", None)
    assert "rules" in line.reason


def test_a_request_that_no_family_fits_costs_one_call() -> None:
    line = plan_one(planned(), family="none")
    assert (line.status, line.reason, line.num_tokens_in) == ("refused", "no family fits: because", 100)


def test_a_family_that_does_not_exist_is_refused() -> None:
    assert plan_one(planned(), family="poetry").reason == "there is no family 'poetry'"


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_an_answer_that_is_not_the_requested_json_is_refused(text: str) -> None:
    def generate(prompt: str, schema: dict[str, Any]) -> tuple[str, Usage]:
        return text, Usage(num_tokens_in=1, num_tokens_out=1)

    line = plan_request("a converter", index=0, task_id="gemini-0-000000", generate=generate)
    assert line.status == "refused"


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("level", [1, 2, 3])
def test_rules_of_every_family_can_come_back_from_a_planner(name: str, level: int) -> None:
    family = FAMILIES[name]
    made = 0
    for number in range(12):
        draft = family.draft(random.Random(f"{name}-{level}-{number}"), level)
        default = draft.config_field.default if draft.config_field else None
        line = plan_one(planned(draft.rules, config_default=default), family=name)
        if line.spec is not None:  # a few are not sound, or two of their numbers could be the setting
            made += 1
            tool = line.spec.tools[0]
            assert (tool.rules, tool.inputs, tool.errors) == (draft.rules, draft.inputs, draft.errors)
            assert tool.config_field == draft.config_field
            is_a_row_like_the_generators(line.spec)
    assert made >= 8


def is_a_row_like_the_generators(spec: NATSpec) -> None:
    assert parse_spec(json.loads(json.dumps(spec.model_dump(mode="json"))), "row 1") == spec
    assert (spec.workflow, spec.server, spec.group, spec.client_group) == (
        Direct(), McpServer(name=spec.package), None, None
    )  # fmt: skip
    assert (spec.level, spec.difficulty) == (2 if spec.tools[0].config_field else 1, "easy")
    assert spec.fingerprint == fingerprint_of(spec)
    assert spec.plan == plan_of(spec)
    for path, text in render_project(spec).items():
        if path.endswith(".py"):
            compile(text, path, "exec")


# ---------------------------------------------------------------- a run: progress, failures, duplicates


def test_two_requests_for_the_same_tool_make_one_spec(tmp_path: Path) -> None:
    generate = FakePlanner(planned(), planned(package="nat_other_name"), planned({**KILOMETRES, "precision": 3}))
    specs, messages = plan_all(tmp_path / "progress.jsonl", generate, ["one", "two", "three"])
    assert [spec.task_id for spec in specs] == ["gemini-0-000000", "gemini-0-000002"]
    assert "3 requests, 2 specs, 1 duplicates" in messages[-2]


def test_a_run_stops_when_enough_specs_are_made(tmp_path: Path) -> None:
    generate = FakePlanner(planned(), planned({**KILOMETRES, "precision": 3}))
    specs, _ = plan_all(tmp_path / "progress.jsonl", generate, ["one", "two", "three"], count=1)
    assert (len(specs), generate.num_plans) == (1, 1)


def test_a_run_reports_every_few_requests_and_at_the_end(tmp_path: Path) -> None:
    generate = FakePlanner(*(planned({**KILOMETRES, "precision": digits}) for digits in range(5)))
    path = tmp_path / "progress.jsonl"
    _, messages = plan_all(path, generate, ["1", "2", "3", "4", "5"], report_every=2, count=5)
    assert [text[:20] for text in messages] == ["planner: 2 requests,", "planner: 4 requests,", "planner: 5 requests,"]
    _, messages = plan_all(path, generate, ["1", "2", "3", "4", "5"], report_every=2, count=6)
    assert messages[0].startswith("planner: 5 requests, 5 specs")
    assert messages[1] == "planner: the requests are used up after 5 of 6 specs"


def test_a_failed_request_is_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    generate = FakePlanner(CallError("no answer", is_transient=True), planned())
    specs, messages = plan_all(path, generate, ["one", "two"])
    assert statuses(path) == ["failed", "made"]
    assert len(specs) == 1
    assert "1 failed" in messages[-2]


def test_failures_in_a_row_stop_the_run_and_a_new_one_requests_only_the_missing(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    down = CallError("Gemini answered 503: busy", is_transient=True)
    requests = ["one", "two", "three", "four"]
    with pytest.raises(PlannerError, match=r"503: busy.*keeps the 1 specs"):
        plan_all(path, FakePlanner(planned(), down), requests)
    assert statuses(path) == ["made", "failed", "failed"]

    generate = FakePlanner(*(planned({**KILOMETRES, "precision": digits}) for digits in (3, 4, 5)))
    specs, messages = plan_all(path, generate, requests)
    assert generate.num_plans == 3
    assert [spec.tools[0].rules["precision"] for spec in specs] == [2, 3, 4, 5]
    assert "4 requests, 4 specs" in messages[-2]
    assert plan_all(path, FakePlanner(down), requests)[0] == specs


def test_a_refused_request_is_not_paid_for_again(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    plan_all(path, FakePlanner(planned(left_out=["colours"])), ["one"])
    generate = FakePlanner(planned())
    assert plan_all(path, generate, ["one"])[0] == []
    assert generate.num_plans == 0


def test_a_line_cut_off_by_a_crash_is_sent_again(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    plans = (planned(), planned({**KILOMETRES, "precision": 3}))
    specs, _ = plan_all(path, FakePlanner(*plans), ["one", "two"])
    path.write_bytes(path.read_bytes()[:-20])
    assert plan_all(path, FakePlanner(plans[1]), ["one", "two"])[0] == specs
    assert statuses(path) == ["made", "made"]


def test_a_progress_file_with_a_wrong_line_is_named_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    plan_all(path, FakePlanner(planned()), ["one"])
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(PlannerError, match=r"progress\.jsonl:2 is not a line of planner progress \(index"):
        plan_all(path, FakePlanner(planned()), ["one"])


@pytest.mark.parametrize(("text", "seed"), [("other", 0), ("one", 1)])
def test_a_progress_file_of_another_run_is_refused(tmp_path: Path, text: str, seed: int) -> None:
    path = tmp_path / "progress.jsonl"
    plan_all(path, FakePlanner(planned()), ["one"])
    with pytest.raises(PlannerError, match="use the same seed and requests"):
        plan_all(path, FakePlanner(planned()), [text], seed=seed)


def test_the_cost_is_shown_only_when_prices_are_given(tmp_path: Path) -> None:
    _, messages = plan_all(tmp_path / "a.jsonl", FakePlanner(planned()), ["one"])
    assert "cost" not in messages[-2]
    _, messages = plan_all(tmp_path / "b.jsonl", FakePlanner(planned()), ["one"], price_in=1.0, price_out=10.0)
    assert "cost 0.0004 at the given prices" in messages[-2]  # 200 in and 20 out


def test_a_setting_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(PlannerError, match="requests_per_minute is 0"):
        PlannerSettings(requests_per_minute=0)


# ---------------------------------------------------------------- pace and retries


class FakeTime:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def patient(generate: Any, time: FakeTime, *, rate: float = 1e9, max_attempts: int = 4) -> PatientCaller:
    return PatientCaller(
        generate=generate,
        requests_per_minute=rate,
        max_attempts=max_attempts,
        sleep=time.sleep,
        clock=lambda: time.now_s,
    )


def failing(num_failures: int, *, is_transient: bool) -> Callable[[str, dict[str, Any]], tuple[str, Usage]]:
    left = iter(range(num_failures))

    def generate(prompt: str, schema: dict[str, Any]) -> tuple[str, Usage]:
        if next(left, None) is not None:
            raise CallError("no", is_transient=is_transient)
        return "yes", Usage(num_tokens_in=1, num_tokens_out=1)

    return generate


def test_passing_failures_are_repeated_after_growing_waits() -> None:
    time = FakeTime()
    assert patient(failing(3, is_transient=True), time)("", {})[0] == "yes"
    first, second, third = time.slept
    assert 1 <= first <= 2 <= second <= 4 <= third <= 8


def test_the_last_attempts_failure_is_raised() -> None:
    time = FakeTime()
    with pytest.raises(CallError):
        patient(failing(4, is_transient=True), time)("", {})
    assert len(time.slept) == 3


def test_a_lasting_failure_is_not_repeated() -> None:
    time = FakeTime()
    with pytest.raises(CallError):
        patient(failing(1, is_transient=False), time)("", {})
    assert time.slept == []


def test_calls_start_no_faster_than_the_rate() -> None:
    time = FakeTime()
    call = patient(failing(0, is_transient=True), time, rate=6)
    call("", {})
    time.now_s += 4.0
    call("", {})
    assert time.slept == [6.0]  # one call in ten seconds, four of them gone
