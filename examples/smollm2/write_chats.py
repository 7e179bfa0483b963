"""Demonstrations for a warm start: words spelled backward letter by letter, as conversations for `agent-rl sft --data`.

    python examples/smollm2/write_chats.py --output-dir runs/spell_backward_chats

Writes `train.jsonl` and `held_out.jsonl`. Questions are those of Reasoning Gym's data set, and none is in the task
files that are trained on and evaluated later (`--not-in`). A pretrained tokenizer cuts words into pieces of several
letters; a reply that first writes each letter apart gives the model something that it can copy back to front.
Not here: training.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_rl.data.tasks import read_tasks
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import UserError

TASKS = (Path("dataset/spell_backward_tasks/train.jsonl"), Path("dataset/spell_backward_tasks/eval.jsonl"))


def main(
    output_dir: Annotated[Path, typer.Option(help="Folder of the two files.")],
    num_train: Annotated[int, typer.Option(min=1)] = 3000,
    num_held_out: Annotated[int, typer.Option(min=1)] = 100,
    max_word_len: Annotated[int, typer.Option(min=3, help="Letters of the longest word.")] = 6,
    seed: Annotated[int, typer.Option(help="Seed of the words.")] = 1,
    not_in: Annotated[list[Path] | None, typer.Option(help="Task files whose questions are left out.")] = None,
) -> None:
    asked = (task["question"] for path in not_in or TASKS for task in read_tasks(path))
    taken = {question for question in asked if len(question.rpartition(": ")[2]) <= max_word_len}
    dataset = {"spell_backward": {"min_word_len": 3, "max_word_len": max_word_len}}
    factory = make_env_factory("reasoning_gym", {"dataset": dataset})
    system_prompt = factory.options.system_prompt  # what the environment opens with, so that both are alike
    # As many more as may have to be left out.
    files = factory.task_files(seed, num_train + len(taken), num_held_out + len(taken))
    output_dir.mkdir(parents=True, exist_ok=True)
    for name, split, count in (("train", "train", num_train), ("held_out", "eval", num_held_out)):
        fresh = [task for task in files[split] if task["question"] not in taken][:count]
        lines = (json.dumps(chat, ensure_ascii=False) + "\n" for chat in conversations(fresh, system_prompt))
        (output_dir / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{len(fresh)} conversations in {output_dir / name}.jsonl")
    factory.close()


def conversations(tasks: Iterable[dict[str, Any]], system_prompt: str) -> Iterator[dict[str, Any]]:
    for task in tasks:
        messages = [
            ("system", system_prompt),
            ("user", task["question"]),
            ("assistant", reply(task["metadata"]["word"])),
        ]
        yield {"messages": [{"role": role, "content": content} for role, content in messages]}


def reply(word: str) -> str:
    """`reply("sun")` is "Letters: s u n", "Backward: n u s" and "Answer: nus", on three lines."""
    return f"Letters: {' '.join(word)}\nBackward: {' '.join(reversed(word))}\nAnswer: {word[::-1]}"


if __name__ == "__main__":
    try:
        typer.run(main)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
