"""A newcomer's first hour, in a fresh clone and outside of one with the wheel: five lines, a project of his own, a
Hugging Face model, an export that Transformers loads, an evaluation, a report. `-s` prints what each took.

The packages are those of this interpreter: pip installs the wheel alone. Not here: downloads.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import ROOT
from wheels import copy_files, install_wheel

AGENT_RL = ["-m", "agent_rl.scripts.cli"]
LORA = ["policy.type=huggingface", "model.lora.rank=8", "train.learning_rate=1e-4", "run.name=lora", "train.steps=1"]
LOAD_AND_GENERATE = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = (kind.from_pretrained(sys.argv[1]) for kind in (AutoModelForCausalLM, AutoTokenizer))
ids = tokenizer("2 + 3", return_tensors="pt").input_ids
new = model.generate(ids, min_new_tokens=4, max_new_tokens=4, do_sample=False)
print(type(model).__name__, new.shape[1] - ids.shape[1])
"""
Run = Callable[..., str]


@pytest.fixture(params=["clone", "wheel"], scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs Python with some words where a newcomer is: at the top of his clone, or in an empty folder."""
    top = tmp_path_factory.mktemp(request.param)
    start = time.monotonic()
    package = copy_files(top / "clone") if request.param == "clone" else install_wheel(top)
    here = package if request.param == "clone" else tmp_path_factory.mktemp("home")
    print(f"\n{request.param}: installed in {time.monotonic() - start:.0f} s")

    def run_python(*words: str | Path, folder: str = ".") -> str:
        environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
        command, begun = [sys.executable, *map(str, words)], time.monotonic()
        done = subprocess.run(
            command, cwd=here / folder, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        print(f"{time.monotonic() - begun:5.0f} s  {' '.join(map(str, words))[:90]}")
        return done.stdout

    where = run_python("-c", "import agent_rl, os; print(agent_rl.__file__); print(os.getcwd())").splitlines()
    assert where[0].startswith(str(package)) and not where[1].startswith(str(ROOT))
    run_python.here = here
    return run_python


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_from_five_lines_to_an_evaluated_model_of_ones_own(run: Run) -> None:
    here: Path = run.here
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    five_lines = next(
        block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "GRPOTrainer(model" in block
    )
    (here / "five.py").write_text(five_lines)
    run("five.py")
    steps = [json.loads(line) for line in (here / "runs/math_minimind-grpo/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in steps if "reward/mean" in row] == [1, 2, 3, 4, 5]

    assert "my_task.py" in run(*AGENT_RL, "init", "mine")
    run(*AGENT_RL, "prepare-tasks", "--config", "config.yaml", "--output-dir", "tasks", folder="mine")
    checked = run(*AGENT_RL, "check-data", "--config", "config.yaml", "tasks/train.jsonl", folder="mine")
    assert "280 of 280 (100.0 %)" in checked
    run(*AGENT_RL, "train", "--config", "config.yaml", folder="mine")
    run(*AGENT_RL, "train", "--config", "config.yaml", *LORA, folder="mine")
    assert list((here / "mine/runs/lora").rglob("adapter_model.safetensors"))
    run(*AGENT_RL, "export", "runs/lora", "--output-dir", "exported", "--merge", folder="mine")
    loaded = run("-c", LOAD_AND_GENERATE, "exported", folder="mine")
    assert loaded.split() == ["Qwen3ForCausalLM", "4"]
    assert "# lora" in (here / "mine/exported/README.md").read_text(encoding="utf-8")

    trained = ["--config", "runs/my_run/config.yaml", "--checkpoint", "runs/my_run/checkpoints/step_00020"]
    told = run(
        *AGENT_RL, "eval", *trained, "--output-dir", "evaluation", "--baseline", "model/math_minimind", folder="mine"
    )
    assert "Solved 100.0" in told
    assert (here / "mine/evaluation/report.html").is_file()
    run(*AGENT_RL, "report", "runs/my_run", folder="mine")
    assert (here / "mine/runs/my_run/report.html").is_file()
