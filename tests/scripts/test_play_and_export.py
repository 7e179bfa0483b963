"""`agent-rl play`, `chat` and `export`, `collect` and the callbacks of a run: small models, real environments."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from builders import make_trainer
from commands import ROOT, one_line_error, run_here
from fakes import LETTER_TASKS, LetterEnv, ScriptedPolicy, save_tiny_model, tiny_config
from tiny_models import save_tiny_causal_lm
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_rl import collect, load_config
from agent_rl.agent.messages import Message, ToolCall, ToolCallError, ToolSpec
from agent_rl.data.tasks import read_tasks
from agent_rl.envs.base import AgentEnv, StepResult
from agent_rl.errors import ConfigError
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.policies.model_files.trained_for import TrainedFor, read_trained_for
from agent_rl.scripts.commands.play import ShownEnv, read_reply, show
from agent_rl.tools.calculator import calculator

MATH = ["--config", "configs/math_grpo.yaml", "run.device=cpu"]


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


# play


@pytest.fixture
def question(tmp_path: Path) -> list[str]:
    tasks = tmp_path / "tasks #1.jsonl"
    rows = [{"task_id": name, "question": "What is 2 + 3?", "answer": "5"} for name in ("first", "second")]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["play", *MATH, "--tasks", str(tasks)]


def test_a_person_plays_an_episode_with_a_tool(question: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "/calculatr 1", "/calculator 2 + 3", "Answer: 5")
    done = run_here(*question, "--task", "second")
    assert done.returncode == 0, done.stderr
    assert "task second" in done.stdout and "[user] What is 2 + 3?" in done.stdout
    assert "[not sent] there is no tool 'calculatr'; did you mean 'calculator'?" in done.stdout
    assert "[tool calculator] 5" in done.stdout
    assert "reward 1\n" in done.stdout


def test_an_episode_that_is_given_up_is_scored_as_one_without_an_answer(
    question: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch)
    done = run_here(*question)
    assert "task first" in done.stdout and "given up\nreward 0\n" in done.stdout
    assert "'second'" in one_line_error(run_here(*question, "--task", "secnd"))
    line = one_line_error(run_here("play", *MATH, "--tasks", "dataset/math_tasks/eval.jsonl", "--task", "x"))
    num_tasks = len(read_tasks(ROOT / "dataset/math_tasks/eval.jsonl"))
    assert f"there are {num_tasks}, such as" in line and "known" not in line
    last = read_tasks(ROOT / "dataset/math_tasks/eval.jsonl")[-1]["task_id"]
    near = run_here("play", *MATH, "--tasks", "dataset/math_tasks/eval.jsonl", "--task", f"{last}x")
    assert last in one_line_error(near)


def test_what_a_terminal_would_obey_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    copy = "\x1b]52;c;cm0gLXJm\x07"
    call = ToolCall(name=f"{copy}add", arguments={"text": copy})
    error = ToolCallError(kind="bad_json", message=f"not {copy}JSON", span=(0, 3))
    show(Message(role="assistant", content=f"one{copy}\r\n\x9b2Jtwo", tool_calls=(call,), tool_errors=(error,)))
    shown = capsys.readouterr().out
    assert "[assistant] one\n2Jtwo\n" in shown and "unreadable call] not JSON" in shown
    assert [each for each in shown if (ord(each) < 32 and each != "\n") or 127 <= ord(each) < 160] == []


def test_a_model_plays_an_episode_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_here("play", *MATH, "--checkpoint", "model/math_minimind")
    assert done.returncode == 0, done.stderr
    assert "[user] " in done.stdout and "[assistant" in done.stdout and "\nreward " in done.stdout


def test_a_reply_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "sum.txt").write_text("2 + 3")
    spec = calculator.spec
    assert read_reply(f"/calculator @{tmp_path}/sum.txt", [spec]).tool_calls[0].arguments == {"expression": "2 + 3"}
    assert read_reply("five", [spec]).content == "five"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_reply("@none.txt", [spec])


# chat


def test_a_model_is_talked_to_with_its_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped model calls the calculator for a problem of its kind; /reset forgets it."""
    row = json.loads(Path("dataset/math_tasks/eval.jsonl").read_text(encoding="utf-8").splitlines()[0])
    typed(monkeypatch, row["question"], "/reset", row["question"], "/quit", "never read")
    system = "Solve the problem; use the tools to calculate. Then write Answer: and the answer alone."
    done = run_here("chat", *MATH, "--system", system, "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert "[assistant calls calculator]" in done.stdout and "[tool calculator]" in done.stdout
    assert done.stdout.count("[assistant calls calculator]") % 2 == 0
    assert "never read" not in done.stdout


def test_a_conversation_that_fills_the_window_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "word " * 2000)
    done = run_here("chat", *MATH)
    assert done.returncode == 0 and "[not answered]" in done.stdout


