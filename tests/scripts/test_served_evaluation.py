"""`agent-rl eval --served`: servers are sampled from with the weights they have, over servers without a model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fake_vllm_server import FakeVLLMServer
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model
from transformers import AutoModelForCausalLM

from agent_rl.data.tasks import write_tasks
from agent_rl.distributed.model_checksums import checksums_of_model
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.registry import register_env
from agent_rl.errors import ConfigError
from agent_rl.scripts.evaluate_model import main

register_env("served_letters")(lambda _options, _seed: EnvFactory(LetterEnv))


def write_config(folder: Path, *servers: FakeVLLMServer) -> Path:
    """Of servers whose workers say that they have the tiny model in `folder`/model."""
    save_tiny_model(folder / "model")
    write_tasks(folder / "tasks.jsonl", LETTER_TASKS)
    for server in servers:
        server.weights = [{"checksums": checksums_of_model(folder / "model", torch.float32)}]
    raw = {
        "run": {"device": "cpu"},
        "data": {"train_path": str(folder / "tasks.jsonl"), "eval_path": str(folder / "tasks.jsonl")},
        "env": {"name": "served_letters"},
        "model": {"path": str(folder / "model")},
        "policy": {"type": "vllm", "max_new_tokens": 24, "max_context": 64, "temperature": 0.7},
        "train": {"steps": 1, "learning_rate": 0.001},
    }
    if servers:
        raw["vllm"] = {"servers": [server.address for server in servers]}
    (folder / "config.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    return folder / "config.yaml"


def report_of(output: Path) -> dict[str, Any]:
    return json.loads((output / "report.json").read_text(encoding="utf-8"))


def lines_of(output: Path) -> list[str]:
    return (output / "episodes.jsonl").read_text(encoding="utf-8").splitlines()


def test_servers_are_evaluated_with_the_weights_they_have_and_no_model_is_read(
    tmp_path: Path,
    server: FakeVLLMServer,
    other: FakeVLLMServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, output = write_config(tmp_path, server, other), tmp_path / "out"
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    main(config, output, samples=3, served=True)
    sentence = report_of(output)["environment"]["weights"]
    assert server.address in sentence and other.address in sentence and "by their checksums" in sentence
    assert sentence in capsys.readouterr().out.replace("\n", " ")
    assert sentence in (output / "report.html").read_text(encoding="utf-8")
    assert report_of(output)["settings"]["model"]["weights"] == "as vllm.servers had them"
    assert sorted(report_of(output)["summary"]["pass_at_k"], key=int) == ["1", "2", "3"]
    assert len(lines_of(output)) == 12
    drawn = [body["sampling_params"] for each in (server, other) for body in each.bodies]
    assert {params["temperature"] for params in drawn if "allowed_token_ids" not in params} == {0.7}
    assert [path for path, _ in server.calls] == ["/collective_rpc"]
    main(config, tmp_path / "greedy", temperature=0.0, served=True)
    assert server.bodies[-1]["sampling_params"]["temperature"] == 0.0
    other.stop()  # nothing is asked of them once all episodes are there
    main(config, output, samples=3, served=True)
    assert report_of(output)["environment"]["weights"] == sentence


def test_servers_with_other_weights_are_not_evaluated(tmp_path: Path, server: FakeVLLMServer) -> None:
    config = write_config(tmp_path, server)
    save_tiny_model(tmp_path / "other", seed=1)
    with pytest.raises(ConfigError, match=rf"{server.address} has other weights than {tmp_path}/other"):
        main(config, tmp_path / "out", checkpoint=[str(tmp_path / "other")], served=True)
    assert not (tmp_path / "out/environment.json").exists()
    assert lines_of(tmp_path / "out") == []


def test_weights_that_cannot_be_compared_are_evaluated_and_it_says_so(
    tmp_path: Path, server: FakeVLLMServer, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, server)
    server.weights = None
    main(config, tmp_path / "out", served=True)
    assert "could not be checked" in capsys.readouterr().out
    assert "could not be checked" in report_of(tmp_path / "out")["environment"]["weights"]


def test_served_is_refused_where_no_server_has_the_model(tmp_path: Path, server: FakeVLLMServer) -> None:
    with pytest.raises(ConfigError, match=r"vllm\.servers="):
        main(write_config(tmp_path), tmp_path / "out", served=True)
    config = write_config(tmp_path, server)
    with pytest.raises(ConfigError, match="--compare"):
        main(config, tmp_path / "out", baseline="model/nat_minimind", served=True)
    with pytest.raises(ConfigError, match="elsewhere"):
        main(config, tmp_path / "out", checkpoint=["openai:m@http://127.0.0.1:9/v1"], served=True)
