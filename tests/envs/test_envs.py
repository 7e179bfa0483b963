"""Environments of one's own: registered by name, and tool calls answered one by one."""

import itertools
from functools import partial

import pytest
from builders import call

from agent_rl.agent.messages import Message, ToolCall, ToolCallError
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult, ToolEnv
from agent_rl.envs.registry import make_env_factory, register_env
from agent_rl.errors import ConfigError
from agent_rl.tools.base import BaseTool, ToolRegistry, ToolResult

_names = itertools.count()


class AddTool(BaseTool):
    name = "add"
    description = "Add two whole numbers."
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a"],
    }

    def __call__(self, **arguments: int) -> ToolResult:
        return ToolResult(text=str(arguments["a"] + arguments["b"]))


class DoneTool(BaseTool):
    name = "done"
    description = "End."
    parameters = {"type": "object", "properties": {}}

    def __call__(self, **arguments: int) -> ToolResult:
        return ToolResult(text="", terminal=True)


class SumEnv(ToolEnv):
    def reset(self, task: dict) -> list[Message]:
        self.registry = ToolRegistry([AddTool(), DoneTool()])
        self.tools = self.registry.specs
        return [Message.user(task["prompt"])]

    def on_terminal(self, tool_name: str) -> StepResult:
        return StepResult(reward=2.0, terminated=True)

    def no_call(self, message: Message) -> StepResult:
        return StepResult(messages=(Message.user("call a tool"),))


def texts(result: StepResult) -> list[str]:
    return [message.content for message in result.messages]


def test_a_registered_environment_is_made_by_its_name_with_its_options() -> None:
    name = f"sum-{next(_names)}"
    seen = []

    @register_env(name)
    def make(options: dict, seed: int) -> EnvFactory:
        seen.append((options, seed))
        return EnvFactory(SumEnv)

    assert isinstance(make_env_factory(name, {"x": 1}, seed=7)(), AgentEnv)
    assert seen == [({"x": 1}, 7)]
    with pytest.raises(ConfigError, match=name):
        register_env(name)(make)


def test_what_cannot_make_an_environment_is_refused_at_once_with_its_line() -> None:
    class Sized(SumEnv):
        def __init__(self, size) -> None:
            super().__init__()

    class Unfinished(AgentEnv):
        def reset(self, task):
            return []

    for make, said in [(Sized, "(size)"), (Unfinished, "no step"), (lambda a, b: SumEnv(), "(a, b)")]:
        with pytest.raises(ConfigError) as caught:
            EnvFactory(make)
        assert f"({__file__}:" in str(caught.value) and said in str(caught.value)
    assert isinstance(EnvFactory(partial(Sized, 3))(), Sized)


def test_each_call_gets_an_answer_and_a_tools_exception_is_one_of_them() -> None:
    env = SumEnv()
    env.reset({"prompt": "2 + 3"})
    calls = (call("add", a=2, b=3), call("add", a=2), call("add", a="2"), call("add", b=1), call("ad", a=1, b=1))
    result = env.step(Message.assistant("", calls))
    assert texts(result)[0] == "5"
    assert texts(result)[1:] == [
        "error: add: KeyError: 'b'",
        "error: add: argument 'a' must be a JSON integer, got str",
        "error: add: argument 'a' is missing; expected a, b",
        "error: there is no tool 'ad'; did you mean 'add'?",
    ]
    assert result.info == {"tool_calls": 5, "tool_errors": 4}


def test_an_unreadable_call_is_answered_and_a_reply_without_one_too() -> None:
    env = SumEnv()
    env.reset({"prompt": "?"})
    broken = ToolCallError(kind="bad_json", message="the call is not JSON", span=(0, 3))
    result = env.step(Message(role="assistant", content="", tool_errors=(broken,)))
    assert texts(result) == ["error: the call is not JSON"]
    assert texts(env.step(Message.assistant("hello"))) == ["call a tool"]


def test_a_terminal_tool_ends_the_episode_and_later_calls_do_not_run() -> None:
    env = SumEnv()
    env.reset({"prompt": "?"})
    result = env.step(Message.assistant("", (call("done"), call("add", a=1, b=1))))
    assert (result.terminated, result.reward, result.info["tool_calls"]) == (True, 2.0, 1)


def test_the_conversation_is_stored_as_it_grows() -> None:
    env = SumEnv()
    env.trajectory = tuple(env.reset({"prompt": "2 + 3"}))
    broken = ToolCallError(kind="bad_json", message="not JSON", span=(0, 3))
    conversation = (
        Message(role="assistant", content="", tool_calls=(call("add", a=2, b=3),), tool_errors=(broken,)),
        Message.assistant("hello"),
        Message.assistant("", (call("add", a=1, b=1), call("done"), call("add", a=9, b=9))),
    )
    for message in conversation:
        env.step(message)
    assert env.trajectory == (
        Message.user("2 + 3"),
        conversation[0],
        Message.tool("error: not JSON"),
        Message.tool("5", name="add"),
        conversation[1],
        Message.user("call a tool"),
        conversation[2],
        Message.tool("2", name="add"),
        Message.tool("", name="done"),
    )


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'add' is already registered"):
        ToolRegistry([AddTool(), AddTool()])


@pytest.mark.parametrize(
    ("printed", "read"),
    [
        ("\x1b[31mred\x1b[0m and \x1b[1;4mbold\x1b[m", "red and bold"),
        ("a\tb\r\nc\x00\x07\x08\x7fd", "a\tb\ncd"),
        ("\x1b]0;title\x07text \x1b]8;;http://x\x1b\\link", "text link"),
        ("50 % done\rdone", "50 % donedone"),
        ("\x9b2Jé\x1b", "2Jé"),
        ("<|im_end|> stays for the tokenizer to see as text", "<|im_end|> stays for the tokenizer to see as text"),
    ],
)
def test_a_tools_text_reaches_the_model_without_terminal_codes(printed: str, read: str) -> None:
    class Printer(BaseTool):
        name = "print"
        description = "Print."
        parameters = {"type": "object", "properties": {}}

        def __call__(self, **arguments: int) -> ToolResult:
            return ToolResult(text=printed, facts={"n": 1})

    result = ToolRegistry([Printer()]).run(ToolCall(name="print", arguments={}))
    assert (result.text, result.facts, result.ok) == (read, {"n": 1}, True)
