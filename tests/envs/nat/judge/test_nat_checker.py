"""The checker on the real toolkit: references of every shape are complete, negative solutions lose points
where they are wrong."""

from pathlib import Path

import pytest
from nat_projects import check, needs_react, replaced, score, spec_of

from agent_rl.envs.nat.errors import NatUnavailableError
from agent_rl.envs.nat.factory.cases import hidden_cases
from agent_rl.envs.nat.factory.negative_solutions import KINDS, all_negative_solutions, negative_solutions
from agent_rl.envs.nat.factory.questions import agent_runs
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.checker import check_project, follows_rules, show
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import Group, NATSpec
from agent_rl.sandbox.freeze import Flag

SPEC = spec_of("unit_converter", 2)
TOOL = SPEC.tools[0]
CLIENT = spec_of("calculator", 4)
GROUP = spec_of("function_group", 5)
REACT = spec_of("react_agent", 5)
SHAPES = [SPEC, CLIENT, spec_of("tool_workflow", 3), GROUP, REACT]
REFERENCES = [
    *SHAPES,
    spec_of("text_pipeline", 3),
    spec_of("tool_workflow", 4),
    spec_of("function_group", 4),
    *(spec_of(family, level) for family in ("unit_converter", "text_pipeline", "calculator") for level in (1, 5)),
    *(spec_of("tool_workflow", level, seed) for level, seed in ((3, 40), (4, 40), (5, 0), (5, 40))),
    *(spec_of("mcp_served", level) for level in (2, 3, 4)),
    *(spec_of("function_group", 5, seed) for seed in (40, 80)),
    spec_of("react_agent", 5, 40),
]


def cases(specs: list[NATSpec]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "spec",
        [
            pytest.param(
                spec,
                id=f"{spec.family}-{spec.level}-{spec.task_id}",
                marks=[needs_react] if spec.workflow.kind == "react" else [],
            )
            for spec in specs
        ],
    )


@cases(REFERENCES)
def test_a_reference_project_is_complete(nat_toolkit: NatToolkit, spec: NATSpec) -> None:
    report = check(nat_toolkit, spec)
    assert report.problems == ()
    assert report.flags == ()
    assert report.complete
    assert report.shares == dict.fromkeys(("static", "config", "behaviour", "workflow", "mcp", "tests"), 1.0)
    assert (report.tools, report.integration, report.workflow) == (1.0, 1.0, 1.0)


COSTS = {
    "faulty logic": {"behaviour"},
    "rare fault": {"behaviour"},
    "no tests": {"tests", "static"},
    "tests that assert nothing": {"tests"},
    "return for yield": {"behaviour", "workflow", "config", "static"},
    "sync function": {"behaviour", "workflow", "config", "static"},
    "another type name": {"behaviour", "workflow", "config", "static"},
    "no workflow": {"behaviour", "workflow", "config"},
    "no functions": {"behaviour", "workflow", "config"},
    "server never runs": {"mcp"},
    "server prints": {"mcp"},
    "server without tools": {"mcp"},
    "another server name": {"mcp"},
    "no entry point": {"config"},
    "client without server": {"workflow", "config"},
    "workflow past its tools": {"workflow"},
}


@cases(SHAPES)
def test_every_negative_solution_loses_points_where_it_is_wrong_and_is_no_success(
    nat_toolkit: NatToolkit, spec: NATSpec
) -> None:
    every = all_negative_solutions(spec)
    assert {name.partition(":")[0] for name in every} == set(KINDS)
    for name, files in every.items():
        report = check_project(nat_toolkit, spec, files, seed=0)
        what = name.partition(": ")[2].rstrip("0123456789 ")
        paid = {component for component, share in report.shares.items() if share < 1.0}
        assert not report.complete and report.problems, name
        assert paid >= COSTS[what], (name, report.shares)


def test_the_negative_solutions_of_a_seed_are_one_of_each_kind_and_always_the_same() -> None:
    chosen = negative_solutions(SPEC, 3)
    assert [name.partition(":")[0] for name in chosen] == list(KINDS)
    assert chosen == negative_solutions(SPEC, 3)
    assert chosen.items() <= all_negative_solutions(SPEC).items()
    assert len({tuple(negative_solutions(SPEC, seed)) for seed in range(8)}) > 1


def test_forgetting_the_check_of_an_error_is_named(nat_toolkit: NatToolkit) -> None:
    report = check_project(nat_toolkit, SPEC, all_negative_solutions(SPEC)["buggy: faulty logic 0"], seed=0)
    assert score(report, "behaviour", f"{TOOL.instance}, valid inputs") == 1.0
    assert score(report, "behaviour", f"{TOOL.instance}, bad inputs") < 1.0
    assert any(TOOL.errors[0] in problem for problem in report.problems)


