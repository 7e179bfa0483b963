"""Five hundred episodes at once: tools that are slow, fail or hang, callers that cancel, and far too few slots."""

import random
import threading
import time
from collections.abc import Sequence

import pytest
import torch
from fakes import ByteChatFormat
from tiny_models import SIZES

from agent_rl.agent.messages import Message
from agent_rl.envs.base import AgentEnv, StepResult, Task
from agent_rl.inference.base import Cancel
from agent_rl.inference.local.engine import GenerationEngine
from agent_rl.modeling.minimind import MiniMindConfig, MiniMindForCausalLM
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Completion, SamplingParams, StopReason, Trajectory
from agent_rl.rollout.episode import run_episode
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.seeds import derive_seed

NUM_EPISODES = 500
MAX_CONTEXT = 160
TEMPERATURE = 1.0


class LenientByteFormat(ByteChatFormat):
    """Bytes as they come, because what a random model samples is no UTF-8; every eighth of them ends a turn."""

    stop_token_ids = tuple(range(0, 261, 8))

    def parse_completion(self, token_ids: Sequence[int]) -> Message:
        return Message.assistant(bytes(token for token in token_ids if token < 256).decode(errors="replace"))


class EnginePolicy(BasePolicy):
    """A random model of bytes behind the real engine. In float64, so that samples do not depend on the neighbours."""

    def __init__(self, *, max_batch_size: int, num_slots: int) -> None:
        torch.manual_seed(0)
        model = MiniMindForCausalLM(MiniMindConfig(**(SIZES | {"vocab_size": 261}))).double().eval()
        self.chat_format = LenientByteFormat()
        self.max_context = MAX_CONTEXT
        self.engine = GenerationEngine(
            model,
            max_batch_size=max_batch_size,
            max_context=MAX_CONTEXT,
            max_cached_tokens=num_slots * MAX_CONTEXT,
        )

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        return self.engine.generate(prompt_ids, sampling, cancel)

    def refresh_weights(self, version: int) -> None:
        self.engine.refresh_weights(version)

    def close(self) -> None:
        self.engine.close()


class UnreliableEnv(AgentEnv):
    """Three turns of tools that take up to 30 ms; one in ten raises, and the text is the episode's own."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number)
        self._number = number
        self._turns_left = 3

    def reset(self, task: Task) -> list[Message]:
        return [Message.system("You share this prompt."), Message.user(f"episode {self._number % 100}")]

    def step(self, message: Message) -> StepResult:
        time.sleep(0.03 * self._random.random())
        if self._random.random() < 0.1:
            raise OSError("the tool broke")
        self._turns_left -= 1
        return StepResult(messages=(Message.tool(f"result {self._number}"),), terminated=self._turns_left == 0)


def roll_out(policy: EnginePolicy, number: int, cancelled: threading.Event) -> Trajectory:
    limits = EpisodeLimits(max_new_tokens=12 + number % 9, timeout_s=0.3 if number % 25 == 0 else 60.0)
    return run_episode(
        policy,
        UnreliableEnv(number),
        {"task_id": str(number)},
        group_id=str(number % 100),
        seed=number,
        limits=limits,
        temperature=TEMPERATURE,
        cancelled=cancelled,
    )


def assert_own_tokens(alone: EnginePolicy, number: int, episode: Trajectory) -> None:
    """Every turn is what an engine with nothing else to do samples for this prompt and this seed."""
    context: list[int] = []
    for index, turn in enumerate(episode.turns):
        context += turn.prompt_token_ids
        sampled = turn.completion.token_ids
        sampling = SamplingParams(
            max_new_tokens=len(sampled),
            temperature=TEMPERATURE,
            stop_token_ids=alone.chat_format.stop_token_ids,
            seed=derive_seed(number, index),
        )
        assert alone.generate(context, sampling).token_ids == sampled
        context += sampled


@pytest.mark.timeout(110)
def test_five_hundred_episodes_all_end_and_none_gets_anothers_tokens() -> None:
    policy = EnginePolicy(max_batch_size=48, num_slots=60)
    cancel_events = {number: threading.Event() for number in range(NUM_EPISODES)}
    episodes: dict[int, Trajectory] = {}
    errors: dict[int, str] = {}

    def run(number: int) -> None:
        try:
            episodes[number] = roll_out(policy, number, cancel_events[number])
        except Exception as error:  # a cancelled episode ends by an exception of the rollout's own
            errors[number] = type(error).__name__

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(NUM_EPISODES)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    for number in range(7, NUM_EPISODES, 10):
        cancel_events[number].set()
    deadline = time.monotonic() + 90
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads)
    assert len(policy.engine._in_flight) == 0
    policy.close()

    assert set(errors.values()) <= {"EpisodeCancelledError"}
    assert len(episodes) + len(errors) == NUM_EPISODES
    reasons = {episode.stop_reason for episode in episodes.values()}
    assert {StopReason.FINISHED, StopReason.MAX_TOKENS, StopReason.ENV_ERROR} <= reasons
    assert sum(len(episode.turns) == 3 for episode in episodes.values()) > NUM_EPISODES / 10
    alone = EnginePolicy(max_batch_size=1, num_slots=1)
    for number in range(0, NUM_EPISODES, 8):
        if number in episodes:
            assert_own_tokens(alone, number, episodes[number])
    alone.close()
