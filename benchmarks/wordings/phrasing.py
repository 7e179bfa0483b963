"""Word a spec in other sentences: a template of the twin's for each slot, and one of several layouts.

Does not: know what a spec needs; that is `slots.py`, and `facts.py` checks it apart from both.
"""

import itertools
import random
import re
from collections.abc import Iterator, Mapping

from wordings import phrases_test, phrases_test_data, phrases_val
from wordings.originals import Twin
from wordings.slots import slots

from agent_rl.envs.nat.spec import NATSpec

Frames = Mapping[str, tuple[str, ...]]

FRAMES: dict[Twin, Frames] = {
    "test": {
        **phrases_test.COMMON,
        **phrases_test.SIMPLE,
        **phrases_test.CODES,
        **phrases_test_data.TABLES,
        **phrases_test_data.NOTES,
        **phrases_test_data.API,
    },
    "val": {
        **phrases_val.COMMON,
        **phrases_val.SIMPLE,
        **phrases_val.TABLES,
        **phrases_val.NOTES,
        **phrases_val.API,
    },
}
TERMS: dict[Twin, Mapping[str, str]] = {"test": phrases_test.TERMS, "val": phrases_val.TERMS}
LAYOUTS = {"test": ("{}", "{}", "{}\n", "- {}\n"), "val": ("{}", "{}", "* {}\n", "{}\n\n")}
"""One paragraph, lines, or a list."""
_ALTERNATIVES = re.compile(r"\[([^\[\]]*\|[^\[\]]*)\]")


def sentences_of(frame: str) -> Iterator[str]:
    """Every template that a frame with alternatives stands for."""
    parts = _ALTERNATIVES.split(frame)
    choices = [part.split("|") if number % 2 else [part] for number, part in enumerate(parts)]
    return ("".join(each) for each in itertools.product(*choices))


def phrased(spec: NATSpec, twin: Twin, rng: random.Random) -> str:
    """The request in the twin's sentences."""
    said = []
    for slot in slots(spec, TERMS[twin]):
        frame = rng.choice(FRAMES[twin][slot.name])
        said.append(rng.choice(list(sentences_of(frame))).format(**slot.values))
    layout = rng.choice(LAYOUTS[twin])
    if layout == "{}":
        return " ".join(said)
    return said[0] + "\n" + "".join(layout.format(sentence) for sentence in said[1:]).rstrip()
