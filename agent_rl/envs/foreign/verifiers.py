"""`env.name: verifiers`: environments of the classic API of `verifiers`, `load_environment`.

Its own rollout runs unchanged, on a loop beside the episode, with a client that hands each request for a reply to the
policy: whatever it asks of the model is a turn. Its tools, its replies, its stop conditions and its rubric are its own.
Not here: rewards of whole groups, sandboxes of its provider, version 0.4 and later, which have no such environments.
"""

import json
import random
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from pydantic import Field

from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.agent.tool_parser import reply_text
from agent_rl.config import validate_section
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, Row, StepResult
from agent_rl.envs.foreign.common import (
    ForeignOptions,
    check_prompt,
    import_package,
    numbers,
    to_messages,
    to_reward,
)
from agent_rl.envs.foreign.rollout_loop import Ask, Dialogue
from agent_rl.errors import ConfigError, DataError
from agent_rl.loop_thread import LoopThread
from agent_rl.records import StopReason

INSTALL = "'verifiers>=0.2,<0.4'"
_SANDBOXES = {"SandboxEnv", "SandboxMixin", "CliAgentEnv", "BrowserEnv", "OpenEnvEnv"}
_MAX_REFUSED = 100
"""Requests of a rollout that is cut off which are refused; one that asks on is left, and its episode dropped."""
_HELD_OUT = 0.1
"""Share of the rows held out where an environment has no evaluation rows of its own."""


class VerifiersOptions(ForeignOptions):
    """`env.options` of `verifiers`."""

    id: str
    """Environment, as `verifiers.load_environment` knows it: an installed module, or one in the current folder."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its `load_environment`."""


class VerifiersEnv(AgentEnv):
    """One rollout of theirs, one episode of ours."""

    def __init__(self, factory: "VerifiersFactory") -> None:
        self._factory = factory
        self._dialogue = Dialogue()
        self._rollout: Future[Any] | None = None
        self._asked: Ask | None = None
        self._seen: tuple[Message, ...] = ()
        self._num_replies = 0

    def reset(self, task: Task) -> list[Message]:
        row = {"example_id": 0, "answer": "", **{key: value for key, value in task.items() if key != "task_id"}}
        self._rollout = self._factory.start_rollout(row, self._dialogue)
        said = self._dialogue.next()
        if not isinstance(said, Ask):
            reason = said.result().get("error") or "no reason is given"
            raise RuntimeError(f"the environment ended before it asked for a reply: {reason!r}")
        self._asked, self._seen = said, to_messages(said.prompt, "the environment's prompt")
        self.tools = tuple(
            ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in said.tools or ()
        )
        return list(self._seen)

    def step(self, message: Message) -> StepResult:
        errors = tuple(Message.tool(f"error: {error.message}") for error in message.tool_errors) if self.tools else ()
        counts = {"tool_calls": len(message.tool_calls), "tool_errors": len(errors)}
        if errors and not message.tool_calls:  # to the environment such a reply would be the end
            return StepResult(messages=errors, info=counts)
        assert self._asked is not None, "reset comes first"
        response = self._factory.response(message, has_tools=bool(self.tools), number=len(self._seen))
        self._asked.answer(response)
        self._num_replies += 1
        said = self._dialogue.next()
        if not isinstance(said, Ask):
            return self._scored(said, counts)
        known = (*self._seen, *to_messages([response.message], "the reply"))
        self._asked, self._seen = said, to_messages(said.prompt, "the environment's prompt")
        new = self._seen[len(known) :]
        is_continued = self._seen[: len(known)] == known and new and all(each.role != "assistant" for each in new)
        if is_continued:
            return StepResult(messages=(*errors, *new), info=counts)
        return StepResult(conversation=self._seen, info=counts)

    def truncate(self, reason: StopReason) -> StepResult:
        """Ends as where a prompt is too long for a model of theirs, and is scored by the rubric as it is; without any
        reply it earns nothing, for rewards expect one. RuntimeError where it does not end."""
        if not self._num_replies:
            return StepResult(reward=0.0, reward_parts={"success": 0.0}, terminated=True)
        said: Ask | Future[Any] | None = self._asked
        num_refused = 0
        while isinstance(said, Ask):
            if num_refused == _MAX_REFUSED:
                raise RuntimeError(
                    f"the environment asked for {num_refused} more replies after its episode was cut off; let it end "
                    "at verifiers.OverlongPromptError"
                )
            said.answer(self._factory.package.OverlongPromptError(str(reason)))
            num_refused += 1
            said = self._dialogue.next()
        assert said is not None, "reset comes first"
        return self._scored(said, {})

    def close(self) -> None:
        if self._rollout is not None:
            self._rollout.cancel()

    def _scored(self, ended: "Future[Any]", counts: dict[str, Any]) -> StepResult:
        state = ended.result()
        if state.get("error") is not None:
            return StepResult(reward=None, terminated=True, info={**counts, "error": repr(state["error"])})
        reward = to_reward(state.get("reward"), self._factory.options.id)
        success = self._factory.options.is_success(reward)
        parts = {**numbers(state.get("metrics") or {}), "success": success}
        return StepResult(reward=reward, reward_parts=parts, terminated=True, info=counts)


