"""Start the training processes of a run on a Ray cluster, in the place of `accelerate launch` on every machine.

    python scripts/ray_launch.py --config_file configs/accelerate/zero3_8gpu.yaml --num-processes 16 \\
        agent_rl/scripts/train_nat_agent.py --config configs/nat_grpo_hf.yaml

One process per GPU of the cluster, or with `--cpus-per-process` on CPUs. Each gets the environment that Accelerate's
launcher would set for the file, and RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
RAY_ADDRESS. Every node has the project and its interpreter under the same paths. What processes print comes with their
rank in front. When one fails the others are ended, and its exit code is that of this command; Ctrl-C goes to all
(exit code 130), a second one kills them. Untested on GPUs. Not here: environment workers (`rollout.workers: ray`).
"""

import argparse
import os
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.envs.remote.cluster import connect, import_ray
from agent_rl.errors import ConfigError, UserError

_GRACE_S = 60.0
"""For processes that are told to end, before they are killed: a step may have to be finished first."""
_LAUNCHED = ("DEEPSPEED", "MULTI_GPU", "FSDP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one process runs."""

    node: str
    """Ray's id of the node."""
    address: str
    gpus: tuple[str, ...] = ()
    """Those that Ray set aside for this process."""


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config_file", required=True, type=Path, help="Accelerate's file, of configs/accelerate/")
    parser.add_argument("--num-processes", type=int, help="processes; default: num_processes of the file")
    parser.add_argument("--cpus-per-process", type=int, help="run on CPUs, this many for each process")
    parser.add_argument("--address", help="of the Ray cluster; default: RAY_ADDRESS, or this machine's cluster")
    parser.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]", help="pass this on, repeatable")
    parser.add_argument("--timeout-s", type=float, default=300.0, help="longest wait for free places")
    parser.add_argument("script", help="training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser.parse_args(words)


def main() -> int:
    options = parse()
    ray = import_ray("scripts/ray_launch.py starts processes through Ray")
    settings = read_launch_file(options.config_file)
    num = options.num_processes or int(settings["num_processes"])
    environment = accelerate_environment(options, num) | passed_on(options.env)
    connect(ray, options.address, wanted="processes are started through Ray", key="--address")
    environment["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    actors = place_actors(num, options.cpus_per_process, options.timeout_s)
    command = [sys.executable, options.script, *options.arguments]
    job = Job()
    try:  # a signal may come while only some processes are started
        start(job, actors, command, environment)
        return job.watch()
    except KeyboardInterrupt:
        print("Ctrl-C: the processes are told to end; press again to kill them", flush=True)
        job.end(signal.SIGINT)
        return 128 + signal.SIGINT
    finally:
        job.end(signal.SIGTERM)


def read_launch_file(path: Path) -> dict[str, Any]:
    """Accelerate's settings; ConfigError where they are none that start several processes."""
    import yaml

    if not path.is_file():
        raise ConfigError(f"--config_file {path}: there is no such file; the shipped ones are in configs/accelerate/")
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    kind = settings.get("distributed_type") if isinstance(settings, dict) else None
    if kind not in _LAUNCHED or "num_processes" not in settings:
        raise ConfigError(
            f"--config_file {path}: expected num_processes and a distributed_type of {', '.join(_LAUNCHED)}, got {kind}"
        )
    return settings


def accelerate_environment(options: argparse.Namespace, num: int) -> dict[str, str]:
    """What `accelerate launch` adds to the environment: it runs up to the place where it would start processes."""
    import torch.distributed.run as launcher
    from accelerate.commands.launch import launch_command, launch_command_parser

    words = ["--config_file", str(options.config_file), "--num_processes", str(num)]
    words += ["--num_machines", "1", "--main_process_port", "0"]  # of this call; Ray knows the machines
    if options.cpus_per_process:
        words += ["--num_cpu_threads_per_process", str(options.cpus_per_process)]
    before, seen = dict(os.environ), {}
    run, launcher.run = launcher.run, lambda _arguments: seen.update(os.environ)
    try:
        launch_command(launch_command_parser().parse_args([*words, options.script, *options.arguments]))
    finally:
        launcher.run = run
    added = {name: value for name, value in seen.items() if before.get(name) != value}
    return added | ({"OMP_NUM_THREADS": str(options.cpus_per_process)} if options.cpus_per_process else {})


def passed_on(words: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE`, or a NAME with its value here."""
    found = {}
    for word in words:
        name, given, value = word.partition("=")
        if not given and name not in os.environ:
            raise ConfigError(f"--env {name}: there is no such variable in the environment; write --env {name}=VALUE")
        found[name] = value if given else os.environ[name]
    return found


def place_actors(num: int, cpus: int | None, timeout_s: float) -> list[Any]:
    """An actor for every process, each with its GPU or its CPUs; ConfigError where the cluster has no room."""
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = {"CPU": cpus} if cpus else {"CPU": 1, "GPU": 1}
    group = placement_group([bundle] * num, strategy="PACK")
    if not group.wait(timeout_s):
        has = {name: ray.cluster_resources().get(name, 0) for name in bundle}
        raise ConfigError(
            f"no room for {num} processes with {bundle} each within {timeout_s:g} s; the whole cluster has {has}"
        )
    return [
        ray.remote(num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0))(Process)
        .options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index))
        .remote()
        for index in range(num)
    ]


def start(job: "Job", actors: Sequence[Any], command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start the processes in the order of their ranks, add each to the job, and print what is started."""
    import ray

    places: list[Place] = [Place(**each) for each in ray.get([actor.place.remote() for actor in actors])]
    order = rank_order(places)
    main_place, main_actor = places[order[0]], actors[order[0]]
    rendezvous = {"MASTER_ADDR": main_place.address, "MASTER_PORT": str(ray.get(main_actor.free_port.remote()))}
    shared = dict(environment) | rendezvous
    names = " ".join(f"{name}={value}" for name, value in sorted(shared.items()) if name.startswith(("ACC", "MASTER")))
    print(f"{len(actors)} processes of: {shlex.join(command)}\nwith {names}", flush=True)
    variables = rank_variables([places[index] for index in order])
    for rank, (index, own) in enumerate(zip(order, variables, strict=True)):
        place = places[index]
        gpus = f", GPUs {own['CUDA_VISIBLE_DEVICES']}" if place.gpus else ""
        print(f"[{rank}] on {place.address}, local rank {own['LOCAL_RANK']}{gpus}", flush=True)
        started = actors[index].start.remote(list(command), shared | own, os.getcwd())
        job.running[rank] = actors[index]
        ray.get(started)


def rank_order(places: Sequence[Place]) -> list[int]:
    """Processes of one node get consecutive ranks."""
    first = {place.node: index for index, place in reversed(list(enumerate(places)))}
    return sorted(range(len(places)), key=lambda index: (first[places[index].node], index))


def rank_variables(places: Sequence[Place]) -> list[dict[str, str]]:
    """The variables of each rank. All processes of a node see its GPUs, of which LOCAL_RANK is their own."""
    on_node = Counter(place.node for place in places)
    nodes = list(dict.fromkeys(place.node for place in places))
    seen: Counter[str] = Counter()
    found = []
    for rank, place in enumerate(places):
        variables = {
            "RANK": rank,
            "LOCAL_RANK": seen[place.node],
            "WORLD_SIZE": len(places),
            "LOCAL_WORLD_SIZE": on_node[place.node],
            "GROUP_RANK": nodes.index(place.node),
        }
        seen[place.node] += 1
        gpus = [gpu for other in places if other.node == place.node for gpu in other.gpus]
        found.append({name: str(value) for name, value in variables.items()} | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)})
    return found


class Process:
    """An actor: one training process of its node."""

    def place(self) -> dict[str, Any]:
        import ray

        context = ray.get_runtime_context()
        gpus = tuple(map(str, context.get_accelerator_ids().get("GPU", ())))
        return {"node": context.get_node_id(), "address": ray.util.get_node_ip_address(), "gpus": gpus}

    def free_port(self) -> int:
        import socket

        with socket.socket() as listener:
            listener.bind(("", 0))
            return listener.getsockname()[1]

    def start(self, command: list[str], environment: dict[str, str], folder: str) -> None:
        import os
        import subprocess
        import sys
        import threading
        from collections import deque

        # The process dies with this actor, however that dies (PR_SET_PDEATHSIG, SIGKILL), and gets Ctrl-C, which Ray
        # blocks in its workers.
        tied = (
            "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, 9); "
            "signal.pthread_sigmask(signal.SIG_SETMASK, []); os.execv(sys.argv[1], sys.argv[1:])"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", tied, *command],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.lines = deque()

        def read() -> None:
            for line in self.process.stdout:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()

    def poll(self) -> tuple[list[str], int | None]:
        """What was printed since, and the exit code once it ended."""
        import time

        time.sleep(0.2)
        code = self.process.poll()
        if code is not None:
            self.reader.join(2.0)  # a child of the process may hold the pipe open
        return [self.lines.popleft() for _ in range(len(self.lines))], code

    def send(self, number: int) -> None:
        """A signal to the process; SIGKILL to its whole group."""
        import contextlib
        import os
        import signal

        if number != signal.SIGKILL:
            self.process.send_signal(number)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Job:
    """The running processes, by rank."""

    def __init__(self) -> None:
        self.running: dict[int, Any] = {}

    def watch(self) -> int:
        """Print what they print until all ended, or one failed: the exit code of this command."""
        while self.running:
            if failed := [code for code in self.look() if code]:
                return 128 - failed[0] if failed[0] < 0 else failed[0]
        return 0

    def look(self) -> list[int]:
        """Exit codes of those that ended since; of one whose node is lost, 1."""
        import ray

        asked = {rank: actor.poll.remote() for rank, actor in self.running.items()}
        codes = []
        for rank, answer in asked.items():
            try:
                lines, code = ray.get(answer)
            except ray.exceptions.RayError as error:
                lines, code = [f"lost with its node or its actor: {type(error).__name__}"], 1
            for line in lines:
                print(f"[{rank}] {line}", flush=True)
            if code is not None:
                print(f"[{rank}] ended with exit code {code}", flush=True)
                del self.running[rank]
                codes.append(code)
        return codes

    def end(self, number: int) -> None:
        """A signal to all that still run; those that do not end in time are killed, at Ctrl-C at once."""
        import ray

        try:
            deadline = time.monotonic() + _GRACE_S
            self._send(number)
            while self.running and time.monotonic() < deadline:
                self.look()
        finally:
            self._send(signal.SIGKILL)
            deadline = time.monotonic() + _GRACE_S
            while self.running and time.monotonic() < deadline:
                self.look()
            for actor in self.running.values():
                ray.kill(actor)

    def _send(self, number: int) -> None:
        for actor in self.running.values():
            actor.send.remote(number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
