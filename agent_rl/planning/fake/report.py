"""Prints how a plan compares with updates on fake tensors, or as plain data. Does not: compare (`..verify`)."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_rl.planning.machine import GIB
from agent_rl.planning.verify import TOLERANCE, Verification

NOT_SEEN = (
    "memory that a kernel takes and returns inside (attention's backward pass, sorting), vLLM, weight sync, checkpoints"
)


def verification_data(found: Verification) -> dict[str, Any]:
    """For programs: bytes of one process, operations, seconds."""
    return {
        "is_close": not found.differing,
        "tolerance": TOLERANCE,
        "differing": list(found.differing),
        "phases": [
            {
                "phase": each.phase,
                "what": each.what,
                "planned": each.planned,
                "found": each.found,
                "ratio": each.ratio,
                "is_close": each.is_close,
            }
            for each in found.phases
        ],
        "not_verified": {f"{item.name} ({item.where})": item.num_bytes for item in found.not_run},
        "micro_batch": asdict(found.micro_batch) | {"num_tokens": found.micro_batch.num_tokens},
        "products": found.products,
        "float32_share": found.float32_share,
        "attention_calls": found.attentions,
        "seconds": found.seconds,
    }


def show_verification(found: Verification, console: Console) -> None:
    """Print the table of phases, what was not run, and the products' number formats."""
    shape = found.micro_batch
    console.print(
        Text(
            f"Two updates of two micro-batches on fake tensors, {found.seconds:.0f} s: {shape.num_tokens:,} tokens, a "
            f"prompt of {shape.prompt:,} and {len(shape.own)} samples behind it, all trained"
        ),
        soft_wrap=True,
    )
    table = Table("verified", "", title="Plan against fake tensors, GiB a process", title_justify="left")
    for name in ("plan", "fake", "plan / fake"):
        table.add_column(name, justify="right")
    for each in found.phases:
        style = "" if each.is_close else "red"
        sizes = (f"{each.planned / GIB:.3f}", f"{each.found / GIB:.3f}", f"{each.ratio:.2f}")
        table.add_row(each.phase, each.what, *sizes, style=style)
    console.print(table)
    items = [f"{item.name} {item.num_bytes / GIB:.2f}" for item in found.not_run if item.num_bytes]
    console.print(Text(f"Not verified, arithmetic (GiB): {'; '.join(items)}"), soft_wrap=True)
    console.print(Text(f"Not seen by this: {NOT_SEEN}"), soft_wrap=True)
    console.print(Text(_formats(found), "yellow" if found.float32_share else ""), soft_wrap=True)
    if found.differing:
        text = f"Beyond {TOLERANCE:.0%}: {', '.join(found.differing)}."
        console.print(Text(text, "red"), soft_wrap=True)
    else:
        console.print(Text(f"Every phase is within {TOLERANCE:.0%} of the plan.", "green"), soft_wrap=True)


def _formats(found: Verification) -> str:
    everything = sum(found.products.values())
    shares = [
        f"{name} {number / 1e12:,.2f} ({number / everything:.1%})" for name, number in sorted(found.products.items())
    ]
    calls = [f"{name} {number:,}" for name, number in sorted(found.attentions.items())]
    text = (
        f"Products of an update by number format, 1e12 operations: {', '.join(shares)}; calls of fused attention: "
        f"{', '.join(calls) or 'none'}"
    )
    if found.float32_share:
        text += (
            "\nThe configuration asks for bfloat16, and some products are in float32, which a GPU computes at a tenth "
            "of the rate or less; adapters are float32 without train.autocast=bfloat16"
        )
    return text
