"""The client against a real vLLM server that `agent-rl serve-vllm` started.

The tests share it, in this order: the last two kill first the server and then the command.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from vllm_load import wait_for_load, wait_until_idle
from waiting import free_port

from agent_rl.errors import ConfigError
from agent_rl.inference.vllm.server_answers import RequestRefusedError
from agent_rl.inference.vllm.servers import VLLMServers
from agent_rl.records import FinishReason, SamplingParams

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "model" / "nat_minimind"
WINDOW = 2048
PROMPT = tuple(range(20, 60)) * 2
LONG_PROMPT = tuple(range(20, 60)) * 7
MAX_GAP = 1e-3
COMMAND = """
import typer
from agent_rl.scripts import common
from agent_rl.scripts.commands import serve_vllm
app = typer.Typer()
app.command()(serve_vllm.main)
common.run_app(app)
"""


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    flags = {
        "--model": MODEL,
        "--port": free_port(),
        "--max-context": WINDOW,
        "--max-batch-size": 8,
        "--dtype": "float32",
        "--log-dir": tmp_path_factory.mktemp("logs"),
    }
    command = [sys.executable, "-c", COMMAND, *(str(word) for pair in flags.items() for word in pair)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_CPU_KVCACHE_SPACE": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        process.address = f"http://127.0.0.1:{flags['--port']}"
        while not (line := process.stdout.readline()).startswith("vllm.servers"):
            assert line, "the command ended"
        assert line == f"vllm.servers: [{process.address}]\n"
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture
def client(launcher):
    with VLLMServers([launcher.address], request_timeout_s=200.0, start_timeout_s=150.0) as servers:
        yield servers


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


def forward_logprobs(model, prompt, token_ids, temperature=1.0):
    """Of a plain forward pass, [T, V]."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *token_ids]])).logits[0, len(prompt) - 1 : -1]
    return (logits.float() / temperature).log_softmax(-1)


def gap(model, prompt, sampled, temperature=1.0):
    """Largest difference between the log-probs recorded and those of a plain forward pass."""
    wanted = forward_logprobs(model, prompt, sampled.token_ids, temperature)
    chosen = wanted[torch.arange(len(sampled.token_ids)), torch.tensor(sampled.token_ids)]
    return (chosen - torch.tensor(sampled.logprobs)).abs().max().item()


def sampling(seed, num_tokens=16, **others):
    return SamplingParams(max_new_tokens=num_tokens, seed=seed, **others)


def test_the_server_can_serve_what_it_was_started_for_and_nothing_larger(client):
    needed = {"max_context": WINDOW, "dtype": "float32", "lora_rank": 0, "weight_transfer": "files"}
    client.wait_until_up(**needed)
    with pytest.raises(ConfigError, match=f"a window of {WINDOW} tokens, policy.max_context is 4096"):
        client.wait_until_up(**needed | {"max_context": 4096})
    with pytest.raises(ConfigError, match="--dtype bfloat16"):
        client.wait_until_up(**needed | {"dtype": "bfloat16"})
    with pytest.raises(ConfigError, match="serves no adapters"):
        client.wait_until_up(**needed | {"lora_rank": 8})
    with pytest.raises(ConfigError, match="--weight-transfer nccl"):
        client.wait_until_up(**needed | {"weight_transfer": "nccl"})


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_recorded_logprobs_are_those_of_a_plain_forward_pass_at_the_temperature_sampled_at(client, model, temperature):
    sampled = client.complete(PROMPT, sampling(7, 32, temperature=temperature))
    assert (len(sampled.token_ids), sampled.finish_reason) == (32, FinishReason.LENGTH)
    assert gap(model, PROMPT, sampled, temperature) < MAX_GAP


def test_temperature_0_takes_the_most_likely_id_and_records_the_logprob_of_temperature_1(client, model):
    sampled = client.complete(PROMPT, sampling(7, temperature=0.0))
    wanted = forward_logprobs(model, PROMPT, sampled.token_ids)
    assert sampled.token_ids == tuple(wanted.argmax(-1).tolist())
    assert gap(model, PROMPT, sampled) < MAX_GAP


def test_a_seed_repeats_a_sample_and_another_does_not(client):
    first, again, other = (client.complete(PROMPT, sampling(seed)) for seed in (2**63 - 1, 2**63 - 1, 5))
    assert first.token_ids == again.token_ids != other.token_ids


def test_a_stop_id_ends_a_completion_and_is_included_and_eos_alone_does_not(client):
    sampled = client.complete(PROMPT, sampling(7))
    stop = sampled.token_ids[5]
    stopped = client.complete(PROMPT, sampling(7, stop_token_ids=(stop,)))
    assert stopped.token_ids == sampled.token_ids[: sampled.token_ids.index(stop) + 1]
    assert stopped.finish_reason is FinishReason.STOP


def test_a_completion_ends_where_the_window_ends(client):
    prompt = PROMPT * 25 + PROMPT[:40]
    sampled = client.complete(prompt, sampling(7, 100))
    assert (len(sampled.token_ids), sampled.finish_reason) == (WINDOW - len(prompt), FinishReason.LENGTH)


def test_refused_prompts_report_the_reason(client):
    with pytest.raises(RequestRefusedError, match="out of vocabulary"):
        client.complete((10**6,), sampling(7))
    with pytest.raises(RequestRefusedError, match=f"maximum model length of {WINDOW}"):
        client.complete(PROMPT * 26, sampling(7))


