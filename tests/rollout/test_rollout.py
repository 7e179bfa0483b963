"""Episodes: what the model reads and samples, every budget, the environment's failures, and threads."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import END, ROLE_IDS, ByteChatFormat, EchoEnv, ScriptedPolicy, tiny_config

from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.distributed.backend import Backend
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult, Task
from agent_rl.errors import EngineError, SandboxError, UserError
from agent_rl.inference.base import Cancel
from agent_rl.learning.samples import build_samples
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Completion, FinishReason, SamplingParams, StopReason, Trajectory, TrajectoryGroup
from agent_rl.rollout.episode import run_episode
from agent_rl.rollout.rollout import RolloutRequest, RolloutWorker, SyncSource, ThreadedRolloutWorker, make_rollout
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.seeds import derive_seed
from agent_rl.telemetry.metrics import group_metrics

TASK = {"task_id": "t0", "question": "hi"}
LIMITS = EpisodeLimits(max_new_tokens=1000, max_turns=10, max_tool_calls=10, max_invalid_turns=2, timeout_s=60.0)
CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
BROKEN = '<tool_call>{"name": </tool_call>'
USER, ASSISTANT, TOOL = ROLE_IDS["user"], ROLE_IDS["assistant"], ROLE_IDS["tool"]


def episode_of(policy: BasePolicy, env: AgentEnv, limits: EpisodeLimits = LIMITS) -> Trajectory:
    return run_episode(policy, env, TASK, group_id="1/0", seed=7, limits=limits, temperature=1.0)


class LookEnv(EchoEnv):
    """Offers a tool."""

    tools = (ToolSpec(name="look", description="See."),)


def test_an_episode_is_exactly_what_the_model_read_and_sampled() -> None:
    policy, env = ScriptedPolicy(["x", "done"]), EchoEnv()
    episode = episode_of(policy, env)
    first_prompt = [USER, *b"hi", END, ASSISTANT]
    suffix = [TOOL, *b"ok", END, ASSISTANT]
    assert policy.prompts == [first_prompt, [*first_prompt, ord("x"), END, *suffix]]
    assert [list(turn.prompt_token_ids) for turn in episode.turns] == [first_prompt, suffix]
    assert [turn.completion.token_ids for turn in episode.turns] == [(ord("x"), END), (*b"done", END)]
    assert episode.turns[0].env_messages == (Message.tool("ok"),)
    assert episode.turns[1].env_messages == ()
    assert episode.turns[0].info == {"note": "seen"}


def test_the_loss_mask_covers_sampled_tokens_alone() -> None:
    episode = episode_of(ScriptedPolicy(["x", "done"]), EchoEnv())
    samples, _ = build_samples(episode)
    # ids:  user h i END assistant | x END | tool o k END assistant | d o n e END
    mask = (0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1)
    ids = (USER, *b"hi", END, ASSISTANT, *b"x", END, TOOL, *b"ok", END, ASSISTANT, *b"done", END)
    assert samples[0].token_ids == ids
    assert samples[0].loss_mask == mask
    assert samples[0].sampling_logprobs == tuple(-0.5 * trained for trained in mask)


def test_the_reward_is_the_sum_over_steps_and_the_environment_is_closed_once() -> None:
    env = EchoEnv()
    episode = episode_of(ScriptedPolicy(["x", "y", "done"]), env)
    assert (episode.reward, episode.stop_reason) == (1.5, StopReason.FINISHED)
    assert episode.reward_parts == {"success": 1.0}
    assert (env.num_closed, env.truncated_for) == (1, None)


def test_the_rewards_of_turns_are_those_of_their_steps_and_add_up() -> None:
    episode = episode_of(ScriptedPolicy(["x", "y", "done"]), EchoEnv())
    assert [turn.reward for turn in episode.turns] == [0.25, 0.25, 1.0]
    cut = episode_of(ScriptedPolicy(["x"] * 9), EchoEnv(), replace(LIMITS, max_turns=2))
    assert [turn.reward for turn in cut.turns] == [0.25, 0.25 - 1.0]  # what a truncation costs is the last turn's
    assert cut.reward == -0.5


@pytest.mark.parametrize(
    ("script", "limits", "reason", "num_turns", "reward"),
    [
        (["x"] * 9, {"max_turns": 3}, StopReason.MAX_TURNS, 3, -0.25),
        ([CALL * 2] * 9, {"max_tool_calls": 5}, StopReason.TOOL_BUDGET, 3, -0.5),
        (["much too long"], {"max_new_tokens": 4}, StopReason.MAX_TOKENS, 1, -1.0),
        ([BROKEN] * 9, {}, StopReason.INVALID_CALLS, 2, -0.5),
        (["x"] * 9, {"timeout_s": 1e-9}, StopReason.TIMEOUT, 0, -1.0),
    ],
)
def test_a_budget_ends_the_episode_and_the_environment_scores_it(
    script: list[str], limits: dict[str, float], reason: StopReason, num_turns: int, reward: float
) -> None:
    env = LookEnv()
    episode = episode_of(ScriptedPolicy(script), env, replace(LIMITS, **limits))
    assert (episode.stop_reason, len(episode.turns), episode.reward) == (reason, num_turns, reward)
    assert (env.truncated_for, env.num_closed) == (reason, 1)
    assert episode.turns == () or episode.turns[-1].env_messages == ()


def test_a_turn_with_a_good_call_starts_the_count_of_invalid_turns_again() -> None:
    episode = episode_of(ScriptedPolicy([BROKEN, CALL + BROKEN, BROKEN, "done"]), LookEnv())
    assert episode.stop_reason is StopReason.FINISHED


def test_without_tools_what_reads_as_a_call_is_text_and_counts_as_none() -> None:
    episode = episode_of(ScriptedPolicy([CALL * 11, BROKEN, BROKEN, BROKEN, "done"]), EchoEnv())
    assert (episode.stop_reason, len(episode.turns)) == (StopReason.FINISHED, 5)


def test_a_message_over_the_tool_budget_is_not_run() -> None:
    env = LookEnv()
    episode_of(ScriptedPolicy([CALL * 6, CALL * 6]), env)
    assert len(env.received) == 1


def test_completions_shrink_to_the_window_and_no_room_ends_the_episode() -> None:
    # The first prompt takes 5 of 14, "x" and its END 2, the answer 5: 2 are left for the second turn.
    policy = ScriptedPolicy(["x", "y", "z"], max_context=14)
    episode = episode_of(policy, EchoEnv())
    assert [sampling.max_new_tokens for sampling in policy.samplings] == [9, 2]
    assert episode.stop_reason is StopReason.CONTEXT_FULL
    assert len(episode.turns) == 2


class SlowPolicy(ScriptedPolicy):
    """Samples a letter at a time until it is cancelled."""

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        num_sampled = 1
        while cancel is None or not cancel.is_set():
            num_sampled += 1
            time.sleep(0.001)
        ids = tuple(b"x" * num_sampled)
        return Completion(
            token_ids=ids, logprobs=(-0.5,) * num_sampled, finish_reason=FinishReason.CANCELLED, weight_version=0
        )


def test_a_deadline_ends_a_completion_and_its_tokens_remain() -> None:
    episode = episode_of(SlowPolicy([]), EchoEnv(), replace(LIMITS, timeout_s=0.02))
    assert episode.stop_reason is StopReason.TIMEOUT
    assert episode.turns[0].message.content.startswith("xx")
    assert episode.duration_s < 5


class ForgetfulEnv(EchoEnv):
    """Rewrites the conversation after every turn: keeps all messages, or only the newest."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self._keeps = keeps

    def reset(self, task: Task) -> list[Message]:
        self._messages = super().reset(task)
        return list(self._messages)

    def step(self, message: Message) -> StepResult:
        result = super().step(message)
        self._messages += [message, Message.user("more")]
        return replace(result, messages=(), conversation=tuple(self._messages if self._keeps else self._messages[-1:]))


