"""The scripts for tasks and warm starts: what they write and print, and mistakes in one sentence."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from commands import ROOT, one_line_error, run_here
from safetensors.torch import load_file

from agent_rl.data.tasks import read_tasks
from agent_rl.learning import sft
from agent_rl.policies.minimind_policy import load_tokenizer
from agent_rl.policies.model_files.trained_for import TrainedFor, read_trained_for
from agent_rl.scripts import prepare_tasks, train, train_math_agent, train_sft
from agent_rl.tools.toolset import Toolset


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stdout == ""
    return one_line_error(done)


# The warm start

SMALL = ["--domain", "math", "--num-demonstrations", "32", "--hidden-size", "64", "--num-layers", "1"]


def watched_ids(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Ids of what a training is shown from now on."""
    seen: list[list[int]] = []
    really_train = sft.train_sft

    def watched(model, conversations, settings, report, *, progress) -> None:
        def passed_on():
            for conversation in conversations:
                seen.append(conversation.token_ids)
                yield conversation

        really_train(model, passed_on(), settings, report, progress=progress)

    monkeypatch.setattr(sft, "train_sft", watched)
    return seen


@pytest.mark.parametrize(
    ("agent_type", "call", "other"),
    [
        ("react", 'Action Input: {"expression": "', "<tool_call>"),
        ("hf", '{"name": "calculator", "arguments": {"expression": "', "Action"),
    ],
)
def test_a_warm_start_learns_the_configured_agent_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent_type: str, call: str, other: str
) -> None:
    seen = watched_ids(monkeypatch)
    assert run_here("--output-dir", tmp_path, *SMALL, "--agent-type", agent_type, app=train_sft.app).returncode == 0
    tokenizer = load_tokenizer(tmp_path)
    assert len(seen) == 32
    texts = [tokenizer.decode(ids) for ids in seen]
    assert sum(call in text for text in texts) > 16
    assert not any(other in text for text in texts)
    assert len(tokenizer.encode(call)) == 1  # a phrase of the texts that the tokenizer was trained on
    assert (tmp_path / "model.safetensors").is_file()
    longest = max(map(len, seen))
    assert read_trained_for(tmp_path) == TrainedFor(environment="math_qa", max_context=longest, tasks={})


def math_model(folder: Path, window: int) -> Path:
    shutil.copytree(ROOT / "model/math_minimind", folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": window}))
    return folder


def test_demonstrations_longer_than_the_window_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched_ids(monkeypatch)
    words = [*SMALL, "--agent-type", "react", "--init-from"]
    done = run_here("--output-dir", tmp_path / "all", *words, math_model(tmp_path / "wide", 4096), app=train_sft.app)
    assert done.returncode == 0 and "left out" not in done.stdout
    all_ids, seen[:] = list(seen), []
    window = sorted(map(len, all_ids))[15]
    num_shown = sum(len(ids) <= window for ids in all_ids)
    narrow = math_model(tmp_path / "narrow", window)
    done = run_here("--output-dir", tmp_path / "some", *words, narrow, app=train_sft.app)
    assert done.returncode == 0, done.stderr
    assert seen[:num_shown] == [ids for ids in all_ids if len(ids) <= window]  # others come in their place
    assert len(seen) == 32 and read_trained_for(tmp_path / "some").max_context == max(map(len, seen)) <= window
    told = next(line for line in done.stdout.splitlines() if line.startswith("left out"))
    assert int(told.split()[2]) >= 32 - num_shown and f" {window} tokens" in told


def test_a_window_that_no_demonstration_fits_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_sft, "MAX_TOO_LONG", 20)
    words = [*SMALL, "--init-from", math_model(tmp_path / "narrow", 16)]
    done = run_here("--output-dir", tmp_path / "made", *words, app=train_sft.app)
    assert "20 demonstrations in a row have more than the model's window of 16 tokens" in one_line_error(done)


