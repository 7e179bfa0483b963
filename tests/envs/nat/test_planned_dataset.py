"""`prepare_dataset.py --source gemini` without the SDK: its requests, one-sentence errors, the division of specs."""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_rl.envs.nat.errors import PlannerError
from agent_rl.envs.nat.factory.generate import generate_specs
from agent_rl.envs.nat.factory.planner import dataset as planned_dataset
from agent_rl.envs.nat.factory.planner.client import GeminiClient
from agent_rl.envs.nat.factory.planner.dataset import plan_task_sets
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.errors import DataError

WITHOUT_SDK = """
import sys
sys.modules["google"] = None
from agent_rl.scripts.common import run_app
from agent_rl.scripts.prepare_dataset import app
run_app(app)
"""


def command(*options: str | Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", WITHOUT_SDK, "--source", "gemini", "--num-samples", "10", *map(str, options)]
    root = Path(__file__).resolve().parents[3]
    return subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=400, check=False)


def divided(
    monkeypatch: pytest.MonkeyPatch, folder: Path, specs: list[NATSpec], **options: Any
) -> tuple[dict[str, list[NATSpec]], list[str], int]:
    """The sets, the requests that were handed to the planner, and how many specs were wanted."""
    given: dict[str, Any] = {}

    def plan_specs(requests: Any, **more: Any) -> list[NATSpec]:
        given.update(more, requests=list(requests))
        return specs

    monkeypatch.setattr(planned_dataset, "plan_specs", plan_specs)
    monkeypatch.setattr(planned_dataset, "open_service", lambda settings: None)
    arguments: dict[str, Any] = {"requests_file": None, "settings": {"model": "m"}, "num_samples": 10, "seed": 0}
    arguments |= options
    sets = plan_task_sets(folder, **arguments)
    assert given["progress_path"] == folder / "planner_progress.jsonl"
    return sets, given["requests"], given["count"]


def test_specs_are_divided_as_the_generators_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = {"train": "train", "sft": "train", "val": "val", "test_generalisation": "test_generalisation"}
    specs = {name: list(itertools.islice(generate_specs(0, [name]), 2)) for name in wanted}
    sets, requests, count = divided(monkeypatch, tmp_path, [spec for pair in specs.values() for spec in pair])
    assert sets["train"] == specs["train"] + specs["sft"]
    assert (sets["val"], sets["test_generalisation"]) == (specs["val"], specs["test_generalisation"])
    assert (len(requests), count) == (30, 10)

    assert divided(monkeypatch, tmp_path, specs["train"])[0] == {"train": specs["train"]}
    assert "no spec belongs to val, which training needs" in capsys.readouterr().out


def test_requests_of_a_file_are_its_lines_without_blank_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "free.txt"
    path.write_text("  one thing\n\n \nanother\n")
    assert divided(monkeypatch, tmp_path, [], requests_file=path)[1] == ["one thing", "another"]
    path.write_text("\n")
    with pytest.raises(DataError, match=r"free\.txt: the file holds no request"):
        divided(monkeypatch, tmp_path, [], requests_file=path)
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"free\.txt: the requests cannot be read"):
        divided(monkeypatch, tmp_path, [], requests_file=path)
    with pytest.raises(DataError, match=r"none\.txt: the requests cannot be read"):
        divided(monkeypatch, tmp_path, [], requests_file=tmp_path / "none.txt")


def test_the_command_without_the_sdk_or_with_offline_options_is_one_sentence(tmp_path: Path) -> None:
    done = command("--output-dir", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the Gemini planner needs the google-genai SDK")
    assert done.stderr.endswith("pip install -r requirements-gemini.txt\n")
    done = command("--output-dir", tmp_path, "--levels", "1")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "--levels" in done.stderr


def test_the_sdk_is_not_imported_with_the_planner() -> None:
    code = (
        "import agent_rl.envs.nat.factory.planner.dataset, sys; "
        "assert not [name for name in sys.modules if name.startswith('google.genai')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=400)


def test_without_the_sdk_one_sentence_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google", None)
    with pytest.raises(PlannerError, match=r"pip install -r requirements-gemini\.txt"):
        GeminiClient(model="m", timeout_s=1.0)
