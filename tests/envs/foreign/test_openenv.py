"""Environments behind a server of OpenEnv, here a hand-written one: episodes, tools, limits, and servers gone wrong."""

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from fakes import ScriptedPolicy
from openenv_server import CALL, Counting, FakeServer, Guessing, failed, observation
from waiting import wait_for

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError, DataError
from agent_rl.records import StopReason, Trajectory
from agent_rl.rollout.episode import EpisodeLimits, run_episode

pytest.importorskip("websockets")
TASK = {"task_id": "t", "seed": 17}


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeServer]]:
    servers = []

    def started(*arguments: Any, **options: Any) -> FakeServer:
        servers.append(FakeServer(*arguments, **options))
        return servers[-1]

    yield started
    for server in servers:
        server.close()


def opened(server: FakeServer, **options: Any) -> EnvFactory:
    factory = make_env_factory("openenv", {"url": server.url, "timeout_s": 5.0, **options})
    factory.start()
    return factory


def play(factory: EnvFactory, replies: list[str], task: dict[str, Any] = TASK) -> Trajectory:
    limits = EpisodeLimits(max_new_tokens=80)
    return run_episode(ScriptedPolicy(replies), factory(), task, group_id="g", seed=0, limits=limits, temperature=1.0)


def call(name: str, **arguments: Any) -> Message:
    return Message.assistant("", (ToolCall(name=name, arguments=arguments),))


# Episodes


def test_a_reply_is_the_only_text_of_an_action_and_an_episode_is_a_session(serve: Callable[..., FakeServer]) -> None:
    server = serve()
    made = play(opened(server), ["a", "7"])
    assert [[each.content for each in turn.env_messages] for turn in made.turns] == [["wrong"], []]
    assert made.initial_messages == (Message.user("Guess from 0 to 9."),)
    assert made.reward == pytest.approx(1.1)
    assert made.stop_reason == StopReason.FINISHED
    assert made.reward_parts == {"step_count": 2.0, "success": 1.0}
    wait_for(lambda: server.num_open == 0)
    assert server.sessions == [["state", "close"], ["state", "reset", "step", "step", "state", "close"]]
    assert [message["data"] for message in server.received if message["type"] == "reset"] == [{"seed": 17}]


def test_a_row_may_have_a_prompt_and_arguments_of_reset(serve: Callable[..., FakeServer]) -> None:
    env = opened(serve(), system_prompt="Be brief.")()
    task = {"task_id": "t", "prompt": "Look.", "reset": {"number": 4}}
    begun = env.reset(task)
    assert begun == [Message.system("Be brief."), Message.user("Look."), Message.user("Guess from 0 to 9.")]
    last = env.step(Message.assistant("4"))
    assert (last.reward, last.terminated) == (1.0, True)
    env.close()


def test_tools_of_the_server_are_the_models(serve: Callable[..., FakeServer]) -> None:
    env = opened(serve(Counting))()
    assert env.reset({"task_id": "t", "prompt": "Reach 3."}) == [Message.user("Reach 3.")]
    assert [(tool.name, tool.parameters) for tool in env.tools] == [
        ("add", {"properties": {"amount": {"type": "integer"}}})
    ]
    first = env.step(call("add", amount=3))
    assert first.messages == (Message.tool("the count is 3", name="add"),)
    assert (first.reward, first.reward_parts, first.terminated) == (1.0, {"success": 1.0}, False)
    second = env.step(call("subtract", amount=3))
    assert second.messages == (Message.tool("error: Unknown tool: subtract", name="subtract"),)
    assert (second.reward, second.info) == (0.0, {"tool_calls": 1, "tool_errors": 1})
    last = env.step(Message.assistant("It is 3."))
    assert (last.reward, last.terminated, last.reward_parts) == (0.0, True, {"step_count": 2.0, "success": 1.0})
    env.close()


def test_a_call_may_end_an_episode_and_those_behind_it_are_not_run(serve: Callable[..., FakeServer]) -> None:
    server = serve(Counting)
    env = opened(server)()
    env.reset({"task_id": "t", "prompt": "Reach 3."})
    calls = (ToolCall(name="add", arguments={"amount": 10}), ToolCall(name="add", arguments={"amount": 1}))
    assert env.step(Message.assistant("", calls)).terminated
    assert [message["data"].get("tool_name") for message in server.received if message["type"] == "step"] == [
        None,
        "add",
    ]
    env.close()


