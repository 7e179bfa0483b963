"""`agent-rl export`: a checkpoint as a folder that Transformers, peft and vLLM load, with a model card.

    agent-rl export runs/math_grpo/checkpoints/step_00100 --output-dir exported
    agent-rl export runs/lora --output-dir merged --merge --dtype bfloat16

Nothing is uploaded.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Dtype(StrEnum):
    """Of exported weights."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def main(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint, the folder of a run (its newest), or of a model.")],
    output_dir: Annotated[Path, typer.Option(help="New or empty folder.")],
    merge: Annotated[bool, typer.Option("--merge", help="Make LoRA adapters part of their base.")] = False,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Of a whole model's weights. Left out: as they are; merged ones float32.")
    ] = None,
) -> None:
    """Write a checkpoint's model and its card into a folder."""
    from agent_rl.policies.export import export_model, find_model, is_adapter, run_of
    from agent_rl.reports.model_card import model_card
    from agent_rl.telemetry.files import write_text

    model = find_model(checkpoint).resolve()  # its run, which the card tells of, is found from the path
    export_model(model, output_dir, merge=merge, dtype=dtype)
    adapters = is_adapter(model) and not merge
    name = (run_of(model) or model).name
    write_text(output_dir / "README.md", model_card(model, name=name, is_adapter=adapters))
    kind = "adapters" if adapters else "a whole model"
    print(f"{output_dir}: {kind} from {model}, with README.md")
