"""Runs all checks that a configuration needs on this machine, one after the other. Does not: print."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from agent_rl import resources
from agent_rl.algorithms.logit_kernels import what_kernels_lack
from agent_rl.config import Config
from agent_rl.data.overlap import overlap_of
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.check_data import check_reference
from agent_rl.envs.opening import open_environment
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import AgentRLError, UserError
from agent_rl.planning import preflight
from agent_rl.planning.machine import GIB, Machine
from agent_rl.planning.memory import checkpoint_bytes, num_checkpoints, weight_file_bytes
from agent_rl.planning.plan import PlannedRun, read_run
from agent_rl.planning.preflight import FoundGpu, MachineCheck, failed, ok, warning
from agent_rl.policies import hub
from agent_rl.policies.hf_loading import is_folder, load_hf_tokenizer
from agent_rl.telemetry.trackers import check_trackers

_LAUNCHER_PORT = 29500


def all_checks(config: Config, run: PlannedRun | None, why_not: str = "") -> Iterator[MachineCheck]:
    """Run the cheap ones first. `run` is None if it cannot be planned, for the reason `why_not`."""
    gpus = find_gpus()
    yield preflight.check_packages(requirement_files(config, run, has_gpus=bool(gpus)))
    yield preflight.check_gpus(
        gpus,
        wanted=gpus_wanted(config, run),
        memory=run.gpu.memory if run is not None and run.gpu is not None else 0.0,
        driver=None if config.run.device == "cpu" else driver_version(),
        cuda=torch.version.cuda,
    )
    if set(config.log.trackers) - {"tensorboard"}:
        yield preflight.attempt("trackers", lambda: check_trackers(config.log.trackers, ask_services=True))
    yield preflight.attempt("training tasks", lambda: _tasks(config, "train"))
    if gpus:
        yield preflight.check_kernels(what_kernels_lack())
    if config.eval.temperatures:
        yield _held_out(config)
    yield check_model(config)
    if run is None:
        yield failed("plan", why_not)
    else:
        yield from planned(run)
    yield from (preflight.check_server(address) for address in config.engine.servers)
    if run is not None and run.layout.num_processes > 1:
        yield preflight.check_port(_LAUNCHER_PORT)
    if run is not None and run.layout.offload_optimizer:
        yield preflight.check_compilers()
    yield from check_environment(config)


def read_run_here(config_path: Path, overrides: Sequence[str], machine: Machine) -> PlannedRun:
    """Read a run on this machine and its memory; without GPUs, a run that requires none is planned for the CPU."""
    here = machine.model_copy(update={"memory_gib": preflight.machine_memory() / GIB})
    run = read_run(config_path, overrides, here)
    if find_gpus() or gpus_wanted(run.job.config, run):
        return run
    return read_run(config_path, (*overrides, "run.device=cpu"), here)


def gpus_wanted(config: Config, run: PlannedRun | None) -> int:
    """GPUs that the run requires; 0 if it runs on a CPU as well."""
    if config.run.device == "cpu" or (run is not None and run.gpu is None):
        return 0
    needs_them = config.run.device.startswith("cuda") or config.engine.needs_gpus
    if run is None or not (needs_them or run.machine.gpus):
        return int(needs_them)
    return run.machine.gpus or run.layout.num_gpus


def requirement_files(config: Config, run: PlannedRun | None, *, has_gpus: bool) -> list[Path]:
    names = ["requirements.txt"]
    if run is not None and run.layout.zero_stage:
        names.append("requirements-deepspeed.txt")
    if config.model.lora.rank:
        names.append("requirements-lora.txt")
    if config.model.load_in_4bit:
        names.append("requirements-qlora.txt")
    if config.engine.has_own_weights:
        machine = "" if has_gpus or gpus_wanted(config, run) else "-cpu"
        names.append(f"requirements-{config.policy.type}{machine}.txt")
    if {"wandb", "trackio"} & set(config.log.trackers):
        names.append("requirements-trackers.txt")
    return [resources.folder() / name for name in names]


def check_model(config: Config) -> MachineCheck:
    """Read the tokenizer of the folder or the hub, which is small, and look for weights without reading them."""
    source = config.model.path
    if source.endswith(".pth"):
        return ok("model", source) if Path(source).is_file() else failed("model", f"{source} does not exist")
    try:
        if not is_folder(source) and not hub.is_cached(source) and (why := hub.hub_unreachable()):
            return failed("model", f"{source} is not in the cache, and the hub cannot be reached ({why}); download it")
        if is_folder(source):
            files = [path for kind in ("*.safetensors", "*.bin") for path in Path(source).glob(kind)]
            if not files and not (Path(source) / "adapter_config.json").is_file():
                return failed("model", f"{source} holds no weights; complete the folder")
        tokenizer = load_hf_tokenizer(source, config.model.chat_template_kwargs, config.model.chat_template)
    except UserError as error:
        return failed("model", str(error))
    if tokenizer.chat_template is None:
        return failed("model", f"{source} has no chat template; give an instruction-tuned model")
    where = "a local folder" if is_folder(source) else "from the hub, or its cache"
    return ok("model", f"{source}: {where}, {len(tokenizer):,} ids")


def check_environment(config: Config) -> Iterator[MachineCheck]:
    """Start what scores episodes, and end it: its interpreter, its sandbox, and the references it names for this."""
    name = f"environment {config.env.name}"
    try:
        with open_environment(config) as factory:
            factory.start()
            yield _started(name, factory.describe())
            yield from _references(config, factory)
    except AgentRLError as error:
        yield failed(name, str(error))


def _references(config: Config, factory: EnvFactory) -> Iterator[MachineCheck]:
    try:
        tasks = factory.read_tasks(config.data, "train")
    except UserError:
        return  # the check of the tasks reports it
    for name, task in factory.preflight_tasks(tasks).items():
        try:
            problems = check_reference(factory, task)
        except AgentRLError as error:
            yield failed(name, str(error))
            continue
        if problems:
            yield failed(name, f"the reference of {task['task_id']} does not succeed: {'; '.join(problems)}")
        else:
            yield ok(name, f"the reference of {task['task_id']} succeeds")


def _started(name: str, about: Mapping[str, Any]) -> MachineCheck:
    summary = str(about.get("summary") or "starts")
    if '"tier": "landlock"' in (text := json.dumps(about, default=str)) or '"tier": "rlimits"' in text:
        return warning(name, f"{summary}; this isolates less than the tier namespaces: agent-rl sandbox describe")
    return ok(name, summary)


def find_gpus() -> list[FoundGpu]:
    """GPUs that PyTorch sees."""
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [FoundGpu(name=each.name, memory=float(each.total_memory)) for each in found]


def driver_version() -> str | None:
    """Version of NVIDIA's driver; None if nvidia-smi is missing or fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return (done.stdout.split() or [None])[0]


