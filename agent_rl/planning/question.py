"""From what a person says of a run and its machines to the plan. Not here: arithmetic, options, tables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_rl.config import load_config
from agent_rl.planning.changes import Question, nearest_change
from agent_rl.planning.machine import GIB, find_gpu, read_layout, with_servers
from agent_rl.planning.report import Plan
from agent_rl.planning.shapes import read_shape
from agent_rl.planning.time import assume, count_tokens, estimate


def ask(
    config_path: Path,
    overrides: tuple[str, ...],
    *,
    launch: Path | None = None,
    gpu: str = "H100",
    gpu_memory: float | None = None,
    num_gpus: int | None = None,
    machine_memory: float | None = None,
    servers: Mapping[str, Any] | None = None,
    overhead: float = 2.5,
    headroom: float = 0.1,
) -> Question:
    """The question of `agent-rl plan`; memory in GiB, `servers` as in `with_servers`. A UserError for what is wrong."""
    config = load_config(config_path, overrides)
    wanted = {"num_gpus": None, "tensor_parallel": None, "share": 0.9} | dict(servers or {})
    return Question(
        load=lambda chosen: load_config(config_path, list(chosen)),
        overrides=overrides,
        shape=read_shape(config.model.path),
        layout=with_servers(read_layout(launch), len(config.vllm.servers), **wanted),
        gpu=None if config.run.device == "cpu" else find_gpu(gpu, gpu_memory),
        num_gpus=num_gpus,
        machine_memory=None if machine_memory is None else machine_memory * GIB,
        overhead=overhead * GIB,
        headroom=headroom,
    )


def make_plan(question: Question, assumed: Mapping[str, float | None] | None = None) -> Plan:
    """The answer; `assumed` are fields of `Assumptions`, None where its default stands."""
    job = question.job
    assumptions = assume(job.config, **(assumed or {}))
    found = question.answer()
    return Plan(
        question=question,
        fit=found,
        change=None if found.is_enough(question.headroom) else nearest_change(question),
        assumed=assumptions,
        tokens=count_tokens(job.config, assumptions, num_processes=job.layout.num_processes),
        times=None if question.gpu is None else estimate(job, question.gpu, assumptions),
    )
