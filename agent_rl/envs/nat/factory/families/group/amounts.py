"""States that are numbers: a bounded counter and a ledger of named accounts.

How they are put together into a group, and what the right answers are, is not decided here.
"""

import random
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from agent_rl.envs.nat.factory.families.base import Inputs
from agent_rl.envs.nat.factory.families.group.base import Sequence
from agent_rl.envs.nat.factory.families.group.state import Edit, GroupOperation, State

_BAD_AMOUNT = ("error: amount must be positive", "error: bad amount", "error: nothing to move")
_UNKNOWN = ("error: unknown name", "error: no such entry", "error: not found")
_TOO_LITTLE = ("error: not enough", "error: too little left", "error: insufficient")


class Counter(State):
    kind: Literal["counter"]
    start: int
    step: int = Field(ge=1)
    low: int
    high: int
    at_bound: Literal["refuse", "clamp", "wrap"]
    """What happens to a step that would leave the bounds."""

    OPERATIONS = {
        "up": GroupOperation(
            synonyms=("up", "increase", "tick", "raise_it"),
            summary="Count up by one step.",
            changes=True,
            required=True,
        ),
        "jump": GroupOperation(
            synonyms=("jump", "set_to", "move_to"),
            roles=("value",),
            summary="Set the number to $value.",
            changes=True,
            required=True,
        ),
        "down": GroupOperation(synonyms=("down", "decrease", "lower"), summary="Count down by one step.", changes=True),
        "read": GroupOperation(synonyms=("read", "current", "show"), summary="Tell the number."),
    }
    ROLES = {"value": ("int", ("value", "number", "target"))}
    ERRORS = {
        "above": ("error: too high", "error: above the limit", "error: upper bound passed"),
        "below": ("error: too low", "error: below the limit", "error: lower bound passed"),
    }
    WORDS = {"label": ("count", "level", "points", "reading")}
    PARAMETERS: ClassVar[dict[str, str]] = {
        "start": "Number at the start.",
        "step": "How far one step goes.",
        "low": "",
        "high": "Greatest number.",
    }
    CLASS_NAMES = ("Counter", "Gauge", "Dial")
    SUMMARY = "A number between two bounds."
    ATTRIBUTE = ("self._value", "int", "self._start", "self._value")

    @classmethod
    def sample(cls, rng: random.Random, operations: list[str]) -> dict[str, Any]:
        low = rng.randint(-5, 3)
        high = low + rng.randint(7, 16)
        return {
            "kind": "counter",
            "start": rng.randint(low, high - 2),
            "step": rng.randint(1, 4),
            "low": low,
            "high": high,
            "at_bound": rng.choice(["refuse", "clamp", "wrap"]),
        }

    @model_validator(mode="after")
    def _is_wide_enough(self) -> "Counter":
        if not self.low <= self.start <= self.high or self.high - self.low < 6:
            raise ValueError(f"high: got {self.low} to {self.high} from start {self.start}, expected 7 numbers or more")
        return self

    def bounds(self, parameter: str) -> tuple[int, int]:
        return {
            "start": (self.low, self.high),
            "step": (1, 6),
            "high": (max(self.start, self.low + 6), self.high + 10),
        }[parameter]

    def bodies(self) -> dict[str, list[str]]:
        up = ["value = self._value + self._step", "if value > self._high:"]
        down = ["value = self._value - self._step", "if value < self._low:"]
        if self.at_bound == "refuse":
            up, down = [*up, '    return "$above"'], [*down, '    return "$below"']
        elif self.at_bound == "wrap":
            span = "self._high - self._low + 1"
            up, down = [*up, f"    value -= {span}"], [*down, f"    value += {span}"]
        else:
            up = ["value = min(self._value + self._step, self._high)"]
            down = ["value = max(self._value - self._step, self._low)"]
        last = ["SAVE", "self._value = value", "return SAY('$label', value)"]
        return {
            "up": [*up, *last],
            "down": [*down, *last],
            "jump": [
                *("if $value > self._high:", '    return "$above"'),
                *("if $value < self._low:", '    return "$below"'),
                *("SAVE", "self._value = $value", "return SAY('$label', $value)"),
            ],
            "read": ["return SAY('$label', self._value)"],
        }

    def sentences(self, rng: random.Random) -> list[str]:
        up, down = {
            "refuse": (
                "; if that would be more than $high, it answers `$above`",
                "; if that would be less than $low, it answers `$below`",
            ),
            "clamp": ("; what would be more than $high becomes $high", "; what would be less than $low becomes $low"),
            "wrap": (
                "; past $high it goes on from the other end, so one more than $high is $low",
                "; past $low it goes on from the other end, so one less than $low is $high",
            ),
        }[self.at_bound]
        out = [
            rng.choice(
                [
                    "It keeps one number that starts at $start and lies between $low and $high, both included.",
                    "I need a counter: it begins at $start and never leaves $low to $high (both are allowed).",
                    "The state is a count, $start at first, from $low up to and including $high.",
                ]
            ),
            f"`$up` adds $step{up}.",
        ]
        if "down" in self.names:
            out.append(f"`$down` subtracts $step{down}.")
        refusal = "one above $high is answered with `$above`, one below $low with `$below`"
        out.append(f"`$jump` sets the number to `$value`; {refusal}.")
        if "read" in self.names:
            out.append("`$read` tells the number and changes nothing.")
        return [*out, f"Without an error the answer is always the number after the call, {self.shown('$label')}."]

    def opening(self, rng: random.Random, config: Mapping[str, int]) -> Sequence:
        high, step = config.get("high", self.high), config.get("step", self.step)

        def around(order: tuple[int, int]) -> list[Sequence]:
            out = [[("jump", {"value": high - step + more}), ("up", {})] for more in order]
            if "down" not in self.names:
                return out
            down = [[("jump", {"value": self.low + step - more}), ("down", {})] for more in order]
            return [out[0], down[0], out[1], down[1]]

        # To the bound exactly and past it by one; only the latter shows a clamped number's bound.
        blocks = [[("up", {})], [("jump", {"value": high})], *around((1, 0) if self.at_bound == "clamp" else (0, 1))]
        return [call for block in blocks for call in block]

    def call(self, rng: random.Random, operation: str, config: Mapping[str, int]) -> Inputs:
        high = config.get("high", self.high)
        if operation != "jump":
            return {}
        return {"value": rng.choice([self.low, high, self.low - 1, high + 1, rng.randint(self.low, high)])}

    def faults(self) -> list[Edit]:
        return [("up", "+ self._step", "- self._step"), ("jump", "self._value = $value", "self._value += $value")]

    def subtle_faults(self) -> list[Edit]:
        up, down = ("up", "> self._high", ">= self._high"), ("down", "< self._low", "<= self._low")
        if self.at_bound == "clamp":
            up, down = ("up", "self._high)", "self._high + 1)"), ("down", "self._low)", "self._low - 1)")
        out = [up, ("jump", "> self._high", ">= self._high")]
        return [*out, down] if "down" in self.names else out

    def is_held_out(self) -> bool:
        return self.at_bound == "wrap"


