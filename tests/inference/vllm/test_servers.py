"""The client of vLLM servers against a server without a model: choice of a server, retries, trusted answers."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from fake_vllm_clients import PROMPT, SAMPLING, client_of
from fake_vllm_server import NUM_BEFORE_PAUSE
from waiting import wait_for

from agent_rl.errors import EngineError
from agent_rl.inference.vllm import server_pool
from agent_rl.inference.vllm.server_answers import RequestRefusedError
from agent_rl.inference.vllm.servers import MAX_ATTEMPTS
from agent_rl.records import Completion, FinishReason, SamplingParams


def sampling(seed, num_tokens=3):
    return SamplingParams(max_new_tokens=num_tokens, seed=seed)


def test_a_completion_is_what_the_server_sampled(server):
    with client_of(server) as client:
        assert client.complete(PROMPT, SAMPLING) == Completion(
            token_ids=(41, 42, 43),
            logprobs=(-1.0, -1.01, -1.02),
            finish_reason=FinishReason.LENGTH,
            weight_version=0,
        )


def test_the_distribution_is_the_models_but_for_the_temperature(server):
    with client_of(server) as client:
        client.complete(PROMPT, SamplingParams(max_new_tokens=3, temperature=0.5, seed=41, stop_token_ids=(42,)))
    assert server.bodies == [
        {
            "token_ids": [3, 1, 4],
            "sampling_params": {
                "max_tokens": 3,
                "temperature": 0.5,
                "seed": 41,
                "stop_token_ids": [42],
                "ignore_eos": True,
                "logprobs": 0,
                "detokenize": False,
                "top_p": 1.0,
                "top_k": 0,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
            },
        }
    ]


def test_a_stop_id_ends_a_completion_and_is_included(server):
    with client_of(server) as client:
        stopped = client.complete(PROMPT, SamplingParams(max_new_tokens=9, seed=41, stop_token_ids=(42,)))
    assert (stopped.token_ids, stopped.finish_reason) == ((41, 42), FinishReason.STOP)


def test_the_adapter_is_sampled_with_by_its_name(server):
    with client_of(server) as client:
        client.adapter = "run-7"
        client.complete(PROMPT, SAMPLING)
    assert server.bodies[0]["model"] == "run-7"


def test_a_request_goes_to_the_least_loaded_server_and_among_equals_to_the_least_recent(server, other):
    with client_of(server, other) as client:
        for _ in range(3):
            client.complete(PROMPT, SAMPLING)
        assert [len(server.bodies), len(other.bodies)] == [2, 1]
        server.behave = lambda body: "hang"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.complete, PROMPT, SAMPLING)  # goes to other, whose turn it is
            waiting.result()
            waiting = pool.submit(client.complete, PROMPT, SAMPLING)  # to server, which keeps it
            wait_for(lambda: len(server.bodies) == 3)
            for _ in range(4):
                client.complete(PROMPT, SAMPLING)
            assert [len(server.bodies), len(other.bodies)] == [3, 6]
            server.release.set()
            waiting.result()


@pytest.mark.parametrize("failure", ["drop", (503, {"error": {"message": "EngineDeadError"}}), (500, b"oops")])
def test_a_request_that_loses_its_server_is_sent_once_more_to_another_with_its_seed(server, other, failure):
    server.behave = lambda body: failure
    with client_of(server, other) as client:
        assert client.complete(PROMPT, SAMPLING).token_ids == (41, 42, 43)
    assert server.bodies == other.bodies and len(other.bodies) == 1
    assert other.counts["served"] == 1


def test_a_single_server_gets_the_request_again_when_it_answers_again(server):
    failures = ["drop"]
    server.behave = lambda body: failures.pop() if failures else "serve"
    with client_of(server) as client:
        assert client.complete(PROMPT, SAMPLING).token_ids == (41, 42, 43)
    assert len(server.bodies) == 2


def test_a_request_that_ends_every_server_fails(server):
    server.behave = lambda body: (500, {"error": {"message": "poison"}})
    with client_of(server) as client, pytest.raises(EngineError, match=f"{MAX_ATTEMPTS} servers.*poison"):
        client.complete(PROMPT, SAMPLING)
    assert len(server.bodies) == MAX_ATTEMPTS


def test_a_hundred_threads_get_their_own_sample_once_each_while_servers_fail(server, other):
    first_time = {"left": set(range(0, 100, 3))}
    lock = threading.Lock()

    def fail_every_third_once(body):
        with lock:
            seed = body["sampling_params"]["seed"]
            if seed in first_time["left"]:
                first_time["left"].discard(seed)
                return "drop" if seed % 2 else (502, b"bad gateway")
        return "serve"

    server.behave = other.behave = fail_every_third_once
    with client_of(server, other) as client, ThreadPoolExecutor(100) as pool:
        sampled = list(pool.map(lambda seed: client.complete((seed,), sampling(seed)).token_ids, range(100)))
    assert sampled == [tuple((seed + index) % 100 for index in range(3)) for seed in range(100)]
    assert server.counts["served"] + other.counts["served"] == 100
    assert len(server.bodies) + len(other.bodies) == 100 + 34


def test_a_refused_prompt_is_not_sent_again_and_the_servers_reason_is_reported(server, other):
    with (
        client_of(server, other) as client,
        pytest.raises(RequestRefusedError, match="Token id 5000 is out of vocabulary") as caught,
    ):
        client.complete((5000,), SAMPLING)
    assert isinstance(caught.value, ValueError)
    assert len(server.bodies) + len(other.bodies) == 1


def test_a_cancelled_request_is_dropped_and_the_server_learns_it(server):
    server.behave = lambda body: "hang"
    cancel = threading.Event()
    with client_of(server) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.complete, PROMPT, SAMPLING, cancel)
        wait_for(lambda: server.bodies)
        cancel.set()
        cancelled = waiting.result(timeout=2.0)
        wait_for(lambda: server.counts["gone"] == 1)
    assert (cancelled.token_ids, cancelled.finish_reason) == ((), FinishReason.CANCELLED)


def test_no_completion_within_the_time_of_a_request_is_an_error_and_the_late_answer_is_dropped(server):
    server.behave = lambda body: "hang"
    with client_of(server, request_timeout_s=0.3) as client:
        with pytest.raises(EngineError, match=r"within 0.3 s \(vllm.request_timeout_s\)"):
            client.complete(PROMPT, SAMPLING)
        wait_for(lambda: server.counts["gone"] == 1)


def test_without_a_server_it_waits_for_the_start_timeout_and_names_it(server):
    server.stop()
    with client_of(server, start_timeout_s=0.5) as client, pytest.raises(EngineError) as caught:
        client.complete(PROMPT, SAMPLING)
    assert server.address in str(caught.value) and "0.5 s (vllm.start_timeout_s)" in str(caught.value)


def test_a_server_that_falls_silent_loses_its_requests_to_another(server, other, monkeypatch):
    monkeypatch.setattr(server_pool, "_UP_CHECK_S", 0.1)
    monkeypatch.setattr(server_pool, "_HEALTH_S", 0.3)
    server.behave = lambda body: "hang"
    with client_of(server, other) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.complete, PROMPT, SAMPLING)
        wait_for(lambda: server.bodies)
        server.is_silent = True
        assert waiting.result(timeout=5.0).token_ids == (41, 42, 43)
        wait_for(lambda: server.counts["gone"] == 1)
        server.release.set()
    assert (server.counts["served"], other.counts["served"]) == (0, 1)


def test_a_connection_that_is_not_accepted_fails_before_the_request_timeout(monkeypatch):
    """A listener whose queue is full, as behind a firewall that drops."""
    monkeypatch.setattr(server_pool, "_CONNECT_S", 0.3)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = f"http://127.0.0.1:{full.getsockname()[1]}"
        with ExitStack() as stack:
            for _ in range(2):
                queued = stack.enter_context(socket.socket())
                queued.setblocking(False)
                queued.connect_ex(full.getsockname())
            with client_of(address, request_timeout_s=60.0) as client:
                began = time.monotonic()
                with pytest.raises(EngineError, match="ConnectTimeout"):
                    client.get(address, "/weight_info")
                assert time.monotonic() - began < 30.0


def test_an_invalid_answer_is_an_error_and_not_requested_again(server, other):
    server.behave = lambda body: (200, b"<html>welcome</html>")
    with client_of(server, other) as client, pytest.raises(EngineError, match=f"{server.address} answered with"):
        client.complete(PROMPT, SAMPLING)
    assert (len(server.bodies), len(other.bodies)) == (1, 0)


def test_a_pause_interrupts_a_completion_which_keeps_what_was_sampled(server):
    server.behave = lambda body: "hang"
    server.label = "6/2"
    with client_of(server) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.complete, PROMPT, SAMPLING)
        wait_for(lambda: server.bodies)
        assert client.post_all("/pause", params={"mode": "abort"}) == {server.address: {"ok": True}}
        assert waiting.result(timeout=5.0) == Completion(
            token_ids=(41, 42)[:NUM_BEFORE_PAUSE],
            logprobs=(-1.0, -1.01),
            finish_reason=FinishReason.INTERRUPTED,
            weight_version=6,
        )
    assert server.calls == [("/pause", {"mode": "abort"})]


def restart(server, label="default"):
    server.stop()
    server.label = label
    server.start()


def test_a_new_process_with_old_weights_serves_only_after_it_was_brought_up_to_date(server, monkeypatch):
    """The first attempt is refused, the second fails, the third sends the weights."""
    monkeypatch.setattr(server_pool, "_REJOIN_AGAIN_S", 0.1)
    answers = [False, EngineError("the push failed"), True]
    calls = []

    def rejoin(address):
        calls.append((address, threading.current_thread().name, len(server.bodies)))
        answer = answers[len(calls) - 1]
        if isinstance(answer, EngineError):
            raise answer
        if answer:
            client.post(address, "/update_weight_version", {"new_version": "4/9"})
        return answer

    server.label = "4/9"
    with client_of(server) as client:
        client.pool.weight_label, client.pool.rejoin = "4/9", rejoin
        assert client.complete(PROMPT, SAMPLING).weight_version == 4
        server.stop()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.complete, PROMPT, SAMPLING)
            time.sleep(0.2)
            restart(server)
            assert waiting.result(timeout=9.0).weight_version == 4
    assert calls == [(server.address, f"rejoin-{server.address}", 1)] * 3
    assert len(server.bodies) == 2


def test_a_server_that_cannot_be_brought_up_to_date_stays_out_and_is_named(server):
    def rejoin(address):
        raise EngineError("no space left")

    with client_of(server, start_timeout_s=1.0) as client:
        client.pool.weight_label, client.pool.rejoin = "4/9", rejoin
        restart(server)
        with pytest.raises(EngineError, match=r"could not load the present weights.*no space left"):
            client.complete(PROMPT, SAMPLING)
    assert server.counts["served"] == 1  # what it sampled with old weights was not believed


def test_the_same_process_that_comes_back_needs_no_weights(server):
    failures = ["drop"]
    server.behave = lambda body: failures.pop() if failures else "serve"
    server.label = "4/9"
    with client_of(server) as client:
        client.pool.weight_label, client.pool.rejoin = "4/9", pytest.fail
        assert client.complete(PROMPT, SAMPLING).weight_version == 4
    assert len(server.bodies) == 2


def test_a_server_that_comes_back_paused_has_missed_something(server):
    failures, calls = ["drop"], []

    def rejoin(address):
        calls.append(address)
        client.post(address, "/resume")
        return True

    server.behave = lambda body: failures.pop() if failures else "serve"
    server.label, server.is_paused = "4/9", True
    with client_of(server) as client:
        client.pool.weight_label, client.pool.rejoin = "4/9", rejoin
        client.complete(PROMPT, SAMPLING)
    assert calls == [server.address]


@pytest.mark.parametrize("label", ["default", "4/8", "5/3"])
def test_unexpected_weights_of_a_server_are_detected_by_its_completion(server, label):
    """Also with those of the same version before the run went back to it, and with a later one's of another run."""
    server.label = label

    def rejoin(address):
        client.post(address, "/update_weight_version", {"new_version": "4/9"})
        return True

    with client_of(server) as client:
        client.pool.weight_label, client.pool.rejoin = "4/9", rejoin
        assert client.complete(PROMPT, SAMPLING).weight_version == 4
    assert len(server.bodies) == 2


