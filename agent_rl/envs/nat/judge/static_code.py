"""Check register.py and logic.py without running them: points of the "code" stage.

Works on outlines read in the sandbox, which are data of a hostile text: any value yields points. Does not: check
whether the code computes the right thing; a project that only looks right gets these points and few others.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_rl.envs.nat.judge.check_counter import CheckCounter
from agent_rl.envs.nat.judge.outline import Class, Function, HandedOver, Handler, Kind, ModuleOutline, read_outline
from agent_rl.envs.nat.judge.report import Point, point

_DECORATORS: dict[Kind, str] = {"function": "register_function", "group": "register_function_group"}
_BASE: dict[Kind, str] = {"function": "FunctionBaseConfig", "group": "FunctionGroupBaseConfig"}
_BROAD = {"Exception", "BaseException"}
_HARMLESS = {"raises", "uses it"}
_NUM_WORDS = 3
_EMPTY = ModuleOutline(functions=[], classes=[], handlers=[])


def check_code(
    register: Any,
    logic: Any,
    *,
    types: Mapping[str, Kind] | None,
    functions: Sequence[str] | None,
    classes: Sequence[str] = (),
) -> list[Point]:
    """Points of the outlines of register.py and logic.py (None: missing or refused).

    `types` are the names that must be registered, `functions` and `classes` what logic.py must define. With None there
    is no specification: everything found is checked, and logic.py may be missing.
    """
    read = {"register.py": read_outline(register), "logic.py": read_outline(logic)}
    if functions is None and logic is None:
        del read["logic.py"]
    modules = {name: outline or _EMPTY for name, outline in read.items()}
    components = modules["register.py"]
    configs = _configs(components, types)
    builders = {
        type_name: _builders(components, config) if config else [] for type_name, (config, _) in configs.items()
    }
    points = [
        _valid(read),
        _config_classes(components, configs, strict=types is not None),
        _builder_shapes(configs, builders),
        _inner_functions(modules, builders),
        _config_fields(components, configs),
    ]
    if functions is not None:
        points.append(_defined(modules["logic.py"], functions, classes))
    if all(read.values()):
        return [*points, _type_hints(modules), _docstrings(modules), _errors(modules), _stubs(modules)]
    why = f"not looked at: {', '.join(name for name, outline in read.items() if outline is None)} could not be read"
    return [*points, *(point("code", name, 0.0, why) for name in ("type hints", "docstrings", "errors", "no stub"))]


Configs = dict[str, tuple[Class | None, Kind]]
"""Registered name -> its configuration class, where there is exactly one, and what it should configure."""


def _configs(register: ModuleOutline, types: Mapping[str, Kind] | None) -> Configs:
    named: dict[str, list[Class]] = {}
    for each in register.classes:
        if "name" in each.keywords:
            named.setdefault(each.keywords["name"], []).append(each)
    if types is None:
        types = {name: kind for each, kind in register.configs() if (name := each.keywords.get("name"))}
    return {name: (named[name][0] if len(named.get(name, [])) == 1 else None, kind) for name, kind in types.items()}


def _builders(register: ModuleOutline, config: Class) -> list[Function]:
    """Functions that are registered for the configuration class."""
    return [
        each
        for each in register.functions
        if any(entry.config_type == config.name and entry.decorator in _DECORATORS.values() for entry in each.registers)
    ]


def is_informative(text: str | None, name: str = "") -> bool:
    """At least three different words that are not just the name: `"."`, `"todo"` and `"My Tool Config"` are not."""
    words = set(_words(text or ""))
    return len(words) >= _NUM_WORDS and not words <= set(_words(name))


def _words(text: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return [word.lower() for word in re.findall(r"[^\W\d_]+", spaced)]


# ---------------------------------------------------------------- what is registered


def _valid(read: Mapping[str, ModuleOutline | None]) -> Point:
    counter = CheckCounter("code", "valid Python")
    for name, outline in read.items():
        counter.check(outline is not None, f"{name} is missing or could not be read")
    return counter.share(f"{' and '.join(read)} can be parsed")


def _config_classes(register: ModuleOutline, configs: Configs, *, strict: bool) -> Point:
    counter = CheckCounter("code", "config class")
    for type_name, (config, kind) in configs.items():
        num_found = sum(each.keywords.get("name") == type_name for each in register.classes)
        counter.check(config is not None, f"register.py: {num_found} classes with name={type_name!r}, not 1")
        found = f"register.py:{config.line}: {config.name}" if config else f"no class for {type_name!r}:"
        is_kind = config is not None and register.kind(config) == kind
        counter.check(is_kind, f"{found} is not derived from {_BASE[kind]}")
        documented = config is not None and is_informative(config.docstring, config.name)
        counter.check(documented, f"{found} has no docstring that says something")
    if not strict:
        for each, _ in register.configs():
            counter.check("name" in each.keywords, f"register.py:{each.line}: {each.name} has no constant name=")
    return counter.share(f"{_listed(configs)}: name, base class and docstring are right")


def _builder_shapes(configs: Configs, builders: Mapping[str, Sequence[Function]]) -> Point:
    counter = CheckCounter("code", "builder")
    for type_name, (config, kind) in configs.items():
        found = builders[type_name]
        class_name = config.name if config else "its config class"
        wanted = f"@{_DECORATORS[kind]}(config_type={class_name})"
        counter.check(len(found) == 1, f"register.py: {len(found)} builders of {type_name!r} under {wanted}, not 1")
        for problem, is_right in _SHAPES.items():
            bad = next((each for each in found if not is_right(each, kind)), None)
            where = f"register.py:{bad.line}: {bad.name}" if bad else f"the builder of {type_name!r}"
            counter.check(bool(found) and bad is None, f"{where} {problem}")
    return counter.share(f"{_listed(configs)}: decorator, signature and yield are right")


def _is_annotated(builder: Function) -> bool:
    is_two = builder.num_positional == len(builder.parameters) == 2
    return is_two and all(each.vague != "whole" for each in builder.parameters)


_SHAPES: dict[str, Callable[[Function, Kind], bool]] = {
    "has another decorator than its config class needs": lambda builder, kind: (
        _DECORATORS[kind] in {each.decorator for each in builder.registers}
    ),
    "is not async": lambda builder, kind: builder.is_async,
    "does not take exactly two annotated parameters": lambda builder, kind: _is_annotated(builder),
    "does not yield exactly once": lambda builder, kind: builder.num_yields == 1 and not builder.num_value_returns,
}
"""What is wrong with a builder for which the test does not hold."""


def _inner_functions(modules: Mapping[str, ModuleOutline], builders: Mapping[str, Sequence[Function]]) -> Point:
    counter = CheckCounter("code", "inner function")
    for type_name, found in builders.items():
        handed = [(each, builder) for builder in found for each in _handed_over(modules, builder)]
        counter.check(bool(handed), f"register.py: {type_name!r} hands no function to FunctionInfo or to its group")
        for each, builder in handed:
            where = f"register.py:{each.line}: {each.function or 'what is handed over'}"
            functions = _resolve(modules, builder, each.function)
            counter.check(bool(functions), f"{where} is no function of register.py or logic.py")
            for function in functions:
                vague = [entry.name for entry in function.hints if entry.vague != "no"]
                counter.check(function.is_async, f"{where} is not async")
                counter.check(not vague, f"{where} has no exact type hint for {', '.join(vague[:3])}")
                counter.check(_is_described(each, function), f"{where} has no description that says something")
    return counter.share(f"{_listed(builders)}: async, hinted and described")


def _handed_over(modules: Mapping[str, ModuleOutline], builder: Function) -> list[HandedOver]:
    """What the builder hands over, a coroutine that it yields as it is included."""
    bare = [
        HandedOver(function=name, described="no", description="", line=builder.line)
        for name in builder.yields
        if name in {each.name for each in _inside(modules, builder)}
    ]
    return [*builder.hands_over, *bare]


def _resolve(modules: Mapping[str, ModuleOutline], builder: Function, name: str | None) -> list[Function]:
    """The function of that name, one inside the builder first; all of these when the name is a loop's variable."""
    inside = _inside(modules, builder)
    everywhere = [*inside, *(each for _, each in _functions(modules))]
    return [each for each in everywhere if each.name == name][:1] or inside


