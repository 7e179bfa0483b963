"""An invented world: some four hundred things, their facts, and a short passage about each. Not here: questions."""

import random
from dataclasses import dataclass

from agent_rl.envs.search.facts import KINDS
from agent_rl.envs.search.names import FIRST_NAMES, stems


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    kinds: dict[str, str]
    """Full name of every thing -> its kind."""
    facts: dict[str, dict[str, str]]
    """Full name -> name of a fact -> value: a full name, or a number as text."""
    texts: dict[str, str]
    """Full name -> what its passage says."""

    @property
    def passages(self) -> list[dict[str, str]]:
        """`[{"title": "Velmar", "text": "Velmar is a town. ..."}, ...]`"""
        return [{"title": name, "text": text} for name, text in self.texts.items()]


def make_world(seed: int, *, for_demonstrations: bool = False) -> World:
    """The world of a seed. No name in a world for demonstrations is in any other world, whatever their seeds."""
    rng = random.Random(f"search-world-{seed}-{for_demonstrations}")
    kinds = _names(rng, for_demonstrations=for_demonstrations)
    by_kind = {kind: [name for name, of in kinds.items() if of == kind] for kind in KINDS}
    facts = {name: _facts(name, kind, by_kind, rng) for name, kind in kinds.items()}
    texts = {name: _text(name, kind, facts[name], rng) for name, kind in kinds.items()}
    order = list(texts)
    rng.shuffle(order)
    return World(kinds=kinds, facts=facts, texts={name: texts[name] for name in order})


def _names(rng: random.Random, *, for_demonstrations: bool) -> dict[str, str]:
    unused = stems(rng, for_demonstrations=for_demonstrations)
    out = {}
    for kind, info in KINDS.items():
        for _ in range(info.count):
            name = rng.choice(info.names).format(next(unused))
            out[f"{rng.choice(FIRST_NAMES)} {name}" if kind == "person" else name] = kind
    return out


def _facts(name: str, kind: str, by_kind: dict[str, list[str]], rng: random.Random) -> dict[str, str]:
    """Values of all facts, of which no two are the same."""
    out: dict[str, str] = {}
    for fact, info in KINDS[kind].facts.items():
        value = name
        while value == name or value in out.values():
            if info.target == "year":
                value = str(rng.randint(1701, 1999))
            elif info.target == "size":
                value = str(rng.randint(31, 979))
            else:
                value = rng.choice(by_kind[info.target])
        out[fact] = value
    return out


def _text(name: str, kind: str, facts: dict[str, str], rng: random.Random) -> str:
    """`Velmar is a town. It lies on Balden River and was founded in 1804.`"""
    statements = [rng.choice(KINDS[kind].facts[fact].statements).format(value) for fact, value in facts.items()]
    rng.shuffle(statements)
    subject = name.rsplit(maxsplit=1)[-1] if kind == "person" else "It"
    lines = [f"{name} is {rng.choice(KINDS[kind].called)}.", f"{subject} {' and '.join(statements[:2])}."]
    if statements[2:]:
        lines.append(f"{subject} {' and '.join(statements[2:])}.")
    return " ".join(lines)
