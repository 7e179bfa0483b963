"""What a tool must answer: an interpreter of a spec's rules, sharing no code with the reference solutions.

Numbers are exact fractions and text operations are written out by hand, so a slip in a reference renderer shows as a
disagreement instead of being repeated here. The oracle never runs candidate code and its answers never leave the
training process.
"""

import ast
from collections.abc import Callable, Mapping
from fractions import Fraction

from agent_rl.nat.spec import NATSpec, Value

_TIE_MARGIN = Fraction(1, 10**6)


def answer(spec: NATSpec, inputs: Mapping[str, Value], config: Mapping[str, int]) -> str:
    """The exact text the tool must give for `inputs` when configured with `config`."""
    if spec.family == "text_pipeline":
        return _text(spec, str(inputs["text"]), config)
    if spec.family == "code_validator":
        return _code(spec, str(inputs["code"]), config)
    outcome = _number(spec, inputs)
    if isinstance(outcome, str):
        return outcome
    return f"{float(outcome):.{config.get('precision', spec.rules['precision'])}f}"


def is_robust(spec: NATSpec, inputs: Mapping[str, Value], config: Mapping[str, int]) -> bool:
    """False when a correct float program could still differ in the last digit (a rounding tie, a signed zero)."""
    if spec.family not in ("unit_converter", "calculator"):
        return True
    outcome = _number(spec, inputs)
    if isinstance(outcome, str):
        return True
    scaled = abs(outcome) * 10 ** config.get("precision", spec.rules["precision"])
    rest = scaled - int(scaled)
    return 1 <= scaled <= 10**14 and abs(rest - Fraction(1, 2)) > _TIE_MARGIN


def _number(spec: NATSpec, inputs: Mapping[str, Value]) -> Fraction | str:
    if spec.family == "unit_converter":
        return _convert(spec, inputs)
    if spec.family == "calculator":
        return _formula(spec, inputs)
    raise KeyError(f"no oracle for family {spec.family!r}")


def _convert(spec: NATSpec, inputs: Mapping[str, Value]) -> Fraction | str:
    units = spec.rules["units"]
    for side in ("from_unit", "to_unit"):
        if inputs[side] not in units:
            return "error: unknown unit"
    amount = Fraction(str(inputs["value"]))
    if spec.rules["nonnegative"] and amount < 0:
        return "error: negative value"
    return amount * Fraction(units[inputs["from_unit"]]) / Fraction(units[inputs["to_unit"]])


def _formula(spec: NATSpec, inputs: Mapping[str, Value]) -> Fraction | str:
    known = {name: Fraction(str(value)) for name, value in inputs.items()}
    if any(known[name] == 0 for name in spec.rules["divisors"]):
        return "error: division by zero"
    guarded = spec.rules["nonnegative"]
    if guarded and known[guarded] < 0:
        return "error: negative input"
    return _evaluate(ast.parse(spec.rules["formula"], mode="eval").body, known)


def _evaluate(node: ast.expr, known: Mapping[str, Fraction]) -> Fraction:
    if isinstance(node, ast.Name):
        return known[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left, known), _evaluate(node.right, known)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
    raise ValueError(f"a formula holds names, whole numbers and + - * /, not {ast.dump(node)}")


def _words(text: str) -> list[str]:
    words, word = [], ""
    for char in text + " ":
        if char.isspace():
            if word:
                words.append(word)
            word = ""
        else:
            word += char
    return words


def _glue(words: list[str], between: str = " ") -> str:
    out = ""
    for index, word in enumerate(words):
        out += (between if index else "") + word
    return out


def _without_repeats(words: list[str]) -> list[str]:
    out: list[str] = []
    for word in words:
        if word not in out:
            out.append(word)
    return out


def _trim(text: str) -> str:
    start, end = 0, len(text)
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return text[start:end]


_TEXT_OPS: dict[str, Callable[[str], str]] = {
    "strip": _trim,
    "lower": lambda text: "".join(map(str.lower, text)),
    "upper": lambda text: "".join(map(str.upper, text)),
    "reverse": lambda text: "".join(reversed(text)),
    "squeeze": lambda text: _glue(_words(text)),
    "sort_words": lambda text: _glue(sorted(_words(text))),
    "dedupe_words": lambda text: _glue(_without_repeats(_words(text))),
    "drop_digits": lambda text: "".join(filter(lambda char: not char.isdigit(), text)),
    "snake": lambda text: _glue([word.lower() for word in _words(text)], "_"),
    "initials": lambda text: _glue([word[:1] for word in _words(text)], ""),
    "title": lambda text: _glue([word[:1].upper() + word[1:].lower() for word in _words(text)]),
    "swap_case": lambda text: "".join(char.lower() if char.isupper() else char.upper() for char in text),
    "double": lambda text: text * 2,
}


def _text(spec: NATSpec, text: str, config: Mapping[str, int]) -> str:
    if not _words(text):
        return "error: empty text"
    if "max_length" in config and len(text) > config["max_length"]:
        return "error: text too long"
    for op in spec.rules["ops"]:
        text = _TEXT_OPS[op](text)
    return text


def _code(spec: NATSpec, code: str, config: Mapping[str, int]) -> str:
    letters = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    digits = set("0123456789")
    allowed = {"letters": letters, "digits": digits, "letters and digits": letters | digits}
    for kind, value in spec.rules["rules"]:
        if kind == "not_blank" and not _words(code):
            return "error: blank code"
        if kind == "prefix" and code[: len(value)] != value:
            return "error: bad prefix"
        if kind == "mark" and code.count(value) == 0:
            return "error: mark missing"
        if kind == "ending" and code[-1] not in allowed[value]:
            return "error: bad ending"
        if kind == "min_length" and len(code) < value:
            return "error: too short"
        if kind == "max_length" and len(code) > config["max_length"]:
            return "error: too long"
    return "ok"
