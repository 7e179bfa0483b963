"""The judge's side: proxies for the candidate's modules, so that `from solution import f` calls it over a link.

Answers are plain data, or handles to objects that stay with the candidate. A handle can be called and its attributes
read; whatever would let it answer a comparison (`==`, `<`, `bool`, `hash`, `len`, `in`, iteration) fails the test. The
candidate raises what it likes as built-in exceptions, never as AssertionError, a skip or anything beside Exception.
Being gone, late or out of protocol is a `RemoteFailure`, which no `except Exception` of a test takes for an answer.
"""

import builtins
import sys
import threading
import time
import types
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from agent_rl.sandbox.guest.codec import CodecError, Link, LinkError, decode, encode
from agent_rl.sandbox.guest.module_server import with_parents

_LOCAL_PREFIXES = ("__", "_pytest", "_mock", "pytest")
"""Names that pytest and the interpreter look up on everything they meet; the candidate gets no request."""
_NEVER_RAISED = (AssertionError, StopIteration, StopAsyncIteration)
"""The last two would end a loop of the judge's as if it were through: `zip(map(solution.f, inputs), expected)`."""
_ERRORS = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _NEVER_RAISED)
}


class RemoteFailure(BaseException):
    """The candidate gave no usable answer."""


class RemoteError(Exception):
    """An exception of a class that the candidate defined itself."""


