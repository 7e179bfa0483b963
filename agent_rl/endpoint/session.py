"""A session is one episode that an agent elsewhere plays: chat requests in, turns recorded, budgets kept.

The rules are those of the project's own rollout (`rollout/turns.py`): the same seeds by turn, limits, deadline and
parsing. A reply that ended at its token budget ends the episode, so the next request is refused.
Safe for threads: requests of one session may be sampled side by side; the number of a turn is then the order in which
they came. Not here: HTTP, keys, what the episode is worth.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from agent_rl.agent.messages import Message
from agent_rl.endpoint.errors import EndpointError, bad_request, concluded, stopped
from agent_rl.endpoint.history import History, RequestPlace
from agent_rl.endpoint.outcome import Reward, to_reward
from agent_rl.endpoint.requests import ChatRequest
from agent_rl.errors import UserError
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import StopReason, Turn
from agent_rl.rollout.turns import (
    EpisodeBudget,
    EpisodeCancel,
    EpisodeCancelledError,
    EpisodeLimits,
    EpisodeSampling,
    SampledTurn,
    sample_turn,
)

OVERTAKEN_S = 2.0
"""A request that its retry overtook comes within this time, or was lost."""
REFUSED_S = 600.0
"""A request that was refused is repeated within this time of the last refusal, or never."""
MAX_REFUSED = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """What a session samples by."""

    seed: int
    group: int
    """The same for sessions that begin alike."""
    temperature: float
    limits: EpisodeLimits
    cancelled: threading.Event | None = None
    """Set when the whole rollout is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledReply:
    """A sampled turn on its way to the client."""

    id: str
    """Of the reply, the same for a retry."""
    place: RequestPlace
    sampled: SampledTurn
    shown: Message
    """The message as the client gets it: broken calls are text."""
    call_ids: tuple[str, ...]


@dataclass(eq=False, slots=True)
class ChatExchange:
    """A request that is being answered. Its future has the SampledReply, or an EndpointError."""

    number: int
    place: RequestPlace
    function: str | None
    overtook_until: float
    """A retry came before the request that it repeats, which may still come until then and is this one then."""
    future: "Future[SampledReply]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _SessionCancel(EpisodeCancel):
    concluded: threading.Event

    def is_rollout_over(self) -> bool:
        return self.concluded.is_set() or EpisodeCancel.is_rollout_over(self)


