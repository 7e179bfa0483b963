"""States that hold things: a stock with quantities, a queue or a stack.

How they are put together into a group, and what the right answers are, is not decided here.
"""

import random
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from agent_rl.envs.nat.factory.families.base import Inputs
from agent_rl.envs.nat.factory.families.group.base import Sequence
from agent_rl.envs.nat.factory.families.group.state import Edit, GroupOperation, State


class Stock(State):
    kind: Literal["stock"]
    capacity: int = Field(ge=2)
    """Of all items together."""
    excess: Literal["refuse", "fill"]
    """What happens to more than fits in."""
    lack: Literal["refuse", "all"]
    """What happens when more is taken than there is."""
    fold: bool
    """Names are kept in lower case."""

    OPERATIONS = {
        "add": GroupOperation(
            synonyms=("add", "put", "store"),
            roles=("item", "quantity"),
            summary="Add $quantity of $item.",
            changes=True,
            required=True,
        ),
        "take": GroupOperation(
            synonyms=("take", "remove", "use"),
            roles=("item", "quantity"),
            summary="Take $quantity of $item out.",
            changes=True,
            required=True,
        ),
        "count": GroupOperation(
            synonyms=("count", "how_many", "level"), roles=("item",), summary="How much of $item is there."
        ),
        "space": GroupOperation(synonyms=("space", "room", "free_space"), summary="How much more fits in."),
        "report": GroupOperation(synonyms=("report", "overview", "contents"), summary="List all items."),
    }
    ROLES = {
        "item": ("str", ("item", "product", "part")),
        "quantity": ("int", ("quantity", "amount", "pieces")),
    }
    ERRORS = {
        "bad_amount": ("error: quantity must be positive", "error: bad quantity", "error: no quantity"),
        "unknown": ("error: unknown item", "error: no such item", "error: item not found"),
        "full": ("error: no room", "error: store is full", "error: capacity reached"),
        "short": ("error: not enough", "error: too little left", "error: out of stock"),
    }
    WORDS = {"space_label": ("space", "room", "free"), "empty": ("nothing", "empty", "none")}
    PARAMETERS: ClassVar[dict[str, str]] = {"capacity": "How much fits in, all items together."}
    CLASS_NAMES = ("Stock", "Shelf", "Depot")
    SUMMARY = "Items and their quantities."
    ATTRIBUTE = ("self._items", "dict[str, int]", "{}", "dict(self._items)")
    NAMES: ClassVar[tuple[str, ...]] = ("bolt", "cup", "lamp", "pen", "rope")

    @classmethod
    def sample(cls, rng: random.Random, operations: list[str]) -> dict[str, Any]:
        return {
            "kind": "stock",
            "capacity": rng.randint(5, 15),
            "excess": rng.choice(["refuse", "fill"]),
            "lack": rng.choice(["refuse", "all"]),
            "fold": rng.random() < 0.5,
        }

    def bounds(self, parameter: str) -> tuple[int, int]:
        return (3, 20)

    def bodies(self) -> dict[str, list[str]]:
        amount = ["if $quantity < 1:", '    return "$bad_amount"']
        fold = ["$item = $item.lower()"] if self.fold else []
        full = ["if $quantity > space:", '    return "$full"']
        if self.excess == "fill":
            full = ["if space == 0:", '    return "$full"', "$quantity = min($quantity, space)"]
        short = ["if $quantity > self._items[$item]:", '    return "$short"']
        if self.lack == "all":
            short = ["$quantity = min($quantity, self._items[$item])"]
        return {
            "add": [
                *(*amount, *fold, "space = self._capacity - sum(self._items.values())", *full, "SAVE"),
                "self._items[$item] = self._items.get($item, 0) + $quantity",
                "return SAY($item, self._items[$item])",
            ],
            "take": [
                *(*amount, *fold, "if $item not in self._items:", '    return "$unknown"', *short, "SAVE"),
                *("left = self._items.pop($item) - $quantity", "if left:", "    self._items[$item] = left"),
                "return SAY($item, left)",
            ],
            "count": [*fold, "return SAY($item, self._items.get($item, 0))"],
            "space": ["return SAY('$space_label', self._capacity - sum(self._items.values()))"],
            "report": [
                'return ", ".join(f"{self._items[name]} {name}" for name in sorted(self._items)) or "$empty"',
            ],
        }

    def sentences(self, rng: random.Random) -> list[str]:
        shown = self.shown("ITEM")
        full = {
            "refuse": "when not all of it fits in, nothing is added and the answer is `$full`",
            "fill": "when not all of it fits in, only what fits is added, and when nothing fits the answer is `$full`",
        }[self.excess]
        short = {
            "refuse": "If there is less than that the answer is `$short` and nothing is taken.",
            "all": "If there is less than that, all of it is taken.",
        }[self.lack]
        out = [
            rng.choice(
                [
                    "It keeps items with whole quantities, $capacity at most for all items together.",
                    "I need a store room: items by name with a quantity, and room for $capacity in all.",
                    "The state is a stock of named items; their quantities may add up to $capacity at most.",
                ]
            ),
            f"`$add` adds `$quantity` of `$item`; {full}.",
            "`$take` takes `$quantity` of `$item` out; an item of which there is none is answered with `$unknown`. "
            + short,
            f"Both answer how much of the item there is afterwards, {shown}.",
            "If `$quantity` is below 1 the answer is `$bad_amount`, before anything else is checked.",
        ]
        if "count" in self.names:
            out.append(f"`$count` answers how much of `$item` there is {shown}, 0 for an unknown one.")
        if "space" in self.names:
            out.append(f"`$space` answers how much more fits in, {self.shown('$space_label')}.")
        if "report" in self.names:
            out.append(
                "`$report` lists the items there are, by name in alphabetical order, like `2 cup, 1 pen`; with none it "
                "answers `$empty`."
            )
        if self.fold:
            out.append("Item names are turned into lower case first, in answers too: `Cup` and `cup` are one item.")
        return out

    def opening(self, rng: random.Random, config: Mapping[str, int]) -> Sequence:
        capacity = config.get("capacity", self.capacity)
        first, second = rng.sample(self.NAMES, 2)
        capital = first.capitalize() if self.fold else first
        return [
            ("add", {"item": first, "quantity": capacity - 1}),
            ("add", {"item": second, "quantity": 1 if self.excess == "refuse" else rng.randint(2, 3)}),
            ("add", {"item": first, "quantity": 1}),
            ("take", {"item": capital, "quantity": capacity - 1}),
            ("take", {"item": first, "quantity": 1}),
            ("take", {"item": second, "quantity": rng.randint(2, 3)}),
        ]

    def call(self, rng: random.Random, operation: str, config: Mapping[str, int]) -> Inputs:
        item = rng.choice([*self.NAMES[:2] * 2, self.NAMES[2]])
        if self.fold and rng.random() < 0.3:
            item = item.capitalize()
        quantity = 0 if rng.random() < 0.15 else rng.randint(1, 6)
        given = {"item": item, "quantity": quantity}
        return {role: given[role] for role in self.OPERATIONS[operation].roles}

    def faults(self) -> list[Edit]:
        return [
            ("add", "self._items.get($item, 0) + $quantity", "$quantity"),
            ("take", "self._items.pop($item) - $quantity", "self._items.pop($item)"),
        ]

    def subtle_faults(self) -> list[Edit]:
        full = (
            ("add", "> space", ">= space") if self.excess == "refuse" else ("add", "min($quantity, space)", "$quantity")
        )
        out = [full, ("take", "if left:", "if left or True:")]
        if self.fold:
            out.append(("take", "$item = $item.lower()\n", ""))
        return out


