"""All sessions of one endpoint: opened, found by their keys, concluded, and counted while they sample.

A key is a secret: who has it plays that episode. Concluded episodes are remembered by key for a while, so that late
calls hear so. Weights that are shared with the trainer may only change while nothing is sampled: `paused` sees to it.
Not here: HTTP, what an episode is worth.
"""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable

from agent_rl.endpoint.errors import EndpointError, busy, concluded, no_key
from agent_rl.endpoint.requests import ChatRequest
from agent_rl.endpoint.session import ChatExchange, EpisodeSession, SessionSpec
from agent_rl.policies.policy import BasePolicy

MAX_OPEN = 20_000
MAX_REMEMBERED = 50_000
"""Keys and names of concluded episodes that are still known."""


class StillSamplingError(Exception):
    """Completions are being sampled, so the weights may not change now; the text is how many."""


class Sessions:
    """The open episodes, by key. Safe for threads."""

    def __init__(self, policy: BasePolicy, *, max_waiting: int) -> None:
        """Requests beyond `max_waiting` at the same time are sent away, to come again."""
        self.policy = policy
        self._max_waiting = max_waiting
        self._open: dict[str, EpisodeSession] = {}
        self._keys: dict[str, str] = {}
        """Of open sessions that have a name, by it."""
        self._names: dict[str, str] = {}
        """The other way round."""
        self._concluded: OrderedDict[str, None] = OrderedDict()
        self._num_sampling = 0
        self._is_paused = False
        self._lock = threading.Lock()

    @property
    def num_sampling(self) -> int:
        """Requests that wait for tokens now."""
        return self._num_sampling

    @property
    def num_open(self) -> int:
        return len(self._open)

    def open(self, spec: SessionSpec, *, name: str | None = None) -> tuple[str, EpisodeSession]:
        """A new session and its key; with a name it is found by that too. EndpointError for a name that was used."""
        session, key = EpisodeSession(self.policy, spec), secrets.token_urlsafe(24)
        with self._lock:
            self._make_room()
            if name is not None:
                if name in self._keys or name in self._concluded:
                    raise concluded()
                self._keys[name], self._names[key] = key, name
            self._open[key] = session
        return key, session

    def find_or_open(self, name: str, make_spec: Callable[[], SessionSpec]) -> EpisodeSession:
        """The session of a name, opened by its first request; EndpointError for one that is concluded."""
        if (session := self.named(name)) is not None:
            return session
        spec = make_spec()
        try:
            return self.open(spec, name=name)[1]
        except EndpointError:
            if (session := self.named(name)) is not None:  # opened by another request in between
                return session
            raise

    def named(self, name: str) -> EpisodeSession | None:
        """The open session of a name."""
        with self._lock:
            return self._open.get(self._keys.get(name, ""))

    def was_concluded(self, name: str) -> bool:
        """Whether a session of this name was open and is no more."""
        with self._lock:
            return name in self._concluded

    def _make_room(self) -> None:
        """Forget sessions that are long past their deadline; EndpointError when there are too many even so."""
        if len(self._open) < MAX_OPEN:
            return
        for key in [
            key for key, session in self._open.items() if session.duration_s > 2 * session.spec.limits.timeout_s
        ]:
            self._forget(key)
        if len(self._open) >= MAX_OPEN:
            raise busy(f"{len(self._open)} episodes are open; conclude some", retry_after_s=30)

    def _forget(self, key: str) -> EpisodeSession:
        """Take an open session out; its key and name are remembered as concluded."""
        session = self._open.pop(key)
        self._concluded[key] = None
        if (name := self._names.pop(key, None)) is not None:
            del self._keys[name]
            self._concluded[name] = None
        while len(self._concluded) > MAX_REMEMBERED:
            self._concluded.popitem(last=False)
        return session

    def find(self, key: str) -> EpisodeSession:
        """The open session of a key; EndpointError for one that is concluded, and for a key that is none."""
        with self._lock:
            session, is_concluded = self._open.get(key), key in self._concluded
        if session is not None:
            return session
        raise concluded() if is_concluded else no_key()

    def conclude(self, key: str) -> None:
        """End a session, if it is open: later requests with its key are refused. Waits for what is sampled."""
        with self._lock:
            if key not in self._open:
                return
            session = self._forget(key)
        session.conclude()

    def conclude_named(self, name: str) -> None:
        """As `conclude`, by the session's name."""
        with self._lock:
            key = self._keys.get(name)
        if key is not None:
            self.conclude(key)

    def conclude_all(self) -> None:
        for key in list(self._open):
            self.conclude(key)

    def start(
        self, session: EpisodeSession, request: ChatRequest, *, is_retry: bool, function: str | None
    ) -> tuple[ChatExchange, bool]:
        """`Session.start`, refused while weights change and when too many requests wait."""
        try:
            self._enter()
        except EndpointError:
            session.note_refused(request, is_retry=is_retry)
            raise
        try:
            exchange, is_new = session.start(request, is_retry=is_retry, function=function)
        except BaseException:
            self._leave()
            raise
        if not is_new:
            self._leave()
        return exchange, is_new

    def _enter(self) -> None:
        with self._lock:
            if self._is_paused:
                raise busy("the weights are changing; repeat the request")
            if self._num_sampling >= self._max_waiting:
                raise busy(f"{self._num_sampling} requests are waiting; repeat this one later")
            self._num_sampling += 1

    def sample(self, session: EpisodeSession, exchange: ChatExchange) -> None:
        """`Session.sample` of an exchange that `start` gave out as new."""
        try:
            session.sample(exchange)
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._num_sampling -= 1

    def pause(self) -> None:
        """Take no request until `resume`, which is then the caller's to call.

        StillSamplingError, and nothing changes, while some are being sampled; EndpointError where it is paused already.
        """
        with self._lock:
            if self._is_paused:
                raise busy("the weights are changing; repeat the request")
            if self._num_sampling:
                raise StillSamplingError(str(self._num_sampling))
            self._is_paused = True

    def resume(self) -> None:
        with self._lock:
            self._is_paused = False