def test_a_warm_start_that_was_cut_off_continues_by_the_same_command_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--output-dir", tmp_path / "cut", *SMALL, "--num-demonstrations", "320"]
    monkeypatch.setattr(sft.SftProgress.__init__, "__kwdefaults__", {"every_s": 0.0})
    really_save, saved = sft.SftProgress.save_if_due, []

    def cut(self, *given) -> None:
        really_save(self, *given)
        saved.append(self.path)
        if len(saved) == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(sft.SftProgress, "save_if_due", cut)
    assert run_here(*words, app=train_sft.app).returncode == 130
    assert saved[0].is_file() and not (tmp_path / "cut/model.safetensors").exists()
    assert "another folder" in refusal(run_here(*words, "--seed", "5", app=train_sft.app))
    done = run_here(*words, app=train_sft.app)
    assert done.returncode == 0 and "continuing from" in done.stdout and not saved[0].exists()
    assert len(saved) == 20
    assert run_here("--output-dir", tmp_path / "whole", *words[2:], app=train_sft.app).returncode == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("cut", "whole")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--batch-size", "0"], "'--batch-size': Input should be greater than or equal to 1"),
        (["--num-demonstrations", "0"], "'--num-demonstrations': Input should be greater than or equal to 1"),
        (["--num-demonstrations", "-3"], "'--num-demonstrations': Input should be greater than or equal to 1"),
        (["--num-demonstrations", "15"], "less than one batch (--batch-size 16)"),
        (["--new-tokenizer"], "--new-tokenizer without --init-from"),
        (["--more-words", "9"], "--more-words 9 without --init-from"),
        (["--more-words", "9", "--new-tokenizer", "--init-from", "model/nat_minimind"], "leave one out"),
        (["--domain", "math", "--levels", "1,2"], "no demonstrations to choose from; leave out --levels"),
        (["--domain", "nat", "--families", "calculator,date_tool"], "the family date_tool is held out"),
        (["--domain", "nat", "--families", "note_serch"], "no task family 'note_serch'; did you mean 'note_search'?"),
        (["--muon-learning-rate", "nan"], "--muon-learning-rate is nan"),
        (["--levels", "easy"], "--levels 'easy': expected numbers"),
        (["--levels", "1", "--wordings", "any"], "leave one out"),
        (["--free-share", "0.1"], "without --wordings any"),
        (["--written", "requests.jsonl"], "--written requests.jsonl without --wordings any"),
        (["--wordings", "any", "--written", "missing.jsonl"], "missing.jsonl"),
        (["--domain", "nat", "--levels", "7"], "has a level in [7]"),
        (["--hidden-size", "16"], "'--hidden-size': Input should be greater than or equal to 64"),
        (["--hidden-size", "100"], "--hidden-size is 100; give a multiple of 64"),
        (["--num-layers", "0"], "'--num-layers': Input should be greater than or equal to 1"),
        (["--domain", "math", "--agent-type", "code"], "an episode whose only tool is 'code_exec'"),
    ],
)
def test_options_that_no_model_can_be_made_of_are_one_line(
    tmp_path: Path,
    options: list[str],
    expected: str,
) -> None:
    done = run_here("--output-dir", tmp_path / "model", *options, app=train_sft.app)
    assert expected in refusal(done)


def test_a_model_goes_on_with_another_tokenizer(tmp_path: Path) -> None:
    math = shutil.copytree(ROOT / "model/math_minimind", tmp_path / "math")
    TrainedFor(environment="math_qa", max_context=4000, tasks={}).save(math)
    words = ["--init-from", math, "--new-tokenizer", "--agent-type", "react", "--learning-rate", "1e-9"]
    made = tmp_path / "made"
    done = run_here("--output-dir", made, *SMALL, *words, "--muon-learning-rate", "1e-9", app=train_sft.app)
    assert done.returncode == 0, done.stderr
    old, new = load_tokenizer(math), load_tokenizer(made)
    assert old.get_vocab() != new.get_vocab() and len(new.encode('Action Input: {"expression": "')) == 1
    weights = [load_file(folder / "model.safetensors") for folder in (math, made)]
    name = "model.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(weights[0][name], weights[1][name], atol=1e-5, rtol=0)
    embedded = [
        weights[side]["model.embed_tokens.weight"][each.get_vocab()["a"]] for side, each in enumerate((old, new))
    ]
    torch.testing.assert_close(*embedded, atol=1e-5, rtol=0)
    assert read_trained_for(made).max_context < 4000  # what was learned under the old one is not known any more


def test_a_model_goes_on_with_more_words(tmp_path: Path) -> None:
    math = shutil.copytree(ROOT / "model/math_minimind", tmp_path / "math")
    TrainedFor(environment="search_qa", max_context=2048, tasks={}).save(math)
    words = ["--init-from", math, "--domain", "search", "--more-words", "20", "--learning-rate", "1e-9"]
    made = tmp_path / "made"
    done = run_here("--output-dir", made, *SMALL, *words, "--muon-learning-rate", "1e-9", app=train_sft.app)
    assert done.returncode == 0, done.stderr
    old, new = load_tokenizer(math), load_tokenizer(made)
    assert {token: new.get_vocab()[token] for token in old.get_vocab()} == old.get_vocab()
    assert len(new) >= len(old) + 20
    before, after = (load_file(folder / "model.safetensors")["model.embed_tokens.weight"] for folder in (math, made))
    assert len(after) == len(new)
    torch.testing.assert_close(after[: len(old)], before, atol=1e-5, rtol=0)
    assert read_trained_for(made).max_context == 2048  # what was learned under the old words is known as well


