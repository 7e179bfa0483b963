"""Episodes of a ReAct agent that goes on behind its action: what remains, what is run, what the model reads next."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from chat_templates import FAMILIES, text_of, tokenizer_of
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.agent.chat_format import make_chat_format
from agent_rl.agent.messages import Message
from agent_rl.agent.react_format import closes_action
from agent_rl.envs.base import AgentEnv, StepResult, Task, ToolEnv
from agent_rl.inference.base import Cancel
from agent_rl.learning.samples import build_samples
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Completion, FinishReason, SamplingParams, StopReason, Trajectory
from agent_rl.rollout.episode import run_episode
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.tools.base import BaseTool, ToolRegistry, ToolResult

LIMITS = EpisodeLimits(max_new_tokens=1000, timeout_s=60.0)
ACTION = 'Thought: I add.\nAction: add\nAction Input: {"a": 3, "b": 4}'
INVENTED = "\nObservation: 8\nThought: So it is 8.\nFinal Answer: 8"
TOKENIZER = tokenizer_of("qwen2.5")
REACT = make_chat_format(TOKENIZER, "react")
END = REACT.stop_token_ids[0]


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


class Speaker(BasePolicy):
    """Replies as configured, turn by turn; the weights change every `ids_a_version` ids."""

    def __init__(self, replies: Sequence[str], *, ids_a_version: int = 0) -> None:
        self.chat_format = REACT
        self.max_context = 10_000
        self.prompts: list[list[int]] = []
        self._replies, self._ids_a_version = list(replies), ids_a_version

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        wanted = [*ids_of(self._replies[len(self.prompts)]), END]
        self.prompts.append(list(prompt_ids))
        sampled = tuple(wanted[: sampling.max_new_tokens])
        return Completion(
            token_ids=sampled,
            logprobs=tuple(-float(place) for place in range(len(sampled))),
            finish_reason=FinishReason.STOP if len(sampled) == len(wanted) else FinishReason.LENGTH,
            weight_version=0,
            token_versions=tuple(
                place // self._ids_a_version for place in range(len(sampled) * bool(self._ids_a_version))
            ),
        )

    def refresh_weights(self, version: int) -> None:
        return None

    def close(self) -> None:
        return None


class Add(BaseTool):
    name, description = "add", "Adds."
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}

    def __init__(self, *, terminal: bool = False) -> None:
        self._terminal = terminal

    def __call__(self, **arguments: Any) -> ToolResult:
        return ToolResult(text=str(arguments["a"] + arguments["b"]), terminal=self._terminal)


class SumEnv(ToolEnv):
    """What is 3 + 4? One point for "7"."""

    def __init__(self, *, terminal: bool = False) -> None:
        self.registry = ToolRegistry([Add(terminal=terminal)])
        self.tools = self.registry.specs

    def reset(self, task: Task) -> list[Message]:
        return [Message.user("3 + 4?")]

    def on_terminal(self, tool_name: str) -> StepResult:
        return StepResult(reward=0.5, terminated=True)

    def no_call(self, message: Message) -> StepResult:
        return StepResult(reward=float(message.content == "7"), terminated=True)


class RewritingEnv(SumEnv):
    """Returns the whole conversation after every turn."""

    def step(self, message: Message) -> StepResult:
        result = super().step(message)
        rewritten = (Message.user("3 + 4?"), message, *result.messages)
        return result if result.terminated else replace(result, messages=(), conversation=rewritten)


def roll_out(policy: Speaker, env: AgentEnv, *, max_new_tokens: int = 1000) -> Trajectory:
    limits = replace(LIMITS, max_new_tokens=max_new_tokens)
    return run_episode(policy, env, {"task_id": "t"}, group_id="g", seed=0, limits=limits, temperature=1.0)


def test_an_invented_observation_is_left_out_and_the_real_one_read() -> None:
    policy = Speaker([ACTION + INVENTED, "Final Answer: 7"])
    episode = roll_out(policy, SumEnv())
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.FINISHED)
    first, second = episode.turns
    assert list(first.completion.token_ids) == ids_of(ACTION + INVENTED)[: len(first.completion.token_ids)]
    assert text_of("qwen2.5", first.completion.token_ids) == ACTION
    assert first.completion.finish_reason is FinishReason.STOP
    assert first.completion.logprobs == tuple(-float(place) for place in range(len(first.completion.token_ids)))
    assert text_of("qwen2.5", second.prompt_token_ids) == (
        "<|im_end|>\n<|im_start|>user\nObservation: 7<|im_end|>\n<|im_start|>assistant\n"
    )
    assert policy.prompts[1] == [
        *first.prompt_token_ids,
        *first.completion.token_ids,
        *second.prompt_token_ids,
    ]


def test_an_end_of_turn_that_was_not_sampled_is_read_but_not_trained_on() -> None:
    episode = roll_out(Speaker([ACTION + INVENTED, "Final Answer: 7"]), SumEnv())
    [sample], _ = build_samples(episode)
    sampled = [*ids_of(ACTION), *ids_of("Final Answer: 7"), END]
    assert [token for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask] == sampled
    place = len(episode.turns[0].prompt_token_ids) + len(ids_of(ACTION))
    assert (sample.token_ids[place], sample.loss_mask[place]) == (END, 0)


def test_a_complete_action_that_runs_into_the_limit_is_run() -> None:
    long = ACTION + INVENTED + " I go on." * 200
    episode = roll_out(Speaker([long, "Final Answer: 7"]), SumEnv(), max_new_tokens=len(ids_of(ACTION)) + 5)
    assert (episode.reward, len(episode.turns)) == (1.0, 2)
    exact = roll_out(Speaker([long, "Final Answer: 7"]), SumEnv(), max_new_tokens=len(ids_of(ACTION)))
    assert (exact.reward, len(exact.turns)) == (1.0, 2)
    assert exact.turns[1].prompt_token_ids[0] == END


def test_an_unfinished_action_at_the_limit_still_ends_the_episode() -> None:
    episode = roll_out(Speaker([ACTION + INVENTED]), SumEnv(), max_new_tokens=len(ids_of(ACTION)) - 1)
    assert (episode.stop_reason, episode.turns[0].completion.finish_reason) == (
        StopReason.MAX_TOKENS,
        FinishReason.LENGTH,
    )


def test_an_action_that_ends_its_turn_by_itself_stays_whole() -> None:
    fenced = ACTION.replace("{", "```json\n{") + "\n```"
    for reply in (ACTION, fenced):
        policy = Speaker([reply, "Final Answer: 7"])
        first, second = roll_out(policy, SumEnv()).turns
        assert list(first.completion.token_ids) == [*ids_of(reply), END]
        assert second.prompt_token_ids[0] != END


def test_nothing_follows_an_action_that_ends_the_episode() -> None:
    episode = roll_out(Speaker([ACTION + INVENTED]), SumEnv(terminal=True))
    assert (episode.stop_reason, episode.reward) == (StopReason.FINISHED, 0.5)
    [turn] = episode.turns
    assert (text_of("qwen2.5", turn.completion.token_ids), turn.env_messages) == (ACTION, ())


def test_versions_are_cut_with_their_ids() -> None:
    num = len(ids_of(ACTION))
    replies = [ACTION + INVENTED, "Final Answer: 7"]
    first, _ = roll_out(Speaker(replies, ids_a_version=10), SumEnv()).turns
    assert first.completion.token_versions == tuple(place // 10 for place in range(num))
    first, _ = roll_out(Speaker(replies, ids_a_version=num), SumEnv()).turns
    assert first.completion.token_versions == (), "all that is left was sampled by one version"


def test_a_rewritten_conversation_continues_the_truncated_turn() -> None:
    policy = Speaker([ACTION + INVENTED, "Final Answer: 7"])
    first, second = roll_out(policy, RewritingEnv()).turns
    assert not second.new_context
    assert second.prompt_token_ids[0] == END
    assert policy.prompts[1] == [*first.prompt_token_ids, *first.completion.token_ids, *second.prompt_token_ids]


def test_an_answer_is_never_cut() -> None:
    reply = "Final Answer: 7\n" + ACTION + INVENTED
    [turn] = roll_out(Speaker([reply]), SumEnv()).turns
    assert list(turn.completion.token_ids) == [*ids_of(reply), END]


pieces = st.sampled_from(
    ["\n", " ", "}", "{}", '"', "```", "Observation: ü", "Action: add", "Final Answer: 7", "Action Input: {", "數🙂"]
)


@pytest.mark.parametrize("family", FAMILIES)
@given(arguments=st.sampled_from(["{}", '{"a": "}"}', '{"a": {"b": "ü"}}', '{"a": x}']), behind=st.lists(pieces))
@settings(max_examples=15, deadline=None)
def test_the_cut_is_at_the_first_id_that_closes_the_arguments(family: str, arguments: str, behind: list[str]) -> None:
    chat, tokenizer = make_chat_format(tokenizer_of(family), "react"), tokenizer_of(family)
    ids = tokenizer.encode(f"Action: add\nAction Input: {arguments}{''.join(behind)}", add_special_tokens=False)
    num = chat.reply_end(ids)
    assert closes_action(tokenizer.decode(ids[:num]))
    assert not closes_action(tokenizer.decode(ids[: num - 1]))
    assert chat.reply_end(ids[:num]) == num
    cut, whole = chat.parse_completion(ids[:num]), chat.parse_completion(ids)
    assert [(call.name, call.arguments) for call in cut.tool_calls] == [
        (call.name, call.arguments) for call in whole.tool_calls
    ]
    assert chat.parse_completion([*ids[:num], chat.stop_token_ids[0]]) == cut


def test_thinking_in_front_of_a_reply_is_no_action() -> None:
    tokenizer = tokenizer_of("qwen3")
    chat = make_chat_format(tokenizer, "react")
    think = [tokenizer.convert_tokens_to_ids(tag) for tag in ("<think>", "</think>")]
    thought = tokenizer.encode(ACTION + INVENTED, add_special_tokens=False)
    answer = tokenizer.encode("Final Answer: 7", add_special_tokens=False)
    ids = [think[0], *thought, think[1], *answer]
    assert chat.reply_end(ids) is None
    acting = [think[0], *thought, think[1], *tokenizer.encode(ACTION, add_special_tokens=False)]
    invented = tokenizer.encode(INVENTED, add_special_tokens=False)
    assert chat.reply_end([*acting, *invented]) == len(acting)