@pytest.mark.parametrize(("keeps", "breaks"), [(True, [False, False, False]), (False, [False, True, True])])
def test_a_rewritten_conversation_starts_a_new_sample(keeps: bool, breaks: list[bool]) -> None:
    policy = ScriptedPolicy(["x", "y", "done"] if keeps else ["x"])
    limits = replace(LIMITS, max_turns=3)
    episode = episode_of(policy, ForgetfulEnv(keeps=keeps), limits)
    assert [turn.new_context for turn in episode.turns] == breaks
    samples, _ = build_samples(episode)
    assert len(samples) == 1 + sum(breaks)
    assert [list(sample.token_ids) for sample in samples][-1][: len(policy.prompts[-1])] == policy.prompts[-1]
    metrics = group_metrics([TrajectoryGroup(task_id="t", trajectories=(episode,))], has_variance=lambda _: True)
    assert metrics["rollout/new_contexts"] == sum(breaks)


class CriticEnv(EchoEnv):
    """Rewrites the conversation into one that no template shows."""

    def step(self, message: Message) -> StepResult:
        return StepResult(conversation=(Message(role="critic", content="hm"),))


def test_a_conversation_that_cannot_be_shown_is_the_environments_failure() -> None:
    episode = episode_of(ScriptedPolicy(["x"]), CriticEnv())
    assert (episode.stop_reason, episode.reward) == (StopReason.ENV_ERROR, None)
    assert "critic" in episode.error