def _inside(modules: Mapping[str, ModuleOutline], builder: Function) -> list[Function]:
    path = [*builder.path, builder.name]
    return [each for each in modules["register.py"].functions if each.path == path]


def _is_described(handed: HandedOver, function: Function) -> bool:
    if handed.described == "text":
        return is_informative(handed.description, function.name)
    return handed.described == "expression" or is_informative(function.docstring, function.name)


def _config_fields(register: ModuleOutline, configs: Configs) -> Point:
    counter = CheckCounter("code", "config fields")
    for type_name, (config, _) in configs.items():
        if config is None:
            counter.check(False, f"register.py: no config class for {type_name!r}")
            continue
        for field in (field for member in register.lineage(config) for field in member.fields):
            described = field.described == "expression" or len(_words(field.description)) > 1
            counter.check(described, f"register.py:{field.line}: {field.name} has no Field(description=...)")
    if configs and not counter.num_checks:
        counter.check(True, "")
    return counter.share("every field is described")


def _defined(logic: ModuleOutline, functions: Sequence[str], classes: Sequence[str]) -> Point:
    counter = CheckCounter("code", "logic")
    for kind, wanted, found in (("function", functions, logic.functions), ("class", classes, logic.classes)):
        names = {each.name for each in found if not each.path}
        for name in wanted:
            counter.check(name in names, f"logic.py: no {kind} {name!r}")
    return counter.share(f"defines {_listed([*functions, *classes])}")