# export

LEARNED = TrainedFor(environment="letters", max_context=40, tasks={"levels": (1, 2)})


@pytest.fixture
def lora_run(tmp_path: Path) -> Path:
    """A run of one step with adapters on a tiny model of Transformers."""
    save_tiny_causal_lm(tmp_path / "model")
    config = tiny_config(
        tmp_path,
        policy={"type": "huggingface"},
        model={"lora": {"rank": 4, "alpha": 8.0}},
        train={"steps": 1},
        eval={"temperatures": [0.0]},
    )
    with make_trainer(config) as trainer:
        trainer.train()
        with torch.no_grad():  # fresh adapters add nothing
            for name, parameter in trainer.model.module.named_parameters():
                if "lora_B" in name:
                    parameter.fill_(0.05)
        trainer.model.save_pretrained(tmp_path / "changed")
    return tmp_path / "runs/tiny"


def logits_of(model: torch.nn.Module) -> torch.Tensor:
    return model(torch.tensor([[1, 2, 3]])).logits


def test_merged_adapters_compute_what_the_adapters_computed(lora_run: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    LEARNED.save(tmp_path / "changed")
    done = run_here("export", tmp_path / "changed", "--output-dir", tmp_path / "merged", "--merge")
    assert done.returncode == 0, done.stderr
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    adapted = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "model"), tmp_path / "changed"
    )
    assert torch.allclose(logits_of(merged), logits_of(adapted), atol=1e-5)
    assert not torch.allclose(logits_of(merged), logits_of(base), atol=1e-3)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template
    assert not (tmp_path / "merged/adapter_config.json").exists()
    assert read_trained_for(tmp_path / "merged") == LEARNED
    card = (tmp_path / "merged/README.md").read_text(encoding="utf-8")
    assert "Trained for `letters`, conversations of up to 40 tokens: levels 1, 2." in card


