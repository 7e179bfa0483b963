"""The NAT environment: from a request to a complete NeMo Agent Toolkit project, scored by the real toolkit.

An episode holds the files in memory, offers five tools, and ends with `submit` or with the words
AGENT_CREATION_COMPLETE. The score is computed once, from hidden cases, when the episode ends; a project that was not
submitted earns its parts but never counts as a success.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.config import validate_section
from agent_rl.envs.base import AgentEnv, EnvFactory, Row, Solution, StepResult, Task, ToolEnv
from agent_rl.envs.demonstrations import Demonstration
from agent_rl.envs.nat.demonstrations import demonstrations
from agent_rl.envs.nat.factory.negative_solutions import negative_solutions
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.failure_modes import NAT_RULES
from agent_rl.envs.nat.judge.checker import check_project
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.judge.report import ValidationReport
from agent_rl.envs.nat.judge.reward import RewardWeights, reward_parts
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.prepare import offline, with_telling_inputs
from agent_rl.envs.nat.prompts import PromptStyle, initial_messages
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.envs.nat.tools import TOOL_SPECS, NatCheckTool, PytestRunTool
from agent_rl.records import StopReason
from agent_rl.tools.file_tools import FileReadTool, Files, FileWriteTool, SubmitTool

MAX_PROBLEMS = 12
"""Most problems stored with an episode's transcript."""
COMPLETION_MARKER = "AGENT_CREATION_COMPLETE"
"""In a reply it means the same as `submit`."""


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
    nat_react_python: str | None = None
    """Interpreter with the toolkit's agents too, for ReAct tasks; by default AGENT_RL_NAT_REACT_PYTHON or
    .venv-nat-react."""
    reuse_verdicts: bool = True
    """Judge equal projects of a task once."""
    prompt: PromptStyle = "compact"
    """`compact`: the rules of the job in a few lines; `guide`: the toolkit's anatomy with samples, for large models."""


class NATAgentEnv(ToolEnv):
    """One episode: one project, scored on hidden cases that the factory's seed samples."""

    def __init__(self, factory: "NATEnvFactory") -> None:
        self._factory = factory
        self._files: Files = {}
        self._spec: NATSpec | None = None
        self._num_turns = 0

    def reset(self, task: Task) -> list[Message]:
        self._spec = parse_spec(task, f"task {task.get('task_id')}")
        get_toolkit = self._factory.get_toolkit
        self.registry = self.add_tools(
            task,
            [
                FileWriteTool(self._files),
                FileReadTool(self._files),
                PytestRunTool(self._files, get_toolkit),
                NatCheckTool(self._files, get_toolkit, self._spec),
                SubmitTool(),
            ],
        )
        return initial_messages(self._spec, self._factory.options.prompt)

    def step(self, message: Message) -> StepResult:
        self._num_turns += 1
        result = super().step(message)
        # The marker counts after the calls of the same reply, the files they wrote included.
        if COMPLETION_MARKER in message.content and not result.terminated:
            scored = self._score(submitted=True)
            result = replace(scored, info={**result.info, **scored.info})
        return result

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
        shares = {f"share/{name}": share for name, share in report.shares.items()}
        logged = {**parts, **shares, "success": float(report.complete and submitted)}
        info = {"problems": list(report.problems[:MAX_PROBLEMS]), "num_files": len(self._files)}
        return StepResult(
            reward=sum(parts.values()), reward_parts=logged, terminated=True, flags=report.flags, info=info
        )

    def check(self) -> ValidationReport:
        """The verdict on the files as they stand."""
        assert self._spec is not None, "reset comes first"
        seed = self._factory.seed if self.case_seed is None else self.case_seed
        return check_project(self._factory.get_toolkit(), self._spec, self._files, seed=seed)


class NATEnvFactory(EnvFactory):
    """Shares the warm toolkit processes between all episodes."""

    own_tools = tuple(spec.name for spec in TOOL_SPECS)
    failure_rules = NAT_RULES
    speed_options = ("checkers", "nat_python", "nat_react_python", "reuse_verdicts")

    def __init__(self, options: NATEnvOptions, seed: int) -> None:
        self.options = options
        self.seed = seed
        self._toolkit: NatToolkit | None = None

    def __call__(self) -> AgentEnv:
        return NATAgentEnv(self)

    def check_task(self, task: Task, where: str) -> None:
        parse_spec(task, where)

    def solutions(self, task: Task) -> list[Solution]:
        """The reference project, and one negative solution of each kind."""
        spec = parse_spec(task, f"task {task.get('task_id')}")
        wrong = negative_solutions(spec, self.seed)
        return [
            Solution(name="reference", messages=(submission(render_project(spec)),), succeeds=True),
            *(Solution(name=name, messages=(submission(files),), succeeds=False) for name, files in wrong.items()),
        ]

    def start(self) -> None:
        if self._toolkit is None:
            self._toolkit = NatToolkit.open(
                python=self.options.nat_python,
                react_python=self.options.nat_react_python,
                processes=self.options.checkers,
                tier=self.options.sandbox_tier,
                reuse_verdicts=self.options.reuse_verdicts,
            )

    def get_toolkit(self) -> NatToolkit:
        """The running toolkit. Scoring without it is impossible by construction."""
        if self._toolkit is None:
            raise RuntimeError("NATEnvFactory.start() must be called before an episode runs")
        return self._toolkit

    def counters(self) -> Mapping[str, float]:
        return self.get_toolkit().checks.counters()

    def part_weights(self) -> dict[str, float]:
        return {name: getattr(self.options.reward, name) for name in ("tools", "integration", "workflow")}

    def describe(self) -> dict[str, Any]:
        return self.get_toolkit().describe()

    def close(self) -> None:
        if self._toolkit is not None:
            self._toolkit.close()
            self._toolkit = None

    def demonstrations(self, seed: int, *, faulty_share: float) -> Iterator[Demonstration]:
        return demonstrations(seed, faulty_share=faulty_share)

    def task_files(self, seed: int, num_train: int | None, num_eval: int | None) -> Mapping[str, Sequence[Row]]:
        """As `prepare-dataset` writes them without further options: `train`, `val` and `test_generalisation`."""
        sets = offline(num_train or 1080, num_eval or 120, seed)
        return {
            name: [spec.model_dump(mode="json") for spec in with_telling_inputs(specs)] for name, specs in sets.items()
        }

    def preflight_tasks(self, tasks: Sequence[Task]) -> Mapping[str, Task]:
        """A task for the toolkit's own agents, which need an interpreter more."""
        react = [task for task in tasks if (task.get("workflow") or {}).get("kind") == "react"]
        return {"ReAct tasks": react[0]} if react else {}


def submission(files: Mapping[str, str]) -> Message:
    """One assistant message that writes all the files and submits."""
    writes = [ToolCall(name="file_write", arguments={"path": path, "content": text}) for path, text in files.items()]
    return Message.assistant("", (*writes, ToolCall(name="submit", arguments={})))


def make_nat_factory(options: dict[str, Any], seed: int) -> NATEnvFactory:
    """`env.name: nat_agent_creation`."""
    return NATEnvFactory(validate_section(NATEnvOptions, options, source="config", prefix="env.options"), seed)
