"""Whether a run fits, what would make it fit, and the plans that the documentation shows."""

import importlib.util
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
from agent_rl.planning.changes import nearest_change
from agent_rl.planning.gpus import find_gpu
from agent_rl.planning.layout import Layout, read_layout, with_servers
from agent_rl.planning.machine import GIB, Machine, read_machine
from agent_rl.planning.plan import PlannedRun, make_plan, read_run
from agent_rl.scripts.cli import app

ROOT = Path(__file__).resolve().parents[2]
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
    two_machines = read_layout(Path("configs/accelerate/zero3_8gpu_2nodes.yaml"))
    assert (two_machines.processes_per_machine, two_machines.second_shards) == (8, 8)
    assert layout.second_shards == 0


def test_a_second_copy_of_the_weights_must_divide_the_processes(tmp_path):
    settings = {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}
    (tmp_path / "zero.json").write_text(json.dumps(settings))
    launch = tmp_path / "launch.yaml"

    def layout(num: int) -> Layout:
        named = f"deepspeed_config: {{deepspeed_config_file: {tmp_path / 'zero.json'}}}\n"
        launch.write_text(f"distributed_type: DEEPSPEED\nnum_processes: {num}\n{named}")
        return read_layout(launch)

    assert [layout(num).second_shards for num in (16, 8, 2, 1)] == [8, 8, 2, 0]
    with pytest.raises(ConfigError, match=r"zero_hpz_partition_size is 8, and 12 processes"):
        layout(12)


def test_every_launchers_file_is_read_and_a_missing_one_is_named(tmp_path):
    for path in sorted(Path("configs/accelerate").glob("*.yaml")):
        assert read_layout(path).num_processes > 1, path
    with pytest.raises(ConfigError, match=r"nowhere\.yaml does not exist"):
        read_layout(tmp_path / "nowhere.yaml")
    (tmp_path / "torn.yaml").write_text("distributed_type: DEEPSPEED\n")
    with pytest.raises(ConfigError, match="deepspeed_config_file"):
        read_layout(tmp_path / "torn.yaml")


def test_servers_and_their_gpus_must_go_together():
    layout = with_servers(Layout(), 2, Machine(server_gpus=4, server_share=0.8))
    assert (layout.num_servers, layout.tensor_parallel, layout.num_gpus, layout.server_share) == (2, 2, 5, 0.8)
    with pytest.raises(ConfigError, match="need 4 GPUs"):
        with_servers(Layout(), 2, Machine(server_gpus=5))
    with pytest.raises(ConfigError, match=r"vllm\.servers"):
        with_servers(Layout(), 0, Machine(server_gpus=4))


@pytest.mark.parametrize(
    ("launch", "zero", "sentence"),
    [
        ("num_processes: auto", None, "num_processes is 'auto'; expected a whole number, at least 1"),
        ("num_machines: 0", None, "num_machines is 0; expected a whole number, at least 1"),
        ("deepspeed_config: x", None, "deepspeed_config is 'x'; expected a section"),
        ("", '{"zero_optimization": {"stage": 3, "offload_optimizer": "cpu"}}', "offload_optimizer is 'cpu'; expected"),
        ("", '{"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}', "device is 'nvme'"),
        ("", '{"zero_optimization": {"stage": 2, "reduce_bucket_size": "5e8"}}', "reduce_bucket_size is '5e8'"),
        ("", '{"zero_optimization": {"stage": "3"}}', "stage is '3'; expected 1, 2 or 3"),
        ("", '{"zero_optimization": []}', "zero_optimization is \\[\\]; expected a section"),
    ],
)
def test_a_wrong_value_of_a_file_is_a_sentence(tmp_path, launch, zero, sentence):
    path, settings = tmp_path / "launch.yaml", tmp_path / "zero.json"
    settings.write_text(zero or "{}")
    named = "" if launch.startswith("deepspeed") else f"\ndeepspeed_config: {{deepspeed_config_file: {settings}}}"
    path.write_text(f"distributed_type: DEEPSPEED\n{launch}{named}\n")
    with pytest.raises(ConfigError, match=sentence):
        read_layout(path)


