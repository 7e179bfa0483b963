"""A state of numbered slots that people reserve and give back.

How it is put together into a group, and what the right answers are, is not decided here.
"""

import random
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from agent_rl.envs.nat.factory.families.base import Inputs
from agent_rl.envs.nat.factory.families.group.base import Sequence
from agent_rl.envs.nat.factory.families.group.state import Edit, GroupOperation, State


class Slots(State):
    kind: Literal["slots"]
    slots: int = Field(ge=4, le=99)
    """They are numbered from 1."""
    limit: int = Field(ge=1, le=3)
    """How many one person may have."""
    pick: Literal["lowest", "highest"]
    """Which slot is given to who takes any."""
    free_form: Literal["count", "list"]

    OPERATIONS = {
        "reserve": GroupOperation(
            synonyms=("reserve", "book", "claim"),
            roles=("slot", "person"),
            summary="Give $slot to $person.",
            changes=True,
            required=True,
        ),
        "cancel": GroupOperation(
            synonyms=("cancel", "release", "give_back"),
            roles=("slot", "person"),
            summary="Take $slot back from $person.",
            changes=True,
            required=True,
        ),
        "free": GroupOperation(synonyms=("free", "open_slots", "left"), summary="Tell what is free."),
        "holder": GroupOperation(
            synonyms=("holder", "who_has", "owner"), roles=("slot",), summary="Tell who has $slot."
        ),
        "any": GroupOperation(
            synonyms=("any_slot", "next_free", "take_any"),
            roles=("person",),
            summary="Give a free slot to $person.",
            changes=True,
        ),
    }
    ROLES = {"slot": ("int", ("slot", "seat", "number")), "person": ("str", ("person", "name", "guest"))}
    ERRORS = {
        "no_slot": ("error: no such slot", "error: unknown slot", "error: bad slot number"),
        "taken": ("error: taken", "error: not free", "error: already reserved"),
        "too_many": ("error: too many", "error: limit reached", "error: no more for this person"),
        "not_taken": ("error: not reserved", "error: nobody has it", "error: slot is free"),
        "not_yours": ("error: not yours", "error: someone else has it", "error: wrong person"),
        "full": ("error: all taken", "error: full", "error: nothing free"),
    }
    WORDS = {"free_label": ("free", "open", "left"), "none": ("none", "nothing", "all gone")}
    PARAMETERS: ClassVar[dict[str, str]] = {
        "slots": "How many slots there are.",
        "limit": "How many slots one person may have.",
    }
    CLASS_NAMES = ("Bookings", "SlotPlan", "Seats")
    SUMMARY = "Numbered slots and who has them."
    ATTRIBUTE = ("self._taken", "dict[int, str]", "{}", "dict(self._taken)")
    NAMES: ClassVar[tuple[str, ...]] = ("ann", "ben", "cleo", "dora")

    @classmethod
    def sample(cls, rng: random.Random, operations: list[str]) -> dict[str, Any]:
        return {
            "kind": "slots",
            "slots": rng.randint(4, 6),
            "limit": rng.randint(1, 3),
            "pick": rng.choice(["lowest", "highest"]) if "any" in operations else "lowest",
            "free_form": rng.choice(["count", "list"]) if "free" in operations else "count",
        }

    def bounds(self, parameter: str) -> tuple[int, int]:
        return {"slots": (4, 9), "limit": (1, 3)}[parameter]

    def bodies(self) -> dict[str, list[str]]:
        no_slot = ["if not 1 <= $slot <= self._slots:", '    return "$no_slot"']
        not_taken = ["if $slot not in self._taken:", '    return "$not_taken"']
        limit = ["if list(self._taken.values()).count($person) >= self._limit:", '    return "$too_many"', "SAVE"]
        owner = ["if self._taken[$slot] != $person:", '    return "$not_yours"']
        free = "free = [number for number in range(1, self._slots + 1) if number not in self._taken]"
        listed = "return SAY('$free_label', len(free))"
        if self.free_form == "list":
            listed = 'return ", ".join(map(str, free)) or "$none"'
        return {
            "reserve": [
                *(*no_slot, "if $slot in self._taken:", '    return "$taken"', *limit),
                *("self._taken[$slot] = $person", "return SAY($person, $slot)"),
            ],
            "cancel": [*no_slot, *not_taken, *owner, "SAVE", "del self._taken[$slot]", "return SAY($person, $slot)"],
            "free": [free, listed],
            "holder": [*no_slot, *not_taken, "return self._taken[$slot]"],
            "any": [
                *(free, "if not free:", '    return "$full"', *limit),
                *(f"chosen = free[{0 if self.pick == 'lowest' else -1}]", "self._taken[chosen] = $person"),
                "return SAY($person, chosen)",
            ],
        }

    def sentences(self, rng: random.Random) -> list[str]:
        shown = self.shown("PERSON")
        out = [
            rng.choice(
                [
                    "It keeps $slots slots, numbered from 1, that people can have.",
                    "I need a booking plan for the slots 1 to $slots.",
                    "The state is who has which of the slots 1 to $slots; at first all are free.",
                ]
            ),
            f"`$reserve` gives `$slot` to `$person` and answers the slot {shown}.",
            "It checks in this order: a number outside 1 to $slots is answered with `$no_slot`, a slot that somebody "
            "has with `$taken`, and a person who has $limit slots already with `$too_many`.",
            f"`$cancel` makes `$slot` free again and answers the slot {shown}.",
            "For `$cancel`, a number outside gives `$no_slot`, a free slot `$not_taken`, and a slot that someone else "
            "than `$person` has `$not_yours`.",
        ]
        if "free" in self.names:
            count = f"how many slots are free, {self.shown('$free_label')}"
            listed = "the numbers of the free slots in rising order, like `1, 4`, or `$none`"
            out.append(f"`$free` answers {count if self.free_form == 'count' else listed}.")
        if "holder" in self.names:
            out.append("`$holder` answers just the name of who has `$slot`, with `$no_slot` and `$not_taken` as above.")
        if "any" in self.names:
            out.append(
                f"`$any` gives the {self.pick} free slot to `$person` and answers in the same way; with no free slot "
                "the answer is `$full`, and then the limit of $limit is checked, as above (`$too_many`)."
            )
        return out

    def opening(self, rng: random.Random, config: Mapping[str, int]) -> Sequence:
        slots, limit = config.get("slots", self.slots), config.get("limit", self.limit)
        first, second = rng.sample(self.NAMES, 2)
        numbers = [slots, *rng.sample(range(1, slots), limit)]
        calls: Sequence = [("reserve", {"slot": number, "person": first}) for number in numbers]
        return [
            *calls,
            ("reserve", {"slot": slots + 1, "person": second}),
            ("reserve", {"slot": slots, "person": second}),
            ("cancel", {"slot": slots, "person": second}),
            ("cancel", {"slot": numbers[0], "person": first}),
        ]

    def call(self, rng: random.Random, operation: str, config: Mapping[str, int]) -> Inputs:
        slots = config.get("slots", self.slots)
        slot = rng.choice([0, slots + 1]) if rng.random() < 0.15 else rng.choice([1, 2, 2, slots])
        given = {"slot": slot, "person": rng.choice(self.NAMES[:3])}
        return {role: given[role] for role in self.OPERATIONS[operation].roles}

    def faults(self) -> list[Edit]:
        return [("reserve", "self._taken[$slot] = $person", "self._taken[$slot + 1] = $person")]

    def subtle_faults(self) -> list[Edit]:
        return [
            ("reserve", "<= self._slots", "< self._slots"),
            ("reserve", ">= self._limit", "> self._limit"),
            ("cancel", "!= $person", "== ''"),
        ]
