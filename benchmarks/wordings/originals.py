"""Sample the specs that all held-out wordings share, and read and write the files of this folder's tasks.

The specs are those of the shipped small model (its families and levels) from seeds of their own. Their fingerprints are
in the split `val`, which no demonstration and no training task has, and in no shipped task file. What an evaluation
does not read is left out: the plan is empty, and hidden cases are sampled instead of stored.
Does not: word anything.
"""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any, Literal

from agent_rl.data.tasks import read_tasks
from agent_rl.envs.nat.factory.generate import STARTER_FAMILIES, STARTER_LEVELS, generate_specs
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.spec import NATSpec, Plan

Twin = Literal["test", "val"]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dataset/nat_tasks/wordings"
SHIPPED = tuple(
    ROOT / "dataset/nat_tasks" / name
    for name in (
        "train.jsonl",
        "val.jsonl",
        "test_generalisation.jsonl",
        "starter/train.jsonl",
        "starter/val.jsonl",
        "starter/test_generalisation.jsonl",
    )
)
SEEDS: dict[Twin, int] = {"test": 20261126, "val": 20261127}
COUNTS: dict[Twin, int] = {"test": 105, "val": 60}
"""Seven and four of each of the fifteen families and levels."""
EMPTY_PLAN = Plan(scaffold_type="simple_tool", mcp_servers=(), custom_tools=(), test_cases=())


def sample_originals() -> dict[Twin, list[NATSpec]]:
    """The specs of both twins in the generator's own wording; no fingerprint is in both, or in a shipped file."""
    taken = {row["fingerprint"] for path in SHIPPED for row in read_tasks(path)}
    out: dict[Twin, list[NATSpec]] = {}
    for twin, seed in SEEDS.items():
        specs = generate_specs(seed, ["val"], families=STARTER_FAMILIES, levels=STARTER_LEVELS, terse=True)
        chosen: dict[tuple[str, int], list[NATSpec]] = {}
        most = COUNTS[twin] // (len(STARTER_FAMILIES) * 2 - 1)
        while sum(map(len, chosen.values())) < COUNTS[twin]:
            spec = next(specs)
            cell = chosen.setdefault((spec.family, spec.level), [])
            if spec.fingerprint not in taken and len(cell) < most:
                cell.append(spec)
        # Cells take turns, so the top of a file holds some of each.
        rounds = itertools.chain.from_iterable(zip(*(chosen[cell] for cell in sorted(chosen)), strict=True))
        out[twin] = [bare(spec, f"{twin}-{number:03d}") for number, spec in enumerate(rounds)]
        taken |= {spec.fingerprint for spec in out[twin]}
    return out


def bare(spec: NATSpec, task_id: str) -> NATSpec:
    """The spec without its plan and its chosen hidden cases."""
    return spec.model_copy(update={"task_id": task_id, "plan": EMPTY_PLAN})


def path_of(twin: Twin, kind: str) -> Path:
    """Where the tasks of one kind of wording are; the originals are packed."""
    return FOLDER / f"{twin}_{kind}.jsonl{'.gz' if kind == 'original' else ''}"


def read_specs(path: Path) -> list[NATSpec]:
    """The specs of a task file."""
    return [parse_spec(row, f"{path}:{number}") for number, row in enumerate(read_tasks(path), start=1)]


def file_bytes(specs: list[NATSpec]) -> bytes:
    """The file's content, without what has a default that says the same."""
    rows = (json.dumps(_row(spec), ensure_ascii=False, separators=(",", ":")) for spec in specs)
    return "".join(f"{row}\n" for row in rows).encode()


def write_file(path: Path, content: bytes) -> None:
    """Write the content, packed where the name says so; the same content gives the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 9, mtime=0) if path.suffix == ".gz" else content)


def _row(spec: NATSpec) -> dict[str, Any]:
    left_out = {"group": True, "client_group": True, "tools": {"__all__": {"telling"}}}
    return spec.model_dump(mode="json", exclude=left_out)