def test_a_folder_is_no_launchers_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read \\(Is a directory\\)"):
        read_layout(tmp_path)


def test_bucket_sizes_may_be_written_as_floats(tmp_path):
    settings = tmp_path / "zero.json"
    settings.write_text('{"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}}')
    (tmp_path / "l.yaml").write_text(
        f"distributed_type: DEEPSPEED\ndeepspeed_config: {{deepspeed_config_file: {settings}}}\n"
    )
    assert read_layout(tmp_path / "l.yaml").reduce_elements == 500_000_000


def test_gpus_are_found_by_the_names_that_drivers_give_them():
    names = {
        "NVIDIA A100-SXM4-40GB": 39,
        "NVIDIA A100-PCIE-40GB": 39,
        "NVIDIA A100-SXM4-80GB": 79,
        "NVIDIA H100 80GB HBM3": 79,
        "NVIDIA H100 NVL": 93,
        "NVIDIA GeForce RTX 4090": 23.5,
        "RTX4090": 23.5,
        "rtx-4090": 23.5,
        "4090": 23.5,
        "h100": 79,
        "H100PCIe": 79,
        "a100 40gb": 39,
    }
    assert {name: find_gpu(name).memory / GIB for name in names} == names
    assert read_machine(None, ["gpu=4090"]).gpu == "4090"  # a number in YAML


def test_an_unknown_gpu_is_offered_what_works():
    with pytest.raises(ConfigError) as raised:
        find_gpu("V100")
    offered = re.search(r"the one of (.*) that is nearest", str(raised.value))[1].split(", ")
    assert len(offered) > 10
    for name in offered:
        assert find_gpu(name, 32).memory == 32 * GIB


def test_an_unknown_gpu_is_refused_by_name():
    assert find_gpu("A100", 40).memory == 40 * GIB
    with pytest.raises(ConfigError, match="'H999' is not in the table"):
        find_gpu("H999")


def eight(overrides: tuple[str, ...] = (), **changes) -> PlannedRun:
    keys = {"launch": FOUR_GPUS, "gpus": 8, "memory_gib": 2000, "server_gpus": 4, "server_share": 0.8} | changes
    return read_run(EIGHT, overrides, Machine(**keys))


@pytest.mark.parametrize(
    ("overrides", "changes", "wanted"),
    [
        (("train.micro_batch_tokens=131072",), {}, "train.micro_batch_tokens=32768"),
        (("model.gradient_checkpointing=false",), {}, "model.gradient_checkpointing=true"),
        (
            (),
            {"launch": ROOT / "configs/accelerate/zero2_8gpu.yaml", "gpus": 12},
            f"zero_optimization in the DeepSpeed settings of {ROOT}/configs/accelerate/zero2_8gpu.yaml: "
            "stage 3, offload_optimizer to cpu",
        ),
        (
            (),
            {"server_gpus": 2},
            "tensor_parallel=2, with 1 of the addresses in vllm.servers",
        ),
        (
            (),
            {"server_share": 0.95},
            "server_share=0.85 (agent-rl serve-vllm --gpu-memory-share)",
        ),
        ((), {"gpus": 7}, "num_processes 3 in the launcher's file"),
    ],
)
def test_the_nearest_change_is_the_first_that_fits(overrides, changes, wanted):
    run = eight(overrides, **changes)
    assert not run.check_fit().is_enough(0.1)
    change = nearest_change(run)
    assert (change.text, change.fits) == (wanted, True)


