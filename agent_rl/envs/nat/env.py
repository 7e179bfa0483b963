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
from agent_rl.envs.demonstrations import Choice, Demonstration
from agent_rl.envs.nat.demonstrations import chosen_demonstrations, demonstrations
from agent_rl.envs.nat.factory.negative_solutions import negative_solutions
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.factory.task_sets import offline, with_telling_inputs
from agent_rl.envs.nat.failure_modes import NAT_RULES
from agent_rl.envs.nat.judge.checker import check_project
from agent_rl.envs.nat.judge.report import ValidationReport
from agent_rl.envs.nat.judge.reward import RewardWeights, reward_parts
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.progress import RepairTurns, VisibleProgress
from agent_rl.envs.nat.prompts import PromptStyle, initial_messages, started_messages
from agent_rl.envs.nat.repair.task import covered, read_task
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.envs.nat.tools import NO_CALL, TOOL_SPECS, NatCheckTool, PytestRunTool, is_marked_complete
from agent_rl.envs.nat.visible import VisibleChecks, report_on, visible_checks
from agent_rl.records import StopReason
from agent_rl.tools.file_tools import FileReadTool, Files, FileWriteTool, SubmitTool

MAX_PROBLEMS = 12
"""Most problems stored with an episode's transcript."""


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
    repair_turns: Annotated[int, Field(ge=0)] = 0
    """Turns that an episode goes on after a submission that fails the visible checks (files, build, the request's
    example, server, the project's own tests), with a report of these; 0: a submission always ends it."""
    prompt: PromptStyle = "compact"
    """`compact`: the rules of the job in a few lines; `guide`: the toolkit's anatomy with samples, for large models."""


class NATAgentEnv(ToolEnv):
    """One episode: one project, scored on hidden cases that the factory's seed samples."""

    def __init__(self, factory: "NATEnvFactory") -> None:
        self._factory = factory
        self._files: Files = {}
        self._spec: NATSpec | None = None
        self._num_turns = 0
        self._progress: VisibleProgress | None = None
        self._repair: RepairTurns | None = None
        self._num_messages, self._is_told = 0, False
        """Messages before the replies of this turn, and whether its submission was answered by a report."""

    def reset(self, task: Task) -> list[Message]:
        given = read_task(task, f"task {task.get('task_id')}")
        spec, options, get_toolkit = given.spec, self._factory.options, self._factory.get_toolkit
        self._spec = spec
        self._files.update(given.start_files)
        self.registry = self.add_tools(
            task,
            [
                FileWriteTool(self._files),
                FileReadTool(self._files),
                PytestRunTool(self._files, get_toolkit),
                NatCheckTool(self._files, get_toolkit, spec),
                SubmitTool(),
            ],
        )
        weights = options.reward
        if weights.progress:
            self._progress = VisibleProgress(self._visible, self._files, weight=weights.progress)
        if options.repair_turns:
            self._repair = RepairTurns(options.repair_turns)
        if given.kind == "create":
            return initial_messages(spec, options.prompt)
        return started_messages(spec, given.kind, given.start_files, options.prompt)

    def step(self, message: Message) -> StepResult:
        self._num_turns += 1
        self._num_messages, self._is_told = len(self.trajectory) + 1, False
        if self._repair is not None:
            self._repair.begin_turn()
        result = super().step(message)
        # The marker counts after the calls of the same reply, the files they wrote included.
        if is_marked_complete(message) and not (result.terminated or self._is_told):
            result = self._marked_complete(message, result)
        if result.terminated:
            return result
        if self._repair is not None and self._repair.is_over:
            scored = self._score(submitted=True)
            return replace(scored, info={**result.info, **scored.info})
        return result if self._progress is None else replace(result, reward=self._progress.earned(self._files))

    def no_call(self, message: Message) -> StepResult:
        return StepResult(messages=(Message.user(NO_CALL),))

    def on_terminal(self, tool_name: str) -> StepResult:
        told = self._told()
        if told is None:
            return self._score(submitted=True)
        self.trajectory = (*self.trajectory[:-1], Message.tool(told, name=tool_name))
        return StepResult(messages=self.trajectory[self._num_messages :])

    def truncate(self, reason: StopReason) -> StepResult:
        return self._score(submitted=False)

    def _marked_complete(self, message: Message, result: StepResult) -> StepResult:
        told = self._told()
        if told is None:
            scored = self._score(submitted=True)
            return replace(scored, info={**result.info, **scored.info})
        replies = result.messages if message.tool_calls or message.tool_errors else ()
        self.trajectory = (*self.trajectory[: self._num_messages], *replies, Message.user(told))
        return replace(result, messages=self.trajectory[self._num_messages :])

    def _told(self) -> str | None:
        """What a submission is answered that is not taken, because visible checks fail and turns to repair are left."""
        if self._repair is None:
            return None
        found = self._visible()
        if self._repair.takes(found):
            return None
        self._is_told = True
        return self._repair.told(report_on(self._factory.get_toolkit(), self._files, found))

    def _score(self, *, submitted: bool) -> StepResult:
        assert self._spec is not None, "reset comes first"
        report = self.check()
        weights = self._factory.options.reward
        parts = reward_parts(report, weights, num_turns=max(1, self._num_turns), submitted=submitted)
        paid = 0.0
        if self._progress is not None:
            paid = self._progress.paid
            parts["progress"] = paid + self._progress.earned(self._files)
        shares = {f"share/{name}": share for name, share in report.shares.items()}
        success = float(report.complete and submitted)
        logged = {**parts, **shares, **(self._repair.parts(success) if self._repair else {}), "success": success}
        info = {"problems": list(report.problems[:MAX_PROBLEMS]), "num_files": len(self._files)}
        return StepResult(
            reward=sum(parts.values()) - paid, reward_parts=logged, terminated=True, flags=report.flags, info=info
        )

    def _visible(self) -> VisibleChecks:
        assert self._spec is not None, "reset comes first"
        return visible_checks(self._factory.get_toolkit(), self._spec, self._files)

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
        read_task(task, where)

    def solutions(self, task: Task) -> list[Solution]:
        """The reference project, and one negative solution of each kind; where a task begins with files, what is left
        to write, and the files as they are."""
        given = read_task(task, f"task {task.get('task_id')}")
        spec = given.spec
        if given.kind != "create":
            return [
                Solution(name="reference", messages=(submission(given.solution()),), succeeds=True),
                Solution(name=f"start: {given.fault or given.kind}", messages=(submission({}),), succeeds=False),
            ]
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

    def chosen_demonstrations(self, seed: int, *, faulty_share: float, choice: Choice) -> Iterator[Demonstration]:
        return chosen_demonstrations(seed, faulty_share=faulty_share, choice=choice)

    def covers(self, task: Task) -> Mapping[str, tuple[str | int, ...]]:
        return covered(task)

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
