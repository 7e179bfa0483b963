"""Wrong neighbours of a task's rules, and the inputs that tell them apart.

A neighbour is one step away from what is right: another threshold, two operations swapped, a line left out. Hidden
cases that were chosen to tell every known neighbour from the right answer also tell most of those nobody thought of.
Rules are plain JSON values; programs are our own reference solutions, never what a model wrote.
Not here: what rules mean, sampling inputs.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise, permutations
from typing import Any, TypeVar

from agent_rl.parsing import parse_expression, parse_module

Case = TypeVar("Case")
Answer = Callable[[Case], Any]
"""What a right or wrong solution answers; what it raises instead must be made a value."""

_TEXT_DONORS = 40
"""Other texts whose words a text may gain."""
_MAX_OTHERS = 48
"""Other names that stand in for one."""
_MAX_MOVED = 12
"""Parts of a list of which any may stand anywhere; of longer ones only neighbours change places."""
_LAST_LETTER = re.compile(r"\w(?=\W*$)")
_DIGITS = re.compile(r"\d+")
_MAX_LOOPS = 20_000
"""Of a `while` in a changed program, which might never end."""


def choose_telling(
    pool: Sequence[Case],
    right: Answer,
    wrong: Iterable[Answer],
    *,
    at_most: int,
    known: Sequence[Case] = (),
    times: int = 1,
) -> list[Case]:
    """Few cases of the pool that tell `right` from each solution of `wrong` so many times, together with `known`, or as
    often as the pool can.

    Greedy: the case that tells most of those still untold comes first.
    """
    cases = [*known, *pool]
    answers = [right(case) for case in cases]
    scouts = list(range(len(known)))
    told: list[tuple[Answer, set[int]]] = []
    for other in wrong:
        by = {number for number in scouts if other(cases[number]) != answers[number]}
        if len(by) < times:
            new = (n for n in range(len(known), len(cases)) if n not in scouts and other(cases[n]) != answers[n])
            found = list(islice(new, times - len(by)))
            scouts += found
            by.update(found)
        told.append((other, by))
    missing: list[tuple[set[int], int]] = []
    for other, by in told:
        # Scouts that were found after a solution was looked at may tell it too.
        by |= {n for n in scouts if n not in by and other(cases[n]) != answers[n]}
        by_known = sum(number < len(known) for number in by)
        missing.append((by, min(times, len(by)) - by_known))
    chosen: list[int] = []
    while len(chosen) < at_most and (missing := [(by, count) for by, count in missing if count > 0]):
        gains = Counter(number for by, _ in missing for number in by)
        best = max((n for n in scouts[len(known) :] if n not in chosen), key=lambda number: gains[number])
        chosen.append(best)
        missing = [(by, count - (best in by)) for by, count in missing]
    return [cases[number] for number in chosen]


# ---------------------------------------------------------------- rules


def changed_values(value: Any, donors: Sequence[Any] = ()) -> Iterator[Any]:
    """JSON values one step from `value`. Parts of the donors, which are values of the same shape, stand in for parts
    of it: they bring words, operations and names that can be there."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value - 1, value + 1)
        yield from _others(value, donors, 4)
    elif isinstance(value, Mapping):
        yield from _changed_mapping(value, donors)
        yield from _others(value, donors, 2)
    elif isinstance(value, list):
        yield from _changed_list(value, donors)
    elif isinstance(value, str) and " " in value:
        others = [word for donor in donors[:_TEXT_DONORS] if isinstance(donor, str) for word in donor.split(" ")]
        yield from (" ".join(words) for words in _changed_words(value.split(" "), others))
        yield from _others(value, donors, 2)
    else:
        if isinstance(value, str) and re.fullmatch(r"\d+\.\d+", value):
            yield from (f"{value}1", f"{value}01")  # a little more
        yield from _others(value, donors, _MAX_OTHERS)


