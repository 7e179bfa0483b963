"""Import a project so that its code holds only what it may have: open names of modules, few builtins, its own objects.

For projects in whose text nothing reaches beyond (`read_reach.py`). A text does not show whose object an attribute
belongs to, so this is looked up while the code runs: what is not an open attribute is given of the project's own
objects alone, and nothing is set on anybody else's. Functions of others that would read an attribute whose name they
are told, or hand out what an object holds, do so no more. Modules are what stood in the files before anything ran.
"""

import _strptime  # noqa: F401 - a fork that reads a date would load it
import ast
import builtins
import collections
import copy
import dataclasses
import decimal
import enum
import functools
import importlib
import importlib.util
import logging
import os
import string
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import Any

from agent_rl.envs.nat.judge.worker import hint_texts
from agent_rl.envs.nat.judge.worker import reach_names as names
from agent_rl.envs.nat.judge.worker.guard import OPEN, OWN, Guard, hints_as_texts
from agent_rl.envs.nat.judge.worker.held import models

_SETTABLE = {decimal.Context: {"prec", "rounding"}, logging.Logger: {"propagate", "level", "disabled"}}
_own_modules: set[str] = set()


class Facade(ModuleType):
    """A module with its open names alone."""


# ---------------------------------------------------------------- whose an object is


def _is_own_class(kind: type) -> bool:
    return vars(kind).get("__module__") in _own_modules


def _is_own_function(each: object) -> bool:
    return type(each) is FunctionType and each.__globals__.get("__name__") in _own_modules


def own_of_project(target: Any, name: str) -> Any:
    """The object, of which an attribute is set or deleted. Raises AttributeError when it is not the project's own."""
    kind = target if isinstance(target, type) else type(target)
    is_module = kind is ModuleType and target.__name__ in _own_modules and not _is_of_others(target, name)
    if _is_own_class(kind) or is_module or _is_own_function(target) or name in _SETTABLE.get(type(target), ()):
        return target
    raise AttributeError(f"a project may not change {name!r} of a {kind.__name__}, which is not its own")


def _is_of_others(module: ModuleType, name: str) -> bool:
    """Whether a name stands in a module's code for a builtin, a module or a class that is not the project's."""
    held = vars(module).get(name)
    return name in _BUILTINS or type(held) is Facade or (isinstance(held, type) and not _is_own_class(held))


def open_to_project(target: Any, name: str) -> Any:
    """The object, whose attribute is read next. Raises AttributeError when it is not open to the project."""
    if name in ("format", "format_map") and isinstance(target, str):
        _check_format(str.__str__(target))
        return target
    if not _is_open(target, name):
        raise AttributeError(f"{name!r} of a {type(target).__name__} is not open to a project")
    return target


def _is_open(target: Any, name: str) -> bool:
    kind = type(target)
    if kind is Facade or name in names.ATTRIBUTES:
        return True
    if kind is ModuleType:
        return target.__name__ in _own_modules
    if kind is super:
        own = super.__thisclass__.__get__(target)  # type: ignore[attr-defined]
        mro = super.__self_class__.__get__(target).__mro__  # type: ignore[attr-defined]
        return _is_given_by_own(mro[mro.index(own) + 1 :], name) is not False
    if isinstance(target, enum.EnumMeta) and name in target.__members__:
        return True
    if isinstance(target, type):
        return _is_own_class(target) and bool(_is_given_by_own(target.__mro__, name))
    if _is_own_function(target):
        return name in vars(target)
    return _is_own_class(kind) and _is_given_by_own(kind.__mro__, name) is not False


def _is_given_by_own(mro: tuple[type, ...], name: str) -> bool | None:
    """Whether the first class that has a name is the project's; None when none has it."""
    return next((_is_own_class(kind) for kind in mro if name in vars(kind)), None)


def _check_format(text: str) -> None:
    for _, name, spec, _ in string.Formatter().parse(text):
        if name and "." in name:
            raise AttributeError("a format of a project may not ask for attributes")
        if spec:
            _check_format(spec)


# ---------------------------------------------------------------- builtins and modules


