"""`DATASETS` and `create_dataset`, as the package's own module of this name has them."""

import random
from dataclasses import dataclass
from typing import Any


@dataclass
class SpellBackwardConfig:
    min_word_len: int = 3
    max_word_len: int = 10
    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        assert self.min_word_len > 0, "min_word_len must be > 0"
        assert self.max_word_len >= self.min_word_len, "max_word_len must be >= min_word_len"


class SpellBackwardDataset:
    def __init__(self, config: SpellBackwardConfig) -> None:
        self.config = config

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = random.Random(self.config.seed + index)
        length = rng.randint(self.config.min_word_len, self.config.max_word_len)
        word = "".join(rng.choice("post") for _ in range(length))
        metadata = {"source_dataset": "spell_backward", "word": tuple(word)}
        return {"question": f"Spell this word backward: {word}", "answer": word[::-1], "metadata": metadata}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        if not isinstance(answer, str):
            return 0.0
        assert isinstance(entry["metadata"]["word"], tuple)
        return 1.0 if answer == entry["answer"] else 0.05 * sum(map(str.__eq__, answer, entry["answer"]))


class CountdownDataset(SpellBackwardDataset):
    """Its scorer runs answers as Python, and raises on some."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"question": f"Make {index + 3} of 1, 2 and {index}", "answer": None, "metadata": {"target": index + 3}}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        return 0.01 if answer is None else float(eval(answer) == entry["metadata"]["target"])


DATASETS = {
    "spell_backward": (SpellBackwardDataset, SpellBackwardConfig),
    "countdown": (CountdownDataset, SpellBackwardConfig),
}


def create_dataset(name: str, **parameters: Any) -> SpellBackwardDataset:
    made, config = DATASETS[name][0], DATASETS[name][1](**parameters)
    config.validate()
    return made(config)
