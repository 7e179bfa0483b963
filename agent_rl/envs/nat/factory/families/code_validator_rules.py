"""Rules of code validators: their shape, wording and code, and slightly wrong variants of each.

Does not: sample anything.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from agent_rl.envs.nat.factory.families.base import Rules

CHARSETS = {"letters": "isalpha", "digits": "isdigit", "letters and digits": "isalnum"}

BLANK = "error: blank code"
ERRORS = {
    "not_blank": BLANK,
    "prefix": "error: bad prefix",
    "mark": "error: mark missing",
    "ending": "error: bad ending",
    "min_length": "error: too short",
    "max_length": "error: too long",
    "range": "error: bad character",
    "check": "error: bad check digit",
    "country": "error: wrong country",
}
SUCCESS = {
    "ok": ("`ok`", 'return "ok"'),
    "upper": ("`ok`, a space and the code in upper case", 'return f"ok {code.upper()}"'),
    "bare": (
        "`ok`, a space and the letters and digits of the code",
        'return "ok " + "".join(char for char in code if char.isalnum())',
    ),
    "tail": ("`ok`, a space and the last 4 characters of the code", 'return f"ok {code[-4:]}"'),
}

MAX_LENGTH = 99
"""Characters of a code that rules may ask for."""

Short = Annotated[str, StringConstraints(pattern=r"^[a-z]{1,4}$")]
Character = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]$")]


class Range(Rules):
    """Characters `start` to `end`, counted from 1, must be there and lie between two characters."""

    start: int = Field(ge=1)
    end: int = Field(le=MAX_LENGTH)
    low: Character
    high: Character

    @model_validator(mode="after")
    def _in_order(self) -> "Range":
        if self.end < self.start or self.high < self.low:
            raise ValueError(f"end must not be below start, nor high below low, got {self!r}")
        return self


class CheckDigit(Rules):
    """The last character is the weighted sum of what is before it, modulo some number; 10 is written `x`."""

    weights: list[Annotated[int, Field(ge=1, le=9)]] = Field(min_length=1)
    modulus: int = Field(ge=2, le=11)
    letters: bool
    """Whether letters count, a = 1 to z = 26; else only digits do."""


CodeRule = (
    tuple[Literal["not_blank"], Literal[""]]
    | tuple[Literal["prefix"], Short]
    | tuple[Literal["mark"], Literal["-", "_", ".", ":", "#"]]
    | tuple[Literal["ending"], Literal["letters", "digits", "letters and digits"]]
    | tuple[Literal["min_length"], Annotated[int, Field(ge=1, le=MAX_LENGTH)]]
    | tuple[Literal["max_length"], Literal[""] | Annotated[int, Field(ge=1, le=MAX_LENGTH)]]
    | tuple[Literal["range"], Range]
    | tuple[Literal["check"], CheckDigit]
    | tuple[Literal["country"], dict[Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}$")], Short]]
)


class CodeRules(Rules):
    rules: list[CodeRule] = Field(min_length=2)
    """Pairs of kind and value, in the order in which they are checked. Below level 3 a maximal length has no value:
    it is the configuration field."""
    report: Literal["first", "all"] = "first"
    success: Literal["ok", "upper", "bare", "tail"] = "ok"

    @model_validator(mode="after")
    def _blank_comes_first(self) -> "CodeRules":
        kinds = [kind for kind, _ in self.rules]
        if kinds[0] != "not_blank" or len(set(kinds)) < len(kinds):
            raise ValueError(f"rules must differ, and begin with not_blank, got {kinds}")
        return self


_PLAIN = {"not_blank", "prefix", "mark", "ending", "min_length", "max_length"}


def completed(rules: dict[str, Any], longest: int | None) -> dict[str, Any]:
    """The rules with what they leave open; `longest` is the default of the configuration field, if there is one.

    Raises ValueError when they make no sense together.
    """
    pairs = rules["rules"]
    values = dict(pairs)
    is_rich = "report" in rules or "success" in rules or not values.keys() <= _PLAIN
    is_rich = is_rich or (longest is None and "max_length" in values)
    if longest is not None and "max_length" not in values:
        raise ValueError("a configuration default needs a rule of the kind max_length")
    if longest is None and values.get("max_length") == "":
        raise ValueError("max_length needs a number, in the rule or as configuration default")
    if values.keys() >= {"prefix", "country"} or values.keys() >= {"ending", "check"}:
        raise ValueError("prefix and country, ending and check are about the same characters")
    least = values.get("min_length", 1)
    if least > (most := values.get("max_length", least) if longest is None else longest):
        raise ValueError(f"min_length {least} is above max_length {most}")
    if "range" in values and len({values["range"][end].isdigit() for end in ("low", "high")}) > 1:
        raise ValueError("a range lies within the digits or within the letters")
    if longest is not None:
        value = longest if is_rich else ""
        pairs = [[kind, value if kind == "max_length" else each] for kind, each in pairs]
    if not is_rich:
        return {"rules": pairs}
    report = rules.get("report", "first")
    if report == "all" and values.keys() - {"not_blank"} <= {"min_length", "max_length"}:
        raise ValueError("report all needs two rules that a code can break at once")
    return {"rules": pairs, "report": report, "success": rules.get("success", "ok")}


def wording(kind: str, value: Any, *, with_field: bool) -> str:
    error = ERRORS[kind]
    if kind == "range":
        start, end = value["start"], value["end"]
        places = f"Characters {start} to {end}" if start < end else f"Character {start}"
        return (
            f"{places} (from 1) must be there and lie between `{value['low']}` and `{value['high']}`, else `{error}`."
        )
    if kind == "check":
        what = "digits and letters (a = 1 to z = 26, in either case)" if value["letters"] else "digits"
        weights, modulus = ", ".join(map(str, value["weights"])), value["modulus"]
        ten = ", 10 written as `x`" if modulus == 11 else ""
        return (
            f"The last character is a check digit: multiply the {what} before it from the left by {weights} in turn, "
            f"over and over, and take the sum modulo {modulus}{ten}; else `{error}`."
        )
    if kind == "country":
        prefixes = ", ".join(f"`{prefix}` for `{name}`" for name, prefix in value.items())
        return f"It must start with the prefix of its `country`: {prefixes}; else, or for others, `{error}`."
    return {
        "not_blank": f"Blank: `{error}`.",
        "prefix": f"It must start with `{value}`, else `{error}`.",
        "mark": f"It must hold `{value}`, else `{error}`.",
        "ending": f"The last character is one of the {value}, else `{error}`.",
        "min_length": f"At least {value} characters, else `{error}`.",
        "max_length": f"A longer one: `{error}`." if with_field else f"At most {value} characters, else `{error}`.",
    }[kind]


def condition_of(kind: str, value: Any, with_field: bool) -> tuple[list[str], str]:
    """The condition under which a rule is broken, and the lines that it needs before."""
    if kind == "range":
        part, size = f"part = code[{value['start'] - 1}:{value['end']}]", value["end"] - value["start"] + 1
        inside = f'all("{value["low"]}" <= char <= "{value["high"]}" for char in part)'
        return [part], f"len(part) < {size} or not {inside}"
    if kind == "check":
        worth = "int(char) for char in code[:-1] if char.isdigit()"
        if value["letters"]:
            worth = "int(char) if char.isdigit() else ord(char.lower()) - 96 for char in code[:-1] if char.isalnum()"
        turn = f"weights[at % {len(value['weights'])}]"
        before = [f"weights = {value['weights']}", f"values = [{worth}]"]
        before.append(f"total = sum(worth * {turn} for at, worth in enumerate(values))")
        return before, f'code[-1] != "0123456789x"[total % {value["modulus"]}]'
    return [], {
        "not_blank": "not code.strip()",
        "prefix": f'not code.startswith("{value}")',
        "mark": f'"{value}" not in code',
        "ending": f"not code[-1].{CHARSETS.get(str(value))}()",
        "min_length": f"len(code) < {value}",
        "max_length": "len(code) > max_length" if with_field else f"len(code) > {value}",
        "country": "country not in PREFIXES or not code.startswith(PREFIXES[country])",
    }[kind]


def slips(kind: str, value: Any) -> list[Any]:
    """Values that are wrong only for some codes."""
    if kind == "min_length":
        return [value + 1]
    if kind == "max_length" and value != "":
        return [value - 1]
    if kind == "range":
        return [value | {"high": chr(ord(value["high"]) + 1)}]
    if kind == "check":
        return [value | {"weights": value["weights"][::-1]}, value | {"letters": not value["letters"]}]
    return []


def check_digit(code: str, rule: dict[str, Any]) -> str:
    counted = [char for char in code if char.isdigit() or (rule["letters"] and char.isalpha())]
    worths = [int(char) if char.isdigit() else ord(char.lower()) - 96 for char in counted]
    total = sum(worth * rule["weights"][at % len(rule["weights"])] for at, worth in enumerate(worths))
    return "0123456789x"[total % rule["modulus"]]