def _changed_words(words: list[str], foreign: list[str]) -> Iterator[list[str]]:
    """A text or a formula with a word less, more, replaced by another one, or by another number or operator."""
    yield from _without_one(words)
    known = list(dict.fromkeys(words))
    yield from ([*words, word] for word in dict.fromkeys([*known, *foreign]))
    for number, word in enumerate(words):
        others = [known[(known.index(word) + 1) % len(known)], _LAST_LETTER.sub("", word)]
        others += [sign for sign in "+-*/" if word in "+-*/" and sign != word]
        if match := _DIGITS.search(word):
            others += [f"{word[: match.start()]}{int(match[0]) + step}{word[match.end() :]}" for step in (-1, 1)]
        yield from ([*words[:number], other, *words[number + 1 :]] for other in others)


def _others(value: Any, donors: Sequence[Any], count: int) -> list[Any]:
    """The first different values of the donors."""
    out: list[Any] = []
    for donor in donors:
        if donor != value and donor not in out:
            out.append(donor)
    return out[:count]


def _changed_mapping(value: Mapping[str, Any], donors: Sequence[Any]) -> Iterator[dict[str, Any]]:
    maps = [donor for donor in donors if isinstance(donor, Mapping)]
    for key, part in value.items():
        for changed in changed_values(part, [donor[key] for donor in maps if key in donor]):
            yield {**value, key: changed}
        yield {other: each for other, each in value.items() if other != key}
    for one, other in pairwise(value):
        yield {**value, one: value[other], other: value[one]}


def _changed_list(value: list[Any], donors: Sequence[Any]) -> Iterator[list[Any]]:
    foreign = [each for donor in donors if isinstance(donor, list) for each in donor]
    yield from _without_one(value)
    yield from _swapped(value) if len(value) > _MAX_MOVED else _moved(value)
    for number, part in enumerate(value):
        own = value[:number] + value[number + 1 :]
        for changed in changed_values(part, [*own, *foreign]):
            yield [*value[:number], changed, *value[number + 1 :]]
        yield [*value[: number + 1], *value[number:]]
    if all(isinstance(part, str) for part in value):
        places = range(len(value) + 1)
        yield from ([*value[:n], each, *value[n:]] for each in _others(None, foreign, _MAX_OTHERS) for n in places)
    else:
        yield from ([*value, each] for each in _others(None, foreign, 8))


def _without_one(parts: list[Any]) -> Iterator[list[Any]]:
    yield from (parts[:number] + parts[number + 1 :] for number in range(len(parts)))


def _swapped(parts: list[Any]) -> Iterator[list[Any]]:
    for number in range(len(parts) - 1):
        yield [*parts[:number], parts[number + 1], parts[number], *parts[number + 2 :]]


def _moved(parts: list[Any]) -> Iterator[list[Any]]:
    for old, new in permutations(range(len(parts)), 2):
        if new != old + 1:  # the next part moved to this place
            others = parts[:old] + parts[old + 1 :]
            yield [*others[:new], parts[old], *others[new:]]


# ---------------------------------------------------------------- programs

_COMPARISONS: dict[type, tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq, ast.LtE, ast.GtE), ast.NotEq: (ast.Eq, ast.Lt, ast.Gt),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
}  # fmt: skip
_OPERATORS: dict[type, tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Add,), ast.Div: (ast.FloorDiv, ast.Mult),
    ast.FloorDiv: (ast.Div,), ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,),
}  # fmt: skip
_FUNCTIONS = {"min": "max", "max": "min", "sum": "len", "len": "sum", "any": "all", "all": "any"}
_TEXT_CHANGES = ("{0}.strip()", "{0}.lower()", "{0}.upper()", "{0}[:-1]", "{0}[1:]", "' '.join({0}.split())")
_NUMBER_CHANGES = ("abs({})", "int({})", "round({}, 1)", "max(0, {})", "{} + 1")
_METHODS = {
    "upper": "lower", "lower": "upper", "isalpha": "isalnum", "isdigit": "isalnum", "isalnum": "isalpha",
    "startswith": "endswith", "endswith": "startswith", "strip": "lstrip", "capitalize": "title", "title": "capitalize",
    "find": "rfind", "append": "remove",
}  # fmt: skip


