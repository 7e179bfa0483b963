"""What a model was trained for: written, added to, kept by what makes another model of it, and read again."""

import json
from pathlib import Path

import pytest
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config

from agent_rl.agent.messages import Message
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.data.tasks import Task
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.demonstrations import Demonstration, read_demonstrations, to_conversation
from agent_rl.envs.registry import DOMAINS, make_env_factory
from agent_rl.errors import CheckpointError, DataError
from agent_rl.policies.model_files.trained_for import FILE, TrainedFor, keep_trained_for, read_trained_for, union

ROOT = Path(__file__).resolve().parents[2]
LEARNED = TrainedFor(environment="letters", max_context=40, tasks={"kinds": ("post",), "levels": (1, 2)})


class LetterFactory(EnvFactory):
    """Its tasks are of a level."""

    def covers(self, task: Task) -> dict[str, tuple[str | int, ...]]:
        return {"levels": (len(task["question"]),)}


def test_what_is_saved_is_read_and_kept(tmp_path: Path) -> None:
    LEARNED.save(tmp_path)
    assert read_trained_for(tmp_path) == LEARNED
    (tmp_path / "copy").mkdir()
    keep_trained_for(tmp_path, tmp_path / "copy")
    assert read_trained_for(tmp_path / "copy") == LEARNED
    keep_trained_for("owner/name", tmp_path / "copy")  # on the Hub, without such a file
    assert read_trained_for(tmp_path / "copy") == LEARNED
    assert read_trained_for(tmp_path / "none") is read_trained_for("owner/name") is None
    assert read_trained_for(tmp_path / FILE) is None


def test_more_training_adds_and_another_environment_takes_the_place() -> None:
    more = LEARNED.and_also("letters", 30, [{"levels": (3, 1)}, {"sizes": ("s",)}])
    assert more.tasks == {"kinds": ("post",), "levels": (1, 2, 3), "sizes": ("s",)}
    assert (more.max_context, more.and_also("letters", 50, []).max_context) == (40, 50)
    other = LEARNED.and_also("math_qa", 30, [])
    assert other == TrainedFor(environment="math_qa", max_context=30, tasks={})


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"format": 2, "environment": "e", "max_context": 1, "tasks": {}}',
        '{"format": 1, "environment": "e", "max_context": "1", "tasks": {}}',
        '{"format": 1, "environment": "e", "max_context": 1, "tasks": {"levels": 1}}',
        '{"format": 1, "environment": "e", "max_context": 1, "tasks": {"levels": [[1]]}}',
    ],
)
def test_a_file_that_says_nothing_readable_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"agent_rl\.json does not say .*correct it, or remove it") as caught:
        read_trained_for(tmp_path)
    assert "\n" not in str(caught.value)


def test_checkpoints_of_a_run_say_it_of_a_model_that_does(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    LEARNED.save(tmp_path / "model")
    config = tiny_config(tmp_path, train={"steps": 1}, env={"name": "letters"})
    for name, expected in (("first", (1, 2, 3, 4)), ("plain", None)):
        run = config.model_copy(update={"run": config.run.model_copy(update={"name": name})})
        factory = LetterFactory(LetterEnv)
        with GRPOTrainer.from_config(run, env_factory=factory, train_tasks=LETTER_TASKS) as trainer:
            trainer.train()
        found = read_trained_for(tmp_path / f"runs/{name}/checkpoints/step_00001/model")
        assert (found and (found.max_context, found.tasks["levels"])) == (expected and (64, expected))
        (tmp_path / "model" / FILE).unlink(missing_ok=True)


def test_recorded_demonstrations_carry_what_they_are_of(tmp_path: Path) -> None:
    turns = [(Message.assistant("b"), ())]
    shown = Demonstration([Message.user("a")], turns, (), covers={"kinds": ("repair",), "levels": (2,)})
    row = to_conversation(shown, "d-0")
    (tmp_path / "d.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert read_demonstrations(tmp_path / "d.jsonl")[0].covers == shown.covers
    (tmp_path / "d.jsonl").write_text(json.dumps(row | {"covers": {"levels": 2}}) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="row 1: covers"):
        read_demonstrations(tmp_path / "d.jsonl")


@pytest.mark.parametrize("domain", ["nat", "math", "search", "code"])
def test_the_shipped_models_say_what_their_demonstrations_were_of(domain: str) -> None:
    factory, name = make_env_factory(domain), f"{domain}_minimind"
    shipped = read_trained_for(ROOT / "model" / name)
    assert shipped is not None
    assert shipped.environment == DOMAINS[domain]
    shown = factory.demonstrations(0, faulty_share=0.5)
    assert shipped.tasks == union(next(shown).covers for _ in range(60))
    if domain == "nat":
        trained, words = (read_trained_for(ROOT / f"model/nat_minimind_{each}") for each in ("grpo", "words"))
        assert trained == TrainedFor(environment=shipped.environment, max_context=1024, tasks=shipped.tasks)
        assert words is not None
        assert words.tasks == {**shipped.tasks, "kinds": ("create", "repair"), "wordings": ("any", "own")}
        assert words.max_context > shipped.max_context