# ---------------------------------------------------------------- all functions and classes


def _type_hints(modules: Mapping[str, ModuleOutline]) -> Point:
    counter = CheckCounter("code", "type hints")
    for name, each in _functions(modules):
        for entry in each.hints:
            problem = "no type hint" if entry.hint is None else f"the hint {entry.hint}"
            counter.check(entry.vague != "whole", f"{name}:{each.line}: {each.name}({entry.name}) has {problem}")
    return counter.share("every parameter and return is hinted")


def _docstrings(modules: Mapping[str, ModuleOutline]) -> Point:
    counter = CheckCounter("code", "docstrings")
    for name, module in modules.items():
        tops = [each.name for each in module.classes if not each.path]
        public: list[Function | Class] = [each for each in module.classes if not each.path]
        public += [each for each in module.functions if not each.path or (len(each.path) == 1 and each.path[0] in tops)]
        for each in public:
            names = [*each.path, each.name]
            if not any(part is None or part.startswith("_") for part in names):
                problem = f"{name}:{each.line}: {each.name} has no docstring that says something"
                counter.check(is_informative(each.docstring, each.name), problem)
    return counter.share("every public function and class has a docstring")


def _errors(modules: Mapping[str, ModuleOutline]) -> Point:
    counter = CheckCounter("code", "errors")
    if _functions(modules):
        counter.check(True, "")
    for name, module in modules.items():
        for each in module.handlers:
            caught = _swallowed(each)
            counter.check(caught is None, f"{name}:{each.line}: catches {caught} and {each.does}")
    return counter.verdict("no exception is swallowed")


def _swallowed(handler: Handler) -> str | None:
    """What the handler catches and loses, in words; None for a handler that is right."""
    if handler.catches is None:
        return "everything"
    broad = _BROAD & set(handler.catches)
    if broad and handler.does not in _HARMLESS:
        return min(broad)
    return "/".join(str(name) for name in handler.catches) if handler.does == "does nothing" else None


def _stubs(modules: Mapping[str, ModuleOutline]) -> Point:
    counter = CheckCounter("code", "no stub")
    for name, each in _functions(modules):
        counter.check(each.stub is None, f"{name}:{each.line}: {each.name} {each.stub}")
    return counter.verdict("every function does something")


def _functions(modules: Mapping[str, ModuleOutline]) -> list[tuple[str, Function]]:
    return [(name, each) for name, module in modules.items() for each in module.functions]


def _listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(names)
