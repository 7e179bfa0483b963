"""The commands as a person types them: preview, mistakes in one line and exit code 2, Ctrl-C, a script of one's own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ROOT, one_line_error, run_here

from agent_rl.config import apply_override
from agent_rl.data.tasks import read_tasks, write_tasks
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.policies.model_files.trained_for import read_trained_for
from agent_rl.scripts.common import as_override
from agent_rl.scripts.train import train_command

SETTINGS = ["--config", "configs/nat_grpo.yaml"]
SCRIPT = ["agent_rl/scripts/train_nat_agent.py", *SETTINGS]
TRAIN = ["train", *SETTINGS]


def run(*words: str | Path, timeout: float = 100.0) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


def test_preview_prints_tasks_tokens_and_tools_and_trains_nothing(tmp_path: Path) -> None:
    done = run(*SCRIPT, "--preview-tasks", "2", f"run.output_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Example: ") + done.stdout.count("For instance") >= 2
    assert done.stdout.count("file_write, file_read, pytest_run, nat_check, submit") == 2
    assert "tokens of 1024" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_preview_reads_any_hugging_face_tokenizer(tmp_path: Path) -> None:
    flags = ["--policy-type", "huggingface", "--hf-model-name", "model/nat_minimind"]
    previews = [run_here(*TRAIN, *extra, "--preview-tasks", "1", f"run.output_dir={tmp_path}") for extra in ([], flags)]
    assert [done.returncode for done in previews] == [0, 0], previews[1].stderr
    assert previews[0].stdout == previews[1].stdout


def test_help_needs_no_torch() -> None:
    code = "import sys; sys.argv = ['x', '--help']\nfrom agent_rl.scripts import cli\n"
    code += "try:\n    cli.main()\nexcept SystemExit:\n    pass\nassert 'torch' not in sys.modules"
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert "prepare-dataset" in done.stdout


def test_describing_the_sandbox_names_every_tier_and_capability() -> None:
    done = run_here("sandbox", "describe")
    assert done.returncode == 0, done.stderr
    for word in ("namespaces", "landlock", "rlimits", "hide_files", "syscall_filter", "used by default"):
        assert word in done.stdout
    assert "no Python interpreter" in one_line_error(run_here("sandbox", "describe", "--python", "/nowhere/python"))


def test_a_broken_config_a_missing_dataset_and_a_bad_flag_are_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("train: [\n")
    assert str(broken) in one_line_error(run(SCRIPT[0], "--config", broken))
    assert "did you mean 'steps'" in one_line_error(run_here(*TRAIN, "train.stepz=3"))
    assert "no such task file" in one_line_error(
        run_here(*TRAIN, "--dataset-dir", tmp_path, f"run.output_dir={tmp_path}")
    )
    assert "--colour" in one_line_error(run_here(*TRAIN, "--colour", "red"))
    unknown = one_line_error(run_here(*TRAIN, "--policy-type", "sglang"))
    assert all(name in unknown for name in ("sglang", "minimind", "huggingface", "vllm"))
    both = ["--model-path", "model/nat_minimind", "--hf-model-name", "model/nat_minimind"]
    assert "give one of them" in one_line_error(run_here(*TRAIN, *both))
    assert "only with 'huggingface'" in one_line_error(run_here(*TRAIN, "model.lora.rank=4"))


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("model #2", "model #2"),
        ("2024", "2024"),
        ("null", "null"),
        ("a: é😀", "a: é😀"),
        ("next\x85line", "next\x85line"),
        ("\x7f \ufeff\u2028\uffff\n", "\x7f \ufeff\u2028\uffff\n"),
        (" long name" * 30, " long name" * 30),
        (Path("x: #1"), "x: #1"),
        (3, 3),
    ],
)
def test_what_a_flag_gives_is_no_yaml(value: object, read: object) -> None:
    raw: dict[str, Any] = {}
    apply_override(raw, as_override("model.path", value))
    assert raw == {"model": {"path": read}}


def test_flags_of_training_are_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr("agent_rl.scripts.train.read_config", lambda _, overrides: given.extend(overrides))
    (folder := tmp_path / "tasks #1").mkdir()
    for split in ("train", "val"):
        (folder / f"{split}.jsonl").touch()
    with pytest.raises(AttributeError):  # there is no configuration
        train_command(Path("c.yaml"), dataset_dir=folder, model_path="2024", device="0", seed=3)
    raw: dict[str, Any] = {}
    for each in given:
        apply_override(raw, each)
    assert (raw["model"]["path"], raw["run"]) == ("2024", {"device": "0", "seed": 3})
    assert raw["data"]["train_path"] == str(folder / "train.jsonl")


def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path) -> None:
    good = (ROOT / "dataset/nat_tasks/starter/train.jsonl").read_text().splitlines()[:3]
    for name in ("train.jsonl", "val.jsonl"):
        (tmp_path / name).write_text("\n".join([*good, '{"task_id": "x", ']))
    arguments = ["--dataset-dir", tmp_path, f"run.output_dir={tmp_path}"]
    assert f"{tmp_path}/train.jsonl:4: not valid JSON" in one_line_error(run_here(*TRAIN, *arguments))
    row = json.loads(good[0])
    del row["package"]
    (tmp_path / "train.jsonl").write_text("\n".join([good[1], json.dumps(row)]))
    assert f"{tmp_path}/train.jsonl:2: field 'package'" in one_line_error(run_here(*TRAIN, *arguments))


def test_errors_for_a_missing_model_or_toolkit_name_the_remedy(tmp_path: Path) -> None:
    assert "nowhere" in one_line_error(run_here(*TRAIN, "--model-path", "nowhere", f"run.output_dir={tmp_path}"))
    hub_name = ["--hf-model-name", "Qwen/Qwen2.5-0.5B-Instruct"]
    assert "needs policy.type=huggingface" in one_line_error(run_here(*TRAIN, *hub_name, f"run.output_dir={tmp_path}"))
    folder = ["--policy-type", "huggingface", "--hf-model-name", "models/of/mine"]
    error = one_line_error(run_here(*TRAIN, *folder, f"run.output_dir={tmp_path}"))
    assert "model.path = 'models/of/mine': no such folder; give a model folder or a hub name" in error
    error = one_line_error(run_here(*TRAIN, "env.options.nat_python=/nowhere/python", f"run.output_dir={tmp_path}"))
    assert "make setup" in error


def test_the_dataset_is_the_same_for_a_seed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        done = run(
            "agent_rl/scripts/prepare_dataset.py",
            *("--num-samples", "40", "--hidden-cases", "sampled", "--output-dir", tmp_path / name),
        )
        assert done.returncode == 0, done.stderr
    names = [f"{part}.{kind}" for part in ("train", "val", "test_generalisation") for kind in ("jsonl", "parquet")]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert read_tasks(tmp_path / "a/train.parquet") == read_tasks(tmp_path / "a/train.jsonl")
    sets = [read_tasks(tmp_path / "a" / name) for name in names[::2]]
    assert [len(rows) for rows in sets] == [36, 4, 4]
    assert len({row["fingerprint"] for rows in sets for row in rows}) == 44


def test_the_shipped_tasks_are_what_the_script_makes(tmp_path: Path) -> None:
    for folder, options, num in ((".", ["--hidden-cases", "sampled"], 100), ("starter", ["--starter"], 10)):
        made = tmp_path / folder
        done = run_here("prepare-dataset", "--num-samples", str(num), *options, "--output-dir", made)
        assert done.returncode == 0, done.stderr
        shipped = (ROOT / "dataset/nat_tasks" / folder / "train.jsonl").read_text().splitlines()
        assert shipped[: num * 9 // 10] == (made / "train.jsonl").read_text().splitlines()


def test_bad_options_of_the_dataset_script_are_one_line(tmp_path: Path) -> None:
    command = ["prepare-dataset", "--output-dir", tmp_path, "--num-samples", "10"]
    assert "did you mean 'calculator'" in one_line_error(run_here(*command, "--families", "calculater"))
    assert "--levels" in one_line_error(run_here(*command, "--levels", "easy"))
    assert "--source offline" in one_line_error(run_here(*command, "--gemini-model", "x"))
    assert "--starter" in one_line_error(run_here(*command, "--starter", "--levels", "1"))
    assert "no task family" in one_line_error(run_here(*command, "--families", "react_agent", "--levels", "1"))


def test_a_parquet_file_with_a_wrong_column_is_named_by_file_row_and_field(tmp_path: Path) -> None:
    rows = read_tasks(ROOT / "dataset/nat_tasks/starter/train.jsonl")[:3]
    for name in ("train", "val"):
        write_tasks(tmp_path / f"{name}.parquet", [{**row, "colour": "red"} for row in rows])
    arguments = ["--dataset-dir", tmp_path, f"run.output_dir={tmp_path}"]
    error = one_line_error(run_here(*TRAIN, *arguments))
    assert "train.parquet:row 1" in error and "field 'colour'" in error
    (tmp_path / "train.parquet").write_bytes(b"no parquet")
    assert f"{tmp_path}/train.parquet" in one_line_error(run_here(*TRAIN, *arguments))


SMALL = [
    "rollout.groups_per_step=2",
    "rollout.group_size=4",
    "data.max_eval_tasks=4",
    "eval.temperatures=[1.0]",
    "env.options.checkers=1",
    "log.progress=false",
]


def test_ctrl_c_saves_a_checkpoint_and_exits_130_and_resume_continues(tmp_path: Path) -> None:
    command = [sys.executable, *SCRIPT, *SMALL, f"run.output_dir={tmp_path}", "train.steps=500"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = tmp_path / "nat_grpo/metrics.jsonl"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and (not metrics.exists() or '"loss/policy"' not in metrics.read_text()):
        time.sleep(0.1)
        assert process.poll() is None, process.stdout.read()
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 130, output
    assert "Interrupted after step" in output
    assert "Traceback" not in output
    saved = sorted((tmp_path / "nat_grpo/checkpoints").glob("step_*"))
    assert saved
    assert (saved[-1] / "model/model.safetensors").is_file()
    steps = int(saved[-1].name.removeprefix("step_")) + 1
    again = run(*SCRIPT, *SMALL, f"run.output_dir={tmp_path}", f"train.steps={steps}", "checkpoint.resume=auto")
    assert again.returncode == 0, again.stderr
    assert "Continuing from" in again.stdout
    assert json.loads(metrics.read_text().splitlines()[-1])["step"] == steps


def test_a_hugging_face_model_is_trained_by_flags(tmp_path: Path) -> None:
    flags = ["--policy-type", "huggingface", "--hf-model-name", "model/nat_minimind"]
    settings = ["model.lora.rank=4", "train.steps=1", "eval.temperatures=[]", f"run.output_dir={tmp_path}"]
    done = run(*SCRIPT, *SMALL, *flags, *settings)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in (tmp_path / "nat_grpo/metrics.jsonl").read_text().splitlines()]
    assert rows[0]["optim/grad_norm"] > 0.0
    assert (tmp_path / "nat_grpo/checkpoints/step_00001/model/adapter_model.safetensors").is_file()


def test_a_second_start_does_not_overwrite_a_run(tmp_path: Path) -> None:
    (tmp_path / "nat_grpo").mkdir()
    (tmp_path / "nat_grpo/config.yaml").write_text("{}")
    (tmp_path / "nat_grpo/metrics.jsonl").write_text('{"step": 1}\n')
    assert "checkpoint.resume=auto" in one_line_error(run_here(*TRAIN, f"run.output_dir={tmp_path}"))


def test_the_script_of_the_docs_grades_answers() -> None:
    done = run("docs/grade_code.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok 42\n") and "\n1.0\n" in done.stdout and "Outcome.FAILED" in done.stdout


@pytest.mark.slow
def test_the_warm_start_script_makes_a_model_that_training_accepts(tmp_path: Path) -> None:
    model = tmp_path / "model"
    words = ["--num-demonstrations", "64", "--hidden-size", "64", "--num-layers", "2"]
    done = run("agent_rl/scripts/train_sft.py", "--output-dir", model, *words)
    assert done.returncode == 0, done.stderr
    first, model = model, tmp_path / "further"
    MiniMindForCausalLM.from_pretrained(first, torch.bfloat16).save_pretrained(first)  # as some models ship
    words = ["--init-from", first, "--num-demonstrations", "64", "--num-copied", "32", "--num-read", "16"]
    words += ["--wordings", "any", "--free-share", "0.5", "--written", "dataset/nat_tasks/written.jsonl.gz"]
    done = run("agent_rl/scripts/train_sft.py", "--output-dir", model, *words)
    assert done.returncode == 0, done.stderr
    assert MiniMindForCausalLM.from_pretrained(model).dtype == torch.float32
    told, more = read_trained_for(first), read_trained_for(model)
    assert told is not None and told.tasks["wordings"] == ("own",) and told.tasks["kinds"] == ("create",)
    assert more is not None and more.tasks == {**told.tasks, "wordings": ("any", "free", "own")}
    assert more.max_context > told.max_context
    done = run(*SCRIPT, *SMALL, "--model-path", model, f"run.output_dir={tmp_path}", "train.steps=1")
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "nat_grpo")


NOT_INSTALLED = """
import runpy, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path[:] = [entry for entry in sys.path if "editable" not in entry]
sys.path_hooks[:] = [hook for hook in sys.path_hooks if "editable" not in repr(hook)]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script as where the requirements are installed and this package is not."""


BY_PATH = [path for path in (ROOT / "agent_rl/scripts").glob("*.py") if "run by its path" in path.read_text("utf-8")]


@pytest.mark.parametrize("path", sorted(BY_PATH), ids=lambda path: path.stem)
def test_scripts_run_by_their_path_where_the_package_is_not_installed(path: Path, tmp_path: Path) -> None:
    assert len(BY_PATH) >= 9
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-c", NOT_INSTALLED, str(path), "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-500:]
    assert "Usage" in ran.stdout
