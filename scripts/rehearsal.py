"""What `scripts/train_agenthands.sh --rehearse` notes while its job runs, and checks in what the job left.

    python scripts/rehearsal.py PART --folder FOLDER --run RUN --port PORT [...]

The parts, in order: `before` notes what is in shared memory; `watch` notes the version of every server's weights until
the training is over, or did a step; `interrupted` notes how it ended after Ctrl-C; `weights` compares the servers'
weights with the last checkpoint; `leftovers` looks for processes, ports and shared memory; `summary` checks and prints
what was proven. Exit code 1, with a sentence, where something is not as it should be.
Not here: starting, interrupting and ending anything, which the shell script does as in the real job.
"""

import argparse
import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

SHARED_MEMORY = Path("/dev/shm")
LAUNCHER_PORT = 29500
POLL_S = 0.2
HANG_S = 1200.0
"""For a training that neither goes on nor ends."""
SETTLE_S = 20.0
"""Processes of a group that was ended may take this long to disappear."""
MARK = "AGENT_RL_REHEARSAL"
"""The variable that the script gives to all processes of a rehearsal."""


class RehearsalError(Exception):
    """Something that the rehearsal expects is absent, or something is there that it does not expect."""


def expect(is_so: object, otherwise: str) -> None:
    if not is_so:
        raise RehearsalError(otherwise)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--folder", type=Path, required=True, help="Folder of the rehearsal.")
    parser.add_argument("--run", type=Path, required=True, help="Folder of its run.")
    parser.add_argument("--port", type=int, required=True, help="Port of the first server.")
    parser.add_argument("--pid", type=int, help="watch: the launcher of the training.")
    parser.add_argument("--until-step", type=int, help="watch: end after this step and its checkpoint.")
    parser.add_argument("--code", type=int, help="interrupted: exit code of the training.")
    parser.add_argument("--model", type=Path, help="weights: what the training started from.")
    parser.add_argument("--weights", type=Path, help="weights: vllm.weight_folder.")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    try:
        PARTS[options.part](options)
    except RehearsalError as error:
        print(f"error: rehearsal: {error}", file=sys.stderr)
        sys.exit(1)


# While the job runs


def before(options: argparse.Namespace) -> None:
    _note(options, shared_memory=sorted(path.name for path in _own_files(SHARED_MEMORY)))


