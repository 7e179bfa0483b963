"""An update of adapters of rank 32 on a bfloat16 model of 1.5B, in autocast, as `configs/nat_grpo_1gpu.yaml` trains.

Not here: adapters without autocast, which the configuration refuses for a bfloat16 model; adapters under ZeRO.
"""

import statistics
import time

import torch
from acceptance.figures import Recorder, Setting, need
from acceptance.models import forget, made_up_step, make_model, model_config, update_config
from acceptance.update import planned_peak

from agent_rl.config.sections import LoraConfig
from agent_rl.distributed.backend import Backend
from agent_rl.learning.update import PolicyUpdater
from agent_rl.planning.machine import GIB
from agent_rl.policies.hf_policy import add_adapter

RANK = 32
TOKENS = 8192
UPDATES = 2


def measure_adapters(setting: Setting, out: Recorder) -> None:
    """Seconds, tokens/s, MFU and memory of an update with every linear layer adapted."""
    need("peft")
    tokens = setting.pick(TOKENS, 96)
    sections = {"model": {"dtype": "bfloat16", "lora": {"rank": RANK}}, "train": {"autocast": "bfloat16"}}
    config = update_config(setting.device, window=tokens + 1, micro_batch_tokens=tokens, **sections)
    settings = model_config("1.5B", setting, window=tokens + 1)
    forget(setting.device)
    base = make_model(settings, setting.device, torch.bfloat16)
    model = add_adapter(base, "-", LoraConfig(rank=RANK), seed=0).to(setting.device)
    updater = PolicyUpdater(model.eval(), config, Backend(setting.device))
    step = made_up_step(tokens, settings.vocab_size)
    times, metrics = [], {}
    for number in range(1 + UPDATES):
        started = time.perf_counter()
        metrics = updater.update(step, step=number).metrics
        times.append(time.perf_counter() - started)
    seconds = statistics.median(times[1:])
    out.figure("s", seconds)
    out.figure("tokens_per_s", metrics["perf/update_tokens_per_s"] * times[-1] / seconds)
    out.figure("mfu", metrics["perf/mfu"] * times[-1] / seconds)
    if setting.is_gpu:
        out.figure("allocated_gib", torch.cuda.max_memory_allocated() / GIB)
        out.figure("peak_share", torch.cuda.max_memory_allocated() / planned_peak(config, settings))
