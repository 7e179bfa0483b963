"""Which server gets a request: literal cases, and prefilled tokens of simulated episodes against other rules."""

import random
from collections import OrderedDict

from agent_rl.inference.vllm import routing
from agent_rl.inference.vllm.routing import Routes


def test_without_a_session_the_least_loaded_is_next_and_of_equals_the_least_recent():
    routes = Routes()
    assert [routes.pick({"a": 0, "b": 0, "c": 0}) for _ in range(4)] == ["a", "b", "c", "a"]
    assert routes.pick({"a": 2, "b": 1, "c": 2}) == "b"


def test_every_process_begins_with_another_server():
    loads = {"a": 0, "b": 0, "c": 0}
    assert [Routes(first=rank).pick(loads) for rank in range(4)] == ["a", "b", "c", "a"]


def test_a_session_returns_to_its_server_though_another_has_less_to_do():
    routes = Routes()
    assert routes.pick({"a": 0, "b": 1}, session=7) == "a"
    assert routes.pick({"a": 5, "b": 1}, session=7) == "a"


def test_sessions_of_a_group_begin_on_one_server():
    routes = Routes()
    assert routes.pick({"a": 0, "b": 0}, session=1, group=9) == "a"
    assert routes.pick({"a": 1, "b": 0}, session=2, group=9) == "a"
    assert routes.pick({"a": 2, "b": 0}, session=3, group=8) == "b"


def test_an_overloaded_server_loses_the_session_for_good_and_the_group_stays():
    routes = Routes()
    routes.pick({"a": 0, "b": 0}, session=1, group=9)
    assert routes.pick({"a": 11, "b": 1}, session=1, group=9) == "a"  # 1.25 times the mean of 6, and 4, is 11.5
    assert routes.pick({"a": 12, "b": 0}, session=1, group=9) == "b"
    assert routes.pick({"a": 0, "b": 3}, session=1, group=9) == "b"
    assert routes.pick({"a": 1, "b": 0}, session=2, group=9) == "a"


def test_a_session_and_a_group_move_when_their_server_is_down():
    routes = Routes()
    routes.pick({"a": 0, "b": 0}, session=1, group=9)
    assert routes.pick({"b": 3}, session=1, group=9) == "b"
    assert routes.pick({"a": 0, "b": 3}, session=1, group=9) == "b"
    assert routes.pick({"a": 0, "b": 3}, session=2, group=9) == "b"


def test_sessions_without_a_group_and_groups_without_a_session_are_known_too():
    routes = Routes()
    assert routes.pick({"a": 0, "b": 0}, group=9) == "a"
    assert routes.pick({"a": 1, "b": 0}, group=9) == "a"
    assert routes.pick({"a": 1, "b": 0}, session=0) == "b"
    assert routes.pick({"a": 0, "b": 1}, session=0) == "b"


def test_what_was_used_least_recently_is_forgotten(monkeypatch):
    monkeypatch.setattr(routing, "MAX_KNOWN", 2)
    routes = Routes()
    for session in (1, 2, 1, 3):  # forgets 2
        routes.pick({"a": 0, "b": 9}, session=session)
    assert [routes.pick({"a": 1, "b": 0}, session=session) for session in (1, 3, 2)] == ["a", "a", "b"]


class _Server:
    """A cache of whole sessions and of groups' prompts, the least recently used dropped first."""

    def __init__(self, capacity):
        self.capacity, self.kept, self.running = capacity, OrderedDict(), 0

    def prefill(self, session, group, num_context):
        """How many tokens of a context are read anew."""
        num_cached = max(self.kept.get(session, 0), self.kept.get(("prompt", group), 0))
        self.kept |= {session: num_context, ("prompt", group): PROMPT}
        self.kept.move_to_end(session)
        self.kept.move_to_end(("prompt", group))
        while sum(self.kept.values()) > self.capacity:
            self.kept.popitem(last=False)
        return num_context - num_cached


PROMPT, TURN, NUM_TURNS, GROUP_SIZE = 4500, 650, 10, 4


def _prefilled(routes, *, is_sticky, num_servers, capacity, num_episodes, at_a_time):
    """Tokens read anew in all episodes, each turn on the server that `routes` choose."""
    clock, source = 0.0, random.Random(0)
    servers = {f"s{number}": _Server(capacity) for number in range(num_servers)}
    waiting = [(episode, 0) for episode in range(num_episodes)]
    events, busy = [], {}
    total, started = 0, 0
    while started < num_episodes or events:
        while started < num_episodes and len(events) < at_a_time:
            events.append((clock, *waiting[started]))
            started += 1
        events.sort()
        clock, episode, turn = events.pop(0)
        for address in [address for address, ends in busy.items() if ends]:
            busy[address] = [end for end in busy[address] if end > clock]
        loads = {address: len(busy.get(address, ())) for address in servers}
        group = episode // GROUP_SIZE
        address = routes.pick(loads, session=episode, group=group) if is_sticky else routes.pick(loads)
        total += servers[address].prefill(episode, group, PROMPT + turn * TURN)
        end = clock + source.uniform(5, 15)
        busy.setdefault(address, []).append(end)
        if turn + 1 < NUM_TURNS:
            events.append((end + source.uniform(0, 10), episode, turn + 1))
    return total


def test_simulated_episodes_of_ten_turns_are_prefilled_near_once_and_four_times_with_balance_alone():
    """512 episodes with caches as for a 32B model: every token once would be 128 prompts and 512 * 9 turns."""
    once = 512 // GROUP_SIZE * PROMPT + 512 * (NUM_TURNS - 1) * TURN
    for num_servers, capacity, at_a_time in ((2, 220_000, 40), (4, 440_000, 160), (8, 440_000, 320)):
        size = {"num_servers": num_servers, "capacity": capacity, "num_episodes": 512, "at_a_time": at_a_time}
        by_session = _prefilled(Routes(), is_sticky=True, **size)
        by_load = _prefilled(Routes(), is_sticky=False, **size)
        assert by_session < 1.5 * once, (num_servers, by_session / once)
        assert by_load > 2 * by_session, (num_servers, by_load / by_session)