def test_the_card_of_a_runs_newest_checkpoint_has_its_facts(lora_run: Path, tmp_path: Path) -> None:
    assert "which --dtype is for" in one_line_error(
        run_here("export", lora_run, "--output-dir", tmp_path / "out", "--dtype", "bfloat16")
    )
    done = run_here("export", lora_run, "--output-dir", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/adapter_config.json").is_file()
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    result = json.loads((lora_run / "eval/step_00001_t0.json").read_text(encoding="utf-8"))["result"]
    solved = f"| 1 | 0 | {result['num_successes']} of {result['num_scored']} |"
    for part in [f"base_model: {tmp_path}/model", "library_name: peft", "# tiny", solved, "| step | 1 |", "torch "]:
        assert part in card, part
    assert card.count("| 0 | 0 | ") == 1


def test_a_whole_model_is_copied_and_wrong_wishes_are_one_sentence(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    assert run_here("export", model, "--output-dir", tmp_path / "out").returncode == 0
    assert {path.name for path in model.iterdir()} | {"README.md"} == {p.name for p in (tmp_path / "out").iterdir()}
    assert "library_name: transformers" in (tmp_path / "out/README.md").read_text()
    words = ("export", model, "--output-dir", tmp_path / "half", "--dtype", "bfloat16")
    assert run_here(*words).returncode == 0
    for folder in ("out", "half"):  # safetensors alone would keep the weights to their owner
        assert len({path.stat().st_mode for path in (tmp_path / folder).iterdir()}) == 1
    half, whole = AutoModelForCausalLM.from_pretrained(tmp_path / "half"), MiniMindForCausalLM.from_pretrained(model)
    assert half.dtype == torch.bfloat16 and whole.dtype == torch.float32
    for name, parameter in half.named_parameters():
        assert torch.equal(parameter, whole.state_dict()[name].bfloat16()), name
    for words, part in [
        ([model, "--output-dir", tmp_path / "out"], "not an empty folder"),
        ([model, "--output-dir", tmp_path / "new", "--merge"], "leave --merge out"),
        ([tmp_path / "none", "--output-dir", tmp_path / "new"], "no checkpoint"),
    ]:
        assert part in one_line_error(run_here("export", *words))


def test_a_model_is_exported_by_a_relative_path_of_any_length(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    for number, (folder, words) in enumerate([(tmp_path, "model"), (model, ".")]):
        done = run_here("export", words, "--output-dir", tmp_path / f"out{number}", folder=folder)
        assert done.returncode == 0, done.stderr
        assert "# model\n" in (tmp_path / f"out{number}/README.md").read_text(encoding="utf-8")


def test_the_card_knows_its_run_wherever_the_command_stands(lora_run: Path, tmp_path: Path) -> None:
    for number, folder in enumerate([lora_run, lora_run / "checkpoints", lora_run / "checkpoints/step_00001"]):
        words = Path("checkpoints/step_00001/model").parts[number:]
        done = run_here("export", Path(*words), "--output-dir", tmp_path / f"out{number}", folder=folder)
        assert done.returncode == 0, done.stderr
        card = (tmp_path / f"out{number}/README.md").read_text(encoding="utf-8")
        assert "# tiny\n" in card and "| step | 1 |" in card


@pytest.mark.parametrize("kind", ["whole", "adapters"])
@pytest.mark.parametrize("harm", ["torn", "no_weights", "no_tokenizer", "torn_config"])
def test_a_model_that_does_not_load_is_not_exported(
    kind: str, harm: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "adapters":
        request.getfixturevalue("lora_run")
    model = tmp_path / "changed" if kind == "adapters" else save_tiny_model(tmp_path / "model")
    (weights,) = model.glob("*.safetensors")
    if harm == "torn":
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    elif harm == "torn_config":
        config = model / ("adapter_config.json" if kind == "adapters" else "config.json")
        config.write_bytes(config.read_bytes()[:20])
    else:
        (weights if harm == "no_weights" else model / "tokenizer.json").unlink()
    ways: list[list[str]] = [[], ["--merge"]] if kind == "adapters" else [[], ["--dtype", "bfloat16"]]
    for way in ways:
        assert str(model) in one_line_error(run_here("export", model, "--output-dir", tmp_path / "out", *way))
        assert not (tmp_path / "out").exists()


# From Python


def test_collect_gives_groups_of_an_environment_of_ones_own(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    config = tiny_config(tmp_path)
    policy = ScriptedPolicy(["post", "s", "post", "s"])
    groups = collect(config, policy, LETTER_TASKS[:2], env_factory=LetterEnv, group_size=2, temperature=1.0)
    assert [[each.task_id for each in group.trajectories] for group in groups] == [["t0"] * 2, ["t1"] * 2]
    assert all(episode.reward is not None for group in groups for episode in group.trajectories)


def test_collect_takes_the_tasks_of_a_configuration(tmp_path: Path) -> None:
    rows = [{"question": "What is 2 + 3?", "answer": "5"}]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    here = [f"data.train_path={tmp_path}/train.json", "rollout.async_workers=0"]
    config = load_config("configs/math_grpo.yaml", here)
    (group,) = collect(config, ScriptedPolicy(["Answer: 5"]), temperature=0.0)
    assert group.trajectories[0].reward == 1.0


def test_callbacks_see_every_step_and_every_evaluation(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    steps, results = [], []
    with make_trainer(tmp_path, train={"steps": 2}, eval={"temperatures": [0.0]}) as trainer:
        trainer.train(on_step=lambda step, metrics: steps.append((step, metrics)), on_evaluation=results.append)
    rows = [json.loads(line) for line in (tmp_path / "runs/tiny/metrics.jsonl").read_text().splitlines()]
    logged = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert [(step, metrics["reward/mean"]) for step, metrics in steps] == list(enumerate(logged, start=1))
    assert [result.step for result in results] == [0, 2]


def test_what_a_callback_raises_ends_the_run(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")

    def stop(step: int, metrics: object) -> None:
        raise ValueError(f"enough at {step}")

    with make_trainer(tmp_path) as trainer, pytest.raises(ValueError, match="enough at 1"):
        trainer.train(on_step=stop)


# A folder of models is no model


@pytest.mark.parametrize("policy", ["minimind", "huggingface"])
def test_a_folder_that_holds_models_names_them(policy: str) -> None:
    words = ["train", *MATH, "--model-path", "model", f"policy.type={policy}", "run.output_dir=/nonexistent"]
    words += ["--preview-tasks", "1"]
    assert "model/math_minimind" in one_line_error(run_here(*words))


class Phases(AgentEnv):
    """Offers another tool after every step."""

    def reset(self, task):
        self.tools = (ToolSpec(name="first", description=""),)
        return [Message.user("Go")]

    def step(self, message):
        self.tools = (ToolSpec(name="second", description=""),)
        return StepResult(messages=(Message.user("On"),))


def test_tools_that_an_environment_changes_are_followed(capsys):
    env = ShownEnv(Phases())
    env.reset({"task_id": "t"})
    for _ in range(2):
        env.step(Message.assistant("x"))
        assert [tool.name for tool in env.tools] == ["second"]
    assert capsys.readouterr().out.count("[tools] /second") == 1