class VerifiersFactory(EnvFactory):
    """Holds the environment, which all episodes share, and the loop that it runs on."""

    def __init__(self, options: VerifiersOptions) -> None:
        self.options = options
        self.package = import_package("verifiers", INSTALL)
        if not hasattr(self.package, "load_environment"):
            version = getattr(self.package, "__version__", "of an unknown version")
            raise ConfigError(f"verifiers {version} has no load_environment, which ended with 0.3; install {INSTALL}")
        self._types = import_package("verifiers.types", INSTALL)
        with _own_signals():
            self._env = self._load()
        self._refuse_what_cannot_be_carried_over(self._env)
        self._loop = LoopThread("verifiers")
        replies = dict.fromkeys(self.package.Client.__abstractmethods__)
        self._client = type("PolicyClient", (self.package.Client,), {**replies, "get_response": _ask_the_policy})

    def __call__(self) -> AgentEnv:
        return VerifiersEnv(self)

    def start_rollout(self, row: dict[str, Any], dialogue: Dialogue) -> "Future[Any]":
        """Begin their rollout of a row; the dialogue hears what it asks, and its final state."""
        client = self._client(None)
        client.dialogue = dialogue
        running = self._loop.start(self._run(row, client))
        running.add_done_callback(dialogue.ended)
        return running

    async def _run(self, row: dict[str, Any], client: Any) -> Any:
        state = await self._env.rollout(row, client, "policy", {})
        try:
            if state.get("error") is None:
                await self._env.rubric.score_rollout(state)
        finally:
            await self._env.rubric.cleanup(state)
        return state

    def response(self, message: Message, *, has_tools: bool, number: int) -> Any:
        """Our message as their response; calls have ids of their place in the conversation."""
        calls = [
            self._types.ToolCall(id=f"call_{number}_{i}", name=call.name, arguments=json.dumps(call.arguments))
            for i, call in enumerate(message.tool_calls if has_tools else ())
        ]
        reply = self._types.ResponseMessage(
            content=message.content if has_tools else reply_text(message),
            reasoning_content=message.reasoning or None,
            tool_calls=calls or None,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        return self._types.Response(id=f"reply_{number}", created=0, model="policy", message=reply)

    def check_task(self, task: Task, where: str) -> None:
        check_prompt(task, where)

    def task_files(self, seed: int, num_train: int | None, num_eval: int | None) -> Mapping[str, Sequence[Row]]:
        """Rows of the environment's own data; where it has none for evaluation, a tenth is held out."""
        train = [dict(row) for row in self._env.get_dataset()]
        random.Random(seed).shuffle(train)
        if self._env.build_eval_dataset() is not None:
            held_out = [dict(row) for row in self._env.get_eval_dataset()]
        else:
            held_out = train[: num_eval or max(1, int(_HELD_OUT * len(train)))]
            train = train[len(held_out) :]
        files = {"train": train[:num_train], "eval": held_out[:num_eval]}
        if not all(files.values()):
            raise DataError(f"{self.options.id} has {len(train) + len(held_out)} rows, too few; ask for fewer")
        return {
            split: [{"task_id": f"{self.options.id}-{split}-{at:05d}", **row} for at, row in enumerate(rows)]
            for split, rows in files.items()
        }

    def describe(self) -> dict[str, Any]:
        return {"verifiers": getattr(self.package, "__version__", None)}

    def close(self) -> None:
        self._loop.close()

    def _load(self) -> Any:
        name = self.options.id
        try:
            return self.package.load_environment(name, **self.options.args)
        except Exception as error:  # the environment's own code, with the user's arguments
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ConfigError(f"env.options: verifiers cannot load {name!r} with these args ({reason})") from None

    def _refuse_what_cannot_be_carried_over(self, env: Any) -> None:
        name = self.options.id
        if getattr(env, "requires_group_rollouts", False) or getattr(env, "provides_advantages", False):
            raise ConfigError(f"env.options.id = {name!r} scores whole groups of rollouts; here each is scored alone")
        for each in (env, *getattr(env, "envs", ())):
            if found := _SANDBOXES & {base.__name__ for base in type(each).__mro__}:
                raise ConfigError(
                    f"env.options.id = {name!r} is a {found.pop()}, which runs in a sandbox or browser of its "
                    "provider; use an environment without one, or code_exec"
                )


async def _ask_the_policy(
    self: Any, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_options: Any
) -> Any:
    """`Client.get_response` of the client that a rollout is given."""
    return await self.dialogue.ask(prompt, tools)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Each of their environments takes over Ctrl-C and SIGTERM when it is made; the run keeps its own handlers."""
    is_main = threading.current_thread() is threading.main_thread()
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if is_main}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def make_verifiers_factory(options: dict[str, Any], seed: int) -> VerifiersFactory:
    """`env.name: verifiers`."""
    return VerifiersFactory(validate_section(VerifiersOptions, options, source="config", prefix="env.options"))