class Line(State):
    """A queue or a stack, by `kind`."""

    kind: Literal["queue", "stack"]
    capacity: int = Field(ge=1, le=7)
    overflow: Literal["refuse", "drop"]
    """Whether a full one refuses an item or loses its oldest."""
    unique: bool
    """Whether an item that is in already is refused."""

    OPERATIONS = {
        "push": GroupOperation(
            synonyms=("push", "add", "put_in"), roles=("item",), summary="Put $item in.", changes=True, required=True
        ),
        "pop": GroupOperation(
            synonyms=("pop", "take", "serve"), summary="Take the next item out.", changes=True, required=True
        ),
        "peek": GroupOperation(
            synonyms=("peek", "next_one", "look"), summary="Tell the next item, without taking it out."
        ),
        "size": GroupOperation(synonyms=("size", "length", "how_many"), summary="How many items there are."),
        "place": GroupOperation(
            synonyms=("place", "position", "find"), roles=("item",), summary="How soon $item comes out."
        ),
    }
    ROLES = {"item": ("str", ("item", "task", "ticket"))}
    ERRORS = {
        "none": ("error: empty", "error: nothing there", "error: no items"),
        "full": ("error: full", "error: no room left", "error: too many items"),
        "twice": ("error: already there", "error: duplicate", "error: known item"),
        "unknown": ("error: not found", "error: no such item", "error: unknown item"),
    }
    WORDS = {"size_label": ("size", "length", "waiting"), "place_label": ("place", "position", "turn")}
    PARAMETERS: ClassVar[dict[str, str]] = {"capacity": "How many items there may be."}
    CLASS_NAMES = ("Tray", "Inbox", "Tasks")
    SUMMARY = "Items that come out one after the other."
    ATTRIBUTE = ("self._items", "list[str]", "[]", "list(self._items)")
    NAMES: ClassVar[tuple[str, ...]] = ("red", "blue", "green", "gold", "pink", "gray", "teal", "lime")

    @classmethod
    def sample(cls, rng: random.Random, operations: list[str]) -> dict[str, Any]:
        return {
            "kind": rng.choice(["queue", "stack"]),
            "capacity": rng.randint(2, 4),
            "overflow": rng.choice(["refuse", "drop"]),
            "unique": rng.random() < 0.5,
        }

    def bounds(self, parameter: str) -> tuple[int, int]:
        return (1, 5)

    def bodies(self) -> dict[str, list[str]]:
        first, end = ("[0]", "0") if self.kind == "queue" else ("[-1]", "")
        empty = ["if not self._items:", '    return "$none"']
        twice = ["if $item in self._items:", '    return "$twice"'] if self.unique else []
        full = ["if len(self._items) >= self._capacity:", '    return "$full"'] if self.overflow == "refuse" else []
        drop = ["if len(self._items) > self._capacity:", "    del self._items[0]"] if self.overflow == "drop" else []
        order = "self._items" if self.kind == "queue" else "self._items[::-1]"
        return {
            "push": [
                *(*twice, *full, "SAVE", "self._items.append($item)", *drop),
                "return SAY('$size_label', len(self._items))",
            ],
            "pop": [*empty, "SAVE", f"return self._items.pop({end})"],
            "peek": [*empty, f"return self._items{first}"],
            "size": ["return SAY('$size_label', len(self._items))"],
            "place": [
                *("if $item not in self._items:", '    return "$unknown"'),
                f"return SAY('$place_label', {order}.index($item) + 1)",
            ],
        }

    def sentences(self, rng: random.Random) -> list[str]:
        order = "first in, first out" if self.kind == "queue" else "last in, first out"
        checks = "An item that is in already is answered with `$twice`"
        if self.overflow == "refuse":
            checks += ", also when it is full"
        out = [
            rng.choice(
                [
                    f"It keeps texts in a {self.kind}: {order}, $capacity at most.",
                    f"I want a {self.kind} of at most $capacity texts ({order}).",
                    f"The state is a bounded {self.kind}, {order}, with room for $capacity texts.",
                ]
            ),
            f"`$push` puts `$item` in and answers how many items there are then, {self.shown('$size_label')}.",
            "When there are $capacity items already, it answers `$full`."
            if self.overflow == "refuse"
            else "When that makes more than $capacity items, the one put in longest ago is dropped and not counted.",
        ]
        if self.unique:
            out.append(f"{checks}, and nothing changes.")
        out.append("`$pop` takes the next item out and answers the item itself; with none it answers `$none`.")
        if "peek" in self.names:
            out.append("`$peek` answers the item that would come out next and leaves it in, or `$none`.")
        if "size" in self.names:
            out.append(f"`$size` answers how many items there are, {self.shown('$size_label')}.")
        if "place" in self.names:
            again = "" if self.unique else " (the sooner one, if it is in twice)"
            out.append(
                f"`$place` answers when `$item` comes out{again}, 1 for the next, {self.shown('$place_label')}; an "
                "item that is not in is answered with `$unknown`."
            )
        return out

    def opening(self, rng: random.Random, config: Mapping[str, int]) -> Sequence:
        items = rng.sample(self.NAMES, config.get("capacity", self.capacity) + 1)
        calls: Sequence = [("push", {"item": item}) for item in items]
        if self.unique:
            calls.insert(2, ("push", {"item": items[rng.randint(0, 1)]}))
        return [*calls, ("pop", {})]

    def call(self, rng: random.Random, operation: str, config: Mapping[str, int]) -> Inputs:
        return {role: rng.choice(self.NAMES[:4]) for role in self.OPERATIONS[operation].roles}

    def faults(self) -> list[Edit]:
        right, wrong = ("pop(0)", "pop()") if self.kind == "queue" else ("pop()", "pop(0)")
        return [("pop", right, wrong), ("push", "append($item)", "append($item.upper())")]

    def subtle_faults(self) -> list[Edit]:
        if self.overflow == "refuse":
            return [("push", ">= self._capacity", "> self._capacity")]
        return [
            ("push", "> self._capacity", "> self._capacity + 1"),
            ("push", "del self._items[0]", "del self._items[-1]"),
        ]
