"""Calculations with a loop: repayment of a loan, growth by periods, statistics of a list of numbers.

Each is described by a `Recipe`: the checks, the code and the words for one set of rules. The recipes hold no answers.
"""

import random
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agent_rl.envs.nat.factory.families.base import Inputs, Rules
from agent_rl.envs.nat.spec import ConfigField, InputField

NEGATIVE = "error: negative input"
_NUMBER = r'r"-?\d+(\.\d+)?"'


class Loan(Rules):
    kind: Literal["loan"]
    payment: int = Field(gt=0)
    answer: Literal["balance", "interest", "paid"]
    most: int = Field(gt=0, le=100)
    """The largest number of months."""


class Growth(Rules):
    kind: Literal["growth"]
    deposit: int = Field(ge=0)
    when: Literal["start", "end"]
    rounded: bool
    most: int = Field(gt=0, le=100)
    """The largest number of periods."""


class Statistic(Rules):
    kind: Literal["statistic"]
    measure: Literal["mean", "median", "variance", "sample_variance", "range"]
    trim: int = Field(ge=0, le=1)
    fewest: int = Field(ge=1, le=9)
    """How many numbers there must be."""

    @model_validator(mode="after")
    def _enough(self) -> "Statistic":
        needed = 2 * self.trim + (2 if self.measure == "sample_variance" else 1)
        if self.fewest < needed:
            raise ValueError(f"{self.measure} with trim {self.trim} needs fewest >= {needed}, got {self.fewest}")
        return self


