"""Sample corpora of short notes that share many words, and queries with ties, repeats, plurals and unknown words.

It samples texts only; the rules decide how they are split into terms and scored.
"""

import random
from typing import Any

WORDS = [
    "tea", "bus", "pot", "gas", "lamp", "boat", "seed", "wood", "rain", "bread", "river", "paint", "glass", "stone",
    "honey", "candle", "garden", "winter", "kettle", "ladder", "market", "ticket",
]  # fmt: skip
"""No word becomes another one by losing its last letter."""
FILLERS = ["the", "and", "for", "with"]
TAGS = ["home", "work", "trip", "shop"]
UNKNOWN = ["zebra", "violin", "quartz"]
_NUM_MIXED = 160


def sample_notes(rng: random.Random, *, has_tag: bool, has_title: bool) -> list[dict[str, Any]]:
    """Five to twelve notes with ids in no order; a small pool of words makes them overlap."""
    pool = rng.sample(WORDS, rng.randint(8, 11))
    numbers = rng.sample(range(10, 100), rng.randint(6, 11))
    tags = rng.sample(TAGS, 3)
    length = rng.randint(4, 5)
    return [
        {
            "id": f"n{number}",
            "tag": rng.choice(tags) if has_tag else None,
            "title": " ".join(word.capitalize() for word in rng.sample(pool, rng.randint(1, 2))) if has_title else None,
            "text": _text(rng, rng.choices(pool, k=length + rng.choice([-1, 0, 0, 0]))),
        }
        for number in numbers
    ]


def _text(rng: random.Random, words: list[str]) -> str:
    """The words with a capital, a plural, a mark or a filler here and there; four to eight in all."""
    out = []
    for word in words:
        if rng.random() < 0.2 and len(out) < 6:
            out.append(rng.choice(FILLERS))
        shape = rng.choices(["{}", "{}s", "{},", "{}-{}"], weights=[12, 3, 2, 2])[0]
        text = shape.format(word, rng.choice(words)) if len(word) > 3 else word
        out.append(text.capitalize() if rng.random() < 0.1 else text)
    while len(out) < 4:
        out.insert(0, rng.choice(FILLERS))
    return " ".join(out[:8])


def sample_query(rng: random.Random, note: dict[str, Any], stop_words: list[str]) -> str:
    """One to five words; the first one sampled stands in the note as it is and is no stop word."""
    raw = f"{note['title'] or ''} {note['text']}".split()
    words = [rng.choice([word for word in raw if word not in FILLERS])]
    for _ in range(rng.randint(0, 2)):
        words.append(rng.choice([*WORDS, *words, *raw, *raw, *raw]))
    if rng.random() < 0.35:
        words.append(words[0])
    if rng.random() < 0.2:
        words.append(rng.choice(UNKNOWN))
    if stop_words and rng.random() < 0.4:
        words.append(rng.choice(stop_words))
    if rng.random() < 0.3:
        words[-1] = f"{words[-1]}s"
    if rng.random() < 0.3:
        words[0] = words[0].upper()
    rng.shuffle(words)
    return rng.choice([" ", " ", "  "]).join(words)


def mixed_queries(rng: random.Random, notes: list[dict[str, Any]], stop_words: list[str]) -> list[str]:
    """Words of several notes beside others that any note might have."""
    texts = [f"{note['title'] or ''} {note['text']}".split() for note in notes]
    rare = [word for word in [*FILLERS, *WORDS] if word not in stop_words]
    out = []
    for number in range(_NUM_MIXED):
        words = [rng.choice(text) for text in rng.sample(texts, rng.randint(1, 2))]
        words.append(rare[number % len(rare)] if rng.random() < 0.8 else rng.choice(words)[:-1])
        rng.shuffle(words)
        out.append(" ".join(words))
    return out