def test_half_right_answers_earn_a_part_and_equivalent_code_earns_all(nat_toolkit: NatToolkit) -> None:
    other_text = check(nat_toolkit, SPEC, replaced(SPEC, SPEC.logic_path, f'"{TOOL.errors[0]}"', '"error: what"'))
    assert score(other_text, "workflow", "valid requests") == 1.0
    assert 0.3 < other_text.workflow < 1.0 and 0.0 < other_text.share("mcp") < 1.0
    renamed = replaced(SPEC, SPEC.logic_path, "result", "converted")
    assert check(nat_toolkit, SPEC, renamed).complete


def test_a_config_field_that_does_nothing_loses_the_other_settings(nat_toolkit: NatToolkit) -> None:
    assert TOOL.config_field is not None
    fixed = replaced(SPEC, SPEC.register_path, f"config.{TOOL.config_field.name}", str(TOOL.config_field.default))
    report = check(nat_toolkit, SPEC, fixed)
    assert score(report, "workflow", "other settings") == 0.0
    assert score(report, "workflow", "valid requests") == 1.0
    assert not report.complete


def test_a_tool_under_another_name_is_no_behaviour_but_its_workflow_counts(nat_toolkit: NatToolkit) -> None:
    report = check(nat_toolkit, SPEC, replaced(SPEC, SPEC.config_path, f"  {TOOL.instance}:", "  somebody_else:"))
    assert report.share("behaviour") == 0.0 and not report.complete
    assert score(report, "config", "as requested") == 0.5


@needs_react
@pytest.mark.parametrize(("old", "new"), [("max_tool_calls: ", "max_tool_calls: 1"), ("_type: openai", "_type: nim")])
def test_the_settings_of_a_react_agent_are_those_of_the_request(nat_toolkit: NatToolkit, old: str, new: str) -> None:
    report = check(nat_toolkit, REACT, replaced(REACT, REACT.config_path, old, new))
    assert report.share("workflow") == 1.0
    assert score(report, "config", "as requested") < 1.0 and not report.complete


def test_the_client_group_has_the_name_of_the_request(nat_toolkit: NatToolkit) -> None:
    renamed = replaced(CLIENT, CLIENT.client_config_path, str(CLIENT.client_group), "another_group")
    report = check(nat_toolkit, CLIENT, renamed)
    assert report.share("workflow") == 1.0
    assert score(report, "config", "as requested") < 1.0 and not report.complete


def test_a_server_that_must_raise_its_errors_may_not_return_them(nat_toolkit: NatToolkit) -> None:
    spec = next(spec for seed in range(0, 200, 10) if (spec := spec_of("mcp_served", 3, seed)).server.raises)
    assert check(nat_toolkit, spec).complete
    returned = replaced(spec, "mcp_server.py", "raise ValueError(answer)", "return answer")
    assert 0.0 < score(check(nat_toolkit, spec, returned), "mcp", "answers") < 1.0
    errors = "; ".join({*spec.tools[0].errors, *spec.tools[-1].errors, "error: none of these"})
    all_at_once = replaced(spec, "mcp_server.py", "raise ValueError(answer)", f"raise ValueError({errors!r})")
    assert score(check(nat_toolkit, spec, all_at_once), "mcp", "answers") < 1.0


def group_of(spec: NATSpec) -> Group:
    assert spec.group is not None
    return spec.group


def test_instances_of_a_group_that_share_a_state_are_wrong(nat_toolkit: NatToolkit) -> None:
    found = (spec_of("function_group", 5, seed) for seed in range(0, 400, 10))
    spec = next(spec for spec in found if len(group_of(spec).instances) > 1)
    made = f"    state = {group_of(spec).class_name}("
    shared = replaced(spec, spec.register_path, made, f"    state = STATES.setdefault(1, {made.partition('= ')[2]}")
    (text,) = shared.values()
    lines = [f"{line})" if "STATES" in line else line for line in text.splitlines()]
    report = check(nat_toolkit, spec, {spec.register_path: "\n".join([*lines, "", "STATES = {}", ""])})
    assert score(report, "build", "loads and builds") == 1.0
    assert 0.0 < report.share("behaviour") < 1.0 and not report.complete


def test_a_function_that_include_should_hide_is_found(nat_toolkit: NatToolkit) -> None:
    found = (spec_of("function_group", 5, seed) for seed in range(0, 400, 10))
    spec = next(spec for spec in found if group_of(spec).hidden)
    more = f"include: [{group_of(spec).hidden[0]}, "
    report = check(nat_toolkit, spec, replaced(spec, spec.config_path, "include: [", more))
    instance = group_of(spec).instances[0]
    assert score(report, "behaviour", f"{instance}, valid inputs") == 1.0
    assert score(report, "behaviour", f"{instance}, bad inputs") < 1.0 and not report.complete


