"""`env.name: openenv`: an environment behind a server of OpenEnv, reset and stepped over its WebSocket.

An action with one text field is the model's reply; the tools of a server that has tools (MCP) are offered to the model
and end with a reply that calls none; any other action needs a function, `act`. Rewards, ends and states are the
server's. Not here: the messages on the wire (`openenv_session.py`), starting a server.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from agent_rl.agent.message_dicts import read_prompt
from agent_rl.agent.messages import Message, ToolCall, ToolSpec
from agent_rl.agent.tool_parser import reply_text
from agent_rl.config import validate_section
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, Row, StepResult
from agent_rl.envs.foreign.common import ForeignOptions, numbers, seed_rows, to_reward
from agent_rl.envs.foreign.openenv_session import OpenEnvServer, OpenEnvSession, ServerError
from agent_rl.errors import ConfigError, DataError
from agent_rl.failures import FailedCall, note
from agent_rl.registry import import_object

_TOOL_FIELDS = {"tool_name", "arguments"}
"""Of the action that calls a tool (`CallToolAction`)."""


class OpenEnvOptions(ForeignOptions):
    """`env.options` of `openenv`."""

    url: str
    """Address of the server, `http://localhost:8000`."""
    field: str | None = None
    """Field of the action that is the model's reply; null: its only text field. Of no use with `act` or tools."""
    act: str | None = None
    """Import path of a function from the model's reply to an action, a dictionary, whose ValueError the model reads;
    null: see `field`."""
    describe: str | None = None
    """Import path of a function from an observation, a dictionary, to text; null: its only text, else all as JSON."""
    system_prompt: str | None = None
    """The first message; null: the conversation begins with the row's prompt, or with the first observation."""
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """Most seconds for an answer of the server, and for a free place where it allows few sessions."""


