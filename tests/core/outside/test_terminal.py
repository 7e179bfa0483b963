"""What a person sees on a terminal: lines that stay, episodes that are counted, a time that knows of evaluations."""

import re
import sys
from pathlib import Path

import pytest
from builders import episode, run_program, turn
from fakes import LETTER_TASKS, save_tiny_model, tiny_config
from terminal import Screen, on_a_terminal

from agent_rl.core.evaluation import RunEvaluation
from agent_rl.core.run.no_signal import NoSignal
from agent_rl.records import StopReason, TrajectoryGroup

SUPPORT = str(Path(__file__).parents[2] / "support")
ROOT = str(Path(__file__).parents[3])
SCRIPT = """
import sys, time
from fakes import LETTER_TASKS, LetterEnv, tiny_config
from agent_rl import GRPOTrainer, StepResult
from pathlib import Path

REWARDS = {"wrong": lambda n: 0.0, "right": lambda n: 1.0, "equal": lambda n: 0.5, "mixed": lambda n: float(n % 2)}

class OwnEnv(LetterEnv):
    count = 0

    def reset(self, task):
        time.sleep(0.03)
        return super().reset(task)

    def step(self, message):
        return self.truncate(None)

    def truncate(self, reason):
        OwnEnv.count += 1
        reward = REWARDS[sys.argv[1]](OwnEnv.count)
        parts = {} if sys.argv[1] == "equal" else {"success": float(reward == 1.0)}
        return StepResult(reward=reward, reward_parts=parts, terminated=True)

config = tiny_config(
    Path(sys.argv[2]), train={"steps": int(sys.argv[3])}, eval={"temperatures": [0.0], "every": 2},
    rollout={"group_size": 4, "groups_per_step": 2, "async_workers": 0}, log={"progress": True, "trackers": []},
)
with GRPOTrainer.from_config(config, env_factory=OwnEnv, train_tasks=LETTER_TASKS, eval_tasks=LETTER_TASKS) as trainer:
    trainer.train()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path / "model")
    (tmp_path / "own.py").write_text(SCRIPT)
    return tmp_path


def path_of_modules() -> str:
    return ":".join([ROOT, SUPPORT, *sys.path])


def lines_of(folder: Path, kind: str, steps: int) -> list[str]:
    done = run_program(folder / "own.py", kind, folder, str(steps), PYTHONPATH=path_of_modules())
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_steps_stay_on_the_screen_and_episodes_are_counted_while_they_run(folder: Path) -> None:
    seen: set[str] = set()

    def look(screen: Screen) -> None:
        seen.update(
            re.findall(r"(?:rollout|evaluation at temperature 0) \d+/\d+ episodes", "\n".join(screen.lines[-4:]))
        )

    screen = on_a_terminal(
        folder / "own.py", "mixed", folder, "3", folder=folder, look=look, PYTHONPATH=path_of_modules()
    )
    text = "\n".join(screen.lines)
    assert screen.code == 0, text
    assert [line[:8] for line in screen.lines if re.match(r"step \d/3  reward", line)] == [
        "step 1/3",
        "step 2/3",
        "step 3/3",
    ]
    assert any("0.500" in line for line in screen.lines)
    assert any(line.startswith("eval at step 2") for line in screen.lines)
    assert len({each for each in seen if each.startswith("rollout")}) >= 3, seen
    assert any(each.startswith("evaluation") for each in seen), seen
    assert "episodes" not in text, "the live line stays after the end"


@pytest.mark.parametrize(
    ("every", "step", "left"), [(2, 0, 3), (2, 1, 2), (2, 2, 2), (2, 3, 1), (0, 0, 2), (0, 1, 1), (3, 2, 1), (1, 1, 3)]
)
def test_evaluations_to_come_are_counted(tmp_path: Path, every: int, step: int, left: int) -> None:
    config = tiny_config(tmp_path, train={"steps": 3}, eval={"temperatures": [0.0], "every": every})
    evaluation = RunEvaluation(config, LETTER_TASKS, None, None, None)
    assert evaluation.num_left(step) == left
    assert sum(len(evaluation.due(each)) for each in range(step, 4)) == left


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("wrong", "groups: "),
        ("right", "groups: 2 all right)"),
        ("equal", "groups: "),
    ],  # why those fail is the model's
)
def test_steps_without_a_signal_are_told_with_the_reason_and_not_endlessly(folder: Path, kind: str, words: str) -> None:
    lines = lines_of(folder, kind, 6)
    told = [line for line in lines if "no group had a signal" in line]
    assert [line.partition(":")[0] for line in told] == ["step 1", "step 2", "step 4"]
    assert all(words in line and "nothing was learned" in line for line in told)
    assert "for 4 steps" in told[-1]
    (last,) = [line for line in lines if line.startswith("No step of this run had a signal")]
    assert "6 steps" in last


FINISHED, CUT = StopReason.FINISHED, StopReason.MAX_TOKENS
FULL, TURNS = StopReason.CONTEXT_FULL, StopReason.MAX_TURNS


@pytest.mark.parametrize(
    ("success", "reasons", "num_tokens", "said", "unsaid"),
    [
        (0.0, [FINISHED, FINISHED], 3, "groups: 1 all wrong)", "raise"),
        (0.0, [CUT, FINISHED], 8, "groups: 1 all wrong)", "raise"),
        (0.0, [CUT, CUT, FINISHED], 8, "raise policy.max_new_tokens", "too hard"),
        (0.0, [CUT, CUT], 6, "raise policy.max_context", "too hard"),
        (0.0, [CUT, CUT], 3, "groups: 1 all wrong)", "raise"),
        (None, [CUT, CUT], 8, "raise policy.max_new_tokens", "tell these episodes apart"),
        (0.0, [FULL, FULL], 3, "raise policy.max_context", "too hard"),
        (0.0, [TURNS, FULL, TURNS], 3, "raise rollout.max_turns", "too hard"),
        (1.0, [CUT, CUT], 8, "groups: 1 all right)", "raise"),
        (None, [FINISHED, FINISHED], 3, "groups: 1 all equal)", "raise"),
    ],
)
def test_the_reason_of_a_step_without_a_signal_is_what_ended_its_episodes(
    tmp_path: Path, success: float | None, reasons: list[StopReason], num_tokens: int, said: str, unsaid: str
) -> None:
    config = tiny_config(tmp_path, policy={"max_new_tokens": 8, "max_context": 10})
    parts = {} if success is None else {"success": success}
    episodes = [
        episode(success or 0.0, turn([1] * 4, [2] * num_tokens), stop_reason=reason, reward_parts=parts)
        for reason in reasons
    ]
    group = TrajectoryGroup(task_id="t", trajectories=tuple(episodes))
    sentence = NoSignal(config).sentence(1, [group], was_skipped=True)
    assert sentence is not None and said in sentence and unsaid not in sentence


def test_a_run_that_learns_says_none_of_this(folder: Path) -> None:
    assert not [line for line in lines_of(folder, "mixed", 2) if "signal" in line]