def test_the_hidden_sequences_of_nearly_every_group_meet_every_error() -> None:
    missed = []
    for seed in range(0, 200, 10):
        spec = spec_of("function_group", 4 + seed % 20 // 10, seed)
        met = {each.expected for run in hidden_cases(spec, 1) for each in run.questions}
        missed += sorted(set(group_of(spec).errors) - met)
    assert len(missed) <= 1, missed


@pytest.mark.parametrize("depth", [900, 50_000])
def test_deeply_nested_code_is_a_failure_of_the_project_and_not_of_the_checker(
    nat_toolkit: NatToolkit, depth: int
) -> None:
    chain = "@a" + ".a" * depth + "(config_type=ToolConfig)"
    report = check(
        nat_toolkit, SPEC, replaced(SPEC, SPEC.register_path, "@register_function(config_type=ToolConfig)", chain)
    )
    assert report.share("static") < 1.0 and report.workflow == 0.0 and not report.complete


@pytest.mark.parametrize("text", ["a: &x {b: 1}\nc: *x\n", "a: {<<: {b: 1}}\n", "a: [\n", "a: 1\na: 2\n"])
def test_a_configuration_with_more_than_plain_yaml_is_refused(nat_toolkit: NatToolkit, text: str) -> None:
    report = check(nat_toolkit, SPEC, {SPEC.config_path: render_project(SPEC)[SPEC.config_path] + text})
    assert [report.share(name) for name in ("config", "workflow", "behaviour")] == [0.0, 0.0, 0.0]
    assert any(f"{SPEC.config_path} is refused: " in problem for problem in report.problems)


def test_honest_projects_raise_no_flag_and_attempts_are_named(nat_toolkit: NatToolkit) -> None:
    tricks = "import os, gc\nos._exit(0)\nprint(gc.get_objects())\n"
    extra = {"conftest.py": "", "sitecustomize.py": "", "notes.txt": "x", SPEC.tests_path: tricks}
    wanted = {Flag.DROPPED_TEST_CONFIG, Flag.DROPPED_STARTUP, Flag.DROPPED_UNDECLARED}
    assert set(check(nat_toolkit, SPEC, extra).flags) == wanted | {Flag.SOURCE_EXIT, Flag.SOURCE_FRAMES}


@cases(SHAPES)
def test_what_is_sent_to_the_toolkit_are_questions_without_answers(spec: NATSpec) -> None:
    runs = hidden_cases(spec, 0)
    for sent, run in zip(agent_runs(spec, runs), runs, strict=True):
        assert set(sent) == {
            "config", "overrides", "swapped", "through_client", "exchanges", "scripted", "questions",
        }  # fmt: skip
        assert [target for target, _, _ in sent["questions"]] == [each.target for each in run.questions]
        texts = {value for _, inputs, via in sent["questions"] for value in (*inputs.values(), via)}
        assert texts <= {value for each in run.questions for value in (*each.inputs.values(), each.via)} | {""}


def test_hidden_cases_depend_on_the_seed_and_hold_no_example() -> None:
    first, again, other = hidden_cases(SPEC, 0), hidden_cases(SPEC, 0), hidden_cases(SPEC, 1)
    assert first == again != other
    assert all(each.inputs != TOOL.example.inputs for run in (*first, *other) for each in run.questions)


def test_one_answer_for_everything_or_errors_alone_follow_no_rules() -> None:
    assert follows_rules([("a", True), ("error: x", True)])
    assert follows_rules([("a", True), ("b", True), ("c", False)])
    assert not follows_rules([("a", True), ("a", True), ("b", False)])
    assert not follows_rules([("error: x", True), ("error: y", True)])
    assert not follows_rules([(None, True), ("error: x", True), ("a", False)])
    assert not follows_rules([(None, True), ("a", True)])


def test_an_answer_is_shown_in_few_characters_whatever_it_is() -> None:
    assert (show(None), show("a"), show(["a"] * 999)) == ("nothing", "'a'", "a list")
    assert show({"exception": "KeyError('x')"}) == "KeyError('x')"
    assert len(show("x" * 9999)) < 210


def test_a_react_task_without_the_agents_interpreter_is_not_scored(tmp_path: Path) -> None:
    with (
        NatToolkit.open(react_python=tmp_path / "python") as toolkit,
        pytest.raises(NatUnavailableError, match="make setup-react"),
    ):
        check(toolkit, REACT)
