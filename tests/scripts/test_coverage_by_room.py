"""The table of coverage adds up the files of a room and fails below the share that is asked for."""

import json
from pathlib import Path

import pytest
from builders import run_program

FILES = {"agent_rl/errors.py": (9, 10), "agent_rl/core/a.py": (30, 30), "/x/agent_rl/core/run/b.py": (5, 10)}
ENVS = {"agent_rl/envs/base.py": (1, 2), "agent_rl/envs/nat/env.py": (3, 3), "agent_rl/envs/nat/judge/x.py": (0, 3)}


@pytest.mark.parametrize(("at_least", "code"), [("82", 0), ("90", 1)])
def test_rooms_are_added_up(tmp_path: Path, at_least: str, code: int) -> None:
    files = {
        name: {"summary": {"covered_lines": ran, "num_statements": lines}}
        for name, (ran, lines) in (FILES | ENVS).items()
    }
    (tmp_path / "report.json").write_text(json.dumps({"files": files}))
    done = run_program("scripts/coverage_by_room.py", tmp_path / "report.json", "--at-least", at_least)
    assert done.returncode == code
    rows = [
        "| (top) | 10 | 90.0 % |",
        "| core | 40 | 87.5 % |",
        "| envs | 2 | 50.0 % |",
        "| envs/nat | 6 | 50.0 % |",
        "| all | 58 | 82.8 % |",
    ]
    assert done.stdout.splitlines()[2:] == rows
    assert done.stderr.startswith("error: 82.8 %") == (code == 1)