def _getattr(target: Any, name: str, *default: Any) -> Any:
    try:
        if type(name) is not str or name.startswith("_") or name in names.FRAMES:
            raise AttributeError(f"{name!r} is not open to a project")
        return getattr(open_to_project(target, name), name)
    except AttributeError:
        if default:
            return default[0]
        raise


def _hasattr(target: Any, name: str) -> bool:
    missing = object()
    return _getattr(target, name, missing) is not missing


def _wraps(wrapped: Any) -> Callable[[Any], Any]:
    """As functools.wraps; what another's object holds does not become the function's."""
    is_own_function = _is_own_function(wrapped)
    updated = functools.WRAPPER_UPDATES if is_own_function or _is_own_class(type(wrapped)) else ()
    taken = [each for each in functools.WRAPPER_ASSIGNMENTS if is_own_function or each != "__module__"]

    def decorate(function: Any) -> Any:
        if not _is_own_function(function):
            raise TypeError("wraps() is for functions")
        return functools.wraps(wrapped, assigned=taken, updated=updated)(function)

    return decorate


def _namedtuple(typename: str, field_names: Any, *, rename: bool = False, defaults: Any = None) -> type:
    """As collections.namedtuple; a class of the module that calls it alone."""
    module = sys._getframe(1).f_globals.get("__name__", "")
    return collections.namedtuple(typename, field_names, rename=rename, defaults=defaults, module=module)


def _copy(target: Any) -> Any:
    return copy.copy(target)


def _deepcopy(target: Any) -> Any:
    """Without the memo, in which everything would stand that was met on the way."""
    return copy.deepcopy(target)


def _basic_config(**how: Any) -> None:
    """Nothing: what a project logs is shown to nobody, and the format of a log may ask for attributes."""


def _of_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of dataclasses for the project's alone."""

    def checked(target: Any, /, **how: Any) -> Any:
        if not _is_own_class(type(target)):
            raise TypeError(f"{function.__name__}() is for a dataclass of the project")
        return function(target, **how)

    return checked


def _with_plain_hash(kind: Any) -> Any:
    """The class. Raises TypeError where it has a hash beside an `__eq__` that is written: caches of others, which would
    hold it beside their own keys, would hand these to it."""
    if not isinstance(kind, type):
        return kind
    giver = next(each for each in type.mro(kind) if "__eq__" in vars(each))
    given = vars(giver)["__eq__"]
    is_made = _is_own_function(given) and given.__code__.co_filename == "<string>"  # by dataclasses
    if _is_own_class(giver) and not is_made and kind.__hash__ is not None:
        raise TypeError(
            f"{kind.__name__} may not have an __eq__ of its own and a hash: leave out one, such as frozen=True"
        )
    return kind


def _build_class(*parts: Any, **how: Any) -> Any:
    return _with_plain_hash(builtins.__build_class__(*parts, **how))


