"""The wheel: what it installs, and runs from it in a folder that is no checkout."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from wheels import install_wheel

from agent_rl import resources
from agent_rl.config import load_config

ROOT = Path(__file__).resolve().parents[2]


def test_a_checkout_is_its_own_folder_of_shipped_files() -> None:
    assert resources.folder() == ROOT


def test_a_file_of_the_working_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("configs/math_grpo.yaml")
    assert resources.find(path) == ROOT / path
    path.parent.mkdir()
    path.write_text("")
    assert resources.find(path) == path


def test_other_paths_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("configs/no_such.yaml", "README.md", "configs/../README.md", "Qwen/Qwen2.5-0.5B", "/configs/x"):
        assert resources.find(path) == Path(path)


def test_a_configuration_names_the_shipped_files_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config("configs/search_qa_grpo.yaml", ["data.eval_path=mine.jsonl"])
    assert config.model.path == str(ROOT / "model/search_minimind")
    assert config.data.train_path == ROOT / "dataset/search_tasks/train.jsonl"
    assert config.data.eval_path == Path("mine.jsonl")
    assert str(ROOT / "model/search_minimind") in capsys.readouterr().err


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the wheel of a clean copy of the tracked files is installed."""
    return install_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def command(installed: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "agent_rl.scripts.cli", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(installed), "AGENT_RL_NAT_PYTHON": str(ROOT / ".venv-nat/bin/python")},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    return run


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wheel_installs_one_package_with_all_of_its_files(installed: Path) -> None:
    names = {path.name for path in installed.iterdir()} - {"bin"}
    assert names == {"agent_rl", next(name for name in names if name.endswith(".dist-info"))}
    tracked = subprocess.run(["git", "ls-files", "agent_rl"], cwd=ROOT, capture_output=True, text=True, check=True)
    missing = [name for name in tracked.stdout.split() if (ROOT / name).is_file() and not (installed / name).is_file()]
    assert missing == []
    shipped = installed / "agent_rl/shipped"
    listed = subprocess.run(
        ["git", "ls-files", "configs", "dataset", "model", "examples"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    # Tables repeat the JSON beside them; modules of a checkout's folders are in the package; the requests are too many.
    of_checkout = (".parquet", "__init__.py", "task_datasets.py", "model_minimind.py", "nat_tasks/written.jsonl.gz")
    wanted = [name for name in listed.stdout.split() if not name.endswith(of_checkout)]
    assert [name for name in wanted if (shipped / name).read_bytes() != (ROOT / name).read_bytes()] == []
    assert not (shipped / "dataset/nat_tasks/written.jsonl.gz").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_installed_wheel_trains_outside_a_checkout(command, installed: Path, tmp_path: Path) -> None:
    small = ("train.steps=1", "rollout.groups_per_step=2", "rollout.group_size=2", "eval.temperatures=[]")
    done = command("train", "--config", "configs/math_grpo.yaml", "run.device=cpu", *small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(installed / "agent_rl/shipped/model/math_minimind") in done.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["math_grpo"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_installed_wheel_shows_tasks_of_the_default_run(command) -> None:
    done = command("train", "--config", "configs/nat_grpo.yaml", "--preview-tasks", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was trained" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_installed_wheel_reports_its_version_and_missing_interpreter(command, tmp_path: Path) -> None:
    assert command("--version").stdout.startswith("agent_rl 0.")
    done = command("train", "--config", "configs/nat_grpo.yaml", "env.options.nat_python=/no/python")
    assert done.returncode == 2
    assert "agent_rl/shipped/requirements-nat.txt" in done.stderr
