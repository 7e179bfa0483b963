"""What a run leaves in its folder, without times: equal for runs that are to be the same."""

import gzip
import json
from pathlib import Path
from typing import Any

_OF_THE_MOMENT = ("time", "perf/", "host/", "gpu/")


def lasting_metrics(run: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith(_OF_THE_MOMENT)} for row in rows]


def outcome(run: Path, last_step: int) -> dict[str, Any]:
    evals = {file.name: json.loads(file.read_text()) for file in sorted((run / "eval").iterdir())}
    samples = {
        file.name: [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
        for file in sorted((run / "samples").iterdir())
    }
    for episodes in (*(each["episodes"] for each in evals.values()), *samples.values()):
        for episode in episodes:
            del episode["duration_s"]
    return {
        "metrics": lasting_metrics(run),
        "weights": (run / f"checkpoints/step_{last_step:05d}/model/model.safetensors").read_bytes(),
        "evals": evals,
        "samples": samples,
        "transcripts": sorted(file.name for file in (run / "transcripts").iterdir()),
    }
