"""A session keeps the rules of the project's own rollout: seeds, budgets, retries, an end."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fakes import ScriptedPolicy

from agent_rl.endpoint.errors import EndpointError
from agent_rl.endpoint.requests import ChatRequest, parse_chat
from agent_rl.endpoint.session import OVERTAKEN_S, REFUSED_S, EpisodeSession, SampledReply, SessionSpec
from agent_rl.endpoint.sessions import Sessions, StillSamplingError
from agent_rl.inference.base import Cancel
from agent_rl.records import Completion, SamplingParams, StopReason
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.seeds import derive_seed

CALL = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
BROKEN = '<tool_call>{"name": "add", "arguments"'


def request(*texts: str, **more: Any) -> ChatRequest:
    """A conversation of user and assistant by turns."""
    roles = ("user", "assistant")
    rows = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
    return parse_chat({"messages": rows, **more})


def make(policy: ScriptedPolicy, *, seed: int = 7, **limits: Any) -> EpisodeSession:
    spec = SessionSpec(seed=seed, group=1, temperature=0.5, limits=EpisodeLimits(**({"max_new_tokens": 200} | limits)))
    return EpisodeSession(policy, spec)


def ask(session: EpisodeSession, *texts: str, **more: Any) -> SampledReply:
    exchange, is_new = session.start(request(*texts, **more))
    assert is_new
    session.sample(exchange)
    return exchange.future.result()


def refusal(session: EpisodeSession, *texts: str, **more: Any) -> tuple[int, str]:
    with pytest.raises(EndpointError) as caught:
        ask(session, *texts, **more)
    return caught.value.status, caught.value.code


def test_turns_are_sampled_with_the_seeds_and_temperature_of_the_episode() -> None:
    policy = ScriptedPolicy(["b", "d"])
    session = make(policy)
    ask(session, "a", temperature=2.0, max_tokens=50)
    ask(session, "a", "b", "c")
    assert [s.seed for s in policy.samplings] == [derive_seed(7, 0), derive_seed(7, 1)]
    assert [s.temperature for s in policy.samplings] == [0.5, 0.5]
    assert [s.max_new_tokens for s in policy.samplings] == [50, 200]


def test_a_reply_at_its_token_budget_is_given_and_ends_the_episode() -> None:
    session = make(ScriptedPolicy(["long reply", "no"]), max_new_tokens=4)
    assert ask(session, "a").shown.content == "long"
    assert session.stop_reason is StopReason.MAX_TOKENS
    assert refusal(session, "a", "long", "c") == (400, "rollout_stopped")
    assert len(session.turns) == 1


def test_the_turn_budget_ends_the_episode_when_another_turn_is_asked_for() -> None:
    session = make(ScriptedPolicy(["b", "d"]), max_turns=1)
    ask(session, "a")
    assert session.stop_reason is None
    assert refusal(session, "a", "b", "c") == (400, "rollout_stopped")
    assert session.stop_reason is StopReason.MAX_TURNS


def test_a_message_over_the_call_budget_is_recorded_and_not_given_out() -> None:
    session = make(ScriptedPolicy([CALL * 3]), max_tool_calls=2)
    assert refusal(session, "a") == (400, "rollout_stopped")
    assert session.stop_reason is StopReason.TOOL_BUDGET
    assert len(session.turns) == 1


def test_broken_calls_are_given_as_text_and_too_many_in_a_row_end_the_episode() -> None:
    session = make(ScriptedPolicy([BROKEN, BROKEN, BROKEN, "no"]), max_invalid_turns=2)
    assert ask(session, "a").shown.content == BROKEN
    ask(session, "a", BROKEN, "again")
    assert refusal(session, "a", BROKEN, "again", BROKEN, "again") == (400, "rollout_stopped")
    assert session.stop_reason is StopReason.INVALID_CALLS


def test_good_and_broken_calls_of_one_message_are_both_there() -> None:
    shown = ask(make(ScriptedPolicy([f"Now {CALL}{BROKEN}"])), "a").shown
    assert [call.name for call in shown.tool_calls] == ["add"]
    assert shown.content.startswith("Now") and BROKEN in shown.content


def test_calls_of_two_episodes_have_other_ids() -> None:
    ids = [ask(make(ScriptedPolicy([CALL * 2]), seed=seed), "a").call_ids for seed in (7, 8)]
    assert len({*ids[0], *ids[1]}) == 4


def test_a_full_window_ends_the_episode() -> None:
    policy = ScriptedPolicy(["b"], max_context=12)
    session = make(policy)
    assert refusal(session, "a" * 20) == (400, "context_length_exceeded")
    assert session.stop_reason is StopReason.CONTEXT_FULL
    assert policy.prompts == []


def test_a_passed_deadline_ends_the_episode() -> None:
    session = make(ScriptedPolicy(["b"]), timeout_s=-1.0)
    assert refusal(session, "a") == (400, "rollout_stopped")
    assert session.stop_reason is StopReason.TIMEOUT
    assert session.turns == ()


def test_a_concluded_episode_takes_nothing_and_changes_nothing() -> None:
    session = make(ScriptedPolicy(["b", "d"]))
    ask(session, "a")
    session.conclude()
    assert refusal(session, "a", "b", "c") == (409, "episode_concluded")
    assert (len(session.turns), session.stop_reason) == (1, None)


class WaitingPolicy(ScriptedPolicy):
    """Replies once it is let go."""

    def __init__(self, script: list[str]) -> None:
        super().__init__(script)
        self.go = threading.Event()
        self.entered = threading.Event()

    def generate(self, prompt_ids: Any, sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        self.entered.set()
        while not self.go.wait(0.005):
            if cancel is not None and cancel.is_set():
                break
        return super().generate(prompt_ids, sampling, cancel)


def test_a_retry_is_the_request_that_it_repeats_while_it_runs_and_after() -> None:
    policy = WaitingPolicy(["b"])
    session = make(policy)
    with ThreadPoolExecutor(1) as pool:
        first, is_new = session.start(request("a"))
        assert is_new
        pool.submit(session.sample, first)
        again = session.start(request("a"), is_retry=True)
        policy.go.set()
        first.future.result()
    late = session.start(request("a"), is_retry=True)
    assert again == late == (first, False)
    assert len(session.turns) == 1


def test_a_retry_that_overtakes_its_request_is_that_request() -> None:
    session = make(ScriptedPolicy(["b"]))
    exchange, is_new = session.start(request("a"), is_retry=True)
    assert is_new
    assert session.start(request("a")) == (exchange, False)
    assert session.start(request("a"))[1]


def test_a_retry_of_what_never_came_and_a_repeated_request_are_new_samples() -> None:
    policy = ScriptedPolicy(["b", "b"])
    session = make(policy)
    exchange, is_new = session.start(request("a"), is_retry=True)
    session.sample(exchange)
    assert is_new
    ask(session, "a", user="another")
    assert len(session.turns) == 2
    assert policy.samplings[0].seed != policy.samplings[1].seed


def test_a_request_that_its_retry_overtook_comes_soon_or_never(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = iter(["b", "c"])
    session = make(ScriptedPolicy(lambda _turn, _sampling: next(replies)))
    exchange, _ = session.start(request("a"), is_retry=True)
    session.sample(exchange)
    assert OVERTAKEN_S <= 2.0
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + OVERTAKEN_S)
    assert ask(session, "a").shown.content == "c"


def test_a_retry_after_a_failure_of_the_policy_is_sampled_anew() -> None:
    fails = iter([True])

    def script(_turn: int, _sampling: SamplingParams) -> str:
        if next(fails, False):
            raise RuntimeError("engine down")
        return "b"

    session = make(ScriptedPolicy(script))
    assert refusal(session, "a") == (503, "policy_failed")
    assert session.is_spoiled
    exchange, is_new = session.start(request("a"), is_retry=True)
    session.sample(exchange)
    assert (is_new, exchange.future.result().shown.content, session.is_spoiled) == (True, "b", False)
    assert session.start(request("a"), is_retry=True) == (exchange, False)
    assert session.start(request("a"))[1]


def test_the_retry_of_a_last_reply_is_answered_though_the_episode_has_ended() -> None:
    session = make(ScriptedPolicy(["long reply"]), max_new_tokens=4)
    reply = ask(session, "a")
    exchange, is_new = session.start(request("a"), is_retry=True)
    assert (is_new, exchange.future.result()) == (False, reply)


def test_what_is_sampled_when_the_episode_is_concluded_is_no_turn() -> None:
    policy = WaitingPolicy(["b"])
    session = make(policy)
    with ThreadPoolExecutor(1) as pool:
        exchange, _ = session.start(request("a"))
        pool.submit(session.sample, exchange)
        policy.entered.wait(5)
        session.conclude()
        assert isinstance(exchange.future.exception(), EndpointError)
    assert session.turns == ()


def test_a_failing_policy_is_kept_for_who_waits_for_the_episode() -> None:
    def fail(_turn: int, _sampling: SamplingParams) -> str:
        raise RuntimeError("engine down")

    session = make(ScriptedPolicy(fail))
    assert refusal(session, "a") == (503, "policy_failed")
    assert isinstance(session.failure, RuntimeError)


def test_parallel_requests_of_one_session_are_turns_of_their_own() -> None:
    session = make(ScriptedPolicy(lambda _turn, _sampling: "x"), max_turns=64)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: ask(session, f"question {number}"), range(32)))
    turns = session.turns
    assert len(turns) == 32
    assert sum(turn.new_context for turn in turns) == 31


# All sessions


def open_one(sessions: Sessions, **limits: Any) -> tuple[str, EpisodeSession]:
    limits = {"max_new_tokens": 20} | limits
    return sessions.open(SessionSpec(seed=1, group=1, temperature=1.0, limits=EpisodeLimits(**limits)))


def test_keys_find_their_session_and_others_none() -> None:
    sessions = Sessions(ScriptedPolicy(["b"]), max_waiting=4)
    (first, one), (second, other) = open_one(sessions), open_one(sessions)
    assert sessions.find(first) is one
    assert sessions.find(second) is other
    for key in ("", "none", first[:-1]):
        with pytest.raises(EndpointError) as caught:
            sessions.find(key)
        assert caught.value.status == 401
    sessions.conclude(first)
    with pytest.raises(EndpointError) as caught:
        sessions.find(first)
    assert caught.value.status == 409


def test_weights_may_not_change_while_something_is_sampled_and_nothing_is_taken_while_they_change() -> None:
    sessions = Sessions(ScriptedPolicy(["b", "c"]), max_waiting=4)
    _, session = open_one(sessions)
    exchange, _ = sessions.start(session, request("a"), is_retry=False, function=None)
    with pytest.raises(StillSamplingError):
        sessions.pause()
    sessions.sample(session, exchange)
    sessions.pause()
    with pytest.raises(EndpointError) as caught:
        sessions.start(session, request("b"), is_retry=False, function=None)
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
    sessions.resume()
    assert sessions.start(session, request("b"), is_retry=False, function=None)[1]


def test_the_retries_of_requests_that_were_sent_away_are_no_other_requests_reply() -> None:
    replies = iter(["one", "two", "three", "four"])
    sessions = Sessions(ScriptedPolicy(lambda _turn, _sampling: next(replies)), max_waiting=4)
    _, session = open_one(sessions)

    def ask(*, is_retry: bool) -> str:
        exchange, is_new = sessions.start(session, request("a"), is_retry=is_retry, function=None)
        if is_new:
            sessions.sample(session, exchange)
        return exchange.future.result().shown.content

    def refuse(*, is_retry: bool) -> None:
        with pytest.raises(EndpointError) as caught:
            ask(is_retry=is_retry)
        assert caught.value.status == 429

    assert ask(is_retry=False) == "one"
    sessions.pause()
    for is_retry in (False, False, True):
        refuse(is_retry=is_retry)
    sessions.resume()
    assert [ask(is_retry=True), ask(is_retry=True)] == ["two", "three"]
    assert ask(is_retry=True) == "three"
    assert ask(is_retry=False) == "four"


@pytest.fixture
def lost_replies() -> tuple[Sessions, Callable[[bool], str | int]]:
    """Sessions, and a way to ask one of them for the next letter of the alphabet: that, or the refusal's status."""
    replies = iter("ABCDE")

    def script(_turn: int, _sampling: SamplingParams) -> str:
        reply = next(replies)
        if reply == "C":
            raise RuntimeError("engine down")
        return reply

    sessions = Sessions(ScriptedPolicy(script), max_waiting=4)
    _, session = open_one(sessions, timeout_s=10 * REFUSED_S)

    def ask(is_retry: bool) -> str | int:
        try:
            exchange, is_new = sessions.start(session, request("a"), is_retry=is_retry, function=None)
            if is_new:
                sessions.sample(session, exchange)
            return exchange.future.result().shown.content
        except EndpointError as error:
            return error.status

    return sessions, ask


