"""Is everything right and fast on this GPU? Runs the parts of `benchmarks/acceptance/`, in pieces of a few minutes.

    python scripts/gpu_acceptance.py --minutes 9        # again and again, until it says that all parts are done
    python scripts/gpu_acceptance.py --part parity
    python scripts/gpu_acceptance.py --report

Each part is a process of its own and leaves a JSON file in the output folder; a part that has one is not run again.
Exit code 0: all (chosen) parts are done and no figure is an alarm; 1: one failed, is left, or is an alarm; 2: a mistake
in the command. Needs what `requirements.txt` names; what else a part needs, it looks for. Not here: several GPUs.
"""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import typer  # noqa: E402
from acceptance.figures import FAILED  # noqa: E402
from acceptance.report import alarms, is_accepted, make_report, read_all  # noqa: E402
from acceptance.runner import PARTS, chosen_parts, run_parts  # noqa: E402

from agent_rl.errors import UserError  # noqa: E402
from agent_rl.scripts.common import make_app, run_app  # noqa: E402


def main(
    part: Annotated[
        list[str] | None, typer.Option(help="Part to run, repeatable; `update` means all that begin so.")
    ] = None,
    again: Annotated[list[str] | None, typer.Option(help="Part to run even if it has a result; repeatable.")] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="End after this time; what is left is for the next call.")
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Folder of the results.", show_default="$OUT, else runs/gpu_acceptance")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny shapes, to try the parts out on a CPU.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Run nothing; print the results as a Markdown table.")
    ] = False,
) -> int:
    folder = output_dir or Path(os.environ.get("OUT") or "runs/gpu_acceptance")
    chosen = chosen_parts([*(part or []), *(again or [])])
    if report:
        results = read_all(folder)
        if not results:
            raise UserError(f"{folder} holds no results; run some parts first, or give their folder by --output-dir")
        text = make_report(results)
        (folder / "report.md").write_text(text, encoding="utf-8")
        print(text)
        return _verdict(folder, chosen)
    left = run_parts(
        chosen,
        folder,
        device=_found_device(device),
        tiny=tiny,
        minutes=minutes,
        again=chosen_parts(again) if again else [],
        command=shlex.join(["python", "scripts/gpu_acceptance.py", *sys.argv[1:]]),
    )
    if left:
        print(f"left for the next call: {', '.join(left)}", flush=True)
    return _verdict(folder, chosen)


def _verdict(folder: Path, chosen: list[str]) -> int:
    results = read_all(folder)
    for line in alarms(results):
        print(f"ALARM {line}", file=sys.stderr)
    for result in results.values():
        if result.status == FAILED:
            print(f"FAILED {result.part}: {result.reason}", file=sys.stderr)
    missing = [name for name in PARTS if name in chosen and name not in results]
    if missing:
        print(f"no result yet: {', '.join(missing)}", file=sys.stderr)
    return 0 if is_accepted(results, chosen) else 1


def _found_device(device: str) -> str:
    if device == "cpu":
        return device
    import torch

    if device not in ("auto", "cuda"):
        raise UserError(f"--device {device}: expected auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: PyTorch sees no CUDA device here; use auto, or cpu with --tiny")
    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    run_app(make_app(main))
