"""`agent-rl chat`: talk to a model in the terminal, with the tools that a configuration offers.

    agent-rl chat --config configs/math_grpo.yaml --checkpoint runs/math_grpo/checkpoints/step_00100
    agent-rl chat --config configs/math_grpo.yaml --system "Solve the problem; use the tools to calculate."

The model reads the whole conversation at every turn, and its calls are run until it replies without one. `/reset`
starts anew, `/quit` ends. Nothing is scored or written. Not here: an environment's own tools, messages and scores
(`agent-rl play`).
"""

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from agent_rl.agent.messages import Message
from agent_rl.config import Config
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import SamplingParams
from agent_rl.scripts.commands.play import QUIT, show
from agent_rl.scripts.common import finite, read_config
from agent_rl.seeds import derive_seed
from agent_rl.tools.base import ToolRegistry
from agent_rl.tools.toolset import Toolset

RESET = "/reset"


def main(
    config: Annotated[Path, typer.Option(help="YAML file with the whole configuration.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, applied in order.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint or any model; default: model.path.")] = None,
    system: Annotated[str | None, typer.Option(help="Text of a system message before the conversation.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, callback=finite, help="Default: policy.temperature.")
    ] = None,
) -> None:
    """Talk to a checkpoint until /quit."""
    from agent_rl.core.checkpoint_policy import PolicySource

    resolved = read_config(config, overrides or [])
    source = PolicySource.find(resolved, checkpoint)
    with tempfile.TemporaryDirectory(prefix="agent_rl_chat_") as folder, closing(Toolset(resolved.tools)) as toolset:
        toolset.start()
        toolset.start_sandbox()
        registry = ToolRegistry(toolset.make({"task_id": "chat"}))
        with source.open(Path(folder)) as policy:
            print(f"{source.name}; {RESET} starts anew, {QUIT} ends", flush=True)
            heat = resolved.policy.temperature if temperature is None else temperature
            Chat(policy, registry, source.config, system=system, temperature=heat).run()


class Chat:
    """One conversation."""

    def __init__(
        self, policy: BasePolicy, registry: ToolRegistry, config: Config, *, system: str | None, temperature: float
    ) -> None:
        self._policy, self._registry, self._config = policy, registry, config
        self._opening = [] if system is None else [Message.system(system)]
        self._temperature = temperature
        self.messages = list(self._opening)

    def run(self) -> None:
        """Read lines until the end."""
        while True:
            try:
                line = input("you> ").strip()
            except EOFError:
                return
            if line == QUIT:
                return
            if line == RESET:
                self.messages = list(self._opening)
            elif line:
                self.say(line)

    def say(self, text: str) -> None:
        """One message of yours, and what the model does until it replies without a call."""
        known = len(self.messages)
        self.messages.append(Message.user(text))
        for number in range(self._config.rollout.max_turns):
            sampling = SamplingParams(
                max_new_tokens=self._config.policy.max_new_tokens,
                temperature=self._temperature,
                seed=derive_seed(self._config.run.seed, len(self.messages), number),
            )
            try:
                reply = self._policy.generate_action(self.messages, self._registry.specs, sampling)
            except ValueError as error:
                print(f"[not answered] {error}; {RESET} starts anew")
                del self.messages[known:]
                return
            self.messages.append(reply)
            show(reply)
            if not reply.tool_calls and not reply.tool_errors:
                return
            answers = [Message.tool(f"error: {error.message}") for error in reply.tool_errors]
            answers += [Message.tool(self._registry.run(call).text, name=call.name) for call in reply.tool_calls]
            for answer in answers:
                show(answer)
            self.messages += answers
        print(f"[stopped] after rollout.max_turns = {self._config.rollout.max_turns} turns")
