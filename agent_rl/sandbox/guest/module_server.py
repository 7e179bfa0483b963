"""The candidate's side: serves its modules over a link, one request after the other.

Answers import, get, call and names. Plain data crosses; every other object stays here and crosses as the number of a
handle. Everything the other side learns comes through `codec`, so no object of the candidate's ever reaches it. Decides
nothing: this process runs the candidate's code, so its reports are the candidate's.
"""

import importlib
import signal
import types
from collections.abc import Collection
from typing import Any

from agent_rl.sandbox.guest.codec import CodecError, Link, LinkError, builtin_base, decode, encode, type_name

MAX_HANDLES = 10_000
MAX_TEXT_CHARS = 500
_NEVER_SERVED = (types.ModuleType, types.FrameType, types.CodeType, types.TracebackType)
_CHANGEABLE = (list, dict, set)


def with_parents(modules: Collection[str]) -> set[str]:
    """`{"a.b"}` -> `{"a", "a.b"}`."""
    return {".".join(name.split(".")[:end]) for name in modules for end in range(1, name.count(".") + 2)}


class ModuleServer:
    """Serves `modules` until the link ends.

    With `call_s`, for our own code and an untrusted other side, a request that takes longer fails, and only what the
    modules define themselves can be called: no `os.system` through a module that imports `os`.
    """

    def __init__(self, link: Link, modules: Collection[str], *, call_s: float | None) -> None:
        self._link, self._modules = link, frozenset(modules)
        self._closed, self._call_s = call_s is not None, call_s or 0.0
        self._roots = {name.partition(".")[0] for name in modules}
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._imported: dict[str, types.ModuleType | str] = {}

    def serve(self) -> None:
        """Answer until the other side is gone or breaks the protocol."""
        while True:
            try:
                request = self._link.receive(None)
                answer = self._answer_in_time(request)
                try:
                    self._link.send({**answer, "seq": request["seq"]}, None)
                except CodecError as error:
                    self._link.send({"failed": str(error), "seq": request["seq"]}, None)
            except (LinkError, KeyError, TypeError):
                return

    def _answer_in_time(self, request: dict[str, Any]) -> dict[str, Any]:
        if not self._call_s or request["op"] == "import":  # a module may load others, and comes before any call
            return self._answer(request)
        signal.signal(signal.SIGALRM, _ring)
        try:
            signal.setitimer(signal.ITIMER_REAL, self._call_s)
            answer = self._answer(request)
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        except _TooLate:  # it rang between the two
            answer = {"failed": "the call took too long"}
        return answer

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            match request["op"]:
                case "import":
                    self._module(request["module"])
                    return {"value": None}
                case "names":
                    return {"value": encode(self._names(self._module(request["module"])))}
                case "get":
                    return {"value": self._encode(self._get(request["target"], request["name"]))}
                case _:
                    return self._call(request)
        except CodecError as error:
            return {"failed": str(error)}
        except Exception as error:  # the boundary to candidate code
            return {"raised": self._describe(error)}
        except BaseException as error:  # SystemExit, KeyboardInterrupt and their kind are no answer
            return {"failed": f"the code raised {type_name(error)}"}

    def _module(self, name: str) -> types.ModuleType:
        if name not in self._modules:
            raise CodecError("there is no such module")
        if name not in self._imported:
            try:
                self._imported[name] = importlib.import_module(name)
            except BaseException as error:  # the boundary to candidate code
                self._imported[name] = f"import {name} failed: {type_name(error)}: {_text(error)}"
        module = self._imported[name]
        if isinstance(module, str):
            raise CodecError(module)
        return module

    def _get(self, target: str | int, name: str) -> Any:
        owner = self._module(target) if isinstance(target, str) else self._objects[target]
        if name.startswith("__") or (
            self._closed and name.startswith("_")
        ):  # what is ours is served by its public names
            raise AttributeError(name)
        return getattr(owner, name)

    def _names(self, module: types.ModuleType) -> list[str]:
        """What a star import takes: `__all__`, else what the modules define and no module that they import."""
        if listed := getattr(module, "__all__", None):
            return [str(name) for name in listed]
        own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        return [n for n, value in own.items() if not (isinstance(value, _NEVER_SERVED) or self._is_foreign(value))]

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        values = {str(index): value for index, value in enumerate(request["args"])} | request["kwargs"]
        values = {name: decode(value, opaque=self._object) for name, value in values.items()}
        changeable = {name: value for name, value in values.items() if type(value) in _CHANGEABLE}
        before = {name: self._encode(value) for name, value in changeable.items()}
        args = [values[str(index)] for index in range(len(request["args"]))]
        kwargs = {name: values[name] for name in request["kwargs"]}
        answer = {"value": self._encode(self._objects[request["target"]](*args, **kwargs))}
        after = {name: self._encode(value) for name, value in changeable.items()}
        return answer | {"changed": {name: value for name, value in after.items() if value != before[name]}}

    def _encode(self, value: Any) -> Any:
        return encode(value, opaque=self._handle)

    def _object(self, about: list[Any]) -> Any:
        return self._objects[about[1]]

    def _handle(self, value: Any) -> list[Any]:
        """Type name, number or None, and for a class of exceptions the built-in one it derives from."""
        if isinstance(value, _NEVER_SERVED) or (self._closed and self._is_foreign(value)):
            return [type_name(value), None, None]
        number = self._numbers.get(id(value))
        if number is None:
            if len(self._objects) >= MAX_HANDLES:
                raise CodecError(f"more than {MAX_HANDLES} objects")
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        if isinstance(value, type) and issubclass(value, Exception):
            return [str(value.__name__)[:80], number, builtin_base(value)]
        return [type_name(value), number, None]

    def _is_foreign(self, value: Any) -> bool:
        home = getattr(value, "__module__", None)
        return callable(value) and (not isinstance(home, str) or home.partition(".")[0] not in self._roots)

    def _describe(self, error: Exception) -> dict[str, Any]:
        kind = type(error)
        try:
            args = encode(error.args)
        except (CodecError, ValueError, TypeError):
            args = None
        own = None if kind.__module__ == "builtins" else self._handle(kind)
        return {"base": builtin_base(kind), "own": own, "message": _text(error), "args": args}


class _TooLate(BaseException):
    """A trusted call took too long."""


def _ring(_number: int, _frame: types.FrameType | None) -> None:
    raise _TooLate


def _text(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TEXT_CHARS].encode("utf-8", "replace").decode()
    except BaseException:  # a message of the candidate's that raises in its turn
        return ""
