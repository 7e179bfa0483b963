"""benchmarks/recipes/by_rewards.py: what each side is started with; the programs are stand-ins."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from racing import commands
from recipes import by_rewards, studies
from recipes.by_rewards import main, table_by_fault
from recipes.studies import Repairs, Sizes

from agent_rl.data.tasks import read_tasks, write_tasks
from agent_rl.envs.nat.repair.faults import HELD_OUT, SHOWN
from agent_rl.errors import ConfigError
from agent_rl.reports.episodes import Episode

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
        elif words[0] == "prepare-dataset":
            self.seconds += 1000
            folder = Path(option(words, "--output-dir"))
            folder.mkdir()
            (folder / "demonstrations.jsonl").touch()

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
    monkeypatch.setattr(by_rewards, "start", fake)
    monkeypatch.setattr(studies, "with_telling_inputs", lambda specs: specs)
    clock = SimpleNamespace(monotonic=lambda: fake.seconds, time_ns=lambda: len(fake.started))
    monkeypatch.setattr(by_rewards, "time", clock)
    return fake


def study(folder: Path, *words: str) -> list[str]:
    return ["combinations", "--output-dir", str(folder), "--num-train", "4", "--num-tune", "2", "--seeds", "0", *words]


def test_no_task_of_the_test_is_trained_on_and_none_is_in_two_files(tmp_path: Path, programs: Programs) -> None:
    main(study(tmp_path, "--data-seed", "0"))  # the seed of the test itself, whose first tasks these would be
    files = [tmp_path / f"data/{name}.jsonl" for name in ("train", "tune", "test")]
    train, tune, test = ({row["fingerprint"] for row in read_tasks(path)} for path in files)
    assert (len(train), len(tune), len(test)) == (4, 2, 300)
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


def test_the_model_before_alone_has_several_samples_and_all_tasks_are_evaluated(
    tmp_path: Path, programs: Programs
) -> None:
    main(study(tmp_path, "--samples", "5", "--num-test", "301"))
    assert {option(words, "--max-tasks") for words in programs.of("eval")} == {"301"}
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
    assert len(programs.of("eval")) == 2 * (1 + 6 + 3)  # rewards as they are, and every setting of the controls
    assert len(programs.of("controls.py")) == 6


def test_tuning_tries_the_settings_and_sides_it_is_given(
    tmp_path: Path, programs: Programs, capsys: pytest.CaptureFixture
) -> None:
    main(study(tmp_path, "--tune", "--sides", "rejection", "--tune-rates", "1e-3", "8e-3", "--tune-rounds", "2"))
    tried = [(option(words, "--learning-rate"), option(words, "--rounds")) for words in programs.of("controls.py")]
    assert tried == [("0.001", "2"), ("0.008", "2")]
    assert (len(programs.of("train")), len(programs.of("sft"))) == (1, 0)  # the first side's minutes are the others'
    assert len(capsys.readouterr().out.splitlines()) == 2 + 3


def test_other_settings_of_a_control_are_another_training(tmp_path: Path, programs: Programs) -> None:
    main(study(tmp_path))
    main(study(tmp_path, "--rounds", "3", "--rejection-rate", "5e-4"))
    assert [option(words, "--rounds") for words in programs.of("controls.py")] == ["1", "3"]
    assert len(programs.of("train")) == 2


def test_a_study_of_other_settings_is_not_gone_on_with(tmp_path: Path, programs: Programs) -> None:
    main(study(tmp_path))
    with pytest.raises(ConfigError, match="steps = 60, not 7"):
        main(study(tmp_path, "--steps", "7"))


def test_repairs_train_on_new_faults_or_on_known_ones_and_no_project_is_in_two_files(
    tmp_path: Path, programs: Programs
) -> None:
    Repairs().make(tmp_path, Sizes(train=3, tune=1, test=2, seed=0))
    rows = {name: list(read_tasks(tmp_path / f"{name}.jsonl")) for name in ("train", "tune", "test", "known")}
    assert {name: len(each) for name, each in rows.items()} == {"train": 3, "tune": 1, "test": 2, "known": 3}
    for name, each in rows.items():
        assert {row["fault"] for row in each} <= {*(SHOWN if name == "known" else HELD_OUT)}
    fingerprints = [row["fingerprint"] for each in rows.values() for row in each]
    assert len({*fingerprints}) == 9


@pytest.fixture
def repairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A study of repairs, whose tasks are made without the toolkit."""

    def make(_study: Repairs, folder: Path, _sizes: Sizes) -> None:
        folder.mkdir()
        for name in ("train", "tune", "test", "known"):
            write_tasks(folder / f"{name}.jsonl", [{"task_id": "a", "fault": "lost check"}])

    monkeypatch.setattr(Repairs, "make", make)
    return ["repairs", *study(tmp_path, "--samples", "4")[1:]]


def test_demonstrations_of_repairs_are_recorded_once_for_the_sides_that_show_them_and_count_as_no_minutes(
    tmp_path: Path, programs: Programs, repairs: list[str]
) -> None:
    main([*repairs, "--sides", "rejection"])
    assert not programs.of("prepare-dataset")
    main(repairs)
    narrow, wider = programs.of("prepare-dataset")
    folders = [option(words, "--output-dir") for words in (narrow, wider)]
    assert folders == [str(tmp_path / "data/recorded"), str(tmp_path / "data/recorded_wider")]
    assert "--no-edits" in narrow and "--no-edits" not in wider
    minutes = [json.loads(path.read_bytes())["minutes"] for path in tmp_path.glob("*/trained.json")]
    assert len(minutes) == 5 and max(minutes) < 1000 / 60


def test_the_other_side_of_repairs_trains_on_known_faults_and_classes_are_counted(
    tmp_path: Path, programs: Programs, repairs: list[str], capsys: pytest.CaptureFixture
) -> None:
    main(repairs)
    lines = capsys.readouterr().out.splitlines()
    assert "| solved, T=0; T=1 | lost check |" in lines and "| the model before | 1 of 1; 4 of 4 |" in lines
    paths = [next(word for word in words if word.startswith("data.train_path")) for words in programs.of("train")]
    assert paths == [f"data.train_path={tmp_path}/data/{name}.jsonl" for name in ("train", "known")]
    shown = [option(words, "--recorded") for words in programs.of("sft")]
    files = [str(tmp_path / f"data/{name}/demonstrations.jsonl") for name in ("recorded", "recorded_wider")]
    assert shown == [each for each in files for _ in range(3)]


def test_solved_episodes_are_counted_by_class_of_fault() -> None:
    def episodes(*solved: tuple[str, float]) -> list[Episode]:
        scored = {"reward": 0.0, "stop_reason": "done"}
        return [Episode.from_record(scored | {"task_id": t, "reward_parts": {"success": s}}, "x") for t, s in solved]

    greedy, sampled = episodes(("a", 1.0), ("b", 0.0), ("c", 1.0)), episodes(("a", 0.0), ("a", 1.0), ("c", 1.0))
    table = table_by_fault({"x": (greedy, sampled)}, {"a": "not async", "b": "not async", "c": "lost check"})
    assert table.splitlines()[0] == "| solved, T=0; T=1 | lost check | not async |"
    assert table.splitlines()[2] == "| x | 1 of 1; 1 of 1 | 1 of 2; 1 of 2 |"