def test_a_refused_request_that_comes_again_without_saying_so_is_what_a_retry_repeats(lost_replies: Any) -> None:
    sessions, ask = lost_replies
    sessions.pause()
    assert [ask(False) for _ in range(3)] == [429] * 3
    sessions.resume()
    assert [ask(False), ask(True), ask(True)] == ["A", "A", "A"]
    assert [ask(False), ask(False)] == ["B", 503]
    assert [ask(False), ask(True)] == ["D", "D"]


def test_a_refused_request_is_repeated_soon_or_never(lost_replies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, ask = lost_replies
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert ask(False) == "A"
    sessions.pause()
    assert ask(False) == 429
    now += 0.9 * REFUSED_S
    assert ask(True) == 429
    sessions.resume()
    now += 0.9 * REFUSED_S
    assert [ask(True), ask(True)] == ["B", "B"]
    sessions.pause()
    assert ask(False) == 429
    sessions.resume()
    now += REFUSED_S
    assert ask(True) == "B"


def test_refused_requests_and_retries_leave_no_count_behind() -> None:
    sessions = Sessions(ScriptedPolicy(["b"]), max_waiting=1)
    _, session = open_one(sessions, max_turns=1)
    exchange, _ = sessions.start(session, request("a"), is_retry=False, function=None)
    with pytest.raises(EndpointError) as caught:
        sessions.start(session, request("other"), is_retry=False, function=None)
    assert caught.value.status == 429
    sessions.sample(session, exchange)
    for _ in range(3):
        assert not sessions.start(session, request("a"), is_retry=True, function=None)[1]
        with pytest.raises(EndpointError):
            sessions.start(session, request("c"), is_retry=False, function=None)
    assert sessions.num_sampling == 0