def test_a_smaller_cache_adapters_or_more_gpus_are_named_where_nothing_less_helps(tmp_path):
    raw = make_config().model_dump(mode="json")

    def run(**sections) -> PlannedRun:
        sections["train"] = {"autocast": "bfloat16"}
        path = tmp_path / "c.yaml"
        merged = raw | {name: raw[name] | values for name, values in sections.items()}
        path.write_text(parse_config(merged, source="test").to_yaml())
        return PlannedRun(
            load=lambda chosen: load_config(path, list(chosen)), overrides=(), shape=LARGE, layout=Layout(), gpu=H100
        )

    # 16 GB of bfloat16 weights with adapters, and a cache of 128 GB: 2^20 tokens of 131,072 bytes.
    half = {"dtype": "bfloat16", "lora": {"rank": 2}, "gradient_checkpointing": True}
    cached = run(model=half, policy={"max_cached_tokens": 2**20})
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
    assert [round(100 * place["headroom"]) for place in plan["places"]] == [21, 15, 62]
    assert plan["tokens"]["num_episodes"] == 512
    # Servers hold all concurrent episodes, so that no context is read twice.
    assert plan["seconds"]["slots"] == 20
    assert round(plan["seconds"]["step"] / 60) == 36 and "takes 36 minutes a step" in text.replace("\n# ", " ")
    assert round(plan["weight_files"] / GIB) == 122
    shown = CliRunner().invoke(app, shlex.split(command))
    assert "It fits, with 15% headroom where it is tightest" in shown.output


def test_a_run_that_does_not_fit_gets_a_change_and_exit_code_1():
    result = CliRunner().invoke(
        app,
        [
            *("plan", "--config", str(EIGHT), "--machine", "configs/machines/8xh100.yaml"),
            *("--set", "server_share=0.9"),
        ],
    )
    assert result.exit_code == 1
    assert "The nearest change that fits: server_share=0.85" in result.output


def test_an_engine_inside_the_process_must_hold_one_window():
    def run(share: float, **keys) -> PlannedRun:
        overrides = ("model.path=Qwen/Qwen2.5-Coder-7B-Instruct", f"vllm.gpu_memory_share={share}")
        return read_run(ROOT / "configs/nat_grpo_1gpu.yaml", overrides, Machine(**keys))

    # 14.2 GiB of weights, 2 of workspace, 0.9 for 16,384 tokens: 17.1 of 79 GiB are a share of 0.216.
    assert any("holds 0 tokens, fewer than one window" in line for line in run(0.15).check_fit().problems)
    assert run(0.21).check_fit().problems and not run(0.22).check_fit().problems
    change = nearest_change(run(0.15))
    assert (change.text, change.fits) == ("vllm.gpu_memory_share=0.25", True)
    # On 40 GB: a share of 0.4 would leave headroom, but not even room for the weights.
    small = nearest_change(run(0.6, gpu="NVIDIA A100-SXM4-40GB"))
    assert not small.fits and small.num_problems == 0


def test_where_one_gpu_does_not_hold_the_weights_that_generate_the_plan_names_servers():
    def verdict(gib: float) -> str:
        run = read_run(
            ROOT / "configs/nat_grpo_1gpu.yaml",
            ("model.path=Qwen/Qwen2.5-Coder-32B-Instruct",),
            Machine(gpu_memory_gib=gib),
        )
        return make_plan(run).verdict

    assert "serve-vllm" in verdict(60) and "serve-vllm" not in verdict(62)  # 32.8e9 weights of 2 bytes: 61.03 GiB


def test_offloading_is_planned_only_with_the_machines_memory():
    with pytest.raises(ConfigError, match="memory_gib"):
        eight(memory_gib=None).check_fit()
    zero_2 = {"launch": ROOT / "configs/accelerate/zero2_8gpu.yaml", "gpus": 12}
    assert "offload" not in nearest_change(eight(memory_gib=None, **zero_2)).text
    # 580 GiB of an optimizer are no change that fits 300.
    assert not nearest_change(eight(memory_gib=300, **zero_2)).fits