class PickyChat(ByteChatFormat):
    """Shows no conversation that begins with a reply, and refuses each where it is broken."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self._is_broken = is_broken

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        if self._is_broken or messages[0].role == "assistant":
            raise UserError("picky: put a user message first")
        return super().render_prompt(messages, tools)

    def render_env_messages(self, messages: Sequence[Message]) -> list[int]:
        if messages[0].content == "ok":
            raise UserError("picky: not after a reply")
        return super().render_env_messages(messages)


class GreetingEnv(EchoEnv):
    def reset(self, task: Task) -> list[Message]:
        return [Message.assistant("Welcome."), Message.user("hi")]


def test_messages_that_the_template_does_not_show_drop_their_episode() -> None:
    policy = ScriptedPolicy(["x"])
    policy.chat_format = PickyChat()
    for env, said in ((GreetingEnv(), "put a user message first"), (EchoEnv(), "not after a reply")):
        episode = episode_of(policy, env)
        assert (episode.stop_reason, episode.reward, env.num_closed) == (StopReason.ENV_ERROR, None, 1)
        assert said in episode.error


def test_a_template_that_shows_no_prompt_at_all_ends_the_run_with_its_sentence() -> None:
    policy = ScriptedPolicy(["x"])
    policy.chat_format = PickyChat(is_broken=True)
    with pytest.raises(UserError, match=r"^picky: put a user message first$"):
        episode_of(policy, GreetingEnv())


def test_a_prompt_that_fills_the_window_samples_nothing() -> None:
    policy = ScriptedPolicy(["x"], max_context=5)
    assert episode_of(policy, EchoEnv()).stop_reason is StopReason.CONTEXT_FULL
    assert policy.prompts == []


class BrokenEnv(EchoEnv):
    """Fails in one of its methods."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def reset(self, task: Task) -> list[Message]:
        self._fail("reset")
        return super().reset(task)

    def step(self, message: Message) -> StepResult:
        self._fail("step")
        return super().step(message)

    def close(self) -> None:
        super().close()
        self._fail("close")

    def _fail(self, where: str) -> None:
        if where == self._where:
            raise SandboxError(f"no disk in {where}")


@pytest.mark.parametrize("where", ["reset", "step", "close"])
def test_a_failing_environment_is_data_without_a_reward(where: str) -> None:
    env = BrokenEnv(where)
    episode = episode_of(ScriptedPolicy(["done"]), env)
    assert (episode.stop_reason, episode.reward) == (StopReason.ENV_ERROR, None)
    assert episode.error == f"SandboxError: no disk in {where}"
    assert env.num_closed == 1


def test_a_cancelling_that_leaks_out_of_an_environment_drops_that_episode_alone() -> None:
    class Leaking(EchoEnv):
        def step(self, message: Message) -> StepResult:
            async def call() -> None:
                asyncio.current_task().cancel()  # as a client does whose connection breaks
                await asyncio.sleep(0)

            asyncio.run(call())
            return super().step(message)

    made = iter([Leaking(), *[EchoEnv() for _ in range(5)]])
    worker = ThreadedRolloutWorker(
        ScriptedPolicy(["done"]), EnvFactory(made.__next__), limits=LIMITS, seed=0, num_workers=1
    )
    groups = worker.collect(RolloutRequest(tasks=TASKS, group_size=2, step=0, temperature=1.0))
    episodes = [episode for group in groups for episode in group.trajectories]
    assert [episode.reward for episode in episodes] == [None, *[1.0] * 5]
    assert episodes[0].error.startswith("CancelledError at ")


