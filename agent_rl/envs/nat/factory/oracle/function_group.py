"""Oracle of function groups: computes every answer from the log of accepted changes.

Nothing is updated in place: a balance is the sum of its movements, a queue what went in less what came out, so that a
slip in a reference class, which does update in place, shows as a disagreement. Calls must be of functions in the rules.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_rl.envs.nat.spec import Inputs, Value

Entry = tuple[Any, ...]
"""One accepted call in the log: the operation and what of it matters."""
Outcome = tuple[str, Entry | None]
"""An answer, and what to append to the log."""


class RefusedError(Exception):
    """A condition of the rules is met: the call is answered with that error's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rules with the configuration put in."""

    rules: Mapping[str, Any]
    config: Mapping[str, int]

    def __getitem__(self, key: str) -> Any:
        return self.config.get(key, self.rules[key])

    def number(self, name: str, value: Value) -> str:
        return self.rules["form"].replace("{name}", name).replace("{value}", str(value))

    def labelled(self, label: str, value: int) -> str:
        """A number under a fixed name; the rules hold no such name when it would not be shown."""
        return self.number(self.rules["words"].get(label, ""), value)

    def key(self, text: Value) -> str:
        return str(text).lower() if self.rules["fold"] else str(text)


def run_calls(rules: Mapping[str, Any], config: Mapping[str, int], calls: list[tuple[str, Inputs]]) -> list[str]:
    """Answers of one fresh instance to calls, by the functions' names, in order."""
    table = Table(rules=rules, config=config)
    operations = {name: operation for operation, name in rules["names"].items()}
    roles = {name: role for role, name in rules["inputs"].items()}
    machine = _MACHINES[rules["kind"]]
    log: list[Entry] = []
    fresh = False  # whether a change came after the last undo
    answers = []
    for name, inputs in calls:
        operation = operations[name]
        given = {roles[key]: value for key, value in inputs.items()}
        if operation == "reset":
            log, fresh, text = [], False, rules["words"]["cleared"]
        elif operation == "undo":
            places = [place for place, entry in enumerate(log) if entry[0] != "read"]
            possible = bool(places) and (fresh or rules["undo"] == "every")
            text = rules["words"]["undone"] if possible else rules["errors"]["nothing"]
            log = log[: places[-1]] if possible else log
            fresh = False
        else:
            try:
                text, entry = machine(table, log, operation, given)
            except RefusedError as refusal:
                text, entry = rules["errors"][str(refusal)], None
            if entry is not None:
                log = [*log, entry]
                fresh = fresh or entry[0] != "read"
        answers.append(text)
    return answers


def _refuse(condition: bool, error: str) -> None:
    if condition:
        raise RefusedError(error)


def _counter(table: Table, log: list[Entry], operation: str, given: Inputs) -> Outcome:
    low, high = table["low"], table["high"]
    value = log[-1][1] if log else table["start"]
    if operation == "read":
        return table.labelled("label", value), None
    wanted = int(given["value"]) if operation == "jump" else value + table["step"] * (1 if operation == "up" else -1)
    if operation == "jump" or table["at_bound"] == "refuse":
        _refuse(wanted > high, "above")
        _refuse(wanted < low, "below")
    wrapped = low + (wanted - low) % (high - low + 1)
    wanted = sorted([low, wanted, high])[1] if table["at_bound"] == "clamp" else wrapped
    return table.labelled("label", wanted), ("set", wanted)


def _ledger(table: Table, log: list[Entry], operation: str, given: Inputs) -> Outcome:
    # An entry is ("moved", {account: change}).
    def holds(account: str) -> int:
        return sum(moved.get(account, 0) for _, moved in log)

    known = {account for _, moved in log for account in moved}
    if operation == "total":
        return table.labelled("total_label", sum(map(holds, known))), None
    names = {role: table.key(given[role]) for role in ("account", "source", "receiver") if role in given}
    if operation == "balance":
        _refuse(names["account"] not in known and table["unknown_balance"] == "error", "unknown")
        return table.number(names["account"], holds(names["account"])), None
    amount = int(given["amount"])
    _refuse(amount <= 0, "bad_amount")
    if operation == "deposit":
        moved = {names["account"]: amount}
    else:
        _refuse(not known.issuperset(names.values()), "unknown")
        payer = names.get("account") or names["source"]
        cost = amount + (table["fee"] if operation == "withdraw" else 0)
        _refuse(holds(payer) + table["overdraft"] < cost, "short")
        moved = {payer: -cost} | ({names["receiver"]: amount} if operation == "transfer" else {})
    shown = names.get("account") or names["receiver"]
    return table.number(shown, holds(shown) + moved[shown]), ("moved", moved)


def _stock(table: Table, log: list[Entry], operation: str, given: Inputs) -> Outcome:
    # An entry is ("moved", item, change).
    def there(item: str) -> int:
        return sum(change for _, name, change in log if name == item)

    space = table["capacity"] - sum(change for _, _, change in log)
    if operation == "space":
        return table.labelled("space_label", space), None
    if operation == "report":
        parts = [f"{there(item)} {item}" for item in sorted({name for _, name, _ in log}) if there(item)]
        return ", ".join(parts) if parts else table["words"]["empty"], None
    item = table.key(given["item"])
    if operation == "count":
        return table.number(item, there(item)), None
    wanted = int(given["quantity"])
    _refuse(wanted <= 0, "bad_amount")
    if operation == "add":
        _refuse(wanted > space and (table["excess"] == "refuse" or not space), "full")
        change = wanted if wanted <= space else space
    else:
        _refuse(not there(item), "unknown")
        _refuse(wanted > there(item) and table["lack"] == "refuse", "short")
        change = -wanted if wanted <= there(item) else -there(item)
    return table.number(item, there(item) + change), ("moved", item, change)