def watch(options: argparse.Namespace) -> None:
    """One line in versions.jsonl for each change of a server's weights."""
    last: dict[str, str] = {}
    deadline = time.monotonic() + HANG_S
    while True:
        is_running = Path(f"/proc/{options.pid}").exists()
        for address in _addresses(options):
            version = _version_at(address)
            if version is not None and version != last.get(address):
                last[address] = version
                with (options.folder / "versions.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"server": address, "version": version}) + "\n")
        step = options.until_step
        if step and (options.run / f"checkpoints/step_{step:05d}").is_dir():
            return
        if not is_running:
            expect(not step, f"the training ended before the checkpoint of step {step}")
            return
        expect(time.monotonic() < deadline, f"the training still runs after {HANG_S:g} s")
        time.sleep(POLL_S)


def interrupted(options: argparse.Namespace) -> None:
    expect(options.code, "the training ended with exit code 0 after Ctrl-C, as if it were finished")
    _note(options, interrupt_code=options.code)


def weights(options: argparse.Namespace) -> None:
    """Needs servers that run: their weights are those of the last checkpoint, tensor by tensor."""
    from agent_rl.distributed.checkpoint import latest_checkpoint
    from agent_rl.inference.base import digest_of

    checkpoint = latest_checkpoint(options.run / "checkpoints")
    expect(checkpoint, f"{options.run} holds no checkpoint")
    step = int(checkpoint.name.removeprefix("step_"))
    saved = _checksums(checkpoint / "model")
    sent = _checksums(options.weights / f"version_{step}")
    # A checkpoint of shards holds a head that is tied to the embeddings under its own name too.
    same = sent.items() <= saved.items() and {*saved.values()} == {*sent.values()}
    expect(sent and same, f"the {len(sent)} tensors sent as version {step} are not those of {checkpoint}")
    for address in _addresses(options):
        version = _version_at(address)
        expect(version == str(step), f"{address} has weights {version}, the trainer made {step} steps")
        states = _post(f"{address}/collective_rpc", {"method": "agent_rl_state"})["results"]
        expect(set(states) == {digest_of(sent)}, f"{address} did not receive the tensors of {checkpoint}")
    changed = None
    if options.model.is_dir():
        before = _checksums(options.model, like=sent)
        changed = sum(before.get(name) != text for name, text in sent.items())
        expect(changed, f"{checkpoint} holds the weights of {options.model}: nothing was learned")
    _note(options, num_tensors=len(sent), num_changed=changed, last_version=step)


def leftovers(options: argparse.Namespace) -> None:
    """After the servers were ended."""
    known = set(_notes(options)["shared_memory"])
    searches: list[Callable[[], list[str]]] = [
        lambda: [f"process {pid} ({text})" for pid, text in _marked_processes(str(options.folder))],
        lambda: [f"port {port}" for port in (options.port, options.port + 1, LAUNCHER_PORT) if _is_taken(port)],
        lambda: [str(path) for path in _own_files(SHARED_MEMORY) if path.name not in known and not _is_open(path)],
    ]
    deadline = time.monotonic() + SETTLE_S
    while found := [text for search in searches for text in search()]:
        expect(time.monotonic() < deadline, f"left behind: {', '.join(found)}")
        time.sleep(POLL_S)
    _note(options, left_behind=0)


# Afterwards


def summary(options: argparse.Namespace) -> None:
    notes, facts = _notes(options), {}
    for check in (check_steps, check_sync, check_resume, check_evaluation):
        facts |= check(options)
    facts |= {name: notes[name] for name in ("interrupt_code", "num_tensors", "num_changed", "left_behind")}
    facts["phases"] = _phases(options.folder)
    report = options.run / "report.html"
    expect(report.is_file(), f"{report} is missing: the report was not written")
    (options.folder / "summary.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    _show(facts, options)


def check_steps(options: argparse.Namespace) -> dict[str, Any]:
    """All steps, once and in order, some of which learned, from episodes one step old."""
    rows, config = _training_rows(options.run), _config(options.run)
    steps, wanted = [row["step"] for row in rows], list(range(1, config.train.steps + 1))
    expect(steps == wanted, f"training: metrics.jsonl has steps {steps}, expected {wanted}")
    learned = [row["step"] for row in rows if row["optim/skipped"] == 0]
    expect(learned, "training: no step learned anything")
    staleness = [row.get("async/staleness_max") for row in rows]
    limit = config.rollout.max_staleness
    expect(
        None not in staleness and max(staleness) == limit,
        f"training: async/staleness_max is {staleness}, expected up to {limit}",
    )
    errors = sum(row["rollout/env_errors"] for row in rows)
    expect(not errors, f"training: the environment failed in {errors:g} episodes")
    return {"steps": steps, "learned": learned, "staleness_max": staleness}


def check_sync(options: argparse.Namespace) -> dict[str, Any]:
    """Every step's weights were probed, and every server was seen with each version."""
    rows, config = _training_rows(options.run), _config(options.run)
    gaps = [row.get("sync/probe_gap") for row in rows]
    limit = config.max_logprob_gap
    expect(
        all(gap is not None and gap <= limit for gap in gaps),
        f"weights: sync/probe_gap is {gaps}, expected numbers up to {limit:g}",
    )
    versions: dict[str, list[int]] = {}
    for line in (options.folder / "versions.jsonl").read_text(encoding="utf-8").splitlines():
        seen = json.loads(line)
        if seen["version"].isdigit():
            versions.setdefault(seen["server"], []).append(int(seen["version"]))
    wanted = set(range(config.train.steps + 1))
    for address in _addresses(options):
        found = versions.get(address, [])
        expect(set(found) == wanted, f"weights: {address} was seen with versions {found}, expected {sorted(wanted)}")
    return {"probe_gaps": gaps, "max_gap": limit, "versions": versions}


def check_resume(options: argparse.Namespace) -> dict[str, Any]:
    from agent_rl.telemetry.events import read_events

    events = read_events(options.run)
    resumed = [event.facts["from_step"] for event in events if event.kind == "resume"]
    num_steps = _config(options.run).train.steps
    expect(
        len(resumed) == 1 and 0 < resumed[0] < num_steps,
        f"resume: the run was resumed after steps {resumed}, expected once, after one of 1 to {num_steps - 1}",
    )
    reasons = [event.facts["reason"] for event in events if event.kind == "end"]
    expect(reasons == ["finished"], f"resume: the run ended with {reasons}, expected that it finished, once")
    return {"resumed_after_step": resumed[0]}


def check_evaluation(options: argparse.Namespace) -> dict[str, Any]:
    from agent_rl.telemetry.events import read_events

    found = {event.step: event.facts for event in read_events(options.run) if event.kind == "evaluation"}
    for step in (0, _config(options.run).train.steps):
        is_scored = step in found and found[step]["num_scored"] > 0
        expect(is_scored, f"evaluation: there is none of step {step} with a scored task")
    return {"evaluations": {step: [facts["num_successes"], facts["num_scored"]] for step, facts in found.items()}}


def _show(facts: Mapping[str, Any], options: argparse.Namespace) -> None:
    total = sum(facts["phases"].values())
    evaluations = [f"step {step}: {good} of {all_}" for step, (good, all_) in facts["evaluations"].items()]
    changed = "" if facts["num_changed"] is None else f", {facts['num_changed']} of them learned"
    rows = {
        "steps": f"{_list(facts['steps'])}; learned in {_list(facts['learned'])}",
        "staleness": f"{_list(facts['staleness_max'])} at most, by step",
        "weights": f"{facts['num_tensors']} tensors of the last checkpoint at both servers, by checksum{changed}",
        "probes": f"gap up to {max(facts['probe_gaps']):.4f} nats, {facts['max_gap']:.3g} allowed",
        "versions": "; ".join(f"{address} {_list(seen)}" for address, seen in facts["versions"].items()),
        "resumed": f"after step {facts['resumed_after_step']}; exit code after Ctrl-C {facts['interrupt_code']}",
        "evaluation": "; ".join(evaluations),
        "left behind": "no process, no port, no shared memory",
        "times": ", ".join(f"{name} {seconds} s" for name, seconds in facts["phases"].items()) + f"; {total} s in all",
        "not proven": "GPUs, CUDA, NCCL, tensor parallelism, the real model, its memory and its speed",
        "files": f"{options.folder}, report {options.run / 'report.html'}",
    }
    print("The rehearsal is over, and everything that it expects was found:")
    for name, text in rows.items():
        print(f"  {name:<12} {text}")


# Reading


def _list(numbers: list[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def _notes(options: argparse.Namespace) -> dict[str, Any]:
    path = options.folder / "notes.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _note(options: argparse.Namespace, **facts: Any) -> None:
    (options.folder / "notes.json").write_text(json.dumps(_notes(options) | facts) + "\n", encoding="utf-8")


def _phases(folder: Path) -> dict[str, int]:
    lines = (folder / "phases.tsv").read_text(encoding="utf-8").splitlines()
    return {name: int(seconds) for name, seconds in (line.split("\t") for line in lines)}


def _config(run: Path) -> Any:
    from agent_rl.config import load_config

    return load_config(run / "config.yaml", [])


def _training_rows(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if "optim/skipped" in row]


def _checksums(folder: Path, *, like: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of the tensors in a folder's safetensors files; in the number formats of the checksums `like`."""
    import torch
    from safetensors.torch import load_file

    from agent_rl.distributed.checksums import checksum

    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            number_format = like[name].split(" ", maxsplit=1)[0] if like and name in like else None
            found[name] = checksum(tensor.to(getattr(torch, number_format)) if number_format else tensor)
    return found


def _addresses(options: argparse.Namespace) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in (options.port, options.port + 1)]


def _version_at(address: str) -> str | None:
    """The trainer's version in a server's label, such as `2` of `2/3`; None when it does not answer."""
    try:
        return str(_request(urllib.request.Request(f"{address}/weight_info"))["weight_version"]).split("/")[0]
    except OSError:
        return None


def _post(url: str, body: Mapping[str, Any]) -> Any:
    headers = {"content-type": "application/json"}
    return _request(urllib.request.Request(url, json.dumps(body).encode(), headers))


def _request(request: urllib.request.Request) -> Any:
    from agent_rl.inference.vllm.server.key_guard import key_header

    for name, value in key_header().items():
        request.add_header(name, value)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as response:
        return json.loads(response.read())


def _marked_processes(mark: str) -> Iterator[tuple[str, str]]:
    """Processes of this user, other than this one, that were started with the mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) != os.getpid() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield folder.name, (folder / "cmdline").read_text(errors="replace").replace("\0", " ")[:80]
        except OSError:  # another user's, or ended meanwhile
            continue


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _own_files(folder: Path) -> list[Path]:
    """Files of this user right in the folder; what is in folders there belongs to other runs."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            if path.stat().st_uid == os.getuid() and path.is_file():
                found.append(path)
        except OSError:
            continue
    return found


def _is_open(path: Path) -> bool:
    """Whether a process that this user may look at has the file mapped or open: one of another program."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str(path) in (folder / "maps").read_text(errors="replace"):
                return True
            if any(os.readlink(link) == str(path) for link in (folder / "fd").iterdir()):
                return True
        except OSError:
            continue
    return False


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "before": before,
    "watch": watch,
    "interrupted": interrupted,
    "weights": weights,
    "leftovers": leftovers,
    "summary": summary,
}

if __name__ == "__main__":
    main()