def test_an_unknown_agent_type_is_one_line_before_any_demonstration_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(train_sft, "make_env_factory", made.append)
    done = run_here("--output-dir", tmp_path / "model", "--agent-type", "chat", app=train_sft.app)
    assert "unknown agent type 'chat' in agent.type; known: code, hf, react" in refusal(done)
    assert made == [] and not (tmp_path / "model").exists()


# Task files


def test_the_files_of_a_domain_are_printed_by_their_names(tmp_path: Path) -> None:
    words = ["--domain", "search", "--num-train", "6", "--num-eval", "4", "--output-dir", tmp_path / "new"]
    done = run_here(*words, app=prepare_tasks.app)
    assert done.returncode == 0, done.stderr
    named = [Path(line.split(":")[0]) for line in done.stdout.splitlines()[:-1]]
    assert named == [tmp_path / f"new/{name}.jsonl" for name in ("train", "eval", "with_documents", "corpus")]
    assert sorted(named) == sorted((tmp_path / "new").iterdir())
    assert len(read_tasks(named[0])) == 6


@pytest.mark.parametrize(
    ("script", "options"), [(prepare_tasks, ["--domain", "math", "--num-train", "1"]), (train_sft, SMALL)]
)
@pytest.mark.parametrize(("name", "why"), [("taken", "File exists"), ("taken/inside", "Not a directory")])
def test_an_output_folder_that_is_a_file_is_one_line(tmp_path: Path, script, options, name, why) -> None:
    (tmp_path / "taken").write_text("mine")
    done = run_here("--output-dir", tmp_path / name, *options, app=script.app)
    message = f"error: --output-dir is {tmp_path / name}, which cannot be a folder ({why}); name another"
    assert refusal(done) == message
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize(
    ("domain", "said", "unsaid"),
    [
        ("prompts", "makes no task files", "missing"),
        ("external", "makes no task files", "give"),
        ("hello", "makes no task files", "missing"),
        ("gymnasium", "give --config", "config: "),
        ("mixtrue", "did you mean 'mixture'", "--config"),
    ],
)
def test_an_environment_that_needs_more_than_its_name_is_told_so(tmp_path: Path, domain, said, unsaid) -> None:
    message = refusal(run_here("--domain", domain, "--output-dir", tmp_path / "new", app=prepare_tasks.app))
    assert domain in message and said in message and unsaid not in message
    assert not (tmp_path / "new").exists()


SUMS = '{"task_id": "1", "problem": "What is 1 + 1?", "answer": "2"}\n'


def test_rows_are_checked_as_the_configuration_reads_them_and_without_one_as_nat_tasks(tmp_path: Path) -> None:
    (tmp_path / "sums.jsonl").write_text(SUMS)
    message = refusal(run_here("check-data", tmp_path / "sums.jsonl"))
    assert "sums.jsonl:1" in message and "--config" in message and "prepare_dataset" not in message
    config = (ROOT / "configs/math_grpo.yaml").read_text().replace("data:\n", "data:\n  columns: {question: problem}\n")
    (tmp_path / "mine.yaml").write_text(config)
    done = run_here("check-data", "--config", tmp_path / "mine.yaml", tmp_path / "sums.jsonl")
    assert done.returncode == 0, done.stderr


# The preview

PREVIEW = ["--config", "configs/math_grpo.yaml", "--preview-tasks", "1", "model.path=model/nat_minimind"]


def test_a_preview_shows_the_rules_that_a_text_agent_reads() -> None:
    shown = {}
    for agent_type in ("hf", "react"):
        done = run_here(*PREVIEW, f"agent.type={agent_type}", app=train_math_agent.app)
        assert done.returncode == 0, done.stderr
        shown[agent_type] = done.stdout
    for text in ("Solve the problem", "How many", "tools: calculator", "tokens of 640"):
        assert text in shown["hf"] and text in shown["react"]
    for text in ("Action Input:", '"description": "Calculate', "<|im_start|>user"):
        assert text in shown["react"] and text not in shown["hf"]


def test_a_preview_closes_its_tools_when_a_task_cannot_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Toolset] = []

    def close(toolset: Toolset) -> None:
        closed.append(toolset)

    monkeypatch.setattr(Toolset, "close", close)
    monkeypatch.setattr(Toolset, "make", lambda *_arguments, **_options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train.preview(train.read_config(Path(PREVIEW[1]), PREVIEW[4:]), 1)
    assert len(closed) == 1


def test_a_folder_with_val_and_eval_is_read_as_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = '{"question": "1 + 1", "answer": "2"}'
    for name in ("train", "val", "eval"):
        (tmp_path / f"{name}.jsonl").write_text(row)
    seen = []
    monkeypatch.setattr(train, "preview", lambda config, count: seen.append(config.data))
    assert run_here(*PREVIEW, "--dataset-dir", tmp_path, app=train_math_agent.app).returncode == 0
    assert [(Path(data.train_path).name, Path(data.eval_path).name) for data in seen] == [("train.jsonl", "val.jsonl")]