def _tasks(config: Config, split: Literal["train", "eval"]) -> str:
    factory = make_env_factory(config.env.name, config.env.options, seed=config.run.seed)
    return f"{len(factory.read_tasks(config.data, split)):,} in {factory.task_source(config.data, split)}"


def _held_out(config: Config) -> MachineCheck:
    check = preflight.attempt("held-out tasks", lambda: _tasks(config, "eval"))
    try:
        factory = make_env_factory(config.env.name, config.env.options, seed=config.run.seed)
        overlap = overlap_of(factory.read_tasks(config.data, "train"), factory.read_tasks(config.data, "eval"))
    except UserError:
        return check  # which says it, or that of the training tasks
    return warning("held-out tasks", overlap) if overlap else check


def planned(run: PlannedRun) -> Iterator[MachineCheck]:
    """Compare the plan with this machine's memory, GPUs and disk."""
    try:
        found = run.check_fit()
    except UserError as error:
        yield failed("plan", str(error))
        return
    config = run.job.config
    place = found.places[-1]  # the machine, or the processes on it
    num = run.layout.processes_per_machine if run.gpu is None else 1
    yield preflight.check_memory(num * place.need, preflight.machine_memory())
    on_gpus = [place for place in found.places if place.name.startswith("GPU")]
    if on_gpus:
        lowest = min(place.headroom for place in on_gpus if place.headroom is not None)
        text = f"{lowest:.0%} headroom on {run.gpu.name}, {run.machine.headroom:.0%} required"
        fits = not found.problems and lowest >= run.machine.headroom
        why = "; ".join([text, *found.problems])
        yield ok("plan", text) if fits else failed("plan", f"{why}; see agent-rl plan")
    checkpoints = num_checkpoints(config) * sum(checkpoint_bytes(run.job))
    weights = 2 * weight_file_bytes(run.job)
    folder = config.engine.weight_folder
    if folder is None and weights:
        yield preflight.check_disk(config.run.output_dir, checkpoints + weights, what="checkpoints and weight files")
        return
    yield preflight.check_disk(config.run.output_dir, checkpoints)
    if weights:
        remedy = f"set {config.policy.type}.weight_folder to a folder that trainer and servers see"
        yield preflight.check_disk(folder, weights, what="two versions of the weights", remedy=remedy)