class Remote:
    """Sends requests to the candidate, one at a time.

    `call_s` seconds are allowed for each request and `total_s` for all of them together, reading and decoding
    included, so that no candidate can block the judge's verdict. After one late or odd answer it gets no more
    requests. `exports` are the names that a star import may take, by module; without it the other side decides.
    """

    def __init__(
        self, link: Link, *, call_s: float, total_s: float, exports: dict[str, list[str]] | None = None
    ) -> None:
        self._link, self._call_s, self._left_s = link, call_s, total_s
        self._num_sent = 0
        self._lock = threading.RLock()
        self._exceptions: dict[int, type[Exception]] = {}
        self.lost: str | None = None
        """Why the candidate gets no more requests."""
        self.failures: list[str] = []
        self.num_refused = 0
        self.star_imports: dict[str, dict[str, list[str]]] = {}
        """By module: `names` that a star import took, and which of them the importing file had `bound` before."""
        self._exports = exports

    def load(self, module: str) -> None:
        """Import the module over there. A failure shows again when a test uses the module."""
        try:
            self._ask({"op": "import", "module": module}, self._left_s)
        except RemoteFailure:
            return

    def names(self, module: str, bound: Collection[str]) -> list[str]:
        """What a star import takes, into a file that has the names `bound`."""
        if self._exports is not None and module not in self._exports:
            raise self.failure(f"a star import of {module} was not there when the tests were recorded")
        theirs = self._value(self._ask({"op": "names", "module": module}, self._call_s))
        names = [name for name in theirs if type(name) is str] if type(theirs) is list else []
        if self._exports is not None:
            names = sorted(set(names).intersection(self._exports[module]))
        self.star_imports[module] = {"names": names, "bound": sorted(set(names).intersection(bound))}
        return names

    def get(self, target: str | int, name: str) -> Any:
        return self._value(self._ask({"op": "get", "target": target, "name": name}, self._call_s))

    def call(self, target: int, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        try:
            plain_args = [encode(value, opaque=_number_of) for value in args]
            plain_kwargs = {name: encode(value, opaque=_number_of) for name, value in kwargs.items()}
            request = {"op": "call", "target": target, "args": plain_args, "kwargs": plain_kwargs}
            reply = self._ask(request, self._call_s)
        except CodecError as error:
            raise self.failure(f"an argument cannot cross: {error}") from None
        changed = reply.get("changed")
        given = {str(index): value for index, value in enumerate(args)} | kwargs
        for name, data in changed.items() if type(changed) is dict else ():
            _copy_back(given.get(name), self._value({"value": data}))
        return self._value(reply)

    def failure(self, text: str) -> RemoteFailure:
        """To be raised: notes why, for the verdict's reader."""
        if len(self.failures) < 5:
            self.failures.append(text[:300])
        return RemoteFailure(text)

    def _ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        with self._lock:
            if self.lost:
                raise self.failure(self.lost)
            started = time.monotonic()
            try:
                reply = self._exchange(request, started + min(limit_s, self._left_s))
            except LinkError as error:
                self.lost = str(error)
                raise self.failure(self.lost) from None
            finally:
                self._left_s -= time.monotonic() - started
        if type(reply.get("failed")) is str:
            raise self.failure(reply["failed"])
        if type(reply.get("raised")) is dict:
            raise self._exception(reply["raised"])
        return reply

    def _exchange(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        if not self._link.is_quiet():
            raise LinkError("the other end is gone, or sent a message without a request")
        self._num_sent += 1
        self._link.send({**request, "seq": self._num_sent}, deadline)
        reply = self._link.receive(deadline)
        if type(reply) is not dict or reply.get("seq") != self._num_sent:
            raise LinkError("the other end answered another question")
        return reply

    def _value(self, reply: dict[str, Any]) -> Any:
        started = time.monotonic()
        try:
            return decode(reply.get("value"), opaque=self._opaque)
        except CodecError as error:
            raise self.failure(str(error)) from None
        finally:
            self._left_s -= time.monotonic() - started

    def _opaque(self, about: list[Any]) -> Any:
        name, number, base = about
        if type(number) is int and type(base) is str:
            return self._exception_class(str(name), number, base)
        return Handle(self, str(name)[:80], number if type(number) is int else None)

    def _exception_class(self, name: str, number: int, base: str) -> type[Exception]:
        if number not in self._exceptions:
            kind = _ERRORS.get(base, Exception)
            bases = (RemoteError,) if issubclass(RemoteError, kind) else (RemoteError, kind)
            self._exceptions[number] = type(name if name.isidentifier() else "RemoteError", bases, {})
        return self._exceptions[number]

    def _exception(self, about: dict[str, Any]) -> BaseException:
        message, base, own = str(about.get("message"))[:500], str(about.get("base")), about.get("own")
        try:
            if type(own) is list:
                kind = decode(["o", *own], opaque=self._opaque)
                return kind(message) if isinstance(kind, type) else RemoteError(message)
            args = decode(about["args"]) if type(about.get("args")) is list else (message,)
            return _ERRORS[base](*args) if base in _ERRORS else RemoteError(message)
        except (CodecError, TypeError, ValueError, KeyError):  # made with arguments of its own kind
            return RemoteError(message)


def _number_of(value: Any) -> list[Any]:
    if isinstance(value, Handle) and (number := object.__getattribute__(value, "_number")) is not None:
        return [type(value).__name__, number]
    raise CodecError(f"{type(value).__name__} is not plain data")


def _copy_back(original: Any, changed: Any) -> None:
    if type(original) is not type(changed):
        return
    if type(original) is list:
        original[:] = changed
    elif type(original) in (dict, set):
        original.clear()
        original.update(changed)


class Handle:
    """An object that stays with the candidate."""

    __slots__ = ("_number", "_remote", "_type_name")

    def __init__(self, remote: Remote, type_name: str, number: int | None) -> None:
        object.__setattr__(self, "_remote", remote)
        object.__setattr__(self, "_type_name", type_name)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_LOCAL_PREFIXES):
            raise AttributeError(name)
        return self._remote.get(_reachable(self), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._remote.call(_reachable(self), args, kwargs)

    def __repr__(self) -> str:
        return f"<object of type {self._type_name}>"

    def _refuse(self, *_: object) -> NoReturn:
        self._remote.num_refused += 1
        raise self._remote.failure(f"the answer is an object of type {self._type_name}, not plain data")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse  # type: ignore[assignment]
    __bool__ = __hash__ = __len__ = __iter__ = __contains__ = __getitem__ = _refuse  # type: ignore[assignment]
    __setattr__ = __delattr__ = __float__ = __int__ = __index__ = __str__ = _refuse  # type: ignore[assignment]


def _reachable(handle: Handle) -> int:
    number = object.__getattribute__(handle, "_number")
    if number is None:
        handle._refuse()
    return number


class RemoteModule(types.ModuleType):
    """What `import solution` gives: names are looked up over there each time."""

    def __init__(self, remote: Remote, name: str, children: dict[str, "RemoteModule"]) -> None:
        super().__init__(name)
        vars(self).update(children)
        vars(self)["_remote_"] = remote
        if children:
            vars(self)["__path__"] = []

    def __getattr__(self, name: str) -> Any:
        remote = vars(self)["_remote_"]
        if name == "__all__":
            return remote.names(self.__name__, sys._getframe(1).f_globals)
        if name.startswith(_LOCAL_PREFIXES):
            raise AttributeError(name)
        return remote.get(self.__name__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("__"):
            raise vars(self)["_remote_"].failure(f"{self.__name__}.{name} cannot be replaced from here")
        super().__setattr__(name, value)


def install(remote: Remote, modules: Sequence[str]) -> None:
    """Put proxies for `modules` and their parents into `sys.modules`, and import the modules over there."""
    made: dict[str, RemoteModule] = {}
    for name in sorted(with_parents(modules), key=lambda name: -name.count(".")):
        children = {child.rpartition(".")[2]: made[child] for child in made if child.rpartition(".")[0] == name}
        made[name] = RemoteModule(remote, name, children)
    sys.modules.update(made)
    for name in modules:
        remote.load(name)