def test_a_reply_that_is_no_action_is_told_to_the_model(serve: Callable[..., FakeServer]) -> None:
    env = opened(serve(), act="openenv_words:to_guess")()
    env.reset(TASK)
    assert env.step(Message.assistant("?")).messages == (Message.user("error: say a number"),)
    told = env.step(Message.assistant("wrong field"))
    assert told.messages[0].content.endswith("failed at the server: Invalid message: guess: Field required")
    assert told.info == {"tool_errors": 1}
    assert env.step(Message.assistant("7")).terminated
    env.close()


def test_observations_are_text_where_they_hold_one_and_json_otherwise(serve: Callable[..., FakeServer]) -> None:
    seen = [{"hint": "go", "left": None, "list": []}, {"hint": "go", "left": 2}]
    env = opened(serve(answer=lambda said: observation(seen.pop(0)) if said["type"] != "state" else ...))()
    assert env.reset(TASK) == [Message.user("go")]
    assert env.step(Message.assistant("1")).messages == (Message.user('{"hint": "go", "left": 2}'),)
    env.close()
    env = opened(serve(), describe="openenv_words:in_words")()
    assert env.reset(TASK) == [Message.user("You see: Guess from 0 to 9.")]
    env.close()


def test_an_episode_that_is_cut_off_keeps_what_it_earned_and_ends_its_session(
    serve: Callable[..., FakeServer],
) -> None:
    server = serve()
    limits = EpisodeLimits(max_new_tokens=80, max_turns=1)
    policy = ScriptedPolicy(["a", "7"])
    made = run_episode(policy, opened(server)(), TASK, group_id="g", seed=0, limits=limits, temperature=1.0)
    assert (made.reward, made.stop_reason) == (pytest.approx(0.1), StopReason.MAX_TURNS)
    wait_for(lambda: server.num_open == 0)


class Winning(Guessing):
    """Ends with an observation of another form, and from then on knows no state."""

    def step(self, data: dict[str, Any]) -> dict[str, Any]:
        self.num_steps += 1
        return observation({"winner": "you"}, reward=1.0, done=True)

    def state(self) -> dict[str, Any]:
        return failed("no state", "EXECUTION_ERROR") if self.num_steps else super().state()


def test_an_episode_that_ended_is_scored_whatever_its_last_observation_and_state_are(
    serve: Callable[..., FakeServer],
) -> None:
    made = play(opened(serve(Winning), describe="openenv_words:in_words"), ["7"])
    assert (made.reward, made.stop_reason, made.reward_parts) == (1.0, StopReason.FINISHED, {"success": 1.0})
    (failed_call,) = made.failures
    assert "no state" in failed_call.error