class Ledger(State):
    kind: Literal["ledger"]
    overdraft: int = Field(ge=0)
    """How far a balance may go below zero."""
    fee: int = Field(ge=0)
    """Taken from the account with every withdrawal."""
    unknown_balance: Literal["error", "zero"]
    fold: bool
    """Names are kept in lower case."""

    OPERATIONS = {
        "deposit": GroupOperation(
            synonyms=("deposit", "pay_in", "credit"),
            roles=("account", "amount"),
            summary="Put $amount on $account.",
            changes=True,
            required=True,
        ),
        "withdraw": GroupOperation(
            synonyms=("withdraw", "pay_out", "debit"),
            roles=("account", "amount"),
            summary="Take $amount from $account.",
            changes=True,
            required=True,
        ),
        "balance": GroupOperation(
            synonyms=("balance", "funds", "holds"), roles=("account",), summary="Balance of $account."
        ),
        "transfer": GroupOperation(
            synonyms=("transfer", "move", "send"),
            roles=("source", "receiver", "amount"),
            summary="Move $amount from $source to $receiver.",
            changes=True,
        ),
        "total": GroupOperation(synonyms=("total", "sum_up", "grand_total"), summary="Sum of all balances."),
    }
    ROLES = {
        "account": ("str", ("account", "name", "owner")),
        "amount": ("int", ("amount", "coins", "cents")),
        "source": ("str", ("source", "payer", "from_account")),
        "receiver": ("str", ("receiver", "payee", "to_account")),
    }
    ERRORS = {"bad_amount": _BAD_AMOUNT, "unknown": _UNKNOWN, "short": _TOO_LITTLE}
    WORDS = {"total_label": ("total", "all", "everyone")}
    PARAMETERS: ClassVar[dict[str, str]] = {"overdraft": "How far a balance may go below zero.", "fee": ""}
    CLASS_NAMES = ("Ledger", "Accounts", "Purse")
    SUMMARY = "Accounts and their balances."
    ATTRIBUTE = ("self._accounts", "dict[str, int]", "{}", "dict(self._accounts)")
    NAMES: ClassVar[tuple[str, ...]] = ("ann", "ben", "cleo", "dora", "eli")

    @classmethod
    def sample(cls, rng: random.Random, operations: list[str]) -> dict[str, Any]:
        return {
            "kind": "ledger",
            "overdraft": rng.choice([5, 8, 10, 20, 25]),
            "fee": rng.choice([0, 0, 1, 2]),
            "unknown_balance": rng.choice(["error", "zero"]) if "balance" in operations else "error",
            "fold": rng.random() < 0.5,
        }

    def bounds(self, parameter: str) -> tuple[int, int]:
        return (0, 30)

    def bodies(self) -> dict[str, list[str]]:
        def fold(*roles: str) -> list[str]:
            return [f"${role} = ${role}.lower()" for role in roles] if self.fold else []

        amount = ["if $amount < 1:", '    return "$bad_amount"']
        unknown = ["if $account not in self._accounts:", '    return "$unknown"']
        short = ["if left < -self._overdraft:", '    return "$short"', "SAVE"]
        fee = " - self._fee" if self.fee else ""
        zero = self.unknown_balance == "zero"
        return {
            "deposit": [
                *(*amount, *fold("account"), "SAVE"),
                "self._accounts[$account] = self._accounts.get($account, 0) + $amount",
                "return SAY($account, self._accounts[$account])",
            ],
            "withdraw": [
                *(*amount, *fold("account"), *unknown),
                *(f"left = self._accounts[$account] - $amount{fee}", *short),
                *("self._accounts[$account] = left", "return SAY($account, left)"),
            ],
            "balance": [*fold("account"), "return SAY($account, self._accounts.get($account, 0))"]
            if zero
            else [*fold("account"), *unknown, "return SAY($account, self._accounts[$account])"],
            "transfer": [
                *(*amount, *fold("source", "receiver")),
                *("if $source not in self._accounts or $receiver not in self._accounts:", '    return "$unknown"'),
                *("left = self._accounts[$source] - $amount", *short, "self._accounts[$source] = left"),
                *("self._accounts[$receiver] += $amount", "return SAY($receiver, self._accounts[$receiver])"),
            ],
            "total": ["return SAY('$total_label', sum(self._accounts.values()))"],
        }

    def sentences(self, rng: random.Random) -> list[str]:
        shown = self.shown("NAME")
        out = [
            rng.choice(
                [
                    "It keeps accounts by name, each with a whole number as its balance.",
                    "I want a small ledger: accounts with names, and a balance each.",
                    "The state is a list of named accounts with their balances, empty at first.",
                ]
            ),
            f"`$deposit` adds `$amount` to `$account` (a name seen for the first time starts at 0) and answers the new "
            f"balance {shown}.",
            "`$withdraw` takes `$amount`" + (" and a fee of $fee" if self.fee else "") + " from `$account` and answers "
            "the new balance in the same way; for an account that got no deposit yet it answers `$unknown`.",
            "A balance may go down to minus $overdraft and no further: what would go further is answered with `$short` "
            "and not done.",
            "If `$amount` is below 1 the answer is `$bad_amount`, before anything else is checked.",
        ]
        if "balance" in self.names:
            unknown = "`$unknown`" if self.unknown_balance == "error" else "a balance of 0"
            out.append(f"`$balance` answers the balance {shown}; for an unknown account, {unknown}.")
        if "transfer" in self.names:
            free = ", without a fee," if self.fee else ""
            out.append(
                f"`$transfer` moves `$amount` from `$source` to `$receiver`{free} and answers the balance of "
                "`$receiver` in the same way; if one of the two "
                "got no deposit yet, the answer is `$unknown`, checked before the limit."
            )
        if "total" in self.names:
            out.append(f"`$total` answers the sum of all balances {self.shown('$total_label')}.")
        if self.fold:
            out.append("Names are turned into lower case first, in answers too, so `Ann` and `ann` are one account.")
        return out

    def opening(self, rng: random.Random, config: Mapping[str, int]) -> Sequence:
        first, second = rng.sample(self.NAMES, 2)
        capital = first.capitalize() if self.fold else first
        amount = rng.randint(3, 9)
        most = amount + config.get("overdraft", self.overdraft) - self.fee
        calls: Sequence = [
            ("deposit", {"account": first, "amount": amount}),
            ("withdraw", {"account": capital, "amount": most}),
            ("withdraw", {"account": first, "amount": 1}),
        ]
        if "transfer" in self.names:
            calls += [
                ("deposit", {"account": second, "amount": 1}),
                ("transfer", {"source": second, "receiver": first, "amount": 1}),
            ]
        return calls

    def call(self, rng: random.Random, operation: str, config: Mapping[str, int]) -> Inputs:
        names = rng.sample(self.NAMES[:3], 2)
        if self.fold and rng.random() < 0.3:
            names[0] = names[0].capitalize()
        amount = 0 if rng.random() < 0.15 else rng.randint(1, 12)
        given = {"account": names[0], "source": names[0], "receiver": names[1], "amount": amount}
        return {role: given[role] for role in self.OPERATIONS[operation].roles}

    def faults(self) -> list[Edit]:
        return [
            ("deposit", "self._accounts.get($account, 0) + $amount", "$amount"),
            ("withdraw", "[$account] - $amount", "[$account] + $amount"),
        ]

    def subtle_faults(self) -> list[Edit]:
        out = [("withdraw", "< -self._overdraft", "<= -self._overdraft")]
        if self.fold:
            out.append(("withdraw", "$account = $account.lower()\n", ""))
        return out
