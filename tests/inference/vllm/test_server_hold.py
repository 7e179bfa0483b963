"""Completions that wait while weights change, against a server without a model."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_vllm_clients import PROMPT, SAMPLING, client_of
from waiting import wait_for

from agent_rl.errors import EngineError
from agent_rl.records import FinishReason


def test_while_held_nothing_is_sent_for_a_completion_and_everything_else_is(server):
    with client_of(server) as client, ThreadPoolExecutor(1) as pool:
        client.hold()
        waiting = pool.submit(client.complete, PROMPT, SAMPLING)
        probe = client.probe(server.address, PROMPT, num_tokens=2, temperature=1.0, seed=5)
        assert client.get(server.address, "/is_paused") == {"is_paused": False}
        assert client.post_all("/resume") == {server.address: client.post(server.address, "/resume")}
        assert not waiting.done() and len(server.bodies) == 1
        client.release()
        assert waiting.result(timeout=5.0).token_ids == (41, 42, 43)
    assert probe.token_ids == (5, 6)


def test_a_retry_waits_while_held(server, other):
    server.behave = lambda body: "later"
    with client_of(server, other) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.complete, PROMPT, SAMPLING)
        wait_for(lambda: server.bodies)
        client.hold()
        server.stop()
        time.sleep(0.3)
        assert not waiting.done() and not other.bodies
        client.release()
        assert waiting.result(timeout=5.0).token_ids == (41, 42, 43)
    assert len(other.bodies) == 1


def test_a_request_that_waited_for_a_server_before_it_was_held_goes_on_waiting(server):
    server.stop()
    with client_of(server) as client, ThreadPoolExecutor(1) as pool:
        with pytest.raises(EngineError):
            client.get(server.address, "/health")
        waiting = pool.submit(client.complete, PROMPT, SAMPLING)
        time.sleep(0.1)
        client.hold()
        server.start()
        wait_for(lambda: client.pool.servers[server.address].is_up)
        time.sleep(0.2)
        assert not waiting.done() and not server.bodies
        client.release()
        assert waiting.result(timeout=5.0).token_ids == (41, 42, 43)


def test_while_held_a_request_can_be_cancelled_and_closing_ends_the_others(server):
    cancel = threading.Event()
    with client_of(server) as client, ThreadPoolExecutor(2) as pool:
        client.hold()
        first = pool.submit(client.complete, PROMPT, SAMPLING, cancel)
        second = pool.submit(client.complete, PROMPT, SAMPLING)
        cancel.set()
        assert first.result(timeout=2.0).finish_reason is FinishReason.CANCELLED
        client.close()
        client.release()
        with pytest.raises(EngineError, match="was closed"):
            second.result(timeout=2.0)
    assert not server.bodies


def test_tokens_of_weights_that_are_not_proven_yet_wait_until_they_are(server):
    """The request reached the server after the pause, and was sampled when it was resumed for the probe."""
    server.behave = lambda body: "later"
    server.label = "3/7"
    with client_of(server) as client, ThreadPoolExecutor(1) as pool:
        client.pool.weight_label, client.pool.rejoin = "3/7", pytest.fail
        waiting = pool.submit(client.complete, PROMPT, SAMPLING)
        wait_for(lambda: server.bodies)
        client.hold()
        server.label = client.pool.weight_label = "4/8"
        server.release.set()
        wait_for(lambda: server.counts["served"])
        time.sleep(0.2)
        assert not waiting.done()
        client.release()
        assert waiting.result(timeout=5.0).weight_version == 4
    assert len(server.bodies) == 1


def test_what_was_sampled_before_the_weights_changed_is_answered_while_held(server):
    server.behave = lambda body: "later"
    server.label = "3/7"
    with client_of(server) as client, ThreadPoolExecutor(1) as pool:
        client.pool.weight_label = "3/7"
        waiting = pool.submit(client.complete, PROMPT, SAMPLING)
        wait_for(lambda: server.bodies)
        client.hold()
        client.post_all("/pause", params={"mode": "abort"})
        assert waiting.result(timeout=5.0).finish_reason is FinishReason.INTERRUPTED
