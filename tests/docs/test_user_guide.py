"""The commands of docs/USER_GUIDE.md run one after the other, with few steps."""

import json
from pathlib import Path

import pytest
from checkout import blocks, make_checkout, run_block

PAGE = "docs/USER_GUIDE.md"
TINY = {
    "agent-rl check-data": "",
    "agent-rl create": "",
    "agent-rl eval": "data.max_eval_tasks=4",
    "agent-rl nat": "",
    "agent-rl plan": "",
    "agent-rl preflight": "",
    "agent-rl report": "",
    "agent-rl train": "train.steps=1 rollout.group_size=2 rollout.groups_per_step=2 data.max_eval_tasks=2",
    "agent-rl view": "",
}
IN_PLACE_OF = {
    "step_00100": "step_00001",
    "agent-rl view runs/math_grpo": "timeout -s INT 20 agent-rl view runs/math_grpo || test $? = 124",
}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_guide_runs_from_its_first_command_to_its_last(tmp_path: Path) -> None:
    folder = make_checkout(tmp_path, TINY)
    for block in blocks(PAGE):
        small = block
        for text, smaller in IN_PLACE_OF.items():
            small = small.replace(text, smaller)
        ran = run_block(small, folder)
        assert ran.returncode == 0, small + ran.stdout[-2000:] + ran.stderr[-2000:]
    assert (folder / "runs/math_grpo/report.html").is_file() and (folder / "runs/eval/report.html").is_file()
    assert {path.name for path in (folder / "runs").iterdir()} == {"math_grpo", "eval", "mine", "my_model"}
    assert json.loads((folder / "my_agent/PROVENANCE.json").read_text())["state"] == "accepted"
    assert (folder / "my_agent.zip").is_file()


def test_every_tiny_size_belongs_to_a_command_of_the_guide() -> None:
    written = "\n".join(blocks(PAGE))
    assert [text for text in (*TINY, *IN_PLACE_OF) if text not in written] == []
