"""Two processes are one: the same losses, gradients, weights and checkpoints with DDP and every ZeRO stage."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed.control_run import lose, talk
from distributed.large_models import load_in_shards, save_llama, train_in_bfloat16
from distributed.ranks import Ranks, start_ranks
from distributed.toy_run import NUM_STEPS, SAVED_STEP, main
from waiting import free_port

from agent_rl.distributed.backend import Backend, OptimizerStep
from agent_rl.distributed.checkpoint import best_checkpoint
from agent_rl.distributed.processes import ProcessLostError
from agent_rl.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
STAGES = {"plain": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "twice": 3, "offload": 3}
"""`twice`: each half of the weights is there a second time, for the backward pass (`zero_hpz_partition_size`)."""
COMPILES = [pytest.mark.slow, pytest.mark.timeout(600)]
"""Offloading compiles DeepSpeed's CPU Adam, once on a machine, for most of a minute."""
SLOW = [pytest.param("twice", marks=pytest.mark.slow), pytest.param("offload", marks=COMPILES)]
SPREAD = ["ddp", "zero1", "zero2", "zero3", *SLOW]
KINDS = ["plain", *SPREAD]
SETTINGS = {"overlap_comm": False, "reduce_bucket_size": 5000, "stage3_param_persistence_threshold": 0}
"""Buckets smaller than the toy model, so that there are several, and every weight is sharded."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


def launch(folder: Path, kind: str, verb: str, *, num: int = 2) -> Ranks:
    settings = None
    if STAGES[kind]:
        folder.mkdir(exist_ok=True)
        settings = folder / "deepspeed.json"
        own: dict[str, Any] = {"zero_hpz_partition_size": 2} if kind == "twice" else {}
        own |= {name: {"device": "cpu"} for name in ("offload_optimizer", "offload_param") if kind == "offload"}
        settings.write_text(json.dumps({"zero_optimization": SETTINGS | own | {"stage": STAGES[kind]}}))
    num = 1 if kind == "plain" else num
    return start_ranks(main, folder, verb, folder=folder, num=num, deepspeed_config=settings)


def report_of(folder: Path, kind: str, verb: str = "train", num: int = 2) -> dict[str, Any]:
    """What rank 0 reported of a run; a resumed one goes on from the checkpoint of the first. Every run runs once."""
    return _report_of(folder, kind, verb, num)


@functools.cache
def _report_of(folder: Path, kind: str, verb: str, num: int) -> dict[str, Any]:
    own = folder / f"{kind}_{num}"
    if verb == "resume":
        report_of(folder, kind, num=num)
    elif own.exists():
        shutil.rmtree(own)  # an earlier test failed in it
    ranks = launch(own, kind, verb, num=num)
    codes = ranks.wait(timeout_s=500 if kind == "offload" else 60)
    assert codes == [0] * len(codes), ranks.log(0) + ranks.log(len(codes) - 1)
    return torch.load(own / f"{verb}.pt", weights_only=False)


def check_same_steps(folder: Path, kind: str, num: int) -> None:
    alone, spread = report_of(folder, "plain"), report_of(folder, kind, num=num)
    assert (spread["kind"], spread["zero_stage"]) == ("ddp" if kind == "ddp" else "deepspeed", STAGES[kind])
    assert spread["ranks"] == list(range(num))
    for a, b in zip(alone["steps"], spread["steps"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=2e-6)
        assert a["result"].grad_norm == pytest.approx(b["result"].grad_norm, rel=1e-5)
        assert a["result"].grad_norm > 0.5  # so that clipping has something to do
        assert b["result"].applied


@pytest.mark.parametrize("kind", SPREAD)
def test_two_processes_with_unequal_shares_make_the_steps_of_one(folder: Path, kind: str) -> None:
    check_same_steps(folder, kind, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "zero1", "zero2", "zero3"])
def test_four_processes_two_of_them_with_a_filler_make_the_steps_of_one(folder: Path, kind: str) -> None:
    check_same_steps(folder, kind, 4)


@pytest.mark.parametrize("kind", ["ddp", "zero1"])
def test_gradients_stay_at_home_until_the_last_micro_step(folder: Path, kind: str) -> None:
    first, second = report_of(folder, kind)["first_gradients"]
    assert not torch.equal(first, second)


def test_zero3_holds_no_whole_weight(folder: Path) -> None:
    assert sum(report_of(folder, "zero3")["sharded_elements"]) == 0
    assert sum(report_of(folder, "zero2")["sharded_elements"]) == sum(report_of(folder, "plain")["sharded_elements"])


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_in_new_processes_it_is_the_same_run_bit_for_bit(folder: Path, kind: str) -> None:
    straight, resumed = report_of(folder, kind), report_of(folder, kind, "resume")
    assert len(resumed["steps"]) == NUM_STEPS - SAVED_STEP
    assert resumed["steps"] == straight["steps"][SAVED_STEP:]
    assert all(torch.equal(resumed["weights"][name], weight) for name, weight in straight["weights"].items())
    # Each process goes on with its own random numbers.
    assert resumed["sampled"] == straight["sampled"]
    assert len({tuple(sampled) for sampled in straight["sampled"]}) == len(straight["ranks"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_process_gets_a_replica_with_the_bits_of_the_trained_weights(folder: Path, kind: str) -> None:
    report = report_of(folder, kind)
    assert len(report["replicas"]) == len(report["ranks"])
    for replica in report["replicas"]:
        assert replica.keys() == report["weights"].keys()
        assert all(torch.equal(replica[name], weight) for name, weight in report["weights"].items())


def test_full_weights_are_those_of_one_process(folder: Path) -> None:
    alone = report_of(folder, "plain")["weights"]
    for kind in ("ddp", "zero1", "zero2", "zero3"):
        weights = report_of(folder, kind)["weights"]
        assert {name: weight.shape for name, weight in weights.items()} == {n: w.shape for n, w in alone.items()}
        assert max(float((weights[name] - weight).abs().max()) for name, weight in alone.items()) < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_gradient_or_loss_on_one_process_changes_nothing_on_any(folder: Path, kind: str) -> None:
    (bad_gradient, moved_1), (bad_loss, moved_2), (good, moved_3) = report_of(folder, kind)["refused"]
    assert (bad_gradient.applied, bad_loss.applied, good.applied) == (False, False, True)
    assert (moved_1, moved_2, moved_3) == (False, False, True)
    assert not torch.isfinite(torch.tensor([bad_gradient.grad_norm, bad_loss.grad_norm])).any()
    # The good step comes from the same weights everywhere: nothing of the refused ones was left over.
    expected: OptimizerStep = report_of(folder, "plain")["refused"][2][0]
    assert good.grad_norm == pytest.approx(expected.grad_norm, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_module_gives_its_log_probs(folder: Path, kind: str) -> None:
    assert report_of(folder, kind)["frozen"]


@pytest.mark.parametrize("kind", KINDS)
def test_processes_sum_and_broadcast(folder: Path, kind: str) -> None:
    report = report_of(folder, kind)
    num = len(report["ranks"])
    assert report["sum"] == {1: 1, 2: 3}[num]
    assert report["broadcast"] == ["from 0"] * num


def test_a_checkpoint_of_many_holds_a_file_of_each_and_no_other_layout_loads_it(folder: Path) -> None:
    report_of(folder, "zero2")
    path = best_checkpoint(folder / "zero2_2" / "checkpoints")
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["num_processes"], manifest["score"]) == (2, 0.5)
    assert set(manifest["files"]) == {
        "trainer.pt",
        "model/weights.pt",
        "rank_00000.pt",
        "rank_00001.pt",
        "optimizer/layout.json",
        "optimizer/rank_00000.pt",
        "optimizer/rank_00001.pt",
    }
    backend = Backend("cpu")
    module, optimizer = torch.nn.Linear(1, 1), torch.optim.AdamW([torch.zeros(1)])
    sentence = r"saved by 2 processes with ZeRO-2, and this run is 1 process with no sharding; launch it the same way"
    with pytest.raises(UserError, match=sentence):
        backend.load_state(path, module, optimizer)


# Models that no process can hold


def start_with_stage(program: Callable[[Path], None], stage: int, *, folder: Path, model: Path) -> Ranks:
    settings = folder / "deepspeed.json"
    settings.write_text(json.dumps({"zero_optimization": SETTINGS | {"stage": stage}}))
    return start_ranks(program, model, folder=folder, num=2, deepspeed_config=settings)


def test_a_model_is_loaded_as_shards_where_requested(tmp_path: Path) -> None:
    save_llama(tmp_path / "model")
    ranks = start_with_stage(load_in_shards, 3, folder=tmp_path, model=tmp_path / "model")
    assert ranks.wait() == [0, 0], ranks.log(0) + ranks.log(1)


def load_two_models(model: Path) -> None:
    from transformers import AutoModelForCausalLM

    backend = Backend("cpu", timeout_s=30)
    with backend.sharded_loading():
        AutoModelForCausalLM.from_pretrained(model)
    with pytest.raises(UserError, match=r"zero_hpz_partition_size.*algorithm\.kl\.coef"), backend.sharded_loading():
        pass
    backend.close()


def test_a_second_model_is_refused_where_the_first_has_a_second_copy(tmp_path: Path) -> None:
    save_llama(tmp_path / "model")
    settings = tmp_path / "deepspeed.json"
    settings.write_text(json.dumps({"zero_optimization": SETTINGS | {"stage": 3, "zero_hpz_partition_size": 2}}))
    ranks = start_ranks(load_two_models, tmp_path / "model", folder=tmp_path, num=2, deepspeed_config=settings)
    assert ranks.wait() == [0, 0], ranks.log(0) + ranks.log(1)


@pytest.mark.parametrize("stage", [2, 3])
def test_bfloat16_weights_are_trained_through_a_float32_copy(tmp_path: Path, stage: int) -> None:
    ranks = start_with_stage(train_in_bfloat16, stage, folder=tmp_path, model=tmp_path)
    assert ranks.wait() == [0, 0], ranks.log(0) + ranks.log(1)


def test_bfloat16_weights_are_refused_by_the_stage_that_cannot_train_them(tmp_path: Path) -> None:
    ranks = start_with_stage(train_in_bfloat16, 1, folder=tmp_path, model=tmp_path)
    assert ranks.wait() == [1, 1]
    assert "ZeRO stage 1 shards float32 weights only and the model has bfloat16; use stage 2 or 3" in ranks.log(0)


# What becomes of the others when one is gone


def wait_for_a_value(flag: Path) -> None:
    """Rank 1 joins and never answers; rank 0 waits for it."""
    backend = Backend("cpu", timeout_s=3)
    backend.barrier()
    if backend.rank == 1:
        flag.touch()
        time.sleep(60)
    try:
        backend.all_gather_object(1)
    except ProcessLostError as error:
        print(error)
        sys.exit(2)


def train_without_the_other(flag: Path) -> None:
    """Rank 1 is gone before the backward of the second step."""
    from distributed.toy_run import ToyRun

    run = ToyRun()
    run.step(1)
    if run.backend.rank == 1:
        flag.touch()
        time.sleep(60)
    try:
        run.step(2)
    except ProcessLostError as error:
        print(error)
        sys.exit(2)


@pytest.mark.parametrize(
    ("program", "waited_for"),
    [(wait_for_a_value, "a value of every process"), (train_without_the_other, "the gradients of the other processes")],
)
def test_when_one_process_is_killed_the_other_ends_with_one_sentence(
    tmp_path: Path, program: Any, waited_for: str
) -> None:
    ranks = start_ranks(program, tmp_path / "flag", folder=tmp_path, num=2)
    deadline = time.monotonic() + 30
    while not (tmp_path / "flag").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(ranks.processes[1].pid, signal.SIGKILL)
    killed = time.monotonic()
    assert ranks.wait() == [2, -signal.SIGKILL], ranks.log(0)
    assert time.monotonic() - killed < 60
    assert ranks.log(0).splitlines() == [
        f"process 0 of 2 waited for {waited_for}, but another process ended or did not answer within "
        f"{3 if program is wait_for_a_value else 60} s; look for the cause in the output of the others, then continue "
        "with checkpoint.resume=auto"
    ]


def test_a_process_that_hangs_ends_the_others_after_the_time_limit(tmp_path: Path) -> None:
    ranks = start_ranks(wait_for_a_value, tmp_path / "flag", folder=tmp_path, num=2)
    ranks.processes[0].join(30)
    assert ranks.processes[0].exitcode == 2, ranks.log(0)
    assert "waited for a value of every process, but another process ended or did not answer within 3 s" in ranks.log(0)
    ranks.processes[1].kill()


def wait_for_rank_0() -> None:
    backend = Backend("cpu", timeout_s=20)

    def refuse() -> None:
        raise UserError("no")

    assert backend.on_main(lambda: 7) == 7
    with pytest.raises(UserError, match="no"):
        backend.on_main(refuse)
    backend.close()


def test_an_error_of_rank_0_is_raised_on_all(tmp_path: Path) -> None:
    ranks = start_ranks(wait_for_rank_0, folder=tmp_path, num=2)
    assert ranks.wait() == [0, 0], ranks.log(0) + ranks.log(1)


# The launchers themselves


@pytest.mark.parametrize("name", [pytest.param("ddp_2cpu", marks=pytest.mark.slow), "zero3_2cpu"])
def test_the_shipped_cpu_set_ups_run_and_print_nothing_of_their_own(tmp_path: Path, folder: Path, name: str) -> None:
    command = [
        *(sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--main_process_port", "0"),
        *(
            "--config_file",
            f"configs/accelerate/{name}.yaml",
            "tests/support/distributed/toy_run.py",
            str(tmp_path),
            "train",
        ),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DS_ACCELERATOR", None)  # which another test's DeepSpeed may have set here
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert ran.returncode == 0, ran.stderr
    report = torch.load(tmp_path / "train.pt", weights_only=False)
    assert report["kind"] == ("ddp" if name == "ddp_2cpu" else "deepspeed")
    assert report["ranks"] == [0, 1]
    alone = report_of(folder, "plain")["steps"]
    assert report["steps"][-1]["loss"] == pytest.approx(alone[-1]["loss"], abs=2e-6)
    lines = [line for line in (ran.stdout + ran.stderr).splitlines() if "OVERFLOW! Skipping step" not in line]
    # The launcher's own DeepSpeed announces what it found; the processes it starts do not.
    assert [line for line in lines if "Setting accelerator to CPU" not in line] == []
    assert len(lines) <= 1


@pytest.mark.slow
def test_two_machines_with_folders_of_their_own_are_one_run(tmp_path: Path, folder: Path) -> None:
    port, shared, machines = str(free_port()), tmp_path / "shared", []
    shared.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("DS_ACCELERATOR", None)
    for rank in ("0", "1"):
        own = tmp_path / f"machine_{rank}"
        own.mkdir()
        shutil.copytree(ROOT / "configs", own / "configs")
        command = [sys.executable, "-m", "accelerate.commands.launch"]
        command += ["--config_file", "configs/accelerate/zero3_8gpu_2nodes.yaml", "--num_processes", "2"]
        command += ["--num_machines", "2", "--machine_rank", rank]
        command += ["--main_process_ip", "127.0.0.1", "--main_process_port", port]
        command += [str(ROOT / "tests/support/distributed/toy_run.py"), str(shared), "train"]
        with (own / "log").open("w") as log:
            machines.append(subprocess.Popen(command, cwd=own, env=environment, stdout=log, stderr=subprocess.STDOUT))
    codes = [machine.wait(timeout=400) for machine in machines]
    logs = [(tmp_path / f"machine_{rank}/log").read_text() for rank in (0, 1)]
    assert codes == [0, 0], logs
    report = torch.load(shared / "train.pt", weights_only=False)
    assert (report["ranks"], report["zero_stage"]) == ([0, 1], 3)
    alone = report_of(folder, "plain")["steps"]
    assert [s["loss"] for s in report["steps"]] == pytest.approx([s["loss"] for s in alone], abs=2e-6)
    checkpoint = best_checkpoint(shared / "checkpoints")
    written = {str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()}
    assert written - {"manifest.json"} == set(json.loads((checkpoint / "manifest.json").read_text())["files"])


def test_processes_end_cleanly_though_their_gloo_threads_are_late(tmp_path: Path) -> None:
    command = [sys.executable, "tests/support/distributed/late_threads.py", str(tmp_path), "6"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert ran.stdout.split("\n") == [*["0 0"] * 6, ""], ran.stderr


def test_processes_talk_over_gloo_whatever_the_default_group_is(tmp_path: Path) -> None:
    """As on GPUs, where it is NCCL's: here it is one that sends nothing, and gives up after a second."""
    ranks = start_ranks(talk, tmp_path, folder=tmp_path, num=2)
    assert ranks.wait() == [0, 0], ranks.log(0) + ranks.log(1)
    for rank in range(2):
        assert "raised on the main process" in ranks.log(rank)
        assert f"rank {rank} is done" in ranks.log(rank)


def test_a_lost_process_is_one_sentence_whatever_the_default_group_is(tmp_path: Path) -> None:
    ranks = start_ranks(lose, tmp_path, folder=tmp_path, num=2)
    assert ranks.wait() == [0, -signal.SIGKILL], ranks.log(0)
    assert re.search(r"lost after \d s: process 0 of 2 waited for a value of every process", ranks.log(0))
