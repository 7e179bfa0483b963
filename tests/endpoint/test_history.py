"""The tree of an episode's turns: what continues what, by identity; ids by record."""

from typing import Any

import pytest
from fakes import END, ByteChatFormat

from agent_rl.agent.messages import Message
from agent_rl.endpoint.history import History, RequestPlace, call_ids_of
from agent_rl.endpoint.requests import parse_chat
from agent_rl.learning.samples import build_samples
from agent_rl.records import Completion, FinishReason, StopReason, Trajectory
from agent_rl.rollout.turns import SampledTurn

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str | None, *calls: tuple[str, str, str]) -> dict[str, Any]:
    rows = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return {"role": "assistant", "content": text} | ({"tool_calls": rows} if rows else {})


class Episode:
    """A history and the replies it is told to have sampled."""

    def __init__(self) -> None:
        self.history = History(ByteChatFormat())
        self.number = 0

    def ask(self, *messages: dict[str, Any], reply: str = "ok", tools: tuple[Any, ...] = ()) -> RequestPlace:
        place = self.history.place(parse_chat({"messages": list(messages), "tools": list(tools)}))
        ids = (*reply.encode(), END)
        message = self.history._chat.parse_completion(ids)
        done = Completion(token_ids=ids, logprobs=(-0.5,) * len(ids), finish_reason=FinishReason.STOP, weight_version=0)
        sampled = SampledTurn(completion=done, message=message, is_cut=False)
        shown = Message.assistant(message.content, message.tool_calls)
        self.history.add(self.number, place, sampled, shown, function=None)
        self.number += 1
        return place

    def contexts(self) -> list[str]:
        """What is trained: each sample's text, sampled characters in capitals."""
        turns = self.history.to_turns()
        whole = Trajectory(task_id="t", group_id="g", turns=turns, stop_reason=StopReason.FINISHED, reward=1.0)
        samples, _ = build_samples(whole)
        return [
            "".join(
                (chr(token).upper() if mask else chr(token)) if token < END else "|"
                for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True)
            )
            for sample in samples
        ]


def test_a_conversation_that_grows_is_one_sample_and_nothing_is_read_twice() -> None:
    episode = Episode()
    episode.ask(user("a"), reply="b")
    place = episode.ask(user("a"), said("b"), user("c"), reply="d")
    assert place.parent == 0
    assert [chr(token) for token in place.new_ids if token < END] == ["c"]
    assert episode.contexts() == ["|a||B||c||D|"]


def test_ids_are_those_sampled_though_the_text_could_be_encoded_otherwise() -> None:
    episode = Episode()
    episode.ask(user("a"), reply="  b ")
    place = episode.ask(user("a"), said("b"), user("c"))
    assert bytes(token for token in place.prompt_ids if token < END) == b"a  b c"


@pytest.mark.parametrize(
    "echo",
    [
        said("", ("call_0_0", "add", '{"b": 2, "a": 1}')),
        said(None, ("call_0_0", "add", '{"a":1,"b":2}')),
        said(None, ("other", "add", '{"a": 1.0, "b": 2}'.replace("1.0", "1"))),
        said(None, ("call_0_0", "add", '{"a": 1, "b": 2}')) | {"refusal": None, "annotations": [], "audio": None},
    ],
)
def test_order_of_keys_spaces_and_ids_of_calls_do_not_matter(echo: dict[str, Any]) -> None:
    episode = Episode()
    reply = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    episode.ask(user("a"), reply=reply, tools=(TOOL,))
    result = {"role": "tool", "tool_call_id": echo["tool_calls"][0]["id"], "content": "3"}
    assert episode.ask(user("a"), echo, result, tools=(TOOL,)).parent == 0


@pytest.mark.parametrize(
    "changed",
    [
        (user("A"), said("b"), user("c")),
        (user("a"), said("B"), user("c")),
        ({"role": "system", "content": "new"}, user("a"), said("b"), user("c")),
        (said("b"), user("c")),
        (user("a "), said("b"), user("c")),
        (user("a"), said("b", ("x", "add", "{}")), user("c")),
    ],
)
def test_a_history_that_was_changed_is_a_new_context(changed: tuple[dict[str, Any], ...]) -> None:
    episode = Episode()
    episode.ask(user("a"), reply="b")
    assert episode.ask(*changed).parent is None
    assert len(episode.contexts()) == 2


def test_other_tools_are_another_context() -> None:
    episode = Episode()
    episode.ask(user("a"), reply="b", tools=(TOOL,))
    assert episode.ask(user("a"), said("b"), user("c")).parent is None


def test_the_longest_known_beginning_is_continued_and_messages_of_others_behind_it_are_context() -> None:
    episode = Episode()
    episode.ask(user("a"), reply="b")
    place = episode.ask(user("a"), said("b"), user("c"), said("not sampled"), user("e"), reply="f")
    assert place.parent == 0
    assert episode.contexts() == ["|a||B||c||not sampled||e||F|"]


def test_a_sub_agent_between_two_turns_does_not_cut_the_main_conversation() -> None:
    episode = Episode()
    episode.ask(user("a"), reply="b")
    episode.ask(user("sub"), reply="x")
    episode.ask(user("a"), said("b"), user("c"), reply="d")
    episode.ask(user("sub"), said("x"), user("y"), reply="z")
    assert episode.contexts() == ["|a||B||c||D|", "|sub||X||y||Z|"]


def test_a_turn_continued_twice_is_trained_once() -> None:
    episode = Episode()
    episode.ask(user("a"), reply="b")
    episode.ask(user("a"), said("b"), user("c"), reply="d")
    episode.ask(user("a"), said("b"), user("e"), reply="f")
    episode.ask(user("a"), said("b"), user("e"), said("f"), user("g"), reply="h")
    assert episode.contexts() == ["|a||B||c||D|", "|a||b||e||F||g||H|"]


def test_of_two_equal_turns_the_one_whose_calls_are_echoed_is_continued_else_the_latest() -> None:
    reply = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    episode = Episode()
    for _ in range(2):
        episode.ask(user("a"), reply=reply)
    result = {"role": "tool", "tool_call_id": "x", "content": "3"}
    for number in (0, 1):
        echoed = said(None, (call_ids_of(number, 1)[0], "add", "{}"))
        assert episode.ask(user("a"), echoed, result).parent == number
    assert episode.ask(user("a"), said(None, ("foreign", "add", "{}")), result).parent == 1


def test_turns_record_what_the_model_read_next_for_logs() -> None:
    episode = Episode()
    episode.ask(user("a"), reply="b")
    episode.ask(user("a"), said("b"), user("c"), reply="d")
    episode.ask(user("sub"), reply="x")
    turns = episode.history.to_turns()
    assert turns[0].env_messages == (Message.user("c"),)
    assert [turn.new_context for turn in turns] == [False, False, True]
    assert turns[2].env_messages == ()
