"""States that record who voted for or owns what: a cache, a vote, a plan of booked slots.

Does not: compose them into a group, or decide the right answers.
"""

import random
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from agent_rl.envs.nat.factory.families.base import Inputs, join_names
from agent_rl.envs.nat.factory.families.group.base import Sequence
from agent_rl.envs.nat.factory.families.group.state import Edit, GroupOperation, State, Word


class Cache(State):
    kind: Literal["cache"]
    capacity: int = Field(ge=1, le=5)
    oldest: Literal["used", "written", "inserted"]
    """What makes an entry the oldest: when it was last read or written, last written, or first written."""

    OPERATIONS = {
        "put": GroupOperation(
            synonyms=("put", "save", "remember"),
            roles=("key", "content"),
            summary="Keep $content under $key.",
            changes=True,
            required=True,
        ),
        "get": GroupOperation(
            synonyms=("get", "look_up", "recall"),
            roles=("key",),
            summary="Tell what is kept under $key.",
            required=True,
        ),
        "drop": GroupOperation(
            synonyms=("drop", "forget", "remove"), roles=("key",), summary="Forget $key and its value.", changes=True
        ),
        "size": GroupOperation(synonyms=("size", "how_many", "entries"), summary="How many entries there are."),
        "keys": GroupOperation(synonyms=("keys", "overview", "known"), summary="List the keys, the oldest first."),
    }
    ROLES = {"key": ("str", ("key", "name", "word")), "content": ("int", ("content", "value", "number"))}
    ERRORS = {"missing": ("error: unknown key", "error: no such key", "error: key not found")}
    WORDS = {
        "done": ("stored", "saved", "kept"),
        "thrown": ("dropped", "evicted", "lost"),
        "size_label": ("size", "entries", "total"),
        "empty": ("nothing", "empty", "none"),
    }
    PARAMETERS: ClassVar[dict[str, str]] = {"capacity": "How many entries are kept."}
    CLASS_NAMES = ("Cache", "Memo", "Notes")
    SUMMARY = "Entries by key; the oldest makes room for a new one."
    ATTRIBUTE = ("self._entries", "dict[str, int]", "{}", "dict(self._entries)")
    NAMES: ClassVar[tuple[str, ...]] = ("red", "blue", "green", "gold", "pink", "gray")

    @classmethod
    def sample(cls, rng: random.Random, operations: list[str]) -> dict[str, Any]:
        oldest = rng.choice(["used", "written", "inserted"])
        return {"kind": "cache", "capacity": rng.randint(2, 3), "oldest": oldest}

    def bounds(self, parameter: str) -> tuple[int, int]:
        return (2, 4)

    def bodies(self) -> dict[str, list[str]]:
        # A dict keeps its keys in the order they came in, so the first key is the oldest.
        missing = ["if $key not in self._entries:", '    return "$missing"']
        return {
            "put": [
                *("SAVE", *(["self._entries.pop($key, None)"] if self.oldest != "inserted" else [])),
                *("self._entries[$key] = $content", "if len(self._entries) <= self._capacity:", '    return "$done"'),
                *("oldest = next(iter(self._entries))", "del self._entries[oldest]"),
                'return f"$done, $thrown {oldest}"',
            ],
            "get": [
                *(*missing, *(["self._entries[$key] = self._entries.pop($key)"] if self.oldest == "used" else [])),
                "return SAY($key, self._entries[$key])",
            ],
            "drop": [*missing, "SAVE", "return SAY($key, self._entries.pop($key))"],
            "size": ["return SAY('$size_label', len(self._entries))"],
            "keys": ['return ", ".join(self._entries) or "$empty"'],
        }

    def sentences(self, rng: random.Random) -> list[str]:
        order = {
            "used": "The oldest entry is the one whose last `$put` or `$get` is longest ago.",
            "written": "The oldest entry is the one whose last `$put` is longest ago; `$get` does not count.",
            "inserted": "The oldest entry is the one that came in first; `$put` on a key that is there changes its "
            "number but not its age.",
        }[self.oldest]
        out = [
            rng.choice(
                [
                    "It keeps whole numbers by key, $capacity entries at most.",
                    "I want a cache of at most $capacity numbers, each under a key.",
                    "The state is a small cache: keys with a number each, never more than $capacity.",
                ]
            ),
            "`$put` keeps `$content` under `$key`, in place of what was there, and answers `$done`.",
            "When there are more than $capacity entries after that, the oldest is thrown out and the answer is "
            "`$done, $thrown KEY` with its key.",
            order,
            f"`$get` answers the number {self.shown('KEY')}; an unknown key is answered with `$missing`.",
        ]
        if "drop" in self.names:
            out.append(f"`$drop` throws an entry out and answers {self.shown('KEY')} with what it was, or `$missing`.")
        if "size" in self.names:
            out.append(f"`$size` answers how many entries there are, {self.shown('$size_label')}.")
        if "keys" in self.names:
            out.append("`$keys` lists the keys, the oldest first, like `red, blue`; with none it answers `$empty`.")
        return out

    def opening(self, rng: random.Random, config: Mapping[str, int]) -> Sequence:
        keys = rng.sample(self.NAMES, config.get("capacity", self.capacity) + 1)
        calls: Sequence = [("put", {"key": key, "content": rng.randint(1, 99)}) for key in keys]
        again = ("get", {"key": keys[0]}) if self.oldest == "used" else ("put", {"key": keys[0], "content": 7})
        return [*calls[:-1], again, calls[-1], ("get", {"key": keys[0]})]

    def call(self, rng: random.Random, operation: str, config: Mapping[str, int]) -> Inputs:
        given = {"key": rng.choice(self.NAMES[:4]), "content": rng.randint(1, 99)}
        return {role: given[role] for role in self.OPERATIONS[operation].roles}

    def faults(self) -> list[Edit]:
        return [("put", "] = $content", "] = $content + 1")]

    def subtle_faults(self) -> list[Edit]:
        age = {
            "used": ("get", "self._entries[$key] = self._entries.pop($key)\n", ""),
            "written": ("put", "self._entries.pop($key, None)\n", ""),
            "inserted": (
                "put",
                "self._entries[$key] = $content",
                "self._entries.pop($key, None)\nself._entries[$key] = $content",
            ),
        }[self.oldest]
        return [age, ("put", "<= self._capacity", "<= self._capacity + 1")]

    def is_held_out(self) -> bool:
        return self.oldest == "inserted"