@pytest.mark.parametrize(
    ("reward", "error"),
    [
        (None, "the grader is gone"),
        (math.nan, "the environment gave a reward of nan"),
        (math.inf, "the environment gave a reward of inf"),
    ],
)
def test_an_episode_that_the_environment_cannot_score_has_no_reward(reward: float | None, error: str) -> None:
    class Unscored(EchoEnv):
        def step(self, message: Message) -> StepResult:
            return StepResult(reward=reward, terminated=True, info={"error": "the grader is gone"})

    episode = episode_of(ScriptedPolicy(["done"]), Unscored())
    assert (episode.stop_reason, episode.reward) == (StopReason.ENV_ERROR, None)
    assert episode.error is not None and episode.error.startswith(error)
    assert reward is None or f"({__file__}:" in episode.error


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_part_of_the_reward_that_is_not_finite_is_the_environments_failure(value: float) -> None:
    class Divided(EchoEnv):
        def step(self, message: Message) -> StepResult:
            return StepResult(reward=1.0, reward_parts={"fine": 1.0, "ratio": value}, terminated=True)

    episode = episode_of(ScriptedPolicy(["done"]), Divided())
    assert (episode.stop_reason, episode.reward, episode.reward_parts) == (StopReason.ENV_ERROR, None, {})
    assert episode.error is not None and f"{value} as the reward part 'ratio'" in episode.error
    assert f"({__file__}:" in episode.error


def failing_engine(_turn: int, _sampling: SamplingParams) -> str:
    raise EngineError("out of memory")


def test_flags_of_all_steps_are_collected_once_each() -> None:
    class Flagging(EchoEnv):
        def step(self, message: Message) -> StepResult:
            return replace(super().step(message), flags=("source_exit", "dropped_tests"))

    assert episode_of(ScriptedPolicy(["x", "done"]), Flagging()).flags == ("dropped_tests", "source_exit")


def test_a_failing_engine_is_a_crash_even_when_closing_fails_too() -> None:
    env = BrokenEnv("close")
    with pytest.raises(EngineError, match="out of memory"):
        episode_of(ScriptedPolicy(failing_engine), env)
    assert env.num_closed == 1


def test_every_turn_samples_with_a_seed_of_its_own() -> None:
    policy = ScriptedPolicy(["x", "done"])
    episode_of(policy, EchoEnv())
    assert [sampling.seed for sampling in policy.samplings] == [derive_seed(7, 0), derive_seed(7, 1)]


def test_seeds_are_the_same_in_every_process_and_keep_their_parts_apart() -> None:
    assert derive_seed(0, 3, "t1", 2) == 4475393250076654991
    assert derive_seed(1, 23) != derive_seed(12, 3)


def speak_by_seed(turn: int, sampling: SamplingParams) -> str:
    return "done" if turn == 2 else f"{sampling.seed}"


def workers(policy: BasePolicy, make_env: Callable[[], AgentEnv]) -> list[RolloutWorker]:
    factory = EnvFactory(make_env)
    return [
        RolloutWorker(policy, factory, limits=LIMITS, seed=5),
        ThreadedRolloutWorker(policy, factory, limits=LIMITS, seed=5, num_workers=8),
    ]


TASKS = [{"task_id": f"t{i}", "question": "q" * i} for i in range(3)]


def test_threads_change_nothing_but_the_time() -> None:
    one, many = (
        worker.collect(RolloutRequest(tasks=TASKS, group_size=4, step=9, temperature=1.0))
        for worker in workers(ScriptedPolicy(speak_by_seed), EchoEnv)
    )
    turns = [[[episode.turns for episode in group.trajectories] for group in groups] for groups in (one, many)]
    assert turns[0] == turns[1]
    assert [group.task_id for group in many] == ["t0", "t1", "t2"]
    assert [episode.group_id for episode in many[1].trajectories] == ["9/1"] * 4
    assert len({episode.turns[0].message.content for episode in many[1].trajectories}) == 4


@pytest.mark.parametrize("index", [0, 1])
def test_one_failed_episode_remains_and_all_failed_is_an_error(index: int) -> None:
    made = iter([BrokenEnv("step"), *(EchoEnv() for _ in range(5))])
    worker = workers(ScriptedPolicy(["done"]), lambda: next(made))[index]
    groups = worker.collect(RolloutRequest(tasks=TASKS, group_size=2, step=0, temperature=1.0))
    reasons = [episode.stop_reason for group in groups for episode in group.trajectories]
    assert reasons.count(StopReason.ENV_ERROR) == 1
    worker = workers(ScriptedPolicy(["done"]), lambda: BrokenEnv("reset"))[index]
    with pytest.raises(SandboxError, match=r"all 6 episodes failed.*no disk in reset"):
        worker.collect(RolloutRequest(tasks=TASKS, group_size=2, step=0, temperature=1.0))


class FailsLater(EchoEnv):
    """Of 6 episodes the first 4 earn 0 and 1 in turn, the others 1; no episode after them can begin."""

    num_resets = 0

    def reset(self, task: Task) -> list[Message]:
        type(self).num_resets += 1
        if self.num_resets > 6:
            raise SandboxError("no disk")
        return super().reset(task)

    def step(self, message: Message) -> StepResult:
        return StepResult(reward=float(self.num_resets > 4 or self.num_resets % 2), terminated=True)


