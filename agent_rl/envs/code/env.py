"""The coding environment: a request, the tool `code_exec`, and tests of which the model is shown the first ones.

An episode succeeds as soon as `code_exec` runs a program that passes all tests. A reply without a call ends it, and its
last fenced Python block is submitted as if by a last call. A reply without a block is a failure and gets no answer: a
model that is prompted again for code learns to wait for that. Rewards are given at the end, for the last program.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent_rl.agent.fences import last_python
from agent_rl.agent.messages import Message, ToolCall
from agent_rl.config import validate_section
from agent_rl.data.splits import take
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, Row, Solution, StepResult, ToolEnv
from agent_rl.envs.code import rewards  # noqa: F401, registers code_reward
from agent_rl.envs.code.demonstrations import demonstrations
from agent_rl.envs.code.failure_modes import CODE_RULES
from agent_rl.envs.code.formats import FORMATS
from agent_rl.envs.code.generate import generate_tasks
from agent_rl.envs.code.prompts import SYSTEM_PROMPT, TOOL_SPECS, submission
from agent_rl.envs.code.task import REFERENCE, CodeTask
from agent_rl.envs.code.tool import CodeExecTool
from agent_rl.envs.demonstrations import Demonstration
from agent_rl.errors import SandboxError
from agent_rl.records import StopReason
from agent_rl.rewards import RewardSpecs, RewardSum, make_reward
from agent_rl.sandbox.limits import Status
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.sandbox.verdict import Verdict
from agent_rl.tools.workspace_tools import open_sandbox

MAX_PROBLEMS = 5
"""Most problems stored with an episode's transcript."""

