"""`agent-rl play`: one episode of an environment in the terminal, played by you or by a model.

    agent-rl play --config configs/math_grpo.yaml
    agent-rl play --config configs/math_grpo.yaml --task eval-17 --checkpoint model/math_minimind

Without --checkpoint you are the agent: a line is a reply, `/calculator 2 + 3` or `/NAME {JSON}` calls a tool, `@FILE`
in the place of a text is what the file holds, `/quit` ends. The environment answers and scores as in training; nothing
is written. Not here: many episodes (`agent-rl eval`).
"""

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from agent_rl.agent.messages import Message, ToolCall, ToolSpec
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult
from agent_rl.envs.opening import open_environment
from agent_rl.envs.step_result import read_opening, read_step, read_tools
from agent_rl.errors import ConfigError, UserError, nearest, nearest_or_all
from agent_rl.records import StopReason
from agent_rl.scripts.commands.tools import read_arguments
from agent_rl.scripts.common import as_override, finite, read_config
from agent_rl.tools.base import readable

QUIT = "/quit"


def main(
    config: Annotated[Path, typer.Option(help="YAML file with the whole configuration.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, applied in order.")] = None,
    tasks: Annotated[Path | None, typer.Option(help="Task file; default: data.eval_path.")] = None,
    task: Annotated[str | None, typer.Option(help="Its task_id; default: the first of the file.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="A model plays: a checkpoint or any model.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, callback=finite, help="Of the model; 0 is greedy.")] = 0.0,
) -> None:
    """Play one episode, or watch a model play it."""
    given = [] if tasks is None else [as_override("data.eval_path", tasks)]
    resolved = read_config(config, [*given, *(overrides or [])])
    with open_environment(resolved) as factory:
        chosen = _choose(factory.read_tasks(resolved.data, "eval"), task)
        factory.start()
        print(f"task {chosen['task_id']}")
        if checkpoint is None:
            _play_by_hand(factory, chosen)
            return
        from agent_rl.core.checkpoint_policy import PolicySource
        from agent_rl.rollout.episode import run_episode
        from agent_rl.rollout.turns import EpisodeLimits

        source = PolicySource.find(resolved, checkpoint)
        with tempfile.TemporaryDirectory(prefix="agent_rl_play_") as folder, source.open(Path(folder)) as policy:
            episode = run_episode(
                policy,
                ShownEnv(factory()),
                chosen,
                group_id=chosen["task_id"],
                seed=source.config.run.seed,
                limits=EpisodeLimits.from_config(source.config),
                temperature=temperature,
            )
        if episode.error:
            raise UserError(f"the environment failed: {episode.error}")
        print(f"ended: {episode.stop_reason.value}")
        _show_score(episode.reward, episode.reward_parts)


def _choose(tasks: Sequence[Task], task_id: str | None) -> Task:
    if task_id is None:
        return tasks[0]
    found = {task["task_id"]: task for task in tasks}
    if task_id not in found:
        such = f"; there are {len(found)}, such as {', '.join([*found][:5])}"
        raise ConfigError(f"--task {task_id}: there is no such task{nearest(task_id, found) or such}")
    return found[task_id]


class ShownEnv(AgentEnv):
    """Prints what passes between an environment and its agent."""

    def __init__(self, inner: AgentEnv) -> None:
        self.inner = inner

    def reset(self, task: Task) -> list[Message]:
        messages = read_opening(self.inner.reset(task), self.inner)
        for message in messages:
            show(message)
        self._follow_tools()
        return messages

    def step(self, message: Message) -> StepResult:
        show(message)
        return self.answer(message)

    def answer(self, message: Message) -> StepResult:
        """`step`, without showing the message itself."""
        result = read_step(self.inner.step(message), self.inner, "step")
        for reply in result.messages:
            show(reply)
        if not result.terminated:
            self._follow_tools()
        return result

    def _follow_tools(self) -> None:
        """Offer the tools of the environment, and print them where they are others than before."""
        tools = read_tools(self.inner, "step")
        if tools != self.tools:
            print(f"[tools] {', '.join(map(_signature, tools)) or 'none'}")
        self.tools = tools

    def truncate(self, reason: StopReason) -> StepResult:
        if self.unanswered is not None:
            show(self.unanswered)
        self.inner.unanswered = self.unanswered
        return read_step(self.inner.truncate(reason), self.inner, "truncate")

    def close(self) -> None:
        self.inner.close()


def show(message: Message) -> None:
    """Print a message with its role; calls of tools on lines of their own. What a terminal would obey is left out."""
    name = f" {message.name}" if message.name else ""
    lines = [f"[{message.role}{name}] {message.content}"] if message.content else []
    lines += [f"[{message.role} calls {call.name}] {call.arguments}" for call in message.tool_calls]
    lines += [f"[{message.role}: unreadable call] {error.message}" for error in message.tool_errors]
    for line in lines:
        print(readable(line))


def _signature(tool: ToolSpec) -> str:
    return f"/{tool.name} {' '.join(tool.parameters.get('properties', {}))}".rstrip()


def _play_by_hand(factory: EnvFactory, task: Task) -> None:
    with closing(ShownEnv(factory())) as env:
        env.reset(task)
        earned = 0.0
        while True:
            try:
                line = input("you> ").strip()
            except EOFError:
                line = QUIT
            if line == QUIT:
                result, is_over = env.truncate(StopReason.MAX_TURNS), True
                print("\nended: given up")
            elif not line:
                continue
            else:
                try:
                    message = read_reply(line, env.tools)
                except ConfigError as error:
                    print(f"[not sent] {error}")
                    continue
                result = env.answer(message)
                is_over = result.terminated
            earned += result.reward or 0.0
            if is_over:
                _show_score(None if result.reward is None else earned, result.reward_parts)
                return


def read_reply(line: str, tools: Sequence[ToolSpec]) -> Message:
    """A reply as the environment gets it from a model: a text, or a call of one of `tools`. ConfigError for another."""
    if not line.startswith("/"):
        return Message.assistant(_text(line))
    name, _, given = line[1:].partition(" ")
    by_name = {tool.name: tool for tool in tools}
    if name not in by_name:
        raise ConfigError(f"there is no tool {name!r}{nearest_or_all(name, [*by_name, QUIT[1:]])}")
    return Message.assistant("", (ToolCall(name=name, arguments=read_arguments(by_name[name], _text(given) or "{}")),))


def _text(given: str) -> str:
    given = given.strip()
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{given[1:]} cannot be read: {error}") from None


def _show_score(reward: float | None, parts: "dict[str, float]") -> None:
    print(f"reward {'none' if reward is None else f'{reward:g}'}")
    for name, value in parts.items():
        print(f"  {name} {value:g}")
