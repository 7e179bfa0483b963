"""Keys in a configuration: in the run's own file, which only its owner reads, and nowhere else."""

import stat
from pathlib import Path
from typing import Any

import pytest
from commands import one_line_error, run_here
from fakes import tiny_config

from agent_rl.config import load_config
from agent_rl.core import run_output
from agent_rl.core.run_folder import RunFolder
from agent_rl.core.run_output import RunOutput
from agent_rl.telemetry.files import write_text

KEY = "sk-4417-very-secret"
TOOLS = {
    "use": ["search"],
    "search": {
        "provider": "own",
        "endpoint": f"https://me:{KEY}@host/s?key={KEY}",
        "default_params": {"token": KEY, "nested": {"deep": KEY}},
    },
    "mcp": [
        {"url": f"https://{KEY}@host/mcp?key={KEY}#{KEY}"},
        {"command": ["python", "s.py", "--api-key", KEY, f"--token={KEY}", f"API_KEY={KEY}"], "sandbox": False},
    ],
}


def test_trackers_get_no_key_and_the_runs_file_is_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def spy(_names: Any, **options: Any) -> list[Any]:
        given.append(options["config"])
        return []

    monkeypatch.setattr(run_output, "open_trackers", spy)
    config = tiny_config(tmp_path, tools=TOOLS)
    path = config.run.output_dir / config.run.name / "config.yaml"
    path.parent.mkdir(parents=True)
    for name in ("config.yaml.partial",):  # what an earlier version may have left
        (path.parent / name).write_text("x")
        (path.parent / name).chmod(0o644)
    run = RunFolder.open(config)
    run.begin(config, {})
    with RunOutput(run, config, step=0, is_main=True):
        pass
    assert len(given) == 1 and KEY not in str(given[0])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_config(path).tools == config.tools


def test_a_private_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_text(path, "x", is_private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    write_text(path, "y", is_private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "wrong",
    [
        f"tools.search.endpoint=[https://me:{KEY}@host]",
        f"tools.search.default_params=[{KEY}]",
        f"tools.mcp=[{{command: [a, --api-key, {KEY}], url: 'https://h/?key={KEY}'}}]",
        f"tools.mcp=[{{url: 'https://h/?key={KEY}', timeout_s: x, api_key: {KEY}}}]",
        f"env.options.api_key={KEY}",
        f"tools.search.api_key={KEY}",
        f"tools.search.password.x=[{KEY}",
    ],
)
def test_no_complaint_about_settings_repeats_a_key(wrong: str, tmp_path: Path) -> None:
    done = run_here("train", "--config", "configs/nat_grpo.yaml", f"run.output_dir={tmp_path}", "run.name=x", wrong)
    assert KEY not in one_line_error(done)
