"""Tools that a configuration offers: found by name, made for each episode, beside those of the environment."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.config import ToolsConfig
from agent_rl.config.tools import MCPServerConfig
from agent_rl.data.tasks import Task
from agent_rl.envs import opening
from agent_rl.envs.base import AgentEnv, EnvFactory, Solution, StepResult, ToolEnv
from agent_rl.envs.blank_answers import BlankAnswersFactory
from agent_rl.envs.opening import check_agent_type, offer_tools
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError, DataError
from agent_rl.tools.answer_tool import AnswerTool
from agent_rl.tools.base import BaseTool, ToolResult
from agent_rl.tools.toolset import Toolset, register_tool

_names = itertools.count()


def fresh(word: str) -> str:
    """A name that no other test has registered."""
    return f"{word}_{next(_names)}"


class Greeting(BaseTool):
    description = "Greet the person of the task."
    parameters = {"type": "object", "properties": {}}

    def __init__(self, name: str, person: str) -> None:
        self.name = name
        self.person = person

    def __call__(self, **arguments: Any) -> ToolResult:
        return ToolResult(text=f"hello {self.person}")


def register_greeting() -> str:
    name = fresh("greet")
    register_tool(name, lambda config: lambda task: Greeting(name, task["person"]))
    return name


class AnswerEnv(ToolEnv):
    def reset(self, task: Task) -> list[Message]:
        self.registry = self.add_tools(task, [AnswerTool()])
        return [Message.user("?")]

    def on_terminal(self, tool_name: str) -> StepResult:
        return StepResult(reward=1.0, terminated=True)

    def no_call(self, message: Message) -> StepResult:
        return StepResult()


class PlainEnv(AgentEnv):
    def reset(self, task: Task) -> list[Message]:
        return [Message.user("?")]

    def step(self, message: Message) -> StepResult:
        return StepResult(terminated=True)


class AnswerFactory(EnvFactory):
    own_tools = ("answer",)

    def __init__(self, log: list[str] | None = None, *, fails: bool = False) -> None:
        super().__init__(AnswerEnv)
        self.log = [] if log is None else log
        self.fails = fails

    def check_task(self, task: Task, where: str) -> None:
        raise DataError(f"{where}: no")

    def preflight_tasks(self, tasks: Sequence[Task]) -> dict[str, Task]:
        return {"first": tasks[0]}

    def solutions(self, task: Task) -> list[Solution]:
        return [Solution(name="empty", messages=(), succeeds=False)]

    def start(self) -> None:
        self.log.append("start")
        if self.fails:
            raise ConfigError("it cannot start")

    def describe(self) -> dict[str, Any]:
        return {"version": 3}

    def counters(self) -> dict[str, float]:
        return {"asked": 5.0}

    def close(self) -> None:
        self.log.append("close")


def with_toolset(factory: EnvFactory, *use: str) -> EnvFactory:
    """The factory with these tools."""
    return offer_tools(factory, ToolsConfig(use=use))


def test_tools_are_made_for_each_task_in_the_order_of_the_configuration() -> None:
    first, second = register_greeting(), register_greeting()
    toolset = Toolset(ToolsConfig(use=(second, first)))
    toolset.start()
    ada, bob = toolset.make({"person": "Ada"}), toolset.make({"person": "Bob"})
    assert [made.name for made in ada] == [second, first]
    assert [made().text for made in (*ada, *bob)] == ["hello Ada"] * 2 + ["hello Bob"] * 2
    assert toolset.describe() == {"tools": f"{second}, {first}"}
    toolset.close()


def test_an_opener_is_called_once_a_run_with_the_configuration() -> None:
    name, seen = fresh("greet"), []

    def opener(config: ToolsConfig) -> Any:
        seen.append(config)
        return lambda task: Greeting(name, "you")

    register_tool(name, opener)
    config = ToolsConfig(use=(name,))
    toolset = Toolset(config)
    assert seen == []
    toolset.start()
    toolset.make({})
    toolset.make({})
    assert seen == [config]


def test_an_unknown_name_is_answered_with_the_nearest_or_with_all() -> None:
    with pytest.raises(ConfigError, match=r"'calculater' in tools\.use; did you mean 'calculator'"):
        Toolset(ToolsConfig(use=("calculater",)))
    with pytest.raises(ConfigError, match=r"'zzz' in tools\.use; known: .*calculator.*search"):
        Toolset(ToolsConfig(use=("zzz",)))


def test_a_name_is_registered_once() -> None:
    name = register_greeting()
    with pytest.raises(ConfigError, match=f"'{name}' already"):
        register_tool(name, lambda config: lambda task: Greeting(name, "you"))


def test_a_tool_that_is_offered_twice_is_refused() -> None:
    toolset = Toolset(ToolsConfig(use=("calculator", "calculator")))
    with pytest.raises(ConfigError, match=r"tools.use and tools.mcp: the tool name 'calculator' is offered twice"):
        toolset.start()


def test_a_tool_named_like_one_of_the_environments_own_is_refused_before_the_environment_starts() -> None:
    name = register_greeting()
    factory = AnswerFactory()
    factory.own_tools = ("answer", name)
    with pytest.raises(ConfigError, match=f"section tools: the tool name '{name}' is offered twice"):
        with_toolset(factory, "calculator", name)
    assert factory.log == []


def test_an_environment_has_its_own_tools_first_and_runs_all_of_them() -> None:
    name = register_greeting()
    factory = with_toolset(AnswerFactory(), name, "calculator")
    factory.start()
    env = factory()
    env.reset({"person": "Ada"})
    assert [spec.name for spec in env.tools] == ["answer", name, "calculator"]
    calls = (ToolCall(name=name, arguments={}), ToolCall(name="calculator", arguments={"expression": "2 + 3"}))
    assert [message.content for message in env.step(Message.assistant("", calls)).messages] == ["hello Ada", "5"]
    assert env.step(Message.assistant("", (ToolCall(name="answer", arguments={"answer": "5"}),))).terminated


def test_an_environment_that_takes_no_tools_is_refused() -> None:
    with pytest.raises(ConfigError, match="section tools: PlainEnv takes no tools; remove it, or derive from ToolEnv"):
        with_toolset(EnvFactory(PlainEnv), "calculator")


def test_without_tools_the_environment_is_left_as_it_is() -> None:
    plain = EnvFactory(PlainEnv)
    assert with_toolset(plain) is plain
    env = AnswerFactory()()
    env.reset({})
    assert [spec.name for spec in env.tools] == ["answer"]


def test_a_tool_that_an_environment_needs_has_to_be_offered() -> None:
    class NeedsCalculator(AnswerFactory):
        needed_tools = ("calculator",)

    name = register_greeting()
    with pytest.raises(ConfigError, match=r"needs the tool 'calculator'.*; add calculator to tools.use"):
        with_toolset(NeedsCalculator(), name)
    offered = with_toolset(NeedsCalculator(), "calculator", name)
    assert offered.needed_tools == ()  # it can be offered others, as it needs none any more


class OfferingToolset(Toolset):
    """What servers offer is known after `start`."""

    offers: tuple[str, ...] = ()
    log: list[str] = []

    def __init__(self, config: ToolsConfig, given: Any = None) -> None:
        super().__init__(ToolsConfig())

    def start(self) -> None:
        self.log.append("start tools")
        self._shared = [Greeting(name, "you") for name in self.offers]

    def close(self) -> None:
        self.log.append("close tools")


SERVER = MCPServerConfig(command=("server",))


@pytest.fixture
def with_server(monkeypatch: pytest.MonkeyPatch) -> Callable[..., EnvFactory]:
    """A factory with a server that offers these tools; starts and ends of the tools are in `factory.log` too."""

    def offered(factory: AnswerFactory, *offers: str) -> EnvFactory:
        toolset = type("OneToolset", (OfferingToolset,), {"offers": offers, "log": factory.log})
        monkeypatch.setattr(opening, "Toolset", toolset)
        return offer_tools(factory, ToolsConfig(mcp=(SERVER,)))

    return offered


def test_a_tool_that_an_environment_needs_may_come_from_a_server(with_server: Callable[..., EnvFactory]) -> None:
    class NeedsSearch(AnswerFactory):
        needed_tools = ("search",)

    with_server(NeedsSearch(), "search").start()
    factory = NeedsSearch()
    with pytest.raises(ConfigError, match=r"needs the tool 'search', which neither tools.use nor .*; add search to "):
        with_server(factory, "look_up")
    assert factory.log == ["start tools", "close tools"]


class CodeFactory(AnswerFactory):
    own_tools = ("code_exec",)


def test_a_code_agent_takes_an_environment_whose_only_tool_is_code_exec() -> None:
    check_agent_type("code", CodeFactory())
    for factory, named in (
        (AnswerFactory(), "'answer'; "),
        (with_toolset(CodeFactory(), "calculator"), "'code_exec', 'calculator'; "),
        (make_env_factory("math_qa", {}, seed=0), "none; "),
        (with_toolset(EnvFactory(AnswerEnv), "calculator"), "'calculator'; "),
    ):
        with pytest.raises(ConfigError, match=f"whose only tool is 'code_exec', this one offers {named}leave the othe"):
            check_agent_type("code", factory)
        check_agent_type("react", factory)


def test_a_code_agent_may_get_code_exec_from_a_server(with_server: Callable[..., EnvFactory]) -> None:
    check_agent_type("code", EnvFactory(AnswerEnv))  # which does not list what it brings
    for offers, are_refused in ((("code_exec",), False), (("look_up",), True), ((), True)):
        factory = AnswerFactory()
        factory.own_tools = ()
        made = with_server(factory, *offers)
        with pytest.raises(ConfigError) if are_refused else nullcontext():
            check_agent_type("code", made)


def test_the_environments_attributes_are_passed_on() -> None:
    factory = with_toolset(AnswerFactory(), "calculator")
    assert factory.describe() == {"version": 3, "tools": "calculator"}
    assert factory.counters() == {"asked": 5.0}
    assert [solution.name for solution in factory.solutions({})] == ["empty"]
    assert factory.preflight_tasks([{"task_id": "1"}]) == {"first": {"task_id": "1"}}
    with pytest.raises(DataError, match="row 3: no"):
        factory.check_task({}, "row 3")


def test_what_a_factory_says_of_its_environments_is_passed_on_by_every_one_around_it() -> None:
    class Full(AnswerFactory):
        may_be_remote = False
        speed_options = ("workers",)

        def task_files(self, seed: int, num_train: int | None, num_eval: int | None) -> dict[str, list[Task]]:
            return {"train": [{"task_id": "1"}]}

        def demonstrations(self, seed: int, *, faulty_share: float) -> Iterator[Any]:
            return iter(["shown"])

        def chosen_demonstrations(self, seed: int, *, faulty_share: float, choice: Any) -> Iterator[Any]:
            return iter(["chosen"])

        def covers(self, task: Task) -> dict[str, tuple[str, ...]]:
            return {"families": ("door",)}

        def worker_counters(self) -> dict[str, float]:
            return {"lost_actors": 1.0}

    for factory in (with_toolset(Full(), "calculator"), BlankAnswersFactory(Full())):
        assert (factory.may_be_remote, factory.speed_options) == (False, ("workers",))
        assert factory.task_files(0, None, None) == {"train": [{"task_id": "1"}]}
        assert [*factory.demonstrations(0, faulty_share=0.0)] == ["shown"]
        assert [*factory.chosen_demonstrations(0, faulty_share=0.0, choice=None)] == ["chosen"]
        assert factory.covers({}) == {"families": ("door",)}
        assert factory.worker_counters() == {"lost_actors": 1.0}


def test_tools_start_before_the_environment_and_close_after_it(with_server: Callable[..., EnvFactory]) -> None:
    factory = AnswerFactory()
    with with_server(factory) as opened:
        opened.start()
    assert factory.log == ["start tools", "start", "close", "close tools"]


def test_tools_are_closed_when_the_environment_cannot_start(with_server: Callable[..., EnvFactory]) -> None:
    factory = AnswerFactory(fails=True)
    with pytest.raises(ConfigError, match="it cannot start"), with_server(factory) as opened:
        opened.start()
    assert factory.log == ["start tools", "start", "close", "close tools"]


def test_tools_are_closed_when_closing_the_environment_fails(with_server: Callable[..., EnvFactory]) -> None:
    class Failing(AnswerFactory):
        def close(self) -> None:
            raise ConfigError("it cannot close")

    factory = Failing()
    with pytest.raises(ConfigError, match="it cannot close"):
        with_server(factory).close()
    assert factory.log == ["start tools", "close tools"]