def test_more_episodes_than_the_server_allows_wait_for_each_other(serve: Callable[..., FakeServer]) -> None:
    factory = opened(serve(max_sessions=2))
    rewards = []
    threads = [threading.Thread(target=lambda: rewards.append(play(factory, ["7"]).reward)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == [1.0] * 6


# Servers gone wrong


def refusal(server: FakeServer | None = None, /, task: dict[str, Any] | None = None, **options: Any) -> str:
    url = {} if server is None else {"url": server.url}
    with pytest.raises((ConfigError, DataError)) as refused:
        factory = make_env_factory("openenv", {**url, "timeout_s": 0.5, **options})
        factory.check_task(task or {}, "rows.jsonl:3")
        factory.start()
    text = str(refused.value)
    assert "\n" not in text and len(text) < 420
    return text


def test_a_server_that_is_down_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = refusal(url=f"http://127.0.0.1:{port}")
    assert "no server answers there" in text and "start the environment's server" in text


def test_a_server_that_never_answers_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "no server answers there" in refusal(url=f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_a_server_whose_answer_never_ends_is_one_sentence() -> None:
    over = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(9999)
            connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{")
            for _ in range(100):
                connection.sendall(b" ")
                if over.wait(0.1):
                    break

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=[listener])
        thread.start()
        try:
            text = refusal(url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            over.set()
            thread.join()
    assert "/schema was not answered within 0.5 s" in text


def test_a_schema_that_is_too_long_is_one_sentence(
    serve: Callable[..., FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_rl.envs.foreign.openenv_session._MAX_ANSWER_BYTES", 100)
    text = refusal(serve(schema=" " * 101))
    assert "/schema gave an answer of more than 100 bytes" in text and "OpenEnv 0.2 or later" in text


@pytest.mark.parametrize("schema", ["<html>hello</html>", "[]", '{"action": 3}', '{"detail": "Not Found"}', "[" * 9999])
def test_a_server_of_something_else_is_one_sentence(serve: Callable[..., FakeServer], schema: str) -> None:
    text = refusal(serve(schema=schema))
    assert "/schema gave status 200" in text and "OpenEnv 0.2 or later" in text


def test_a_server_of_a_version_without_sessions_is_one_sentence(serve: Callable[..., FakeServer]) -> None:
    text = refusal(serve(has_socket=False))
    assert "no WebSocket at /ws" in text and "404" in text and "OpenEnv 0.2 or later" in text


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("rubbish", "rubbish"),
        (b"\x80\x00", "expected a message of OpenEnv"),
        ([1], "[1]"),
        ({"type": "hello", "data": {}}, "hello"),
        ({"type": "state", "data": [1]}, "expected a message"),
        (failed("no model", "FACTORY_ERROR"), "no model"),
        (None, "the connection broke off"),
    ],
)
def test_a_session_that_answers_rubbish_is_one_sentence(
    serve: Callable[..., FakeServer], answer: Any, expected: str
) -> None:
    text = refusal(serve(answer=lambda _: answer))
    assert "no session can be opened" in text and expected in text


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "step was not answered: the connection broke off"),
        ("rubbish", "step gave 'rubbish'"),
        (failed("division by zero", "EXECUTION_ERROR"), "failed at the server: division by zero"),
        (observation("text"), "expected an observation"),
        (observation({"hint": "x"}, done="maybe"), "expected an observation"),
        (observation({"hint": "x"}, done=True), "the server gave no reward"),
        (observation({"hint": "x"}, reward=float("nan")), "reward of nan"),
    ],
)
def test_what_breaks_in_an_episode_drops_that_episode_alone(
    serve: Callable[..., FakeServer], answer: Any, expected: str
) -> None:
    def breaks(said: dict[str, Any]) -> Any:
        if said["type"] == "reset":
            return observation({"hint": "Guess."})
        return answer if said["type"] == "step" else ...

    made = play(opened(serve(answer=breaks)), ["7"])
    assert (made.reward, made.stop_reason) == (None, StopReason.ENV_ERROR)
    assert expected in str(made.error)


def test_a_step_that_takes_too_long_drops_its_episode(serve: Callable[..., FakeServer]) -> None:
    released = threading.Event()

    def slow(said: dict[str, Any]) -> Any:
        if said["type"] == "step":
            released.wait(20)
        return ...

    made = play(opened(serve(answer=slow), timeout_s=0.5), ["7"])
    released.set()
    assert "step was not answered within 0.5 s" in str(made.error)


def test_too_few_sessions_are_one_sentence(serve: Callable[..., FakeServer]) -> None:
    factory = opened(serve(max_sessions=1), timeout_s=0.5)
    holder = factory()
    holder.reset(TASK)
    with pytest.raises(ConfigError, match=r"allows 1 sessions at .* max_concurrent_envs .* rollout\.async_workers"):
        factory().reset(TASK)
    holder.close()


# What a person gets wrong

ODD_HOSTS = (f"http://{'a' * 64}.com", "http://a..b:80", "http://localhost:8000\x7f", "http://\u2764\u200d:80")


def test_without_websockets_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "websockets.sync.client", None)
    text = refusal(url="http://localhost:8000")
    assert "env.name = 'openenv'" in text and "pip install 'websockets" in text


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://localhost", "http://", "8000", "http://[::1", "http://a:b", *ODD_HOSTS]
)
def test_what_is_no_address_is_one_sentence(url: str) -> None:
    assert "http://localhost:8000" in refusal(url=url)


