"""Whether a run fits, what would make it fit, and the plans that the documentation shows."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from plan_jobs import H100, LARGE, make_config
from typer.testing import CliRunner

from agent_rl.config import load_config, parse_config
from agent_rl.errors import ConfigError
from agent_rl.planning.changes import Question, nearest_change
from agent_rl.planning.machine import GIB, Layout, find_gpu, read_layout, with_servers
from agent_rl.planning.question import ask, make_plan
from agent_rl.scripts.cli import app

ROOT = Path(__file__).resolve().parents[1]
EIGHT = ROOT / "configs/nat_grpo_8xh100.yaml"
FOUR_GPUS = ROOT / "configs/accelerate/zero3_offload_optimizer_4gpu.yaml"


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # the launcher's files name others from there


def test_layouts_are_read_from_the_launchers_files():
    assert read_layout(None) == Layout()
    assert read_layout(Path("configs/accelerate/ddp_8gpu.yaml")) == Layout(num_processes=8)
    layout = read_layout(FOUR_GPUS)
    assert (layout.num_processes, layout.zero_stage, layout.offload_optimizer, layout.offload_weights) == (
        4,
        3,
        True,
        False,
    )
    assert read_layout(Path("configs/accelerate/zero3_offload_8gpu.yaml")).offload_weights
    assert read_layout(Path("configs/accelerate/zero3_8gpu_2nodes.yaml")).processes_per_machine == 8


def test_every_launchers_file_is_read_and_a_missing_one_is_named(tmp_path):
    for path in sorted(Path("configs/accelerate").glob("*.yaml")):
        assert read_layout(path).num_processes > 1, path
    with pytest.raises(ConfigError, match=r"nowhere\.yaml does not exist"):
        read_layout(tmp_path / "nowhere.yaml")
    (tmp_path / "torn.yaml").write_text("distributed_type: DEEPSPEED\n")
    with pytest.raises(ConfigError, match="deepspeed_config_file"):
        read_layout(tmp_path / "torn.yaml")


def test_servers_and_their_gpus_must_go_together():
    layout = with_servers(Layout(), 2, num_gpus=4, tensor_parallel=None, share=0.8)
    assert (layout.num_servers, layout.tensor_parallel, layout.num_gpus, layout.server_share) == (2, 2, 5, 0.8)
    with pytest.raises(ConfigError, match="need 4 GPUs"):
        with_servers(Layout(), 2, num_gpus=5, tensor_parallel=None, share=0.8)
    with pytest.raises(ConfigError, match="there are none"):
        with_servers(Layout(), 0, num_gpus=4, tensor_parallel=None, share=0.8)


def test_a_gpu_that_nobody_knows_is_refused_by_name():
    assert find_gpu("A100", 40).memory == 40 * GIB
    with pytest.raises(ConfigError, match="'H999' is not in the table"):
        find_gpu("H999")


def eight(overrides: tuple[str, ...] = (), **changes) -> Question:
    options = {"launch": FOUR_GPUS, "num_gpus": 8, "servers": {"num_gpus": 4, "share": 0.8}} | changes
    return ask(EIGHT, overrides, **options)


@pytest.mark.parametrize(
    ("overrides", "changes", "wanted"),
    [
        (("train.micro_batch_tokens=131072",), {}, "train.micro_batch_tokens=32768"),
        (("model.gradient_checkpointing=false",), {}, "model.gradient_checkpointing=true"),
        (
            (),
            {"launch": ROOT / "configs/accelerate/zero2_8gpu.yaml", "num_gpus": 12},
            "zero_optimization of the --launch file's DeepSpeed settings: stage 3, offload_optimizer to cpu",
        ),
        (
            (),
            {"servers": {"num_gpus": 2, "share": 0.8}},
            "--tensor-parallel 2, with 1 of the addresses in vllm.servers",
        ),
        (
            (),
            {"servers": {"num_gpus": 4, "share": 0.95}},
            "--server-share 0.85 (agent-rl serve-vllm --gpu-memory-share)",
        ),
        ((), {"num_gpus": 7}, "num_processes 3 in the --launch file"),
    ],
)
def test_the_nearest_change_is_the_first_that_fits(overrides, changes, wanted):
    question = eight(overrides, **changes)
    assert not question.answer().is_enough(0.1)
    change = nearest_change(question)
    assert (change.text, change.fits) == (wanted, True)


def test_a_smaller_cache_adapters_or_more_gpus_are_named_where_nothing_less_helps(tmp_path):
    raw = make_config().model_dump(mode="json")

    def question(**sections) -> Question:
        path = tmp_path / "c.yaml"
        merged = {name: values | sections.get(name, {}) for name, values in raw.items()}
        path.write_text(parse_config(merged, source="test").to_yaml())
        return Question(
            load=lambda chosen: load_config(path, list(chosen)), overrides=(), shape=LARGE, layout=Layout(), gpu=H100
        )

    # 16 GB of bfloat16 weights with adapters, and a cache of 128 GB: 2^20 tokens of 131,072 bytes.
    half = {"dtype": "bfloat16", "lora": {"rank": 2}, "gradient_checkpointing": True}
    cached = question(model=half, policy={"max_cached_tokens": 2**20})
    assert nearest_change(cached).text == "policy.max_cached_tokens=262144"
    # Nothing helps against weights that must be held whole in bfloat16, beside adapters.
    huge = replace(cached, shape=replace(LARGE, num_weights=100 * 10**9))
    assert not nearest_change(huge).fits


def test_the_plan_of_eight_h100_fits_as_documented_with_a_tenth_to_spare():
    text = EIGHT.read_text()
    command = re.search(r"agent-rl (plan .*?)\n# By", text, re.DOTALL)[1].replace("\\\n#", " ")
    for where in (ROOT / "docs/planning.md",):
        assert "agent-rl " + " ".join(command.split()) in " ".join(where.read_text().replace("\\\n", " ").split())
    result = CliRunner().invoke(app, [*shlex.split(command), "--json"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.output)
    assert plan["fits"] and plan["headroom"] >= 0.10
    assert {place["name"] for place in plan["places"]} == {"GPU that trains", "GPU that serves", "machine's memory"}
    assert [round(100 * place["headroom"]) for place in plan["places"]] == [18, 15, 68]
    assert plan["tokens"]["num_episodes"] == 512
    assert 1500 < plan["seconds"]["step"] < 2500
    shown = CliRunner().invoke(app, shlex.split(command))
    assert "It fits, with 15% head-room where it is tightest" in shown.output


def test_what_does_not_fit_says_what_would_and_exits_with_1():
    result = CliRunner().invoke(
        app, ["plan", "--config", str(EIGHT), "--launch", str(FOUR_GPUS), "--server-gpus", "4", "--gpus", "8"]
    )
    assert result.exit_code == 1
    assert "The nearest change that fits: --server-share 0.85" in result.output


def test_one_gpu_runs_as_documented():
    for arguments in ([], ["--gpu", "L4"], ["model.path=Qwen/Qwen2.5-Coder-7B-Instruct"]):
        plan = CliRunner().invoke(app, ["plan", "--config", "configs/nat_grpo_1gpu.yaml", *arguments])
        assert plan.exit_code == 0, plan.output


def test_the_default_run_is_planned_for_a_cpu_without_times():
    plan = make_plan(ask(ROOT / "configs/nat_grpo.yaml", ("run.device=cpu",), machine_memory=8))
    assert plan.fits and plan.times is None
    assert [place.name for place in plan.fit.places] == ["process on a CPU"]
    assert not make_plan(ask(ROOT / "configs/nat_grpo.yaml", ("run.device=cpu",), machine_memory=0.5)).fits
