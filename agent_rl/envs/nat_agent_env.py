"""The NAT environment: from a request to a complete NeMo Agent Toolkit project, scored by the real toolkit.

An episode holds the files in memory, offers five tools, and ends with `submit`. The score is computed once, from
hidden cases, when the episode ends; a project that was not submitted earns its parts but never counts as a success.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent_rl.agent.messages import Message
from agent_rl.config import validate_section
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult, Task, ToolEnv
from agent_rl.envs.registry import register_env
from agent_rl.nat.checker import CheckReport, check_project
from agent_rl.nat.prompts import initial_messages
from agent_rl.nat.reward import RewardWeights, reward_parts
from agent_rl.nat.spec import NATSpec, parse_spec
from agent_rl.nat.toolkit import NatToolkit
from agent_rl.records import StopReason
from agent_rl.tools.base import ToolRegistry, spec_of
from agent_rl.tools.file_tools import FileReadTool, Files, FileWriteTool, SubmitTool
from agent_rl.tools.nat_tools import NatCheckTool, PytestRunTool

TOOL_SPECS = tuple(spec_of(tool) for tool in (FileWriteTool, FileReadTool, PytestRunTool, NatCheckTool, SubmitTool))
"""The tools as the model sees them, in the order of the registry."""


class NATEnvOptions(BaseModel):
    """`env.options` of this environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reward: RewardWeights = RewardWeights()
    """Weights of the reward."""
    checkers: Annotated[int, Field(ge=1)] = 2
    """Warm processes that run the toolkit; as many as there are free cores."""
    sandbox_tier: Literal["auto", "namespaces", "landlock", "rlimits"] = "auto"
    """Isolation of what the policy wrote; `auto` takes the best that works, `rlimits` (nearly none) must be named."""
    nat_python: str | None = None
    """Interpreter with the toolkit; by default AGENT_RL_NAT_PYTHON or .venv-nat."""


class NATAgentEnv(ToolEnv):
    """One project. `seed` draws the hidden cases."""

    def __init__(self, factory: "NATEnvFactory") -> None:
        self._factory = factory
        self._files: Files = {}
        self._spec: NATSpec | None = None
        self._num_turns = 0

    def reset(self, task: Task) -> list[Message]:
        self._spec = parse_spec(task, f"task {task.get('task_id')}")
        get_toolkit = self._factory.get_toolkit
        self.registry = ToolRegistry(
            [
                FileWriteTool(self._files),
                FileReadTool(self._files),
                PytestRunTool(self._files, get_toolkit),
                NatCheckTool(self._files, get_toolkit, self._spec),
                SubmitTool(),
            ]
        )
        self.tools = self.registry.specs
        return initial_messages(self._spec)

    def step(self, message: Message) -> StepResult:
        self._num_turns += 1
        return super().step(message)

    def no_call(self, message: Message) -> StepResult:
        return StepResult(messages=(Message.user("Write the files with file_write, then call submit."),))

    def on_terminal(self, tool_name: str) -> StepResult:
        return self._score(submitted=True)

    def truncate(self, reason: StopReason) -> StepResult:
        return self._score(submitted=False)

    def _score(self, *, submitted: bool) -> StepResult:
        assert self._spec is not None, "reset comes first"
        report = self.check()
        weights = self._factory.options.reward
        parts = reward_parts(report, weights, num_turns=max(1, self._num_turns), submitted=submitted)
        logged = {**parts, "success": float(report.complete and submitted)}
        info = {"problems": list(report.problems), "num_files": len(self._files)}
        return StepResult(
            reward=sum(parts.values()), reward_parts=logged, terminated=True, flags=report.flags, info=info
        )

    def check(self) -> CheckReport:
        """The verdict on the files as they stand."""
        assert self._spec is not None, "reset comes first"
        return check_project(self._factory.get_toolkit(), self._spec, self._files, seed=self._factory.seed)


class NATEnvFactory(EnvFactory):
    """Shares the warm toolkit processes between all episodes."""

    def __init__(self, options: NATEnvOptions, seed: int) -> None:
        self.options = options
        self.seed = seed
        self._toolkit: NatToolkit | None = None

    def __call__(self) -> AgentEnv:
        return NATAgentEnv(self)

    def check_task(self, task: Task, where: str) -> None:
        parse_spec(task, where)

    def start(self) -> None:
        if self._toolkit is None:
            self._toolkit = NatToolkit.open(
                python=self.options.nat_python, processes=self.options.checkers, tier=self.options.sandbox_tier
            )

    def get_toolkit(self) -> NatToolkit:
        """The running toolkit. Scoring without it is impossible by construction."""
        if self._toolkit is None:
            raise RuntimeError("NATEnvFactory.start() must be called before an episode is played")
        return self._toolkit

    def describe(self) -> dict[str, Any]:
        return self.get_toolkit().describe()

    def close(self) -> None:
        if self._toolkit is not None:
            self._toolkit.close()
            self._toolkit = None


@register_env("nat_agent_creation")
def make_nat_factory(options: dict[str, Any], seed: int) -> NATEnvFactory:
    """`env.name: nat_agent_creation`."""
    return NATEnvFactory(validate_section(NATEnvOptions, options, source="config", prefix="env.options"), seed)
