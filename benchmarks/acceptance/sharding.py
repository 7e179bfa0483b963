"""DeepSpeed ZeRO-2 and ZeRO-3 in one process: ten updates, a checkpoint after five, and the last five resumed from it.

Each sharded run is a process of its own (`python -m acceptance.sharding JOB`), with a launcher's variables. Compared
are all gradient norms and, bit for bit, the optimizer's state at the end, in which the float32 weights are. Not here:
more than one process (`tests/learning/test_update_ranks.py`, on CPUs).
"""

import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from acceptance.figures import Recorder, Setting, need
from acceptance.runner import ROOT, environment

NUM_UPDATES = 10
STAGES = (2, 3)
LAYERS = 4
"""Of the 0.5B shape: what is compared does not need more, and six states go to the disk."""
FLATNESS = 0.05
"""Factor of the last norm."""


def train_sharded(setting: Setting, out: Recorder) -> None:
    need("deepspeed")
    from acceptance.models import forget

    sizes = {"device": setting.device, "tiny": setting.tiny, "folder": str(setting.folder)}
    alone = {
        dtype: learn(sizes | {"stage": 0, "name": dtype, "first": 0, "resumes": ""})
        for dtype in ("bfloat16", "autocast")
    }
    forget(setting.device)  # the runs below are processes that need the memory
    for stage in STAGES:
        names = {name: f"zero{stage}_{name}" for name in ("whole", "resumed")}
        whole = _run(setting, sizes | {"stage": stage, "name": names["whole"], "first": 0, "resumes": ""})
        second = {"stage": stage, "name": names["resumed"], "first": NUM_UPDATES // 2, "resumes": names["whole"]}
        resumed = _run(setting, sizes | second)
        # By the same weights; later ones differ, as DeepSpeed has float32 copies of them. So has autocast, which rounds
        # them as often: by small updates, weights in bfloat16 move many at once after some steps, and the norm jumps.
        out.figure(f"zero{stage}_first_norm_gap", abs(whole["norms"][0] / alone["bfloat16"]["norms"][0] - 1))
        gaps = [abs(a / b - 1) for a, b in zip(whole["norms"], alone["autocast"]["norms"], strict=True)]
        out.figure(f"zero{stage}_norm_gap", max(gaps))
        is_same = whole["norms"][NUM_UPDATES // 2 :] == resumed["norms"] and whole["state"] == resumed["state"]
        out.figure(f"zero{stage}_resume_same", int(is_same))
        out.figure(f"zero{stage}_s", whole["seconds"])
        out.note(f"zero{stage}: norms {_few(whole['norms'])}, resumed {_few(resumed['norms'])}")
    out.note(f"norms alone: autocast {_few(alone['autocast']['norms'])}, bfloat16 {_few(alone['bfloat16']['norms'])}")


def _few(numbers: list[float]) -> str:
    return " ".join(f"{number:.4g}" for number in numbers)


def _run(setting: Setting, job: dict[str, Any]) -> dict[str, Any]:
    """What one run printed."""
    path = setting.folder / f"{job['name']}.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    variables = environment()
    if job["stage"]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        variables |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        variables |= {"MASTER_PORT": str(port), "ACCELERATE_USE_DEEPSPEED": "true"}
        variables["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = str(ROOT / f"configs/deepspeed/zero{job['stage']}.json")
        if not setting.is_gpu:
            variables["DS_ACCELERATOR"] = "cpu"
    command = [sys.executable, "-m", "acceptance.sharding", str(path)]
    ran = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    found = path.with_suffix(".found")
    if ran.returncode or not found.exists():
        raise RuntimeError(f"{job['name']} ended with code {ran.returncode}:\n{(ran.stderr or ran.stdout)[-4000:]}")
    return json.loads(found.read_text(encoding="utf-8"))


def learn(job: dict[str, Any]) -> dict[str, Any]:
    """Updates of one run, from the first or from another's checkpoint: norms, a hash of the state, seconds.

    Kernels that add up in any order are replaced, so that the same run has the same bits on a GPU too; the last norm
    makes all ids about equally likely, as the samples' log-probs say, so that no ratio is cut off.
    """
    import time

    import torch

    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)  # with `warn_only` flash attention adds up in any order
    from acceptance.models import made_up_step, make_model, model_config, update_config, use_what_fits

    from agent_rl.distributed.backend import Backend
    from agent_rl.learning.update import PolicyUpdater

    folder = Path(job["folder"])
    setting = Setting(device=job["device"], tiny=job["tiny"], folder=folder)
    use_what_fits(setting, Recorder(folder / "notes"))
    tokens = setting.pick(2048, 96)
    is_autocast = job["name"] == "autocast"
    dtype = "float32" if is_autocast else "bfloat16"
    backend = Backend(setting.device, timeout_s=400)
    train = {"learning_rate": 1e-5} | ({"autocast": "bfloat16"} if is_autocast else {})
    sections = {"model": {"dtype": dtype}, "train": train}
    config = update_config(setting.device, window=tokens + 1, micro_batch_tokens=tokens, **sections)
    settings = model_config("0.5B", setting, window=tokens + 1, num_hidden_layers=setting.pick(LAYERS, 2))
    # The same numbers in both formats.
    model = make_model(settings, setting.device, torch.bfloat16).to(getattr(torch, dtype))
    with torch.no_grad():
        model.model.norm.weight.mul_(FLATNESS)
    updater = PolicyUpdater(model, config, backend)
    if job["resumes"]:
        updater.load_state(folder / job["resumes"])
    step = made_up_step(tokens, settings.vocab_size)
    norms, seconds = [], []
    for number in range(job["first"], NUM_UPDATES):
        started = time.perf_counter()
        norms.append(updater.update(step, step=number).metrics["optim/grad_norm"])
        seconds.append(time.perf_counter() - started)
        if number == NUM_UPDATES // 2 - 1 and job["stage"]:
            (folder / job["name"]).mkdir()
            updater.save_state(folder / job["name"])
    state = _state_hash(updater, folder / f"{job['name']}_end") if job["stage"] else ""
    backend.close()
    return {"norms": norms, "state": state, "seconds": statistics.median(seconds)}


def _state_hash(updater: Any, folder: Path) -> str:
    """Of every tensor of the optimizer's state, weights in float32 included."""
    import hashlib

    import torch

    from agent_rl.modeling.tensor_files import load_tensors

    folder.mkdir()
    updater.save_state(folder)
    digest = hashlib.sha256()

    def add(value: Any, name: str) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                add(value[key], f"{name}.{key}")
        elif isinstance(value, list | tuple):
            for index, each in enumerate(value):
                add(each, f"{name}.{index}")

    for path in sorted(folder.rglob("*.pt")):
        add(load_tensors(path), path.name)
        path.unlink()
    return digest.hexdigest()


def main() -> None:
    path = Path(sys.argv[1])
    found = learn(json.loads(path.read_text(encoding="utf-8")))
    path.with_suffix(".found").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
