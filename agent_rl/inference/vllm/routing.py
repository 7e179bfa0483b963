"""Which of several servers gets a request: the one that has its prefix in the cache, unless it is overloaded.

A turn of an episode goes where the turn before it went, and an episode's first turn where the others of its group went,
because their prompt is the same. Elsewhere everything read so far would be read again, and kept on several servers.
Not here: which servers are up, requests, what a server has really cached (`rollout/prefix_hit_rate` in the metrics).
"""

import itertools
from collections import OrderedDict
from collections.abc import Mapping

MAX_KNOWN = 65_536
"""Sessions, and groups, that are remembered; the least recently used are forgotten."""
_SPREAD, _SLACK = 1.25, 4
"""A server is overloaded with more running requests than so many times the mean, plus so many."""


class Routes:
    """`Routes().pick({"http://a:8000": 3, "http://b:8000": 0}, session=7, group=1)`. Not for several threads."""

    def __init__(self, *, first: int = 0) -> None:
        """`first` is the place of the server that comes first among equals: another for every process."""
        self._first = first
        self._of_session: OrderedDict[int, str] = OrderedDict()
        self._of_group: OrderedDict[int, str] = OrderedDict()
        self._uses = itertools.count(1)
        self._last_used: dict[str, int] = {}

    def pick(self, loads: Mapping[str, int], *, session: int | None = None, group: int | None = None) -> str:
        """The address for the next request; `loads` are the running requests of the servers that are up.

        Without a known session or group, or where its server is down or overloaded, the one with the fewest, of those
        the least recently used; the session and the group stay there from then on.
        """
        limit = _SPREAD * sum(loads.values()) / len(loads) + _SLACK
        known = [_recall(self._of_session, session), _recall(self._of_group, group)]
        fitting = [address for address in known if address in loads and loads[address] <= limit]
        address = fitting[0] if fitting else self._least_loaded(loads)
        if session is not None:
            _remember(self._of_session, session, address)
        # A group follows a new session, not one of its members that had to move.
        if group is not None and (known[0] is None or known[1] not in loads):
            _remember(self._of_group, group, address)
        self._last_used[address] = next(self._uses)
        return address

    def _least_loaded(self, loads: Mapping[str, int]) -> str:
        addresses = list(loads)
        turned = [addresses[(place + self._first) % len(addresses)] for place in range(len(addresses))]
        return min(turned, key=lambda address: (loads[address], self._last_used.get(address, 0)))


def _recall(known: "OrderedDict[int, str]", key: int | None) -> str | None:
    if key not in known:
        return None
    known.move_to_end(key)
    return known[key]


def _remember(known: "OrderedDict[int, str]", key: int, address: str) -> None:
    known[key] = address
    known.move_to_end(key)
    while len(known) > MAX_KNOWN:
        known.popitem(last=False)