Weight = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class CodeExecEnvOptions(BaseModel):
    """`env.options` of this environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["auto", "calls", "humaneval"] = "auto"
    """Of the rows; `auto` tells by their keys. `calls` has tests such as {function: add, args: [1, 2], expected: 3},
    `humaneval` is HumanEval's; assert lines, pytest texts and MBPP's rows need no name."""
    system_prompt: str = SYSTEM_PROMPT
    """What the model reads before the request."""
    success_reward: Weight = 1.0
    """For a program that passes all tests."""
    partial_reward: Weight = 0.0
    """Times the share of tests that the last program passes."""
    turn_bonus: Weight = 0.0
    """Most that a success earns for few turns, or for few programs where a turn runs several."""
    bonus_turns: Annotated[int, Field(ge=1)] = 10
    """Turns after the first over which the bonus falls to 0."""
    failure_penalty: Weight = 0.0
    """Taken off where an episode ends without success."""
    timeout_penalty: Weight = 0.0
    """Taken off besides where a budget but no deadline cut it off, or its last program ran into the time limit."""
    reward: RewardSpecs | None = None
    """Further rewards by name, such as `code_reward`, `{name: code_reward, weight: 0.5}` or a list of these."""
    workers: Annotated[int, Field(ge=1)] = 2
    """Warm processes that run programs; as many as there are free cores."""
    time_limit_s: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 3.0
    """Seconds that a program may run, again for the examples and again for all its tests together."""
    memory_mb: Annotated[int, Field(ge=32)] = 256
    """Memory that a program may take."""
    output_chars: Annotated[int, Field(ge=0)] = 400
    """Characters that the model reads of what a program prints."""
    reuse_verdicts: bool = True
    """Judge equal programs of a task once."""
    sandbox_tier: Literal["auto", "namespaces", "landlock", "rlimits"] = "auto"
    """Isolation of what the policy wrote; `auto` takes the best that works, `rlimits` (nearly none) must be named."""

    @model_validator(mode="after")
    def _check_bonus(self) -> "CodeExecEnvOptions":
        if "bonus_turns" in self.model_fields_set and not self.turn_bonus:
            raise ValueError(
                f"bonus_turns is {self.bonus_turns} and turn_bonus is 0, so that it does nothing; set turn_bonus too, "
                "or leave bonus_turns out"
            )
        return self


class CodeExecEnv(ToolEnv):
    """One task."""

    def __init__(self, factory: "CodeExecEnvFactory") -> None:
        self._factory = factory
        self._row: Task = {}
        self._num_turns = 0

    def reset(self, task: Task) -> list[Message]:
        options = self._factory.options
        self._row, self._task = task, self._factory.parse(task, f"task {task.get('task_id')}")
        self._tool = CodeExecTool(self._factory.get_sandbox, self._task, output_chars=options.output_chars)
        self.registry = self.add_tools(task, [self._tool])
        self.trajectory = (Message.system(options.system_prompt), Message.user(self._task.request))
        return list(self.trajectory)

    def step(self, message: Message) -> StepResult:
        self._num_turns += 1
        return super().step(message)

    def no_call(self, message: Message) -> StepResult:
        code = last_python(message.content)
        if code is not None:
            self.registry.run(ToolCall(name=CodeExecTool.name, arguments={"code": code}))
        return self._end()

    def on_terminal(self, tool_name: str) -> StepResult:
        return self._end()

    def truncate(self, reason: StopReason) -> StepResult:
        # A deadline may pass while the episode waits for a sandbox, which is not the policy's doing.
        return self._end(cut_off=reason is not StopReason.TIMEOUT)

    def _end(self, *, cut_off: bool = False) -> StepResult:
        options, attempts = self._factory.options, self._tool.attempts
        verdict = attempts[-1].verdict if attempts else Verdict()
        late = not verdict.full and (cut_off or verdict.status is Status.TIMEOUT)
        num_tries = max(self._num_turns, len(attempts))
        saved = max(0.0, 1.0 - (num_tries - 1) / options.bonus_turns)
        parts = {
            "solved": options.success_reward * verdict.full,
            "partial": options.partial_reward * verdict.score,
            "turns": options.turn_bonus * saved * verdict.full,
            "failure": 0.0 - options.failure_penalty * (not verdict.full),
            "timeout": 0.0 - options.timeout_penalty * late,
        }
        result = StepResult(
            reward=sum(parts.values()),
            reward_parts={**parts, "share/tests": verdict.score, "tests_passed": float(verdict.passed)},
            terminated=True,
            flags=tuple(sorted({flag for attempt in attempts for flag in attempt.verdict.flags})),
            info={"problems": verdict.evidence.splitlines()[:MAX_PROBLEMS], "programs": len(attempts)},
        )
        result = self._with_named_rewards(result) if self._factory.reward else result
        # Success is that all tests pass, whatever a named reward takes for one.
        return replace(result, reward_parts={**result.reward_parts, "success": float(verdict.full)})

    def _with_named_rewards(self, result: StepResult) -> StepResult:
        """The end of the episode with `options.reward` added; without a reward where that cannot score it."""
        attempts, reward = self._tool.attempts, self._factory.reward
        assert reward is not None and result.reward is not None
        code = attempts[-1].code if attempts else ""
        total, parts = reward(
            prediction=code,
            handed_in_code=code,
            trajectory=self.trajectory,
            task=self._row,
            grade=self._grade,
        )
        if total is None:
            return replace(result, reward=None, info={**result.info, "error": reward.unscored(parts)})
        return replace(result, reward=result.reward + total, reward_parts={**result.reward_parts, **parts})

    def _grade(self, code: str) -> Verdict:
        """The verdict on a program, remembered where it was run before."""
        known = {attempt.code: attempt.verdict for attempt in self._tool.attempts}
        return known[code] if code in known else self._tool.try_out(code)[0].verdict


class CodeExecEnvFactory(EnvFactory):
    """Shares warm processes of this interpreter between all episodes."""

    own_tools = tuple(spec.name for spec in TOOL_SPECS)
    failure_rules = CODE_RULES
    speed_options = ("workers", "reuse_verdicts")

    def __init__(self, options: CodeExecEnvOptions) -> None:
        """ConfigError for an unknown reward, or one that needs more than this environment provides."""
        self.options = options
        self.reward: RewardSum | None = (
            None if options.reward is None else make_reward(options.reward, lends=("grade", "handed_in_code"))
        )
        self._sandbox: Sandbox | None = None

    def __call__(self) -> AgentEnv:
        return CodeExecEnv(self)

    def parse(self, task: Task, where: str) -> CodeTask:
        """The row, ready to judge programs; DataError when it is not of the format."""
        return FORMATS[self.options.format](task, where)

    def check_task(self, task: Task, where: str) -> None:
        self.parse(task, where)
        if self.reward is not None:
            self.reward.check_task(task, where)

    def solutions(self, task: Task) -> list[Solution]:
        """The reference, and wrong programs; a wrong one that succeeds shows tests that are worth nothing."""
        programs = self.parse(task, f"task {task.get('task_id')}").solutions()
        return [
            Solution(name=name, messages=(submission(code),), succeeds=name == REFERENCE)
            for name, code in programs.items()
        ]

    def start(self) -> None:
        if self._sandbox is None:
            reuse = self.options.reuse_verdicts
            self._sandbox = open_sandbox(self.options, output_kb=16, reuse_verdicts=reuse)

    def get_sandbox(self) -> Sandbox:
        """The running sandbox; SandboxError without one, so that nothing is scored."""
        if self._sandbox is None:
            raise SandboxError("the sandbox is not running; call CodeExecEnvFactory.start() before an episode")
        return self._sandbox

    def describe(self) -> dict[str, Any]:
        sandbox = self.get_sandbox().describe()
        missing = f", not enforced: {', '.join(sandbox['not_enforced'])}" if sandbox["not_enforced"] else ""
        summary = f"programs run in sandbox tier {sandbox['tier']}{missing}; memory: {sandbox['memory']}"
        return {"summary": summary, "sandbox": sandbox}

    def counters(self) -> Mapping[str, float]:
        return self.get_sandbox().memo.counters()

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def demonstrations(self, seed: int, *, faulty_share: float) -> Iterator[Demonstration]:
        return demonstrations(seed, faulty_share=faulty_share)

    def task_files(self, seed: int, num_train: int | None, num_eval: int | None) -> Mapping[str, Sequence[Row]]:
        return {
            "train": take(generate_tasks(seed, ["train"]), num_train or 400, "train"),
            "eval": take(generate_tasks(seed, ["eval"]), num_eval or 120, "eval"),
        }


def make_code_exec_factory(options: dict[str, Any], seed: int) -> CodeExecEnvFactory:
    """`env.name: code_exec`. Nothing in it is random, so the seed is not used."""
    return CodeExecEnvFactory(validate_section(CodeExecEnvOptions, options, source="config", prefix="env.options"))