def _line(table: Table, log: list[Entry], operation: str, given: Inputs) -> Outcome:
    # An entry is ("now", items), the next to come out first.
    items: tuple[str, ...] = log[-1][1] if log else ()
    if operation == "size":
        return table.labelled("size_label", len(items)), None
    if operation in ("pop", "peek"):
        _refuse(not items, "none")
        return items[0], ("now", items[1:]) if operation == "pop" else None
    item = str(given["item"])
    if operation == "place":
        _refuse(item not in items, "unknown")
        turn = next(number for number, each in enumerate(items, start=1) if each == item)
        return table.labelled("place_label", turn), None
    _refuse(table["unique"] and item in items, "twice")
    _refuse(table["overflow"] == "refuse" and len(items) == table["capacity"], "full")
    # What went in longest ago leaves at the front of a queue, at the back of a stack.
    now = (*items, item)[-table["capacity"] :] if table["kind"] == "queue" else (item, *items)[: table["capacity"]]
    return table.labelled("size_label", len(now)), ("now", now)


def _cache(table: Table, log: list[Entry], operation: str, given: Inputs) -> Outcome:
    # An entry is ("put", key, content, key thrown out), ("drop", key) or ("read", key).
    def live(entries: list[Entry]) -> dict[str, int]:
        """The keys that are in, with the time that makes them old."""
        times: dict[str, int] = {}
        for now, entry in enumerate(entries):
            what, key = entry[:2]
            if what == "drop":
                del times[key]
            elif what == "put":
                times[key] = times.get(key, now) if table["oldest"] == "inserted" else now
                times = {each: time for each, time in times.items() if each != entry[3]}
            elif table["oldest"] == "used":
                times[key] = now
        return times

    times = live(log)
    if operation == "size":
        return table.labelled("size_label", len(times)), None
    if operation == "keys":
        return ", ".join(sorted(times, key=times.__getitem__)) or table["words"]["empty"], None
    key = str(given["key"])
    if operation == "put":
        put = ("put", key, given["content"])
        after = live([*log, (*put, None)])
        done = table["words"]["done"]
        if len(after) <= table["capacity"]:
            return done, (*put, None)
        lost = min(after, key=after.__getitem__)
        return f"{done}, {table['words']['thrown']} {lost}", (*put, lost)
    _refuse(key not in times, "missing")
    content = [entry[2] for entry in log if entry[:2] == ("put", key)][-1]
    return table.number(key, content), ("drop" if operation == "drop" else "read", key)


def _poll(table: Table, log: list[Entry], operation: str, given: Inputs) -> Outcome:
    # An entry is ("vote", voter, option), with None for an option that was taken back.
    last = {voter: place for place, (_, voter, _) in enumerate(log)}
    standing = [(voter, option) for place, (_, voter, option) in enumerate(log) if option and last[voter] == place]
    chosen = [option for _, option in standing]
    if operation == "total":
        return table.labelled("total_label", len(chosen)), None
    if operation == "winner":
        _refuse(len(chosen) < table["quorum"], "too_few")
        most = max(chosen.count(option) for option in chosen)
        tied = sorted({option for option in chosen if chosen.count(option) == most})
        if table["tie"] == "report" and len(tied) > 1:
            return f"{table['words']['tied']}: {', '.join(tied)}", None
        best = {"first": min(tied, key=chosen.index), "last": tied[-1]}.get(table["tie"], tied[0])
        # A number alone would not name the winner.
        return best if table["form"] == "{value}" else table.number(best, most), None
    if operation == "retract":
        voter = str(given["voter"])
        _refuse(voter not in dict(standing), "no_vote")
        option = dict(standing)[voter]
        return table.number(option, chosen.count(option) - 1), ("vote", voter, None)
    option = str(given["option"])
    _refuse(bool(table["options"]) and option not in table["options"], "unknown")
    if operation == "votes":
        return table.number(option, chosen.count(option)), None
    voter = str(given["voter"])
    before = dict(standing).get(voter)
    _refuse(before is not None and table["again"] == "refuse", "voted")
    return table.number(option, chosen.count(option) + (before != option)), ("vote", voter, option)


def _slots(table: Table, log: list[Entry], operation: str, given: Inputs) -> Outcome:
    # An entry is ("given", slot, person), with "" for a slot that was given back.
    last = {slot: person for _, slot, person in log}
    free = [slot for slot in range(1, table["slots"] + 1) if not last.get(slot)]
    if operation == "free":
        if table["free_form"] == "count":
            return table.labelled("free_label", len(free)), None
        return ", ".join(str(slot) for slot in free) or table["words"]["none"], None
    person = str(given.get("person", ""))
    if operation == "any":
        _refuse(not free, "full")
        slot = free[0] if table["pick"] == "lowest" else free[-1]
    else:
        slot = int(given["slot"])
        _refuse(not 1 <= slot <= table["slots"], "no_slot")
    if operation == "reserve":
        _refuse(slot not in free, "taken")
    if operation in ("reserve", "any"):
        _refuse(sum(owner == person for owner in last.values()) >= table["limit"], "too_many")
        return table.number(person, slot), ("given", slot, person)
    _refuse(slot in free, "not_taken")
    if operation == "holder":
        return last[slot], None
    _refuse(last[slot] != person, "not_yours")
    return table.number(person, slot), ("given", slot, "")


_MACHINES: dict[str, Callable[[Table, list[Entry], str, Inputs], Outcome]] = {
    "counter": _counter,
    "ledger": _ledger,
    "stock": _stock,
    "queue": _line,
    "stack": _line,
    "cache": _cache,
    "poll": _poll,
    "slots": _slots,
}