Program = dict[str, Any]
"""The namespace of a module that was run."""


def run_program(source: str) -> Program | None:
    """The module's namespace; None where it fails. Its loops end with OverflowError."""
    return _run(_bounded(source))


def changed_programs(source: str) -> Iterator[Program]:
    """Programs one step from `source`, without those that do not run at all."""
    tree = _bounded(source)
    for node in list(ast.walk(tree)):
        for name, value in list(_changes(node)):
            right = getattr(node, name)
            setattr(node, name, value)
            ast.fix_missing_locations(node)
            program = _run(tree)
            setattr(node, name, right)
            if program is not None:
                yield program


def _bounded(source: str) -> ast.Module:
    """The module with a count in every `while`."""
    tree = parse_module(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.While):
            node.test = ast.BoolOp(ast.And(), [parse_expression("_goes_on()"), node.test])
    return ast.fix_missing_locations(tree)


def _run(tree: ast.Module) -> Program | None:
    program: Program = {"_goes_on": _LoopCount()}
    try:
        exec(compile(tree, "<changed>", "exec"), program)
    except Exception:  # a changed program may fail in any way, and then it is nobody's neighbour
        return None
    return program


def _changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Every change of one node: a field with another value."""
    if isinstance(node, ast.Compare):
        for kind in _COMPARISONS.get(type(node.ops[0]), ()):
            yield ("ops", [kind(), *node.ops[1:]])
    elif isinstance(node, ast.BinOp):
        yield from (("op", kind()) for kind in _OPERATORS.get(type(node.op), ()))
        yield from (("right", ast.Constant(0)), ("left", ast.Constant(0)), ("right", node.left), ("left", node.right))
    elif isinstance(node, ast.BoolOp):
        yield ("op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        neutral = ast.Constant(isinstance(node.op, ast.And))
        yield from (("values", [*node.values[:n], neutral, *node.values[n + 1 :]]) for n in range(len(node.values)))
    elif isinstance(node, ast.UnaryOp | ast.Slice | ast.Set | ast.List | ast.Tuple | ast.Dict):
        yield from _dropped_parts(node)
    elif isinstance(node, ast.Constant):
        yield from (("value", other) for other in _other_constants(node.value))
    elif isinstance(node, ast.IfExp | ast.If):
        yield ("test", ast.UnaryOp(ast.Not(), node.test))
        yield from (("test", ast.Constant(truth)) for truth in (True, False))
    elif isinstance(node, ast.comprehension | ast.For):
        yield from (("ifs", each) for each in _without_one(getattr(node, "ifs", [])))
        yield from (("iter", _taken(node.iter, part)) for part in ("[1:]", "[:-1]", "[::-1]"))
    elif isinstance(node, ast.FunctionDef):
        yield from (("body", [*first, *node.body]) for first in _changed_arguments(node))
    elif isinstance(node, ast.Call):
        yield from _call_changes(node)
    for block in ("body", "orelse"):
        lines = getattr(node, block, None)
        if isinstance(lines, list) and not isinstance(node, ast.Module):
            yield from ((block, each) for each in _changed_lines(lines))


def _changed_lines(lines: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    yield from (each or [ast.Pass()] for each in _without_one(lines))
    yield from _swapped(lines)
    for number, line in enumerate(lines):
        other: ast.stmt | None = None
        if isinstance(line, ast.Continue | ast.Break):
            other = ast.Break() if isinstance(line, ast.Continue) else ast.Continue()
        elif isinstance(line, ast.AugAssign):
            other = ast.Assign([line.target], line.value)
        if other is not None:
            yield [*lines[:number], other, *lines[number + 1 :]]


def _dropped_parts(node: ast.AST) -> Iterator[tuple[str, Any]]:
    if isinstance(node, ast.UnaryOp):
        yield ("op", ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not())
    elif isinstance(node, ast.Slice):
        yield from ((name, None) for name in ("lower", "upper", "step") if getattr(node, name) is not None)
    elif isinstance(node, ast.Dict):
        yield from (("values", each) for each in _swapped(node.values))
    elif isinstance(node, ast.Set) or isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
        if len(node.elts) > 1:  # type: ignore[attr-defined]
            yield from (("elts", each) for each in _without_one(node.elts))  # type: ignore[attr-defined]
        yield from (("elts", each) for each in _swapped(node.elts))  # type: ignore[attr-defined]


def _taken(node: ast.expr, part: str) -> ast.expr:
    """A part of what a loop goes through: `list(node)[1:]`."""
    sliced = parse_expression(f"list(x){part}")
    assert isinstance(sliced, ast.Subscript) and isinstance(sliced.value, ast.Call)
    sliced.value.args = [node]
    return sliced


def _changed_arguments(node: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """Lines that change one argument before anything reads it."""
    names = [each.arg for each in node.args.args]
    for name in names:
        changes = [f"{name} = {other}" for other in names if other != name]
        kind = next((each.annotation for each in node.args.args if each.arg == name), None)
        texts = kind is None or (isinstance(kind, ast.Name) and kind.id == "str")
        changes += [f"{name} = {code.format(name)}" for code in _TEXT_CHANGES if texts]
        changes += [] if texts else [f"{name} = {code.format(name)}" for code in _NUMBER_CHANGES]
        yield from (parse_module(change).body for change in changes)


def _call_changes(node: ast.Call) -> Iterator[tuple[str, Any]]:
    yield from (("keywords", each) for each in _without_one(node.keywords))
    yield from (("args", each) for each in _swapped(node.args))
    if isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        yield ("func", ast.Name(_FUNCTIONS[node.func.id], ast.Load()))
    called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
    if called in ("sorted", "sort") and not node.keywords:
        for code in ("key=str.lower", "reverse=True", "key=str"):
            yield ("keywords", parse_expression(f"f({code})").keywords)  # type: ignore[attr-defined]
    if isinstance(node.func, ast.Name) and len(node.args) == 1:
        yield ("func", parse_expression("lambda given: given"))
    if isinstance(node.func, ast.Attribute) and node.func.attr == "split" and len(node.args) < 2:
        yield ("args", [] if node.args else [ast.Constant(" ")])
        if node.args:
            yield ("args", [*node.args, ast.Constant(1)])
    if isinstance(node.func, ast.Attribute):
        kept = ast.Lambda(parse_expression("lambda *given, **named: 0").args, node.func.value)  # type: ignore[attr-defined]
        yield ("func", kept)
        if node.func.attr in _METHODS:
            yield ("func", ast.Attribute(node.func.value, _METHODS[node.func.attr], ast.Load()))


def _other_constants(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value - 1, value + 1, -value]
    if isinstance(value, float):
        return [value + 1, value / 2, -value, *_finer(value)]
    if not isinstance(value, str) or not value:
        return []
    other_case = value.lower() if value != value.lower() else value.upper()
    return [each for each in (f"{value}x", value[:-1], other_case, value.replace("]", "0-9]")) if each != value]


def _finer(value: float) -> list[float]:
    """The number with another last digit, and with one digit more."""
    text = repr(value)
    if not re.fullmatch(r"\d+\.\d+", text):
        return []
    digits = len(text.partition(".")[2])
    return [float(f"{value + 10**-digits:.{digits}f}"), float(f"{text}1")]


class _LoopCount:
    """True so many times, then OverflowError; a call of the program starts anew."""

    def __init__(self) -> None:
        self.num_left = _MAX_LOOPS

    def __call__(self) -> bool:
        self.num_left -= 1
        if self.num_left < 0:
            self.num_left = _MAX_LOOPS
            raise OverflowError("this loop does not end")
        return True
