"""A small run's folder, written by hand, with texts in it that would do harm if a page took them for HTML."""

import gzip
import json
from pathlib import Path
from typing import Any

HOSTILE = "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>"
CALL = {"name": "calculator", "arguments": {"expression": "2+3"}}


def sample(**changes: Any) -> dict[str, Any]:
    """Reads two tokens, samples two, reads a result, samples one; the half of a character is the third."""
    return {
        "token_ids": [1, 7, 195, 169, 9, 5],
        "texts": ["<s>", "How many?\n", "", "é", HOSTILE, "five"],
        "loss_mask": [0, 0, 1, 1, 0, 1],
        "sampling_logprobs": [None, None, -0.1, -2.5, None, -5.0],
        "trainer_logprobs": [None, None, -0.1, -2.4, None, -5.2],
        "advantages": [None, None, 0.5, 0.5, None, -1.0],
        "segments": [
            {"kind": "prompt", "turn": 0, "start": 0, "end": 2},
            {"kind": "assistant", "turn": 0, "start": 2, "end": 4, "weight_version": [0, 1]},
            {"kind": "tool", "turn": 1, "start": 4, "end": 5},
            {"kind": "assistant", "turn": 1, "start": 5, "end": 6, "weight_version": 1},
        ],
        "num_updates": 2,
    } | changes


def record(number: int, **changes: Any) -> dict[str, Any]:
    """Episode `number` of step 1, two to a group; the even ones are solved."""
    is_solved = number % 2 == 0
    return {
        "step": 1,
        "family": "sums",
        "level": 2,
        "difficulty": None,
        "task_id": f"task-{number // 2}",
        "group_id": f"1/{number // 2}",
        "reward": float(is_solved),
        "reward_parts": {"success": float(is_solved), "right": float(is_solved)},
        "flags": [],
        "stop_reason": "finished",
        "num_tokens": 3,
        "duration_s": 0.5,
        "messages": [
            {"role": "system", "content": "Use the calculator."},
            {"role": "user", "content": f"How many? {HOSTILE}"},
            {"role": "assistant", "content": "", "tool_calls": [CALL], "info": {"note": HOSTILE}},
            {"role": "tool", "content": HOSTILE, "name": "calculator"},
            {"role": "assistant", "content": f"Five, in episode {number}.", "tool_errors": [HOSTILE]},
        ],
        "samples": [sample()],
    } | changes


def write_step(run: Path, step: int, records: list[dict[str, Any]]) -> Path:
    path = run / "samples" / f"step_{step:05d}.jsonl.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(json.dumps(each) + "\n" for each in records).encode()))
    return path


def make_run(run: Path, *, samples_every: int = 10) -> Path:
    """A run that still goes on: its last line of metrics is half written. Nothing is logged with `samples_every` 0."""
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(f"log:\n  samples_every: {samples_every}\n")
    rows = [
        {"step": 1, "reward/mean": 0.5, "success/mean": 0.5},
        {"step": 1, "eval/t0/success": 0.9},
        {"step": 10, "reward/mean": None, "success/mean": 0.25},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 20, "rew')
    if samples_every:
        late = record(3, stop_reason="max_tokens", flags=["reads_tests"], family="prices", reward=0.25)
        write_step(run, 1, [record(0), record(1), record(2), late])
        lost = record(0, step=10, group_id="10/0", reward=None, reward_parts={}, task_id=HOSTILE, samples=[])
        write_step(run, 10, [lost])
    return run


def held_out(number: int, **changes: Any) -> dict[str, Any]:
    """Episode of the held-out task `number`, as an evaluation records it: no tokens, and what was wrong in words."""
    kept = {key: value for key, value in record(number).items() if key not in ("step", "samples")}
    own = {"task_id": f"eval-{number}", "group_id": f"eval/{number}", "num_turns": 2, "error": None}
    return kept | own | {"problems": [HOSTILE] if number % 2 else [], "task_sha256": f"{number:016x}"} | changes


def write_evaluation(run: Path, step: int, temperature: str, records: list[dict[str, Any]]) -> Path:
    path = run / "eval" / f"step_{step:05d}_t{temperature}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"result": {"step": step}, "episodes": records}))
    return path


def make_evaluated_run(run: Path) -> Path:
    """The run above with evaluations of three tasks at steps 0 and 10: task 0 stays solved, 1 is solved by then."""
    make_run(run)
    lost = held_out(2, reward=None, reward_parts={}, error=HOSTILE, stop_reason="env_error")
    write_evaluation(run, 0, "0", [held_out(0), held_out(1), lost])
    write_evaluation(run, 10, "0", [held_out(0), held_out(1, reward=1.0, reward_parts={"success": 1.0}), held_out(2)])
    write_evaluation(run, 10, "0.7", [held_out(0)])
    return run
