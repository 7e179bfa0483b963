"""Workflows that find out what a tool is before they decide whether to use it, or to do its work themselves."""

import pytest
from nat_demo import FILES, run_demo, run_of
from nat_projects import check, score, spec_of

from agent_rl.envs.nat.factory.cases import hidden_cases
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.checker import leads_of
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec

ROUTER = spec_of("text_pipeline", 3)
PIPELINE = spec_of("tool_workflow", 4)
CLIENT = spec_of("calculator", 4)
GROUP = spec_of("function_group", 5)
CHEATS = {
    "asks what it knows before every call": """
        if await self.tool.acall_invoke(**self.sample) == self.work(**self.sample):
            return self.work(**given)
        return await self.tool.acall_invoke(**given)
""",
    "asks what it knows once": """
        if self.calls == 1:
            self.is_real = await self.tool.acall_invoke(**self.sample) == self.work(**self.sample)
        return self.work(**given) if self.is_real else await self.tool.acall_invoke(**given)
""",
    "asks the last question again": """
        last, self.last = self.last, given
        if await self.tool.acall_invoke(**last) == self.work(**last):
            return self.work(**given)
        return await self.tool.acall_invoke(**given)
""",
    "trusts itself once the tool has agreed": """
        if self.is_real:
            return self.work(**given)
        answer = await self.tool.acall_invoke(**given)
        self.is_real = answer == self.work(**given)
        return answer
""",
}
OWN = '''

class Cautious:
    """Decides whom to believe."""

    def __init__(self, tool, work, sample):
        self.tool, self.work, self.sample, self.last = tool, work, sample, sample
        self.calls, self.is_real = 0, False

    async def acall_invoke(self, **given):
        self.calls += 1
'''


def cheat(spec: NATSpec, name: str) -> dict[str, str]:
    """The reference, whose workflow does the tools' work itself where it takes them for the project's own."""
    text = render_project(spec)[spec.register_path]
    for tool in spec.tools:
        fetched = f"    {tool.instance} = await builder.get_function(config.{tool.instance}_ref)\n"
        assert fetched in text
        made = f"    {tool.instance} = Cautious({tool.instance}, {tool.function}, {dict(tool.example.inputs)!r})\n"
        text = text.replace(fetched, fetched + made)
    return {spec.register_path: text + OWN + CHEATS[name]}


@pytest.mark.parametrize("name", CHEATS)
@pytest.mark.parametrize("spec", [ROUTER, PIPELINE, CLIENT], ids=["router", "pipeline", "served"])
def test_a_workflow_that_asks_before_it_decides_is_found_out(nat_toolkit: NatToolkit, spec: NATSpec, name: str) -> None:
    report = check(nat_toolkit, spec, cheat(spec, name))
    assert score(report, "workflow", "valid requests") == report.share("behaviour") == 1.0
    swapped = [each for each in report.points if each.stage == "workflow" and "swapped" in each.name]
    assert swapped and not report.complete
    assert sum(each.score for each in swapped) < len(swapped)


def test_a_workflow_that_keeps_a_groups_state_itself_is_found_out(nat_toolkit: NatToolkit) -> None:
    """It asks the group too until they agree once, and keeps a state of its own from the start."""
    assert GROUP.group is not None
    text = render_project(GROUP)[GROUP.register_path]
    for instance in GROUP.group.instances:
        for each in GROUP.group.visible:
            name = f"{instance}__{each.name}"
            fetched = f"    {name} = await builder.get_function(config.{name}_ref)\n"
            assert fetched in text
            work = f"lambda unused='', **given: state_{instance}.{each.name}(**given)"
            text = text.replace(fetched, f"{fetched}    {name} = Cautious({name}, {work}, {{}})\n")
    first = f"    {GROUP.group.instances[0]}__{GROUP.group.visible[0].name} = await"
    states = "".join(f"    state_{each} = {GROUP.group.class_name}()\n" for each in GROUP.group.instances)
    text = text.replace(first, states + first, 1) + OWN
    text += """
        mine = self.work(**given)
        if self.is_real:
            return mine
        answer = await self.tool.acall_invoke(**given)
        self.is_real = answer == mine
        return answer
"""
    report = check(nat_toolkit, GROUP, {GROUP.register_path: text})
    assert score(report, "workflow", "valid requests") == report.share("behaviour") == 1.0
    assert score(report, "workflow", "tools swapped") < 1.0 and not report.complete


@pytest.mark.parametrize("spec", [ROUTER, PIPELINE, CLIENT, GROUP], ids=["router", "pipeline", "served", "group"])
def test_every_question_about_stand_ins_leads_to_one(spec: NATSpec) -> None:
    runs = [run for seed in range(5) for run in hidden_cases(spec, seed) if run.swapped]
    assert runs
    for run in runs:
        for question in run.questions:
            assert {name for name, _ in leads_of(spec, run, question)} & set(run.swapped)


def test_a_stand_in_answers_only_what_a_question_leads_to(nat_toolkit: NatToolkit) -> None:
    flow = """

class FlowConfig(FunctionBaseConfig, name="demo_flow"):
    scaler: FunctionRef


@register_function(config_type=FlowConfig)
async def flow(config: FlowConfig, builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    tool = await builder.get_function(config.scaler)
    before = await tool.ainvoke({"value": 3.0, "unit": "km"})

    async def run(value: float, unit: str) -> str:
        "Ask twice."
        own = await tool.acall_invoke(value=3.0, unit="km")
        return f"{before}, {own}, {await tool.ainvoke({'value': value, 'unit': unit})}"

    yield FunctionInfo.from_fn(run, description=run.__doc__)
"""
    register = FILES["src/nat_demo/register.py"].replace("register_function\n", "register_function, FunctionRef\n")
    config = FILES["src/nat_demo/configs/config.yml"]
    files = {
        "src/nat_demo/register.py": register + flow,
        "src/nat_demo/configs/config.yml": config.replace(
            "workflow:\n  _type: demo_scale", "workflow:\n  _type: demo_flow\n  scaler: scaler"
        ),
    }
    asked = [{"value": 2.0, "unit": "km"}, {"value": 3.0, "unit": "km"}, {"value": 4.0, "unit": "km"}]
    leads = [[["scaler", each]] for each in asked[:2]] + [[]]
    run = run_of([("", each) for each in asked], swapped={"scaler": "7"}, leads=leads)
    found = run_demo(nat_toolkit, files, run)
    right = "3000.00 m"
    assert found.runs[0].answers == (f"{right}, {right}, 7", f"{right}, 7, 7", f"{right}, 7, 4000.00 m")
