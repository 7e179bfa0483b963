"""The pipeline on the real checks: what is accepted, built, rejected and refused, and what is tried in between."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from created_agents import ANY, KILOMETRES, accepted, creator, outline, planned, planner, reference, submission
from fakes import END, ScriptedPolicy
from nat_projects import SharedFactory, row, spec_of

from agent_rl.envs.nat.create.writing import CreationCancelledError, ProjectSession
from agent_rl.envs.nat.factory.cases import hidden_cases
from agent_rl.envs.nat.factory.planner.client import CallError
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.factory.user_test_cases import UserTestCase
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.errors import DataError, UserError
from agent_rl.records import SamplingParams
from agent_rl.rollout.episode import run_episode
from agent_rl.rollout.turns import EpisodeLimits

SPEC = spec_of("unit_converter", 1)
ROUTER = spec_of("unit_converter", 3)
WRONG = {"FACTORS[to_unit]": "FACTORS[from_unit]"}
"""Converts a unit into itself."""


def as_text(token_ids: Sequence[int]) -> str:
    """What byte tokens say."""
    return bytes(token for token in token_ids if token < END).decode()


def by_temperature(greedy: str, sampled: str) -> Any:
    return lambda turn, sampling: sampled if sampling.temperature else greedy


def test_a_right_project_is_accepted_with_all_the_evidence(nat_toolkit: NatToolkit) -> None:
    creation = accepted(nat_toolkit, SPEC, "convert days")
    assert (creation.state, creation.reason, creation.chosen) == ("accepted", "", 0)
    assert creation.files == render_project(SPEC)
    assert creation.report is not None and creation.report.complete
    (only,) = creation.candidates
    assert (only.kind, only.temperature, only.verdict, only.problems) == ("greedy", 0.0, "accepted", ())
    assert set(only.shares.values()) == {1.0}
    assert creation.provenance["model"]["sha256"] == "0" * 64
    assert creation.provenance["versions"]["nvidia-nat-core"] == nat_toolkit.version()
    assert creation.to_dict()["plan"] == row(SPEC)


def test_a_row_is_a_plan_and_its_words_are_the_request(nat_toolkit: NatToolkit) -> None:
    creation = creator(nat_toolkit, [reference(SPEC)]).create(spec=row(SPEC))
    assert (creation.state, creation.request) == ("accepted", SPEC.request)
    with pytest.raises(DataError, match="package"):
        creator(nat_toolkit, []).create(spec={**row(SPEC), "package": "../up"})


def test_a_wrong_project_is_rejected_after_all_candidates_were_tried(nat_toolkit: NatToolkit) -> None:
    events: list[Any] = []
    script = by_temperature(reference(SPEC, **WRONG), submission({"src/x.py": ""}))
    creation = creator(nat_toolkit, script, creation={"candidates": 3}).create(spec=SPEC, on_event=events.append)
    assert creation.state == "rejected"
    assert [each.kind for each in creation.candidates] == ["greedy", "sampled", "sampled"]
    assert len({each.seed for each in creation.candidates}) == 3
    assert creation.chosen == 0  # more of it is right
    assert "none of 3 projects passed" in creation.reason
    kinds = [event["event"] for event in events]
    assert kinds[:3] == ["plan", "check", "candidate"] and kinds[-1] == "end"
    assert (kinds.count("check"), kinds.count("candidate")) == (3, 3)
    assert "behaviour" in creation.candidates[0].lost_stages and "files" not in creation.candidates[0].lost_stages


def test_the_first_right_one_by_number_is_taken_and_the_rest_are_given_up(nat_toolkit: NatToolkit) -> None:
    seeds: list[int] = []

    def script(turn: int, sampling: SamplingParams) -> str:
        if not sampling.temperature:
            return reference(SPEC, **WRONG)
        seeds.append(sampling.seed)
        return reference(SPEC)

    creation = creator(nat_toolkit, script, creation={"candidates": 4}).create(spec=SPEC, seed=3)
    assert (creation.state, creation.chosen, len(creation.candidates)) == ("accepted", 1, 2)
    again = creator(nat_toolkit, script, creation={"candidates": 4}).create(spec=SPEC, seed=3)
    assert [each.seed for each in again.candidates] == [each.seed for each in creation.candidates]
    assert creator(nat_toolkit, script).create(spec=SPEC, seed=4).candidates[1].seed != creation.candidates[1].seed


def test_a_rejected_project_is_given_back_without_hidden_cases(nat_toolkit: NatToolkit) -> None:
    repaired = lambda turn, sampling: reference(SPEC) if turn else reference(SPEC, **WRONG)  # noqa: E731
    making = creator(nat_toolkit, repaired, creation={"candidates": 1, "repairs": 2})
    creation = making.create(spec=SPEC, keep_tokens=True)
    assert (creation.state, [each.kind for each in creation.candidates]) == ("accepted", ["greedy", "repair"])
    first, second = creation.candidates[1].replies
    told = as_text(second.prompt_token_ids)
    assert "The project was rejected" in told and "the plan gave" in told
    asked = [case.expected for run in hidden_cases(SPEC, 0) for case in run.questions if case.expected]
    shown = {case.expected for case in SPEC.plan.test_cases}
    assert [text for text in asked if text not in shown and f"expected {text!r}" in told] == []
    policy = making._policy
    assert policy.prompts[1][: len(policy.prompts[0])] == policy.prompts[0]  # read on, not encoded again
    assert first.token_ids == tuple(policy.prompts[1][len(policy.prompts[0]) :][: len(first.token_ids)])


def test_without_a_plan_a_project_is_built_and_never_accepted(nat_toolkit: NatToolkit) -> None:
    files = {path: text.replace(*next(iter(WRONG.items()))) for path, text in render_project(SPEC).items()}
    files[SPEC.tests_path] = (
        f"import {SPEC.package}.logic\n\n\ndef test_it() -> None:\n    assert {SPEC.package}.logic\n"
    )
    making = creator(nat_toolkit, [submission(files)], writes={"free_words": True})
    creation = making.create("convert days to minutes")
    assert (creation.state, creation.spec) == ("built", None)  # it is wrong, and nobody here can know
    assert creation.report is not None and "behaviour" in creation.report.skipped
    name = SPEC.tools[0].instance
    case = UserTestCase(where="mine:1", target=name, inputs=dict(SPEC.tools[0].example.inputs), expected="none")
    assert making.create("convert days to minutes", cases=[case]).state == "rejected"
    prompt = as_text(making._policy.prompts[0])
    assert "convert days to minutes" in prompt and "PACKAGE" in prompt


def test_text_instead_of_a_project_is_rejected(nat_toolkit: NatToolkit) -> None:
    making = creator(nat_toolkit, lambda *_: "I cannot.", creation={"candidates": 1, "max_turns": 2})
    creation = making.create(spec=SPEC)
    assert (creation.state, creation.files) == ("rejected", {})
    assert "within 2 replies" in creation.candidates[0].why_ended
    free = creator(
        nat_toolkit, lambda *_: "I cannot.", creation={"candidates": 1, "max_turns": 1}, writes={"free_words": True}
    )
    assert free.create("x").state == "rejected"


def test_cases_of_ones_own_count_beside_the_plan(nat_toolkit: NatToolkit) -> None:
    tool = SPEC.tools[0]
    right = UserTestCase(
        where="mine:1", target=tool.instance, inputs=dict(tool.example.inputs), expected=tool.example.output
    )
    wrong = UserTestCase(where="mine:2", target=tool.instance, inputs=dict(tool.example.inputs), expected="?")
    making = creator(nat_toolkit, [reference(SPEC)], creation={"candidates": 1})
    assert making.create(spec=SPEC, cases=[right]).state == "accepted"
    assert making.create(spec=SPEC, cases=[right, wrong]).state == "rejected"
    network = spec_of("api_client", 1, of=frozenset({"api_client"}))
    with pytest.raises(UserError, match=r"mine:1.*HTTP API"):
        making.create(spec=network, cases=[right])


@pytest.mark.parametrize(
    ("changes", "spec", "word"),
    [
        ({}, ROUTER, "at most 1 tool"),
        ({"writes": {**ANY, "families": ("calculator",)}}, SPEC, "unit_converter"),
        ({"writes": {**ANY, "levels": (3, 4)}}, SPEC, "level 1"),
    ],
)
def test_what_the_model_was_not_trained_to_write_is_refused_and_not_tried(
    nat_toolkit: NatToolkit, changes: dict[str, Any], spec: Any, word: str
) -> None:
    making = creator(nat_toolkit, [], **changes)
    creation = making.create(spec=spec)
    assert (creation.state, creation.candidates) == ("refused", ())
    assert word in creation.reason and "\n" not in creation.reason
    assert making._policy.prompts == []


def test_a_prompt_that_fills_the_window_is_refused(nat_toolkit: NatToolkit) -> None:
    creation = creator(nat_toolkit, [], max_context=900).create(spec=SPEC)
    assert creation.state == "refused"
    assert "window of 900" in creation.reason


@pytest.mark.parametrize(
    ("request_text", "word"), [(" ", "empty"), ("x" * 4001, "4001 characters"), ("half \ud800", "half of a character")]
)
def test_what_is_no_request_is_refused(nat_toolkit: NatToolkit, request_text: str, word: str) -> None:
    creation = creator(nat_toolkit, [], planner=planner()).create(request_text)
    assert creation.state == "refused"
    assert word in creation.reason


def test_a_plan_that_cannot_be_judged_is_refused(nat_toolkit: NatToolkit) -> None:
    raw = row(SPEC)
    flow = {"kind": "pipeline", "type_name": "nat_x", "inputs": [{"name": "text", "type": "str"}], "on_error": "stop"}
    step = {"tool": SPEC.tools[0].instance, "arguments": {}}
    raw["workflow"] = {**flow, "steps": [step], "joiner": None, "example": {"inputs": {}, "output": ""}}
    creation = creator(nat_toolkit, [], writes=ANY).create(spec=raw)
    assert creation.state == "refused"
    assert "no hidden cases" in creation.reason


def test_without_a_planner_a_request_in_free_words_is_refused_with_the_ways_out(nat_toolkit: NatToolkit) -> None:
    creation = creator(nat_toolkit, []).create("convert km")
    assert creation.state == "refused"
    assert all(way in creation.reason for way in ("GEMINI_API_KEY", "planner.base_url", "--spec"))


def test_free_words_are_planned_written_and_accepted(nat_toolkit: NatToolkit) -> None:
    asker = planner(outline("direct", "unit_converter"), planned(KILOMETRES))
    plan = asker.plan("km to m", terse=True, with_cases=False).spec
    assert plan is not None and "mcp_server.py" not in plan.request  # in the small model's words

    assert (plan.package, plan.tools[0].instance) == ("nat_length_helper", "length_tool")
    asker = planner(outline("direct", "unit_converter"), planned(KILOMETRES))
    making = creator(nat_toolkit, [reference(plan)], planner=asker, writes={"names": "planned"})
    creation = making.create("km to m")
    assert (creation.state, creation.request) == ("accepted", "km to m")
    assert creation.spec is not None and creation.spec.tools[0].telling.inputs  # judged by telling inputs too
    assert creation.provenance["planner"]["num_tokens_in"] == 200


@pytest.mark.parametrize(
    ("answers", "word"),
    [
        (["no JSON"], "Invalid JSON"),
        ([outline("none")], "no family fits"),
        ([CallError("x answered 401: who", is_transient=False)], "did not answer: x answered 401"),
        ([outline("router", "unit_converter", "calculator"), planned(KILOMETRES), "{}"], "rules"),
    ],
)
def test_a_planner_that_fails_is_a_refusal(nat_toolkit: NatToolkit, answers: list[Any], word: str) -> None:
    creation = creator(nat_toolkit, [], planner=planner(*answers)).create("km to m")
    assert (creation.state, creation.candidates) == ("refused", ())
    assert word in creation.reason


def test_a_cancelled_creation_ends_at_once(nat_toolkit: NatToolkit) -> None:
    stop = threading.Event()

    def script(turn: int, sampling: SamplingParams) -> str:
        stop.set()
        return reference(SPEC)

    with pytest.raises(CreationCancelledError):
        creator(nat_toolkit, script).create(spec=SPEC, cancelled=stop)


def test_after_the_deadline_nothing_more_is_written(nat_toolkit: NatToolkit) -> None:
    def script(turn: int, sampling: SamplingParams) -> str:
        time.sleep(0.3)
        return reference(SPEC, **WRONG)

    making = creator(nat_toolkit, script, creation={"candidates": 4})
    creation = making.create(spec=SPEC, deadline_s=0.1)
    assert (creation.state, len(creation.candidates)) == ("rejected", 1)


@pytest.mark.parametrize("changes", [{"candidates": 0}, {"candidates": 65}, {"repairs": -1}, {"deadline_s": 0.0}])
def test_numbers_that_make_no_sense_are_a_users_mistake(nat_toolkit: NatToolkit, changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"creation.{next(iter(changes))}"):
        creator(nat_toolkit, []).create(spec=SPEC, **changes)


def test_many_threads_share_a_creator(nat_toolkit: NatToolkit) -> None:
    making = creator(nat_toolkit, [reference(SPEC)])
    states: list[str] = []
    threads = [threading.Thread(target=lambda: states.append(making.create(spec=SPEC).state)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert states == ["accepted"] * 6


def test_the_model_reads_what_it_read_in_training(nat_toolkit: NatToolkit) -> None:
    """The first prompt, the answers to calls and to plain text: the same ids as in an episode."""
    script = ["Thinking.", submission(render_project(SPEC), submit=False), submission({})]
    trained, used = ScriptedPolicy(script, max_context=90_000), creator(nat_toolkit, script)
    task = row(SPEC)
    run_episode(
        trained,
        SharedFactory(nat_toolkit)(),
        task,
        group_id="g",
        seed=1,
        limits=EpisodeLimits(max_new_tokens=30_000),
        temperature=0.0,
    )
    assert used.create(spec=task).state == "accepted"
    assert used._policy.prompts == trained.prompts


def test_a_session_offers_the_tools_of_training(nat_toolkit: NatToolkit) -> None:
    env = SharedFactory(nat_toolkit)()
    env.reset(row(SPEC))
    for spec in (SPEC, None):
        session = ProjectSession(spec, nat_toolkit, lambda files: [])
        session.reset({"request": "x", "style": "compact"})
        assert session.tools == env.tools