Loop = Annotated[Loan | Growth | Statistic, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    error: str
    condition: str
    wording: str
    change: Inputs
    """Inputs that make the check fail, put over good ones."""
    before: tuple[str, ...] = ()
    """Lines that the condition needs."""

    @property
    def lines(self) -> list[str]:
        return [f"if {self.condition}:", f'    return "{self.error}"']


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    wordings: tuple[str, ...]
    """The main sentence, in several phrasings."""
    details: tuple[str, ...] = ()
    checks: tuple[Check, ...]
    imports: tuple[str, ...] = ()
    computation: tuple[str, ...]
    """Ends with a return."""
    slips: tuple[tuple[str, str], ...] = ()
    """Replacements in the code that make it wrong now and then."""


_INPUTS: dict[str, dict[str, Literal["float", "int", "str"]]] = {
    "loan": {"principal": "float", "rate": "float", "months": "int"},
    "growth": {"amount": "float", "rate": "float", "periods": "int"},
    "statistic": {"values": "str"},
}


def sample(rng: random.Random) -> dict[str, Any]:
    """Rules with a loop."""
    kind = rng.choice(["loan", "growth", "statistic"])
    loop: dict[str, Any] = {"kind": kind}
    if kind == "loan":
        loop |= {"payment": 10 * rng.randint(5, 60), "answer": rng.choice(["balance", "interest", "paid"])}
        loop["most"] = rng.randint(10, 60)
    elif kind == "growth":
        when, rounded = rng.choice(["start", "end"]), rng.random() < 0.5
        loop |= {"deposit": 5 * rng.randint(1, 60), "when": when, "rounded": rounded, "most": rng.randint(8, 40)}
    else:
        loop |= {"measure": rng.choice(["mean", "median", "variance", "sample_variance", "range"])}
        loop |= {"trim": rng.randint(0, 1), "fewest": 0}
        loop["fewest"] = 2 * loop["trim"] + rng.randint(2, 3)
    return {"precision": rng.randint(1, 4) if kind == "statistic" else 2, "loop": loop}


def inputs(loop: dict[str, Any]) -> tuple[InputField, ...]:
    return tuple(InputField(name=name, type=kind) for name, kind in _INPUTS[loop["kind"]].items())


def default(rules: dict[str, Any]) -> int:
    """The rules' value of the quantity that can be a configuration field."""
    loop = rules["loop"]
    return {**rules, **loop}[config_field(loop, 0).name]


def config_field(loop: dict[str, Any], default: int) -> ConfigField:
    if loop["kind"] == "statistic":
        return precision_field(default)
    name, low, description = {
        "loan": ("payment", 1, "What is paid each month."),
        "growth": ("deposit", 0, "What is added each period."),
    }[loop["kind"]]
    return ConfigField(name=name, default=default, low=low, high=5000, description=description)


def precision_field(default: int) -> ConfigField:
    return ConfigField(name="precision", default=default, low=0, high=12, description="Digits after the decimal point.")


def recipe(rules: dict[str, Any], *, with_field: bool) -> Recipe:
    loop = rules["loop"]
    build = {"loan": _loan, "growth": _growth}.get(loop["kind"])
    return build(loop, with_field) if build else _statistic(loop, rules["precision"], with_field)


def valid_inputs(loop: dict[str, Any], rng: random.Random) -> Inputs:
    if loop["kind"] == "statistic":
        count = loop["fewest"] if rng.random() < 0.4 else rng.randint(loop["fewest"], 9)
        numbers = [round(rng.uniform(-20.0, 120.0), 1) if rng.random() < 0.5 else rng.randint(1, 30)]
        while len(numbers) < count:
            numbers.append(
                rng.choice(numbers)
                if rng.random() < 0.15
                else rng.choice([rng.randint(1, 110), rng.randint(-99, 999) / 10])
            )
        return {"values": rng.choice([",", ", "]).join(map(str, numbers))}
    rate, most = round(rng.uniform(0.5, 14.0), 2), loop["most"]
    count = most if rng.random() < 0.4 else rng.randint(1, most)
    if loop["kind"] == "growth":
        return {"amount": round(rng.uniform(5.0, 900.0), 2), "rate": rate, "periods": count}
    return {"principal": round(rng.uniform(1.5, 24.0) * loop["payment"], 2), "rate": rate, "months": count}


def _loan(loop: dict[str, Any], with_field: bool) -> Recipe:
    payment = "payment" if with_field else str(loop["payment"])
    shown_amount = "`payment`" if with_field else payment
    quantity = {
        "balance": "what is still owed after `months` months",
        "interest": "the interest of the first `months` months",
        "paid": "what has been paid in all after `months` months",
    }[loop["answer"]]
    result, most = "balance" if loop["answer"] == "balance" else "total", loop["most"]
    counted = [f"    total += {loop['answer']}"] if result == "total" else []
    return Recipe(
        wordings=(
            f"For a loan of `principal` at `rate` percent a year it tells {quantity}.",
            f"It works out {quantity}, for a loan `principal` with a yearly `rate` in percent.",
            f"Given a loan `principal` and its yearly `rate` in percent, answer {quantity}.",
        ),
        details=(
            "Each month adds `rate` / 12 percent of the balance as interest, rounded to cents, then "
            f"{shown_amount} is paid, or all that is owed if that is less.",
            "Always give 2 decimals.",
        ),
        checks=(
            Check(
                error=NEGATIVE,
                condition="principal < 0 or rate < 0 or months < 0",
                wording=f"A negative input gives `{NEGATIVE}`.",
                change={"rate": -0.5},
            ),
            Check(
                error="error: too many months",
                condition=f"months > {most}",
                wording=f"More than {most} months give `error: too many months`.",
                change={"months": most + 1},
            ),
        ),
        computation=(
            "balance, total = principal, 0.0" if counted else "balance = principal",
            "for _ in range(months):",
            "    interest = round(balance * rate / 1200, 2)",
            f"    paid = min({payment}, balance + interest)",
            *counted,
            "    balance = round(balance + interest - paid, 2)",
            f'return f"{{{result}:.2f}}"',
        ),
        slips=(
            (f"months > {most}", f"months >= {most}"),
            ("interest = round(balance * rate / 1200, 2)", "interest = balance * rate / 1200"),
            (f"min({payment}, balance + interest)", payment),
            ("balance * rate / 1200, 2)", "principal * rate / 1200, 2)"),
        ),
    )


def _growth(loop: dict[str, Any], with_field: bool) -> Recipe:
    deposit = "deposit" if with_field else str(loop["deposit"])
    shown_amount = "`deposit`" if with_field else deposit
    grow = "amount * (1 + rate / 100)"
    grow = f"    amount = round({grow}, 2)" if loop["rounded"] else f"    amount = {grow}"
    add = f"    amount += {deposit}"
    steps = [add, grow] if loop["when"] == "start" else [grow, add]
    rounding = "it is rounded to cents each time" if loop["rounded"] else "only the answer is rounded"
    most = loop["most"]
    return Recipe(
        wordings=(
            f"It lets `amount` grow by `rate` percent in each of `periods` periods; {rounding}.",
            f"The tool tells what `amount` becomes in `periods` periods at `rate` percent each; {rounding}.",
            f"Compute how `amount` grows over `periods` periods, by `rate` percent in each; {rounding}.",
        ),
        details=(f"At the {loop['when']} of each period {shown_amount} is added.", "Always give 2 decimals."),
        checks=(
            Check(
                error=NEGATIVE,
                condition="amount < 0 or periods < 0",
                wording=f"A negative `amount` or `periods` gives `{NEGATIVE}`.",
                change={"periods": -1},
            ),
            Check(
                error="error: too many periods",
                condition=f"periods > {most}",
                wording=f"More than {most} periods give `error: too many periods`.",
                change={"periods": most + 1},
            ),
        ),
        computation=("for _ in range(periods):", *steps, 'return f"{amount:.2f}"'),
        slips=(
            (f"periods > {most}", f"periods >= {most}"),
            ("amount = round(amount * (1 + rate / 100), 2)", "amount = amount * (1 + rate / 100)"),
            ("* (1 + rate / 100)", "+ amount * int(rate) / 100"),
        ),
    )


def _statistic(loop: dict[str, Any], precision: int, with_field: bool) -> Recipe:
    name = {
        "mean": "mean",
        "median": "median",
        "variance": "population variance",
        "sample_variance": "sample variance (divided by one less than the count)",
        "range": "difference between the largest and the smallest",
    }[loop["measure"]]
    divisor = "len(numbers) - 1" if loop["measure"] == "sample_variance" else "len(numbers)"
    spread = ["mean = sum(numbers) / len(numbers)", f"result = sum((x - mean) ** 2 for x in numbers) / ({divisor})"]
    computation = {
        "mean": ["result = sum(numbers) / len(numbers)"],
        "median": ["half = len(numbers) // 2", "result = (numbers[half] + numbers[-half - 1]) / 2"],
        "range": ["result = numbers[-1] - numbers[0]"],
    }.get(loop["measure"], spread)
    trim = ["numbers = numbers[1:-1]"] if loop["trim"] else []
    fewest = loop["fewest"]
    details = ["The lowest and the highest number are left out (one of each)."] if trim else []
    details += [] if with_field else [f"Always give {precision} decimals."]
    return Recipe(
        wordings=(
            f"It computes the {name} of the numbers in `values`, which are separated by commas.",
            f"`values` is a list of numbers with commas between; answer with the {name}.",
            f"The tool tells the {name} of numbers given as a text, separated by commas.",
        ),
        details=tuple(details),
        checks=_list_checks(fewest),
        imports=("import re",),
        computation=(
            "numbers = sorted(float(part) for part in parts)",
            *trim,
            *computation,
            f'return f"{{result:.{"{precision}" if with_field else precision}f}}"',
        ),
        slips=(
            (f"len(parts) < {fewest}", f"len(parts) <= {fewest}"),
            ("numbers = sorted(float(part) for part in parts)", "numbers = [float(part) for part in sorted(parts)]"),
            ("numbers[-half - 1]", "numbers[half]"),
            ("float(part) for", "float(int(float(part))) for"),
            ("numbers[1:-1]", "numbers[1:]"),
        ),
    )


def _list_checks(fewest: int) -> tuple[Check, ...]:
    few = f"{fewest - 1} numbers" if fewest > 2 else "1 number"
    return (
        Check(
            error="error: no numbers",
            condition="not values.strip()",
            wording="A blank text gives `error: no numbers`.",
            change={"values": " "},
        ),
        Check(
            error="error: bad number",
            before=('parts = [part.strip() for part in values.split(",")]',),
            condition=f"not all(re.fullmatch({_NUMBER}, part) for part in parts)",
            wording="A number is digits, maybe with a minus before and a decimal point and digits after, and may "
            "have spaces around; anything else gives `error: bad number`.",
            change={"values": "4, 7x, 9, 2.5"},
        ),
        Check(
            error="error: too few numbers",
            condition=f"len(parts) < {fewest}",
            wording=f"With {few} or less say `error: too few numbers`.",
            change={"values": ", ".join(["8", "3.5", "6", "1"][: fewest - 1])},
        ),
    )
