"""benchmarks/recipes/combinations.py: what each side is started with; the programs are stand-ins."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from racing import commands
from recipes import combinations
from recipes.combinations import TEST, main

from agent_rl.data.tasks import read_tasks
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.errors import ConfigError

MINUTES = 2.0


class Programs:
    """Stands in for every program that the study starts."""

    def __init__(self) -> None:
        self.started: list[list[str]] = []
        self.seconds = 0.0

    def __call__(self, command: list[str], *, log: Path) -> None:
        words = command[command.index("agent_rl.scripts.cli") + 1 :] if "-m" in command else command[1:]
        self.started.append(words)
        if words[0] == "train":
            named = dict(word.split("=", 1) for word in words[3:])
            folder = Path(named["run.output_dir"]) / named["run.name"]
            folder.mkdir(parents=True)
            row = {"step": 1, "time": 0.0, "time/step_s": 60 * MINUTES}
            (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        elif words[0] == "eval":
            write_evaluation(Path(option(words, "--output-dir")), int(option(words, "--samples")))
        elif words[0] == "sft":
            self.seconds += 10 + int(option(words, "--num-demonstrations")) / 4

    def of(self, kind: str) -> list[list[str]]:
        return [words for words in self.started if kind in words[0]]


def write_evaluation(folder: Path, samples: int) -> None:
    folder.mkdir(parents=True)
    scored = {"task_id": "a", "reward": 1.0, "reward_parts": {"success": 1.0}, "stop_reason": "done"}
    lines = [json.dumps(scored | {"sample": n}) for n in range(samples)]
    (folder / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "report.json").write_text("{}")


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    fake = Programs()
    monkeypatch.setattr(commands, "start", fake)  # what `agent_rl_command` calls
    monkeypatch.setattr(combinations, "start", fake)
    monkeypatch.setattr(combinations, "with_telling_inputs", lambda specs: specs)
    clock = SimpleNamespace(monotonic=lambda: fake.seconds, time_ns=lambda: len(fake.started))
    monkeypatch.setattr(combinations, "time", clock)
    return fake


def study(folder: Path, *words: str) -> list[str]:
    return ["--output-dir", str(folder), "--num-train", "4", "--num-tune", "2", "--seeds", "0", *words]


def test_no_task_of_the_test_is_trained_on_and_none_is_in_two_files(tmp_path: Path, programs: Programs) -> None:
    main(study(tmp_path, "--data-seed", "0"))  # the seed of the test itself, whose first tasks these would be
    files = [tmp_path / "data/train.jsonl", tmp_path / "data/tune.jsonl", TEST]
    train, tune, test = ({parse_spec(row, "here").fingerprint for row in read_tasks(path)} for path in files)
    assert (len(train), len(tune)) == (4, 2)
    assert not (train & tune or train & test or tune & test)


def test_controls_have_the_minutes_of_the_steps_on_new_combinations(tmp_path: Path, programs: Programs) -> None:
    main(study(tmp_path, "--rounds", "3"))
    new, known = programs.of("train")
    assert f"data.train_path={tmp_path}/data/train.jsonl" in new
    assert not [word for word in known if word.startswith("data.train_path")]
    (rejection,) = programs.of("controls.py")
    assert (float(option(rejection, "--minutes")), option(rejection, "--rounds")) == (MINUTES, "3")
    short, long, whole = (int(option(words, "--num-demonstrations")) for words in programs.of("sft"))
    assert (short, long) == (64, 320)
    assert whole == 4 * (60 * MINUTES - 10)


def test_the_model_before_alone_has_several_samples(tmp_path: Path, programs: Programs) -> None:
    main(study(tmp_path, "--samples", "5"))
    assert [option(words, "--samples") for words in programs.of("eval")] == ["1", "5", *["1"] * 8]


def test_what_is_done_is_not_done_again(tmp_path: Path, programs: Programs, capsys: pytest.CaptureFixture) -> None:
    main(study(tmp_path))
    first, count = capsys.readouterr().out, len(programs.started)
    main(study(tmp_path))
    assert capsys.readouterr().out == first
    assert len(programs.started) == count


def test_tuning_never_touches_the_test_tasks(tmp_path: Path, programs: Programs) -> None:
    main(study(tmp_path, "--tune"))
    assert {option(words, "--tasks") for words in programs.of("eval")} == {str(tmp_path / "data/tune.jsonl")}
    assert len(programs.of("controls.py")) == 4


def test_other_settings_of_a_control_are_another_training(tmp_path: Path, programs: Programs) -> None:
    main(study(tmp_path))
    main(study(tmp_path, "--rounds", "3", "--rejection-rate", "5e-4"))
    assert [option(words, "--rounds") for words in programs.of("controls.py")] == ["1", "3"]
    assert len(programs.of("train")) == 2


def test_a_study_of_other_settings_is_not_gone_on_with(tmp_path: Path, programs: Programs) -> None:
    main(study(tmp_path))
    with pytest.raises(ConfigError, match="steps = 60, not 7"):
        main(study(tmp_path, "--steps", "7"))
