"""Policies for using a model as it is: in the process, and over servers that loaded the weights themselves."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_vllm_server import FakeVLLMServer

from agent_rl.agent.messages import Message
from agent_rl.config import Config, parse_config
from agent_rl.distributed.checksums import checksum
from agent_rl.distributed.model_checksums import checksums_of_model
from agent_rl.errors import CheckpointError, ConfigError, EngineError
from agent_rl.policies.hf_policy import ADAPTER_FILE
from agent_rl.policies.make_policy import make_in_process_policy
from agent_rl.policies.model_source import ModelSource
from agent_rl.policies.remote_policy import RemotePolicy
from agent_rl.policies.served_policy import open_checked_policy, open_served_policy
from agent_rl.records import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "model/nat_minimind")


def config(kind: str = "minimind", **sections: dict[str, Any]) -> Config:
    raw = {
        "run": {"device": "cpu"},
        "data": {"train_path": "a", "eval_path": "b"},
        "env": {"name": "nat_agent_creation"},
        "train": {"steps": 1, "learning_rate": 0.001},
        "model": {"path": MODEL},
        "policy": {"type": kind},
    }
    return parse_config({**raw, **sections}, source="test")


def served_by(*servers: FakeVLLMServer, start_timeout_s: float = 5.0) -> Config:
    addresses = [server.address for server in servers]
    return config("vllm", vllm={"servers": addresses, "start_timeout_s": start_timeout_s})


def test_a_model_in_the_process_samples_as_in_training() -> None:
    source = ModelSource.find(config(), None)
    served = open_served_policy(source)
    trained = make_in_process_policy(config(), device=torch.device("cpu"))
    prompt = served.chat_format.render_prompt([Message.user("Build it.")])
    sampling = SamplingParams(max_new_tokens=8, temperature=0.0)
    try:
        assert served.generate(prompt, sampling).token_ids == trained.generate(prompt, sampling).token_ids
    finally:
        served.close()
        trained.close()
    assert len(source.digest() or "") == 64


def test_servers_sample_with_the_weights_they_have(server: FakeVLLMServer, other: FakeVLLMServer) -> None:
    policy = open_served_policy(ModelSource.find(served_by(server, other), None))
    try:
        assert isinstance(policy, RemotePolicy)
        completion = policy.generate([1, 2], SamplingParams(max_new_tokens=3, seed=40))
        assert completion.token_ids == (40, 41, 42)
    finally:
        policy.close()
    sent = {path for path, _ in [*server.calls, *other.calls]}
    assert not {path for path in sent if "weight" in path or "rpc" in path}  # nothing is loaded or named anew


def test_servers_of_a_run_are_refused(server: FakeVLLMServer) -> None:
    server.label = "7/3"
    with pytest.raises(ConfigError, match="weights that a run sent it"):
        open_served_policy(ModelSource.find(served_by(server), None))


def test_a_server_whose_weights_change_later_is_believed_no_more(server: FakeVLLMServer) -> None:
    policy = open_served_policy(ModelSource.find(served_by(server, start_timeout_s=0.5), None))
    try:
        server.label = "1/1"
        with pytest.raises(EngineError, match="could not load the present weights"):
            policy.generate([1, 2], SamplingParams(max_new_tokens=3, seed=40))
    finally:
        policy.close()


def test_what_cannot_be_served_is_one_sentence(tmp_path: Path) -> None:
    own = ModelSource.find(config("my_module:make"), None)
    with pytest.raises(ConfigError, match="minimind, huggingface or vllm"):
        open_served_policy(own)
    with pytest.raises(CheckpointError, match="no such file or folder"):
        ModelSource.find(config(), str(tmp_path / "none"))
    (tmp_path / ADAPTER_FILE).write_bytes(b"")
    adapters = ModelSource.find(served_by(FakeVLLMServer(port=9)), str(tmp_path))
    with pytest.raises(ConfigError, match="adapters"):
        open_served_policy(adapters)


def test_weights_that_a_run_sent_will_do_where_they_are_compared(server: FakeVLLMServer, other: FakeVLLMServer) -> None:
    server.label = other.label = "7/3"
    server.weights = other.weights = [{"checksums": checksums_of_model(MODEL, torch.float32)}]
    policy, check = open_checked_policy(ModelSource.find(served_by(server, other, start_timeout_s=0.5), None))
    try:
        assert (check.label, check.unknown) == ("7/3", {})
        completion = policy.generate([1, 2], SamplingParams(max_new_tokens=3, seed=40))
        assert (completion.token_ids, completion.weight_version) == ((40, 41, 42), 7)
        server.label = other.label = "8/4"  # the run goes on
        with pytest.raises(EngineError):
            policy.generate([1, 2], SamplingParams(max_new_tokens=3, seed=40))
    finally:
        policy.close()


def test_other_weights_are_refused(server: FakeVLLMServer) -> None:
    sums = checksums_of_model(MODEL, torch.float32)
    server.weights = [{"checksums": sums | {"model.norm.weight": checksum(torch.ones(256))}}]
    with pytest.raises(ConfigError, match=r"has other weights than .*nat_minimind: model\.norm\.weight float32"):
        open_checked_policy(ModelSource.find(served_by(server), None))
