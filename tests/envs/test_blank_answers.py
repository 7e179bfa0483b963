"""The control of an evaluation: tools do what they do, and answer nothing."""

from agent_rl.agent.messages import Message, ToolCall, ToolSpec
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult
from agent_rl.envs.blank_answers import BLANK, BlankAnswersFactory
from agent_rl.records import StopReason


class Door(AgentEnv):
    """Opens by the number that its tool tells; remembers what it was given."""

    seen: dict[str, object] = {}
    closed = 0

    def reset(self, task):
        Door.seen["seed"] = self.case_seed
        return [Message.user("open")]

    def step(self, message):
        if message.content == "7":
            return StepResult(reward=1.0, reward_parts={"success": 1.0}, terminated=True)
        if message.content == "again":
            return StepResult(conversation=(Message.user("u"), message, Message.tool("it is 7", "look")))
        return StepResult(messages=(Message.tool("it is 7", "look"), Message.user("go on")), info={"tool_calls": 1})

    def truncate(self, reason):
        Door.seen["unanswered"] = self.unanswered
        return StepResult(reward=0.25, terminated=True)

    def close(self):
        Door.closed += 1


def test_the_words_of_tools_are_gone_and_nothing_else() -> None:
    factory = BlankAnswersFactory(EnvFactory(Door))
    env = factory()
    env.case_seed = 5
    assert env.reset({"task_id": "a"}) == [Message.user("open")]
    result = env.step(Message.assistant("", (ToolCall(name="look", arguments={}),)))
    assert result.messages == (Message.tool(BLANK, "look"), Message.user("go on"))
    assert result.info == {"tool_calls": 1}
    again = env.step(Message.assistant("again"))
    assert [each.content for each in again.conversation or ()] == ["u", "again", BLANK]
    last = env.step(Message.assistant("7"))
    assert (last.reward, last.terminated, last.reward_parts) == (1.0, True, {"success": 1.0})
    env.unanswered = Message.assistant("cut")
    assert env.truncate(StopReason.MAX_TURNS).reward == 0.25
    env.close()
    assert Door.seen == {"seed": 5, "unanswered": Message.assistant("cut")} and Door.closed == 1


def test_tools_that_change_in_an_episode_are_offered() -> None:
    class Phases(Door):
        def reset(self, task):
            self.tools = (ToolSpec(name="first", description=""),)
            return super().reset(task)

        def step(self, message):
            self.tools = (ToolSpec(name="second", description=""),)
            return super().step(message)

    env = BlankAnswersFactory(EnvFactory(Phases))()
    offered = []
    for call in (lambda: env.reset({"task_id": "a"}), lambda: env.step(Message.assistant("again"))):
        call()
        offered += [tool.name for tool in env.tools]
    assert offered == ["first", "second"]


def test_the_factory_says_what_it_is_and_is_the_other_otherwise() -> None:
    class Shared(EnvFactory):
        own_tools = ("look",)
        is_closed = False

        def close(self):
            self.is_closed = True

    inner = Shared(Door)
    factory = BlankAnswersFactory(inner)
    assert (factory.control, inner.control) == ("blank tool answers", "")
    assert factory.own_tools == ("look",)
    factory.close()
    assert inner.is_closed