def _only_own(decorate: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of classes that leaves other classes than the project's alone."""

    def checked(kind: Any = None, /, **how: Any) -> Any:
        if kind is None:
            return functools.partial(checked, **how)
        if not isinstance(kind, type) or not _is_own_class(kind):
            raise TypeError("this decorator is for a class of the project")
        return _with_plain_hash(decorate(kind, **how))

    return checked


_IN_PLACE_OF: dict[tuple[str, str], Any] = {
    ("functools", "wraps"): _wraps,
    ("functools", "total_ordering"): _only_own(functools.total_ordering),
    ("dataclasses", "dataclass"): _only_own(dataclasses.dataclass),
    ("dataclasses", "asdict"): _of_own(dataclasses.asdict),
    ("dataclasses", "astuple"): _of_own(dataclasses.astuple),
    ("dataclasses", "replace"): _of_own(dataclasses.replace),
    ("collections", "namedtuple"): _namedtuple,
    ("copy", "copy"): _copy,
    ("copy", "deepcopy"): _deepcopy,
    ("logging", "basicConfig"): _basic_config,
    ("enum", "unique"): _only_own(enum.unique),
}
_BUILTINS: dict[str, Any] = {
    name: each
    for name, each in vars(builtins).items()
    if name in names.BUILTINS or (isinstance(each, type) and issubclass(each, BaseException))
}
_BUILTINS |= {"__build_class__": _build_class, "__name__": "builtins", "getattr": _getattr}
_BUILTINS |= {"hasattr": _hasattr, OPEN: open_to_project, OWN: own_of_project}


@functools.cache
def _facade(module: str) -> Facade:
    facade = Facade(f"open names of {module}")  # no name that an import could find something under
    for name in names.names_of(module):
        with_name = _IN_PLACE_OF.get((module, name), getattr(importlib.import_module(module), name, None))
        if with_name is not None:
            setattr(facade, name, with_name)
    for name in names.submodules_of(module):
        setattr(facade, name, _facade(f"{module}.{name}"))
    return facade


def let_go() -> None:
    """Undo what `Confined` holds, for a process that other projects start from, or that a project has for itself."""
    models.let_go()
    hint_texts.let_go()


# ---------------------------------------------------------------- the code


class Confined:
    """The modules of one project: their code now, the modules themselves when they are imported."""

    def __init__(self, folder: str) -> None:
        models.hold(_own_modules.__contains__)
        self._code: dict[str, CodeType] = {}
        written = {}
        self._packages: dict[str, str] = {}
        """Package -> its folder."""
        for path in _sources(folder):
            module = os.path.relpath(path, folder).removesuffix(".py").removesuffix("/__init__").replace(os.sep, ".")
            if _is_installed(module.partition(".")[0]):
                continue  # what is installed comes first, and its classes have this module's name
            with open(path, encoding="utf-8", newline="") as file:
                tree = ast.parse(file.read(), path)
            written[module] = hints_as_texts(tree)
            self._code[module] = compile(Guard().visit(tree), path, "exec", dont_inherit=True)
            above = os.path.dirname(path)
            while above.startswith(folder + os.sep):
                self._packages[os.path.relpath(above, folder).replace(os.sep, ".")] = above
                above = os.path.dirname(above)
        _own_modules.update(self._code, self._packages)
        self._builtins = {**_BUILTINS, "__import__": self._import}
        hint_texts.hold(written, _BUILTINS)

    def load(self, module: str) -> ModuleType:
        """Import one of the project's modules. Raises ImportError, and what its code raises."""
        if module in sys.modules:
            return sys.modules[module]
        parent, _, name = module.rpartition(".")
        if module not in self._code and module not in self._packages:
            raise ModuleNotFoundError(f"No module named {module!r}")
        above = self.load(parent) if parent else None
        made = ModuleType(module)
        made.__spec__ = ModuleSpec(module, None, is_package=module in self._packages)
        made.__package__ = module if module in self._packages else parent
        vars(made)["__builtins__"] = self._builtins
        if module in self._packages:
            made.__path__ = [self._packages[module]]
        sys.modules[module] = made
        try:
            if module in self._code:
                made.__file__ = self._code[module].co_filename
                exec(self._code[module], vars(made))
        except BaseException:
            del sys.modules[module]
            raise
        if above is not None:
            setattr(above, name, made)
        return made

    def _import(
        self, name: str, around: Mapping[str, Any] | None = None, _: Any = None, taken: Any = (), level: int = 0
    ) -> ModuleType:
        if level:
            parts = str((around or {}).get("__package__", "")).split(".")
            name = ".".join([*parts[: len(parts) - level + 1], *([name] if name else [])])
        top = name.partition(".")[0]
        if top in self._packages or top in self._code:
            module = self.load(name)
            for each in taken or ():
                if f"{name}.{each}" in self._code:
                    self.load(f"{name}.{each}")
            return module if taken else sys.modules[top]
        if name in names.MODULES or names.submodules_of(name):
            return _facade(name if taken else top)
        if name in sys.modules:  # what functions written in C ask for, and then take from there
            return Facade("nothing of it")
        raise ImportError(f"{name} is not open to a project")


def _is_installed(package: str) -> bool:
    if package in sys.modules:
        return package not in _own_modules
    return package in sys.stdlib_module_names or importlib.util.find_spec(package) is not None


def _sources(folder: str) -> Iterator[str]:
    for above, _, files in sorted(os.walk(folder)):
        yield from (os.path.join(above, name) for name in sorted(files) if name.endswith(".py"))