class OpenEnvEnv(AgentEnv):
    """One session, one episode."""

    def __init__(self, factory: "OpenEnvFactory") -> None:
        self._factory = factory
        self._session: OpenEnvSession | None = None
        self._total: float | None = None  # None: no reward was given yet
        self._given = 0.0  # of the total, what steps were told

    def reset(self, task: Task) -> list[Message]:
        self._session = self._factory.server.open()
        arguments = {**task.get("reset", {}), **({"seed": task["seed"]} if "seed" in task else {})}
        first = self._answer("reset", arguments)
        if first["done"]:
            raise ServerError(f"{self._factory.server.url}: the episode was over when it was reset")
        if self._factory.has_tools:
            listed = self._answer("step", {"type": "list_tools"})
            self.tools = tuple(map(self._factory.tool, listed["observation"].get("tools") or ()))
        system, text = self._factory.options.system_prompt, self._factory.text(first["observation"])
        messages = list(read_prompt(task["prompt"], "prompt")) if "prompt" in task else []
        messages += [Message.user(text)] if text.strip() or not messages else []
        return messages if system is None else [Message.system(system), *messages]

    def step(self, message: Message) -> StepResult:
        if self._factory.has_tools:
            return self._call(message)
        try:
            action = self._factory.action(reply_text(message))
            answer = self._answer("step", action)
        except (ValueError, ServerError) as error:
            if isinstance(error, ServerError) and error.code != "VALIDATION_ERROR":
                raise
            return StepResult(messages=(Message.user(f"error: {error}"),), info={"tool_errors": 1})
        if answer["done"]:  # nobody reads its observation
            return self._result((), is_over=True)
        return self._result((Message.user(self._factory.text(answer["observation"])),), is_over=False)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _call(self, message: Message) -> StepResult:
        """Run the calls of a reply in order, up to one that ends the episode; a reply without any ends it too."""
        replies = [Message.tool(f"error: {error.message}") for error in message.tool_errors]
        num_errors, is_over = len(replies), not message.tool_calls and not replies
        for call in () if is_over else message.tool_calls:
            text, is_error, is_over = self._run(call)
            replies.append(Message.tool(text, name=call.name))
            num_errors += is_error
            if is_over:
                break
        counts = {"tool_calls": len(message.tool_calls), "tool_errors": num_errors}
        return self._result(tuple(replies), is_over=is_over, info=counts)

    def _run(self, call: ToolCall) -> tuple[str, bool, bool]:
        """What a call gave, whether that is an error, and whether the episode is over."""
        answer = self._answer("step", {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments})
        given = answer["observation"]
        if error := given.get("error"):
            reason = error.get("message", error) if isinstance(error, Mapping) else error
            return f"error: {reason}", True, answer["done"]
        result = given.get("result")
        is_error = isinstance(result, Mapping) and bool(result.get("is_error"))
        return _result_text(result), is_error, answer["done"]

    def _answer(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """An answer with `observation` and `done`; its reward is added up."""
        assert self._session is not None, "reset comes first"
        answer = self._session.ask(kind, data)
        if not isinstance(answer.get("observation"), dict) or not isinstance(answer.get("done", False), bool):
            raise ServerError(f"{self._factory.server.url}: {kind} gave {answer!r:.80}, expected an observation")
        if answer.get("reward") is not None:
            self._total = (self._total or 0.0) + to_reward(answer["reward"], self._factory.server.url)
        return {"done": False, **answer}

    def _result(
        self, messages: tuple[Message, ...], *, is_over: bool, info: dict[str, Any] | None = None
    ) -> StepResult:
        assert self._session is not None, "reset comes first"
        if is_over and self._total is None:
            return StepResult(reward=None, terminated=True, info={"error": "the server gave no reward", **(info or {})})
        total = self._total or 0.0
        reward, self._given = total - self._given, total
        parts = self._last_state() if is_over else {}
        success = self._factory.options.is_success(total)
        return StepResult(
            messages=() if is_over else messages,
            reward=reward,
            reward_parts={**parts, "success": success},
            terminated=is_over,
            info=info or {},
        )

    def _last_state(self) -> dict[str, float]:
        """The numbers of the state after the end; none where the server fails to tell, as the rewards are known."""
        assert self._session is not None, "reset comes first"
        try:
            return numbers(self._session.ask("state"))
        except ServerError as error:
            note(FailedCall.of(error, "the server's state", self))
            return {}


class OpenEnvFactory(EnvFactory):
    """Asks the server once what an action is."""

    own_tools = ()

    def __init__(self, options: OpenEnvOptions) -> None:
        self.options = options
        self.server = OpenEnvServer(options.url, options.timeout_s)
        self._describe: Callable[[Any], Any] | None = options.describe and import_object(options.describe)
        self._act: Callable[[str], Any] | None = options.act and import_object(options.act)
        self.has_tools = False
        self._field = options.field

    def __call__(self) -> AgentEnv:
        return OpenEnvEnv(self)

    def start(self) -> None:
        """Find out whether a server is there, whether it gives a session, and what its actions are."""
        schema = self.server.action_schema()
        if self._act is None:
            self._read_fields(schema)
        try:
            self.server.open().close()
        except ServerError as error:
            raise ConfigError(f"env.options.url: no session can be opened ({error})") from None

    def _read_fields(self, schema: Mapping[str, Any]) -> None:
        fields = {name: of for name, of in schema.get("properties", {}).items() if name != "metadata"}
        if self._field is not None:
            if self._field not in fields:
                known = ", ".join(fields) or "none"
                raise ConfigError(f"env.options.field = {self._field!r}: the server's action has the fields {known}")
            return
        self.has_tools = set(fields) >= _TOOL_FIELDS
        texts = [name for name, of in fields.items() if isinstance(of, Mapping) and of.get("type") == "string"]
        needed = [name for name in texts if name in (schema.get("required") or ())] or texts
        if not self.has_tools:
            if len(needed) != 1:
                raise ConfigError(
                    f"env.options.url = {self.server.url!r}: its action has the fields {', '.join(fields) or 'none'}, "
                    "and not one text; name the one that is the model's reply in env.options.field, or a function that "
                    "makes an action of the reply in env.options.act"
                )
            self._field = needed[0]

    def action(self, reply: str) -> dict[str, Any]:
        """The action that a reply is; ValueError, for the model, of a reply that is none."""
        if self._act is None:
            assert self._field is not None, "start comes first"
            return {self._field: reply}
        made = self._act(reply)
        is_action = isinstance(made, dict)
        try:
            json.dumps(made, allow_nan=False)
        except TypeError:
            is_action = False
        except (ValueError, RecursionError) as error:  # such as nan, which a reply may hold
            if is_action:
                raise ValueError(f"the action cannot be written as JSON: {error}") from None
        if not is_action:
            raise ConfigError(
                f"{self.options.act} gave {made!r:.80}, expected an action, which is a dictionary that JSON can hold"
            )
        return made

    def text(self, observation: dict[str, Any]) -> str:
        """What the model reads of an observation."""
        if self._describe is not None:
            told = self._describe(observation)
            if not isinstance(told, str):
                raise ConfigError(f"{self.options.describe} gave {told!r:.80}, expected a text")
            return told
        values = [value for value in observation.values() if value not in (None, "", [], {})]
        if not values:
            return ""
        is_text = len(values) == 1 and isinstance(values[0], str)
        return values[0] if is_text else json.dumps(observation, ensure_ascii=False)

    def tool(self, listed: Any) -> ToolSpec:
        """A tool as the server lists it."""
        try:
            return ToolSpec(
                name=str(listed["name"]),
                description=str(listed.get("description") or ""),
                parameters=dict(listed["input_schema"]),
            )
        except (TypeError, KeyError, ValueError, AttributeError):
            raise ServerError(f"{self.server.url}: listed {listed!r:.80}, expected a tool") from None

    def check_task(self, task: Task, where: str) -> None:
        seed, reset = task.get("seed", 0), task.get("reset", {})
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise DataError(f"{where}: seed is {seed!r:.80}; make it a whole number, or leave it out")
        if not isinstance(reset, dict):
            raise DataError(f"{where}: reset is {reset!r:.80}; make it an object of arguments, or leave it out")
        if "prompt" in task:
            read_prompt(task["prompt"], f"{where}: prompt")

    def task_files(self, seed: int, num_train: int | None, num_eval: int | None) -> Mapping[str, Sequence[Row]]:
        """Rows of a seed each; no seed is in both files."""
        return seed_rows("openenv", seed, num_train, num_eval)


def _result_text(result: Any) -> str:
    """What a tool gave: its texts where it gave a list of content, else text as it is and anything else as JSON."""
    content = result.get("content") if isinstance(result, Mapping) else None
    if isinstance(content, list):
        return "\n".join(str(each["text"]) for each in content if isinstance(each, Mapping) and "text" in each)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def make_openenv_factory(options: dict[str, Any], seed: int) -> OpenEnvFactory:
    """`env.name: openenv`."""
    return OpenEnvFactory(validate_section(OpenEnvOptions, options, source="config", prefix="env.options"))