def test_a_server_that_does_not_know_the_adapter_is_a_new_process(server):
    def rejoin(address):
        server.behave = lambda body: "serve"
        client.post(address, "/update_weight_version", {"new_version": "4/9"})
        return True

    server.behave = lambda body: (404, {"error": {"message": "The model `run-7` does not exist."}})
    with client_of(server) as client:
        client.adapter, client.pool.weight_label, client.pool.rejoin = "run-7", "4/9", rejoin
        assert client.complete(PROMPT, SAMPLING).weight_version == 4


def test_a_request_overtaken_by_the_next_adapter_uses_that_one(server):
    """Its server is not down for it: its health is not checked, and nothing is sent to it."""

    def behave(body):
        client.adapter = "run-8"
        return "serve" if body["model"] == "run-8" else (404, {"error": {"message": "no `run-7` any more"}})

    server.behave = behave
    with client_of(server) as client:
        client.adapter, client.pool.weight_label, client.pool.rejoin = "run-7", "default", pytest.fail
        client.complete(PROMPT, SAMPLING)
        assert client.pool.servers[server.address].problem == "no request yet"
    assert [body["model"] for body in server.bodies] == ["run-7", "run-8"]


def test_closing_ends_whoever_waits_and_refuses_whoever_comes(server):
    server.behave = lambda body: "hang"
    with client_of(server) as client, ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(client.complete, PROMPT, SAMPLING) for _ in range(4)]
        wait_for(lambda: len(server.bodies) == 4)
        client.close()
        for each in waiting:
            with pytest.raises(EngineError, match="was closed"):
                each.result(timeout=5.0)
        with pytest.raises(EngineError, match="was closed"):
            client.complete(PROMPT, SAMPLING)
        wait_for(lambda: server.counts["gone"] == 4)