def test_an_action_without_a_single_text_needs_a_field_or_a_function(serve: Callable[..., FakeServer]) -> None:
    two = {"action": {"properties": {"x": {"type": "string"}, "y": {"type": "string"}, "metadata": {}}}}
    text = refusal(serve(schema=two))
    assert "the fields x, y," in text and "env.options.field" in text and "env.options.act" in text
    assert "the fields x, y" in refusal(serve(schema=two), field="z")
    number = {"action": {"properties": {"action_id": {"type": "integer"}}}}
    assert "env.options.act" in refusal(serve(schema=number))
    assert opened(serve(schema=two), field="y").action("hi") == {"y": "hi"}
    one_needed = {"action": {**two["action"], "required": ["x"]}}
    assert opened(serve(schema=one_needed)).action("hi") == {"x": "hi"}


def test_a_function_or_a_field_comes_before_tools(serve: Callable[..., FakeServer]) -> None:
    schema = {"action": CALL}
    assert not opened(serve(schema=schema), act="openenv_words:to_guess").has_tools
    assert opened(serve(schema=schema)).has_tools


@pytest.mark.parametrize(
    ("options", "task", "expected"),
    [
        ({}, None, "env.options.url"),
        ({"url": "http://localhost:1", "act": "openenv_words:NoSuch"}, None, "NoSuch"),
        ({"url": "http://localhost:1", "timeout_s": 0}, None, "timeout_s"),
        ({"url": "http://localhost:1"}, {"seed": "three"}, "seed"),
        ({"url": "http://localhost:1"}, {"reset": []}, "reset"),
        ({"url": "http://localhost:1"}, {"prompt": 3}, "prompt"),
    ],
)
def test_options_and_rows_that_cannot_be(options: dict[str, Any], task: dict[str, Any] | None, expected: str) -> None:
    assert expected in refusal(task=task, **options)


def test_wrong_functions_are_named(serve: Callable[..., FakeServer]) -> None:
    env = opened(serve(), act="openenv_words:to_text")()
    env.reset(TASK)
    with pytest.raises(ConfigError, match="openenv_words:to_text gave '7', expected an action"):
        env.step(Message.assistant("7"))
    env.close()
    env = opened(serve(), act="openenv_words:to_object")()
    env.reset(TASK)
    for reply in ("set", "array"):
        with pytest.raises(ConfigError, match=r"openenv_words:to_object gave .*, expected an action.*JSON"):
            env.step(Message.assistant(reply))
    env.close()
    with pytest.raises(ConfigError, match="openenv_words:to_none gave None, expected a text"):
        opened(serve(), describe="openenv_words:to_none")().reset(TASK)


@pytest.mark.parametrize("reply", ["nan", "-inf", "1e999", "seven"])
def test_a_number_of_the_reply_that_json_cannot_hold_is_told_to_the_model(
    serve: Callable[..., FakeServer], reply: str
) -> None:
    env = opened(serve(), act="openenv_words:to_price")()
    env.reset(TASK)
    told = env.step(Message.assistant(reply))
    assert not told.terminated and told.info == {"tool_errors": 1}
    assert told.messages[0].content.startswith("error: ")
    env.close()


def test_an_address_may_end_with_a_line_break(serve: Callable[..., FakeServer]) -> None:
    server = serve()
    made = make_env_factory("openenv", {"url": f" {server.url}\n", "timeout_s": 5.0})
    made.start()
    assert (made.server.url, play(made, ["7"]).error) == (server.url, None)


def test_an_episode_that_is_over_at_once_or_lists_no_tools_is_dropped(serve: Callable[..., FakeServer]) -> None:
    over = serve(answer=lambda said: ... if said["type"] == "state" else observation({"hint": "x"}, done=True))
    assert "over when it was reset" in str(play(opened(over), ["7"]).error)
    odd = serve(Counting, answer=lambda said: observation({"tools": [3]}) if said["type"] == "step" else ...)
    assert "expected a tool" in str(play(opened(odd), ["7"]).error)


def test_rows_have_seeds_that_no_other_file_has() -> None:
    files = make_env_factory("openenv", {"url": "http://localhost:1"}).task_files(0, 50, 20)
    assert len({row["seed"] for rows in files.values() for row in rows}) == 70
    assert json.loads(json.dumps(files["train"][0])) == files["train"][0]
    assert Guessing().reset({"seed": files["train"][0]["seed"]})["data"]["done"] is False