def test_sixteen_threads_at_once_sample_what_each_samples_alone(client, model):
    """Up to rounding: a batch changes the last digits, which may change a sample that was close."""
    prompts = [PROMPT[seed:] for seed in range(16)]
    alone = [client.complete(prompt, sampling(seed)) for seed, prompt in enumerate(prompts)]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(client.complete, prompts, map(sampling, range(16))))
    assert max(gap(model, prompt, sampled) for prompt, sampled in zip(prompts, together, strict=True)) < MAX_GAP
    assert sum(one.token_ids == other.token_ids for one, other in zip(alone, together, strict=True)) >= 14


def test_a_probe_reports_cached_tokens_and_a_flush_empties_the_cache(client, launcher):
    client.post_all("/reset_prefix_cache")
    cold, warm = (client.probe(launcher.address, LONG_PROMPT, num_tokens=8, temperature=1.0, seed=3) for _ in range(2))
    assert (cold.num_cached, warm.num_cached) == (0, 256)
    client.post_all("/reset_prefix_cache")
    again = client.probe(launcher.address, LONG_PROMPT, num_tokens=8, temperature=1.0, seed=3)
    assert (again.num_cached, again.token_ids, again.where) == (0, cold.token_ids, launcher.address)


def test_cancelling_frees_the_server_at_once(client):
    cancel = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.complete, PROMPT, sampling(7, 1900), cancel)
        wait_for_load(client, 1)
        cancel.set()
        cancelled = waiting.result()
    assert (cancelled.token_ids, cancelled.finish_reason) == ((), FinishReason.CANCELLED)
    wait_until_idle(client)


def test_a_pause_interrupts_with_what_was_sampled_and_the_version_follows_the_weights(client, model):
    """`abort` ends requests, with a few tokens or none; `keep` goes on with them under the next version."""
    with ThreadPoolExecutor(10) as pool:
        waiting = [pool.submit(client.complete, PROMPT, sampling(seed, 1900)) for seed in range(10)]
        wait_for_load(client, 10)
        client.post_all("/pause", params={"mode": "abort"})
        cut = [each.result() for each in waiting]
        late = pool.submit(client.complete, PROMPT, sampling(1, 8))
        client.post_all("/update_weight_version", {"new_version": "3/1"})
        assert not late.done()
        client.post_all("/resume")
        assert late.result().weight_version == 3
        wait_until_idle(client)  # or the load that is seen next may still be that of `late`
        continued = pool.submit(client.complete, PROMPT, sampling(1, 1500))
        wait_for_load(client, 1)
        time.sleep(0.2)
        client.post_all("/pause", params={"mode": "keep"})
        client.post_all("/update_weight_version", {"new_version": "4/2"})
        client.post_all("/resume")
        mixed = continued.result()
    assert {each.finish_reason for each in cut} == {FinishReason.INTERRUPTED}
    assert min(len(each.token_ids) for each in cut) == 0  # two of ten waited for a place among eight
    assert max(gap(model, PROMPT, each) for each in cut if each.token_ids) < MAX_GAP
    assert {each.weight_version for each in cut} == {0}
    assert set(mixed.token_versions) == {3, 4} and len(mixed.token_versions) == 1500
    assert (mixed.weight_version, list(mixed.token_versions)) == (3, sorted(mixed.token_versions))


def group_of(launcher):
    """Processes in the group of the one server: those whose leader is a child of the launcher."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, group = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue
        if state != "Z":
            found.append((int(folder.name), int(parent), int(group)))
    leaders = {pid for pid, parent, _ in found if parent == launcher.pid}
    return leaders, {pid for pid, _, group in found if group in leaders}


def test_a_server_killed_in_the_middle_of_sixteen_completions_comes_back_and_none_is_lost(client, launcher, model):
    rejoined = []

    def rejoin(address):
        rejoined.append(client.get(address, "/weight_info"))
        client.post(address, "/update_weight_version", {"new_version": "4/2"})
        return True

    client.pool.weight_label, client.pool.rejoin = "4/2", rejoin
    leaders, members = group_of(launcher)
    assert len(leaders) == 1 and len(members) >= 4
    with ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(client.complete, PROMPT, sampling(seed, 1500)) for seed in range(16)]
        wait_for_load(client, 16)
        os.killpg(leaders.pop(), signal.SIGKILL)
        sampled = [each.result() for each in waiting]
    assert rejoined == [{"weight_version": "default"}]
    assert [len(each.token_ids) for each in sampled] == [1500] * 16
    assert {each.weight_version for each in sampled} == {4}
    assert max(gap(model, PROMPT, each) for each in sampled) < MAX_GAP
    alone = [client.complete(PROMPT, sampling(seed, 8)).token_ids for seed in range(16)]
    assert sum(each.token_ids[:8] == short for each, short in zip(sampled, alone, strict=True)) >= 14


def test_nothing_survives_the_command_when_it_is_killed(launcher):
    _, members = group_of(launcher)
    assert len(members) >= 4
    launcher.kill()
    deadline = time.monotonic() + 15.0
    while any(Path(f"/proc/{pid}").exists() for pid in members) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [pid for pid in members if Path(f"/proc/{pid}").exists()] == []