def test_a_server_spans_as_many_gpus_as_divide_its_heads():
    # 40 heads, 8 of keys and values.
    with pytest.raises(ConfigError, match="tensor_parallel 3"):
        eight(server_gpus=6).check_fit()
    # 5 divides 40 heads, but neither 8 by 5 nor 5 by 8.
    with pytest.raises(ConfigError, match="tensor_parallel 5"):
        eight(server_gpus=10, gpus=14).check_fit()
    assert not eight(server_gpus=8, gpus=12).check_fit().problems


def test_one_gpu_runs_as_documented():
    for arguments in ([], ["--set", "gpu=L4"], ["model.path=Qwen/Qwen2.5-Coder-7B-Instruct"]):
        plan = CliRunner().invoke(app, ["plan", "--config", "configs/nat_grpo_1gpu.yaml", *arguments])
        assert plan.exit_code == 0, plan.output


def test_the_default_run_is_planned_for_a_cpu_without_times():
    plan = make_plan(read_run(ROOT / "configs/nat_grpo.yaml", ("run.device=cpu",), Machine(memory_gib=8)))
    assert plan.fits and plan.times is None
    assert [place.name for place in plan.fit.places] == ["process on a CPU"]
    assert not make_plan(read_run(ROOT / "configs/nat_grpo.yaml", ("run.device=cpu",), Machine(memory_gib=0.5))).fits
    unknown = make_plan(read_run(ROOT / "configs/nat_grpo.yaml", ("run.device=cpu",)))
    assert "1.5 GiB" in unknown.verdict and "memory_gib" in unknown.verdict


def test_a_machine_is_a_file_with_overrides_in_order():
    machine = read_machine(Path("configs/machines/8xh100.yaml"), ["gpus=4", "gpu=A100", "gpus=6"])
    assert (machine.gpus, machine.gpu, machine.server_gpus) == (6, "A100", 4)
    assert read_machine(None) == Machine()
    for path in Path("configs/machines").glob("*.yaml"):
        assert find_gpu(read_machine(path).gpu)


@pytest.mark.parametrize(
    ("setting", "facts"),
    [
        ("gpu_s=4", ("'gpu_s'", "'gpus'")),
        ("gpus=0", ("gpus = 0", "greater than or equal to 1")),
        ("mfu=2", ("mfu = 2", "less than or equal to 1")),
        ("gpu_memory_gib=1e308", ("gpu_memory_gib = ", "less than or equal to 100000")),
        ("gpus", ("'gpus'", "key=value", "gpus=4")),
        ("gpus.number=4", ("gpus = ",)),
    ],
)
def test_a_wrong_key_of_a_machine_is_a_sentence_and_exit_code_2(setting, facts):
    with pytest.raises(ConfigError) as raised:
        read_machine(None, [setting])
    for fact in facts:
        assert fact in str(raised.value)


def test_a_shipped_machine_is_named_without_its_folder(tmp_path, monkeypatch):
    shipped = read_machine(ROOT / "configs/machines/8xh100.yaml")
    monkeypatch.chdir(tmp_path)
    assert read_machine(Path("8xH100")) == read_machine(Path("8xh100")) == shipped
    assert read_machine(Path("h100"), ["gpus=2"]) == read_machine(None, ["gpus=2"])
    with pytest.raises(ConfigError) as raised:
        read_machine(Path("A100"))
    assert all(word in str(raised.value) for word in ("A100", "8xh100", "2cpu", "--set gpu="))


def test_a_missing_machine_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        read_machine(tmp_path / "nowhere.yaml")


def test_the_documentation_lists_the_keys_of_the_class():
    spec = importlib.util.spec_from_file_location("docs_writer", ROOT / "scripts/write_configuration_docs.py")
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    page = (ROOT / "docs/planning.md").read_text()
    assert writer.updated(page, writer.machine_table()) == page, "run python scripts/write_configuration_docs.py"