class Poll(State):
    kind: Literal["poll"]
    quorum: int = Field(ge=1, le=7)
    """Fewer votes than that have no winner."""
    options: list[Word]
    """What may be voted for; empty: anything."""
    again: Literal["refuse", "replace"]
    """What a second vote of the same voter does."""
    tie: Literal["first", "alphabet", "last", "report"]

    OPERATIONS = {
        "vote": GroupOperation(
            synonyms=("vote", "choose", "cast"),
            roles=("voter", "option"),
            summary="Count the vote of $voter for $option.",
            changes=True,
            required=True,
        ),
        "winner": GroupOperation(synonyms=("winner", "result", "leader"), summary="Tell the winner.", required=True),
        "votes": GroupOperation(
            synonyms=("votes", "support", "score"), roles=("option",), summary="Votes for $option."
        ),
        "retract": GroupOperation(
            synonyms=("retract", "withdraw", "take_out"),
            roles=("voter",),
            summary="Drop the vote of $voter.",
            changes=True,
        ),
        "total": GroupOperation(synonyms=("total", "turnout", "how_many"), summary="How many votes there are."),
    }
    ROLES = {"voter": ("str", ("voter", "person", "member")), "option": ("str", ("option", "choice", "candidate"))}
    ERRORS = {
        "too_few": ("error: too few votes", "error: not enough votes", "error: no quorum"),
        "voted": ("error: already voted", "error: second vote", "error: vote was cast"),
        "unknown": ("error: unknown option", "error: no such option", "error: not on the list"),
        "no_vote": ("error: no vote", "error: has not voted", "error: nothing to retract"),
    }
    WORDS = {"total_label": ("total", "turnout", "all"), "tied": ("tie", "draw", "no winner")}
    PARAMETERS: ClassVar[dict[str, str]] = {"quorum": "Votes that a result needs."}
    CLASS_NAMES = ("Poll", "Ballot", "Election")
    SUMMARY = "Votes, one for each voter."
    ATTRIBUTE = ("self._votes", "dict[str, str]", "{}", "dict(self._votes)")
    VOTERS: ClassVar[tuple[str, ...]] = ("ann", "ben", "cleo", "dora", "eli", "finn", "gus", "hana")
    NAMES: ClassVar[tuple[str, ...]] = ("tea", "water", "juice", "cocoa", "milk", "coffee")

    @classmethod
    def sample(cls, rng: random.Random, operations: list[str]) -> dict[str, Any]:
        return {
            "kind": "poll",
            "quorum": rng.randint(1, 4),
            "options": sorted(rng.sample(cls.NAMES, rng.randint(3, 4))) if rng.random() < 0.5 else [],
            "again": rng.choice(["refuse", "replace"]),
            "tie": rng.choice(["first", "alphabet", "last", "report"]),
        }

    def bounds(self, parameter: str) -> tuple[int, int]:
        return (1, 4)

    def head(self) -> list[str]:
        return ["from collections import Counter"]

    def bodies(self) -> dict[str, list[str]]:
        names = ", ".join(f'"{option}"' for option in self.options)
        unknown = [f"if $option not in ({names}):", '    return "$unknown"'] if self.options else []
        again = ["if $voter in self._votes:", '    return "$voted"', "SAVE"]
        if self.again == "replace":
            again = ["SAVE", "self._votes.pop($voter, None)"]
        best = {"first": "tied[0]", "alphabet": "min(tied)", "last": "max(tied)", "report": "tied[0]"}[self.tie]
        report = ["if len(tied) > 1:", '    return "$tied: " + ", ".join(sorted(tied))'] if self.tie == "report" else []
        count = "list(self._votes.values()).count($option)"
        return {
            "vote": [*unknown, *again, "self._votes[$voter] = $option", f"return SAY($option, {count})"],
            "winner": [
                *("if len(self._votes) < self._quorum:", '    return "$too_few"'),
                *("counts = Counter(self._votes.values())", "most = max(counts.values())"),
                *("tied = [name for name in counts if counts[name] == most]", *report),
                *(f"best = {best}", "return best" if self.form == "{value}" else "return SAY(best, most)"),
            ],
            "votes": [*unknown, f"return SAY($option, {count})"],
            "retract": [
                *("if $voter not in self._votes:", '    return "$no_vote"', "SAVE", "option = self._votes.pop($voter)"),
                "return SAY(option, list(self._votes.values()).count(option))",
            ],
            "total": ["return SAY('$total_label', len(self._votes))"],
        }

    def sentences(self, rng: random.Random) -> list[str]:
        shown = self.shown("OPTION")
        winner = "just the name of the winner" if self.form == "{value}" else f"the winner with its votes, {shown}"
        again = {
            "refuse": "A second vote of the same `$voter` is answered with `$voted` and not counted.",
            "replace": "A second vote of the same `$voter` takes the place of the first and counts as given just now.",
        }[self.again]
        tie = {
            "first": "the one whose first vote that still counts was given earliest wins",
            "alphabet": "the first in the alphabet wins",
            "last": "the last in the alphabet wins",
            "report": "the answer is `$tied: ` and their names in alphabetical order, joined by `, `",
        }[self.tie]
        out = [
            rng.choice(
                [
                    "It counts votes; every voter has one.",
                    "I want a poll in which each voter has a single vote.",
                    "The state is who voted for what, one vote for each voter.",
                ]
            ),
            f"`$vote` counts a vote of `$voter` for `$option` and answers the votes of that option, {shown}. {again}",
            f"`$winner` answers {winner}; with fewer than $quorum votes in all it answers `$too_few`.",
            f"In a tie for the most votes {tie}.",
        ]
        if self.options:
            checked = ", before anything else is checked" if self.again == "refuse" else ""
            out.append(
                f"Only {join_names(self.options)} can be voted for: another is answered with `$unknown`{checked}."
            )
        if "votes" in self.names:
            unknown = "an option that is not on the list gives `$unknown`" if self.options else "0 when nobody chose it"
            out.append(f"`$votes` answers the votes of `$option`, {shown}; {unknown}.")
        if "retract" in self.names:
            out.append(
                "`$retract` drops the vote of `$voter` and answers what is left for the option it was for, "
                f"{shown}; someone without a vote gets `$no_vote`."
            )
        if "total" in self.names:
            out.append(f"`$total` answers how many votes there are, {self.shown('$total_label')}.")
        return out

    def opening(self, rng: random.Random, config: Mapping[str, int]) -> Sequence:
        quorum = config.get("quorum", self.quorum)
        pair = rng.sample(self.options or self.NAMES, 2)
        calls: Sequence = []
        for num_votes, voter in enumerate(rng.sample(self.VOTERS, quorum + 1)):
            # A result just below the quorum and at it; one of the last two is a tie.
            calls += [("winner", {})] if num_votes >= quorum - 1 else []
            calls.append(("vote", {"voter": voter, "option": pair[num_votes % 2]}))
        return [*calls, ("winner", {})]

    def call(self, rng: random.Random, operation: str, config: Mapping[str, int]) -> Inputs:
        options = [*(self.options or self.NAMES[:3]), *(["beer"] if self.options else [])]
        given = {"voter": rng.choice(self.VOTERS[:4]), "option": rng.choice(options)}
        return {role: given[role] for role in self.OPERATIONS[operation].roles}

    def faults(self) -> list[Edit]:
        return [("vote", "] = $option", "] = $voter")]

    def subtle_faults(self) -> list[Edit]:
        tie = {
            "first": ("winner", "best = tied[0]", "best = tied[-1]"),
            "alphabet": ("winner", "min(tied)", "max(tied)"),
            "last": ("winner", "max(tied)", "min(tied)"),
            "report": ("winner", "len(tied) > 1", "len(tied) > 2"),
        }[self.tie]
        return [tie, ("winner", "< self._quorum", "<= self._quorum")]

    def is_held_out(self) -> bool:
        return self.tie == "last"
