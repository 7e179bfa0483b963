"""Invented names out of a small stock of syllables, so that a small tokenizer covers the names of every world.

The stems of demonstrations and those of shipped worlds share their syllables and not one whole stem.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator

FIRST_NAMES = (
    "Ada", "Alma", "Anton", "Bela", "Bruno", "Carla", "Cyril", "Dina", "Edgar", "Elsa", "Emil", "Fanny", "Felix",
    "Greta", "Hanna", "Hugo", "Ida", "Ivan", "Jonas", "Karla", "Leon", "Lotte", "Mara", "Milo", "Nadia", "Nils", "Olga",
    "Oskar", "Paula", "Rosa", "Rufus", "Selma", "Simon", "Tilda", "Tomas", "Ulla", "Vera", "Viktor", "Wanda", "Yanis",
)  # fmt: skip
_STARTS = (
    "Bal", "Bren", "Cal", "Cor", "Dal", "Dun", "El", "Fal", "Fen", "Gar", "Gil", "Hal", "Ist", "Jor", "Kel", "Lan",
    "Lor", "Mal", "Mor", "Nar", "Nev", "Or", "Pel", "Quin", "Ral", "Ros", "Sel", "Sor", "Tam", "Tor", "Ul", "Var",
    "Vel", "Wen", "Yar", "Zel",
)  # fmt: skip
_MIDDLES = ("", "a", "e", "i", "o", "an", "en", "or", "un")
_ENDS = (
    "bek", "dar", "den", "dor", "fin", "gan", "gor", "kin", "lan", "les", "lin", "mar", "men", "mir", "nor", "rick",
    "rin", "ros", "sen", "tan", "tess", "vik", "win", "zan",
)  # fmt: skip


def stems(rng: random.Random, *, for_demonstrations: bool) -> Iterator[str]:
    """Different stems such as `Velmar` in random order: some thousand."""
    parts = itertools.product(_STARTS, _MIDDLES, _ENDS)
    every = [start + middle + end for start, middle, end in parts]
    mine = sorted(stem for stem in set(every) if is_for_demonstrations(stem) == for_demonstrations)
    rng.shuffle(mine)
    return iter(mine)


def is_for_demonstrations(stem: str) -> bool:
    return hashlib.sha256(stem.encode()).digest()[0] % 2 == 1