def test_one_attempt_whose_episodes_all_fail_ends_nothing_and_all_attempts_do(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path, rollout={"group_size": 2, "groups_per_step": 3, "async_workers": 0, "max_attempts": 2}
    )
    FailsLater.num_resets = 0
    rollout = make_rollout(config, ScriptedPolicy(["done"]), EnvFactory(FailsLater), Backend("cpu"))
    tasks = [{"task_id": f"t{i}", "question": "q"} for i in range(8)]
    source = SyncSource(config, tasks, rollout)
    batch = source.collect(step=1)
    assert (len(batch.groups), len(batch.train_groups)) == (4, 2)
    assert [episode.error for episode in batch.groups[3].trajectories] == ["SandboxError: no disk"] * 2
    with pytest.raises(SandboxError, match=r"all 12 episodes failed in their environment, .*no disk"):
        source.collect(step=2)


def test_a_factory_that_fails_is_data_too() -> None:
    made = iter([EchoEnv()])  # the second call raises StopIteration
    worker = workers(ScriptedPolicy(["done"]), lambda: next(made))[0]
    group = worker.collect(RolloutRequest(tasks=TASKS[:1], group_size=2, step=0, temperature=1.0))[0]
    assert [episode.stop_reason for episode in group.trajectories] == [StopReason.FINISHED, StopReason.ENV_ERROR]


def test_an_engine_failure_in_a_thread_is_raised_and_waiting_episodes_never_start() -> None:
    started = []

    def script(_turn: int, _sampling: SamplingParams) -> str:
        started.append(1)
        time.sleep(0.01)  # else all of them fail before the first failure is noticed
        raise EngineError("out of memory")

    executor = ThreadedRolloutWorker(ScriptedPolicy(script), EnvFactory(EchoEnv), limits=LIMITS, seed=0, num_workers=1)
    with pytest.raises(EngineError, match="out of memory"):
        executor.collect(RolloutRequest(tasks=TASKS, group_size=100, step=0, temperature=1.0))
    assert len(started) < 300


def test_ctrl_c_while_waiting_ends_running_episodes_before_their_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    num_turns = []

    def script(turn: int, _sampling: SamplingParams) -> str:
        num_turns.append(turn)
        release.wait(5)
        return "x"

    def interrupt(*_args: object, **_kwargs: object) -> None:
        while len(num_turns) < 2:
            time.sleep(0.001)
        raise KeyboardInterrupt

    monkeypatch.setattr("agent_rl.rollout.rollout.wait", interrupt)
    executor = ThreadedRolloutWorker(ScriptedPolicy(script), EnvFactory(EchoEnv), limits=LIMITS, seed=0, num_workers=2)
    with pytest.raises(KeyboardInterrupt):
        executor.collect(RolloutRequest(tasks=TASKS, group_size=2, step=0, temperature=1.0))
    release.set()
    time.sleep(0.05)
    assert num_turns == [0, 0]


def test_generate_action_answers_a_conversation() -> None:
    policy = ScriptedPolicy([CALL])
    message = policy.generate_action([Message.user("hi")])
    assert message.tool_calls[0].name == "look"
    assert policy.samplings[0].temperature == 0.0
    with pytest.raises(ValueError, match="the conversation has 8 tokens, the window only 8"):
        ScriptedPolicy([CALL], max_context=8).generate_action([Message.user("hello")])


def case_seeds(*, step: int, position: int = 0) -> set[int | None]:
    """`AgentEnv.case_seed` in the episodes of a group, as it is when they start."""
    seen: list[int | None] = []

    class Noting(EchoEnv):
        def reset(self, task: Task) -> list[Message]:
            seen.append(self.case_seed)
            return super().reset(task)

    worker = RolloutWorker(ScriptedPolicy(["done"] * 3), EnvFactory(Noting), limits=LIMITS, seed=5)
    request = RolloutRequest(tasks=[TASK], group_size=3, step=step, temperature=1.0, positions=[position])
    worker.collect(request)
    assert len(seen) == 3
    return set(seen)


def test_hidden_cases_are_those_of_the_group_and_others_at_every_step() -> None:
    (first,), (again,), (second,) = case_seeds(step=1), case_seeds(step=1), case_seeds(step=2)
    assert first == again
    assert first is not None and second is not None and first != second


def test_evaluations_always_have_the_same_hidden_cases() -> None:
    assert case_seeds(step=-1) == {None}
