"""Policies by name or import path, and the capabilities of the inference engine that a configuration names."""

from pathlib import Path

import pytest
from fake_vllm_server import FakeVLLMServer
from tiny_models import save_tiny_causal_lm

from agent_rl.config import Config, load_config
from agent_rl.config.engines import ENGINES, POLICIES, EngineCapabilities, EngineSection
from agent_rl.distributed.backend import Backend
from agent_rl.errors import ConfigError
from agent_rl.policies.hf_policy import ADAPTER_FILE, HuggingFaceModel
from agent_rl.policies.make_policy import load_reference_model, make_policy
from agent_rl.records import SamplingParams

MINIMAL = """data: {train_path: a, eval_path: b}
model: {path: m}
env: {name: nat_agent_creation}
train: {steps: 3, learning_rate: 0.001}
"""
OWN_POLICY = """
def make(config, backend, *, run_folder, checkpoint):
    return ("model", config.model.path, checkpoint), ("policy", str(backend.device), run_folder.name)
"""


def config_with(folder: Path, *overrides: str) -> Config:
    path = folder / "c.yaml"
    path.write_text(MINIMAL)
    return load_config(path, overrides)


def test_a_policy_comes_from_an_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policy_of_a_user.py").write_text(OWN_POLICY)
    monkeypatch.syspath_prepend(tmp_path)
    config = config_with(tmp_path, "policy.type=policy_of_a_user:make")
    assert config.engine == EngineCapabilities()
    made = make_policy(config, Backend("cpu"), run_folder=tmp_path / "run", checkpoint=tmp_path)
    assert made == (("model", "m", tmp_path), ("policy", "cpu", "run"))


@pytest.mark.parametrize(("given", "sentence"), [("vlm", "'vllm'"), ("mine", "minimind")])
def test_an_unknown_policy_is_refused_with_the_known_names(tmp_path: Path, given: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=rf"policy\.type = '{given}'.*{sentence}"):
        config_with(tmp_path, f"policy.type={given}")


def test_an_import_path_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    config = config_with(tmp_path, "policy.type=policy_of_no_one:make")
    with pytest.raises(ConfigError, match="policy_of_no_one"):
        make_policy(config, Backend("cpu"), run_folder=tmp_path)


def test_every_engine_is_a_policy_with_a_section_of_its_own() -> None:
    for name in ENGINES.names():
        assert name in POLICIES
        assert issubclass(Config.model_fields[name].annotation, EngineSection)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {}),
        (["policy.type=huggingface"], {}),
        (["policy.type=vllm"], {"sleeps": True}),
        (["policy.type=vllm", "vllm.sleep=false"], {"sleeps": False}),
        (["policy.type=vllm", "vllm.servers=[http://a:1]"], {"servers": ("http://a:1",), "sends_files": True}),
        (
            ["policy.type=vllm", "vllm.servers=[http://a:1]", "vllm.weight_transfer=nccl"],
            {"servers": ("http://a:1",), "needs_gpus": True},
        ),
        (
            ["policy.type=vllm", "vllm.servers=[http://a:1]", "vllm.weight_folder=w"],
            {"servers": ("http://a:1",), "sends_files": True, "weight_folder": Path("w")},
        ),
    ],
)
def test_capabilities_follow_the_settings(tmp_path: Path, overrides: list[str], expected: dict[str, object]) -> None:
    is_remote = "policy.type=vllm" in overrides
    own = {"has_own_weights": True, "supports_async": True, "gpu_memory_share": 0.5} if is_remote else {}
    assert config_with(tmp_path, *overrides).engine == EngineCapabilities(**own, **expected)


def test_an_engine_of_servers_is_a_policy_that_is_sent_weights(tmp_path: Path) -> None:
    save_tiny_causal_lm(tmp_path / "model")
    with FakeVLLMServer() as server:
        servers = f"vllm.servers=[{server.address}]"
        sizes = ("policy.max_context=64", "policy.max_new_tokens=24")
        config = config_with(tmp_path, "policy.type=vllm", servers, f"model.path={tmp_path / 'model'}", *sizes)
        model, policy = make_policy(config, Backend("cpu"), run_folder=tmp_path)
        assert isinstance(model, HuggingFaceModel)
        assert policy.remote_engine is not None
        assert policy.remote_engine.is_shared
        completion = policy.generate((3, 1, 4), SamplingParams(max_new_tokens=3, seed=41))
        assert len(completion.token_ids) == 3
        policy.close()


def test_adapters_to_start_from_are_no_reference_of_a_kl(tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    of_run = (f"model.path={start}", "policy.type=huggingface", "model.lora.rank=4")
    with_kl = config_with(tmp_path, *of_run, "algorithm.kl.coef=0.1")
    assert load_reference_model(with_kl, Backend("cpu")) is None
    (start / ADAPTER_FILE).write_text("{}")
    assert load_reference_model(config_with(tmp_path, *of_run), Backend("cpu")) is None
    with pytest.raises(ConfigError, match=r"algorithm\.kl\.coef = 0\.1: .*start holds adapters"):
        load_reference_model(with_kl, Backend("cpu"))
