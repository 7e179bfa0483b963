"""docs/smollm2.md: its demonstrations are right, apart from the tasks, and as the configuration's environment asks."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT

from agent_rl import load_config
from agent_rl.agent.messages import Message
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import DataError

sys.path.append(str(ROOT / "examples/smollm2"))
from write_chats import main, reply

PAGE = (ROOT / "docs/smollm2.md").read_text(encoding="utf-8")
CONFIG = ROOT / "configs/smollm2_spell_backward_grpo.yaml"


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_chats(folder: Path, **options: Any) -> list[list[dict[str, Any]]]:
    main(output_dir=folder, **options)
    return [rows(folder / f"{name}.jsonl") for name in ("train", "held_out")]


def question(chat: dict[str, Any]) -> str:
    return chat["messages"][1]["content"]


def test_a_reply_spells_before_it_answers() -> None:
    assert reply("sun") == "Letters: s u n\nBackward: n u s\nAnswer: nus"


def test_demonstrations_ask_what_no_task_asks_and_their_form_earns_the_full_reward(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="pip install -r requirements-envs.txt")
    train, held_out = write_chats(tmp_path, num_train=30, num_held_out=5)
    assert (len(train), len(held_out)) == (30, 5)
    config = load_config(CONFIG)
    tasks = [task for path in (config.data.train_path, config.data.eval_path) for task in rows(ROOT / path)]
    asked = [question(chat) for chat in (*train, *held_out)]
    assert len({*asked, *(task["question"] for task in tasks)}) == 35 + 800
    assert max(len(each.rpartition(": ")[2]) for each in asked) == 6
    factory = make_env_factory(config.env.name, config.env.options)
    env = factory()
    for task in tasks[:5]:
        opening = env.reset(task)
        assert opening[0].content == train[0]["messages"][0]["content"]
        assert env.step(Message.assistant(reply(task["metadata"]["word"]))).reward == 1.0
    factory.close()


def test_questions_that_are_taken_do_not_shorten_the_files(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="pip install -r requirements-envs.txt")
    counts = {"num_train": 20, "num_held_out": 5, "max_word_len": 3}
    first, _ = write_chats(tmp_path / "a", **counts)
    taken = tmp_path / "taken.jsonl"
    lines = (json.dumps({"task_id": str(n), "question": question(chat)}) + "\n" for n, chat in enumerate(first))
    taken.write_text("".join(lines), encoding="utf-8")
    again, _ = write_chats(tmp_path / "b", **counts, not_in=[taken])
    assert len(again) == 20
    assert not {question(chat) for chat in first} & {question(chat) for chat in again}


def test_the_page_names_files_and_keys_that_there_are() -> None:
    for path in ("configs/smollm2_spell_backward_grpo.yaml", "examples/smollm2/write_chats.py"):
        assert path in PAGE
        assert (ROOT / path).is_file()
    load_config(CONFIG, ["model.path=x", "run.output_dir=y", "run.name=z", "run.seed=1", "checkpoint.resume=auto"])
    assert f"step_{load_config(CONFIG).train.steps:05d}" in PAGE


def test_a_missing_task_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no\.jsonl"):
        main(output_dir=tmp_path, not_in=[tmp_path / "no.jsonl"])