class EpisodeSession:
    """`start` a request, `sample` it (blocks), `conclude` the episode; then `turns` are what was played."""

    def __init__(self, policy: BasePolicy, spec: SessionSpec) -> None:
        self.spec = spec
        self.started = time.monotonic()
        self.stop_reason: StopReason | None = None
        """The budget that ended the episode, if one did."""
        self.posted: Reward | None = None
        """What the agent said through the endpoint that the episode is worth."""
        self.failure: Exception | None = None
        """What the policy raised, if it did; the run has to end by it."""
        self._policy = policy
        self._history = History(policy.chat_format, episode=f"{spec.seed:016x}_")
        self._budget = EpisodeBudget(spec.limits)
        self._refused_next: StopReason | None = None
        """Why no other turn may follow, although the episode has not ended by it."""
        self._num_started = 0
        self._by_digest: dict[str, ChatExchange] = {}
        self._refused: dict[str, tuple[int, float]] = {}
        """How many requests with a digest were refused or failed, whose retries are samples of their own; till when."""
        self._failed: set[str] = set()
        """Digests of requests that the policy failed at and that no retry was answered to."""
        self._running: set[ChatExchange] = set()
        self._concluded = threading.Event()
        self._lock = threading.Lock()
        cancel = _SessionCancel(spec.cancelled, self.started + spec.limits.timeout_s, self._concluded)
        self._sampling = EpisodeSampling(seed=spec.seed, group=spec.group, temperature=spec.temperature, cancel=cancel)

    @property
    def is_concluded(self) -> bool:
        return self._concluded.is_set()

    @property
    def is_spoiled(self) -> bool:
        """Whether the policy failed at a request and no retry was answered: what the agent did then is not its own."""
        with self._lock:
            return bool(self._failed)

    @property
    def num_turns(self) -> int:
        with self._lock:
            return len(self._history.turns)

    def start(
        self, request: ChatRequest, *, is_retry: bool = False, function: str | None = None
    ) -> tuple[ChatExchange, bool]:
        """Find the place of a request; the exchange, and whether the caller has to `sample` it.

        The retry of a request that is being answered, or was, is the exchange of that one. EndpointError when the
        episode takes no more requests or the conversation does not fit.
        """
        with self._lock:
            known = self._by_digest.get(request.digest)
            was_refused = is_retry and self._num_refused(request.digest) > 0
            if known is not None and not was_refused and (is_retry or time.monotonic() < known.overtook_until):
                if not is_retry:
                    known.overtook_until = 0.0
                return known, False
            self._check_open()
            try:
                place = self._history.place(request)
            except UserError as error:
                raise bad_request(str(error), param="messages") from error
            room = self._policy.max_context - len(place.prompt_ids)
            if room < 1:
                self.stop_reason = StopReason.CONTEXT_FULL
                raise bad_request(
                    f"rollout stopped: the conversation has {len(place.prompt_ids)} tokens, the window is "
                    f"{self._policy.max_context} with the completion",
                    param="messages",
                    code="context_length_exceeded",
                )
            until = time.monotonic() + OVERTAKEN_S if is_retry and not was_refused else 0.0
            exchange = ChatExchange(self._num_started, place, function, overtook_until=until)
            if was_refused:
                self._note_refused(request.digest, -1)
            elif not is_retry:  # a client may repeat a refused request without saying so; what it repeats next is this
                self._refused.pop(request.digest, None)
            self._num_started += 1
            exchange.future.set_running_or_notify_cancel()  # no client that leaves may cancel it
            self._by_digest[request.digest] = exchange
            self._running.add(exchange)
            return exchange, True

    def note_refused(self, request: ChatRequest, *, is_retry: bool) -> None:
        """A request was sent away, to come again: its retry repeats nothing that was sampled."""
        with self._lock:
            self._note_refused(request.digest, 0 if is_retry else 1)

    def _num_refused(self, digest: str) -> int:
        count, until = self._refused.get(digest, (0, 0.0))
        return count if time.monotonic() < until else 0

    def _note_refused(self, digest: str, more: int) -> None:
        count = self._num_refused(digest) + more
        self._refused.pop(digest, None)
        if count > 0:
            self._refused[digest] = (count, time.monotonic() + REFUSED_S)
        if len(self._refused) > MAX_REFUSED:  # of requests that nobody repeated
            del self._refused[next(iter(self._refused))]

    def _check_open(self) -> None:
        """Refuse a request after the end; the first one over a budget ends the episode."""
        if self._concluded.is_set():
            raise concluded()
        if self.stop_reason is None:
            if self._refused_next is None and self._num_started >= self.spec.limits.max_turns:
                self._refused_next = StopReason.MAX_TURNS
            is_late = time.monotonic() > self.started + self.spec.limits.timeout_s
            self.stop_reason = StopReason.TIMEOUT if is_late else self._refused_next
        if self.stop_reason is not None:
            raise stopped(self.stop_reason)

    def sample(self, exchange: ChatExchange) -> None:
        """Sample the reply of an exchange and record the turn; blocks, raises nothing: all is in the future."""
        try:
            exchange.future.set_result(self._sample(exchange))
        except EndpointError as error:
            exchange.future.set_exception(error)
        except EpisodeCancelledError:
            exchange.future.set_exception(concluded())
        except Exception as error:  # the policy failed, which ends the run where the episode is waited for
            self._note_failed(exchange, error)
            message = f"the policy failed: {type(error).__name__}: {error}"
            exchange.future.set_exception(EndpointError(503, "policy_failed", message))
        finally:
            with self._lock:
                self._running.discard(exchange)

    def _note_failed(self, exchange: ChatExchange, error: Exception) -> None:
        """A retry is sampled anew."""
        digest = exchange.place.request.digest
        with self._lock:
            self.failure = error
            self._failed.add(digest)
            self._note_refused(digest, 1)
            if self._by_digest.get(digest) is exchange:
                del self._by_digest[digest]

    def _sample(self, exchange: ChatExchange) -> SampledReply:
        place, wanted = exchange.place, exchange.place.request.max_tokens
        room = self._policy.max_context - len(place.prompt_ids)
        most = min(self.spec.limits.max_new_tokens, room, wanted or room)
        sampled = sample_turn(
            self._policy, place.prompt_ids, self._sampling, number=exchange.number, max_new_tokens=most
        )
        with self._lock:
            if self._concluded.is_set():
                raise concluded()
            if sampled is None:
                self.stop_reason = StopReason.TIMEOUT
                raise stopped(StopReason.TIMEOUT)
            shown = _shown(sampled.message)
            self._failed.discard(place.request.digest)
            self._history.add(exchange.number, place, sampled, shown, function=exchange.function)
            call_ids = self._history.turns[exchange.number].call_ids
            refusal = self._budget.refusal(sampled.message, sampled.completion)
            if refusal is not None:
                self.stop_reason = self.stop_reason or refusal
            if refusal in (StopReason.TIMEOUT, StopReason.TOOL_BUDGET):
                raise stopped(refusal)
            self._refused_next = self._budget.end()
        return SampledReply(
            id=f"{self.spec.seed:016x}-{exchange.number}",
            place=place,
            sampled=sampled,
            shown=shown,
            call_ids=call_ids,
        )

    def post_reward(self, body: dict[str, Any]) -> None:
        """Take the worth of the episode, the last one counts; EndpointError for what is none."""
        with self._lock:
            if self._concluded.is_set():
                raise concluded()
            try:
                self.posted = to_reward(body)
            except ValueError as error:
                raise bad_request(str(error), param="reward") from error

    def conclude(self) -> None:
        """Take no more requests and stop what is being sampled; returns once nothing is. What was late is no turn."""
        with self._lock:
            self._concluded.set()
            running = list(self._running)
        for exchange in running:
            exchange.future.exception()

    @property
    def duration_s(self) -> float:
        """Seconds since it was opened."""
        return time.monotonic() - self.started

    @property
    def turns(self) -> tuple[Turn, ...]:
        """What was played, as a trajectory has it."""
        return self.turns_of(lambda _function: True)

    def turns_of(self, is_trained: Callable[[str | None], bool]) -> tuple[Turn, ...]:
        """As `turns`, only those of the functions that are trained; others are context of what continues them."""
        with self._lock:
            return self._history.to_turns(is_trained)

    @property
    def initial_messages(self) -> tuple[Message, ...]:
        """The first request's conversation; empty before there is a turn."""
        with self._lock:
            turns = self._history.turns
            return turns[min(turns)].place.request.messages if turns else ()

    def records(self) -> list[dict[str, object]]:
        """The turns as plain values, in the order in which they were asked for, parents as places in this list."""
        with self._lock:
            numbers = sorted(self._history.turns)
            places = {number: index for index, number in enumerate(numbers)}
            return [
                {
                    "prompt_token_ids": list(turn.place.prompt_ids),
                    "token_ids": list(turn.completion.token_ids),
                    "logprobs": list(turn.completion.logprobs),
                    "weight_version": turn.completion.weight_version,
                    "parent": None if turn.place.parent is None else places[turn.place.parent],
                    "function": turn.function,
                }
                for turn in (self._history.turns[number] for number in numbers)
            ]


def _shown(message: Message) -> Message:
    """A sampled message as a client gets it: broken calls, which the protocol has no place for, are content."""
    if not message.tool_errors:
        return Message.assistant(message.content, message.tool_calls)
    broken = [message.written[slice(*error.span)] for error in message.tool_errors]
    content = "\n".join(filter(None, [message.content, *broken])) if message.tool_calls else message.written.strip()
    return Message.assistant(content, message.tool_calls)
