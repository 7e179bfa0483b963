"""`agent-rl eval` with vLLM and no model beside it: the weights of a real server, an engine that reads them alone."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from waiting import free_port

from agent_rl.errors import ConfigError, EngineError
from agent_rl.inference.vllm.servers import VLLMServers
from agent_rl.scripts.evaluate_model import main

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[4]
NUM_TASKS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two models, of which one is a little changed."""
    made = tmp_path_factory.mktemp("served")
    for name in ("model", "other"):
        shutil.copytree(ROOT / "model/math_minimind", made / name)
    path = made / "other/model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"] = weights["model.norm.weight"] * 1.5
    save_file(weights, path, metadata={"format": "pt"})
    return made


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Of a server that was started with `model`."""
    from watched_servers import one_server

    from agent_rl.inference.vllm.server.launch_plan import ServeOptions

    options = ServeOptions(
        model=str(folder / "model"),
        port=free_port(),
        max_context=640,
        max_batch_size=16,
        dtype="float32",
        log_dir=folder / "logs",
    )
    with one_server(options) as started:
        yield started


def write_config(folder: Path, kind: str, *, model: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Path:
    raw = yaml.safe_load((ROOT / "configs/math_grpo.yaml").read_text(encoding="utf-8"))
    raw["run"]["device"] = "cpu"
    raw["policy"] = {"type": kind, "max_context": 640, "max_new_tokens": 512}
    raw["model"] |= {"path": str(folder / "model")} | (model or {})
    for section in ("data", "tools"):
        for key, value in raw.get(section, {}).items():
            if isinstance(value, str) and (ROOT / value).exists():
                raw[section][key] = str(ROOT / value)
    path = folder / f"{kind}.yaml"
    path.write_text(yaml.safe_dump({**raw, **sections}), encoding="utf-8")
    return path


def evaluated(config: Path, output: Path, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    """What was said in every episode, and the report."""
    main(config, output, max_tasks=NUM_TASKS, **options)
    lines = (output / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    report = json.loads((output / "report.json").read_text(encoding="utf-8"))
    return [json.loads(line)["messages"] for line in lines], report


def test_a_server_is_evaluated_with_the_weights_it_has(
    folder: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(folder, "vllm", vllm={"servers": [address]})
    expected, _ = evaluated(write_config(folder, "huggingface"), folder / "here")
    with monkeypatch.context() as patched:
        patched.setattr(AutoModelForCausalLM, "from_pretrained", None)
        found, report = evaluated(config, folder / "served", served=True)
        with pytest.raises(ConfigError, match=r"has other weights than .*other: model\.norm\.weight float32"):
            main(config, folder / "refused", checkpoint=[str(folder / "other")], served=True)
        found_twice, sampled = evaluated(config, folder / "pass_at_2", samples=2, served=True)
    assert found == expected
    assert "by their checksums" in report["environment"]["weights"]
    assert len(found_twice) == 2 * NUM_TASKS
    assert list(sampled["summary"]["pass_at_k"]) == ["1", "2"]


def test_weights_that_were_sent_are_known_too(folder: Path, address: str) -> None:
    """Behind the one above: the server has others from here on."""
    config, other = write_config(folder, "vllm", vllm={"servers": [address]}), str(folder / "other")
    sent, _ = evaluated(config, folder / "sent", checkpoint=[other])
    found, report = evaluated(config, folder / "as_sent", checkpoint=[other], served=True)
    assert found == sent
    assert "by their checksums" in report["environment"]["weights"]
    with pytest.raises(ConfigError, match=r"has other weights than .*model: model\.norm\.weight float32"):
        main(config, folder / "no_more", served=True)


def test_a_worker_without_the_method_says_so_and_lives_on(address: str) -> None:
    """As one of an earlier version is without `agent_rl_weights`."""

    def ask(method: str) -> Any:
        with VLLMServers([address], request_timeout_s=60.0, start_timeout_s=60.0) as servers:
            return servers.post(address, "/collective_rpc", {"method": method})["results"]

    with pytest.raises(EngineError, match="500"):
        ask("agent_rl_unknown")
    (answer,) = ask("agent_rl_weights")
    assert set(answer) == {"checksums"}


def test_an_engine_in_the_process_reads_the_model_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = str(folder / "other")
    expected, _ = evaluated(write_config(folder, "huggingface"), folder / "other_here", checkpoint=[other])
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    config = write_config(folder, "vllm")
    found, report = evaluated(config, folder / "other_inside", checkpoint=[other])
    assert found == expected
    assert "weights" not in report["environment"]


def test_adapters_are_put_on_the_engine_in_the_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiny_models import with_adapters
    from transformers import AutoTokenizer

    torch.manual_seed(0)
    adapted = with_adapters(AutoModelForCausalLM.from_pretrained(folder / "model"))
    adapted.save_pretrained(folder / "adapters")
    AutoTokenizer.from_pretrained(folder / "model").save_pretrained(folder / "adapters")
    lora = {"lora": {"rank": 4, "alpha": 8}}
    named = str(folder / "adapters")
    config = write_config(folder, "huggingface", model=lora)
    expected, _ = evaluated(config, folder / "adapted_here", checkpoint=[named])
    plain, _ = evaluated(config, folder / "plain_here")
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    found, _ = evaluated(write_config(folder, "vllm", model=lora), folder / "adapted_inside", checkpoint=[named])
    assert found == expected != plain
