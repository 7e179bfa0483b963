"""Families about text and words: count, change, group. Not here: text that holds numbers (`parsing.py`)."""

import random
from typing import Any

from agent_rl.envs.code.families.base import LETTERS, WORDS, Inputs, Rules, literal, word, word_lists

_TESTS = {
    "start with": ('{w}.startswith("{c}")', lambda word, c: word[:1] == c),
    "end with": ('{w}.endswith("{c}")', lambda word, c: word[-1:] == c),
    "contain": ('"{c}" in {w}', lambda word, c: c in word),
    "do not contain": ('"{c}" not in {w}', lambda word, c: c not in word),
}


class CountWords:
    name = "count_words"
    levels = (1, 2)
    functions = ("count_words", "word_count", "how_many", "words_with", "tally")
    arguments = ("words",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        rules: Rules = {"test": rng.choice(list(_TESTS)), "c": rng.choice(LETTERS), "least": 0}
        return rules if level == 1 else rules | {"least": rng.randint(2, 6)}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        verb, c = rules["test"], rules["c"]
        long = f" and have at least {rules['least']} letters" if rules["least"] else ""
        return [
            (f'Count the words that {verb} "{c}"{long}.', f'Return how many words {verb} "{c}"{long}.'),
            ("Capital letters count as small ones.", "Upper and lower case are the same."),
        ]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        lower = "" if buggy else ".lower()"
        test = _TESTS[rules["test"]][0].format(w=f"word{lower}", c=rules["c"])
        if rules["least"]:
            test = f"len(word) >= {rules['least']} and {test}"
        return ["count = 0", "for word in words:", f"    if {test}:", "        count += 1", "return count"]

    def answer(self, rules: Rules, *args: Any) -> Any:
        long = [each.lower() for each in args[0] if len(each) >= rules["least"]]
        return len([each for each in long if _TESTS[rules["test"]][1](each, rules["c"])])

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        return [[each] for each in word_lists(rng, letter=rules["c"])]


_EDITS = {
    "in capitals": ("word.upper()", lambda word, k, t: word.upper()),
    "backwards": ("word[::-1]", lambda word, k, t: "".join(reversed(word))),
    "cut to its first {k} letters": ("word[:{k}]", lambda word, k, t: "".join(list(word)[:k])),
    "without its first {k} letters": ("word[{k}:]", lambda word, k, t: "".join(list(word)[k:])),
    'with "{t}" at its end': ('word + "{t}"', lambda word, k, t: f"{word}{t}"),
    'with "{t}" in front': ('"{t}" + word', lambda word, k, t: f"{t}{word}"),
    "twice": ("word * 2", lambda word, k, t: word + word),
}


class ChangeWords:
    name = "change_words"
    levels = (1, 2)
    functions = ("change_words", "rewrite", "restyle", "edit_words", "new_words")
    arguments = ("words",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        edit = rng.choice(list(_EDITS))
        rules: Rules = {
            "edit": edit,
            "k": rng.randint(1, 3) if "{k}" in edit else 0,
            "t": rng.choice(["!", "s", "-", "ly", "re", "un", "_", "x"]) if "{t}" in edit else "",
            "least": rng.randint(2, 6),
        }
        return rules if level == 1 else rules | {"joiner": rng.choice([" ", "-", ", ", "/", "+"])}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        edit = rules["edit"].format(k=rules["k"], t=rules["t"])
        least = rules["least"]
        out: list[tuple[str, ...]] = [
            (f"Return every word {edit}.", f"Write every word {edit}."),
            (
                f"A word of fewer than {least} letters stays as it is.",
                f"Words of fewer than {least} letters do not change.",
            ),
        ]
        if "joiner" in rules:
            out.append(
                (f'Join them with "{rules["joiner"]}".', f'The result is one text, with "{rules["joiner"]}" between.')
            )
        return out

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        code = _EDITS[rules["edit"]][0].format(k=rules["k"], t=rules["t"])
        out = f"{literal(rules['joiner'])}.join(out)" if "joiner" in rules else "out"
        if buggy:
            return [f"out = [{code} for word in words]", f"return {out}"]
        return [
            "out = []",
            "for word in words:",
            f"    if len(word) < {rules['least']}:",
            "        out.append(word)",
            "    else:",
            f"        out.append({code})",
            f"return {out}",
        ]

    def answer(self, rules: Rules, *args: Any) -> Any:
        edit = _EDITS[rules["edit"]][1]
        out = [edit(each, rules["k"], rules["t"]) if len(each) >= rules["least"] else each for each in args[0]]
        return rules["joiner"].join(out) if "joiner" in rules else out

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        long = [[each for each in rng.sample(WORDS, 4) if len(each) >= rules["least"]] for _ in range(4)]
        return [[each] for each in [*word_lists(rng), *long]]


_CHANGES = {
    'take out every "{a}"': ('text.replace("{a}", "")', lambda text, a, b: "".join(each for each in text if each != a)),
    'write "{b}" for every "{a}"': (
        'text.replace("{a}", "{b}")',
        lambda text, a, b: "".join(b if each == a else each for each in text),
    ),
    "turn it into small letters": ("text.lower()", lambda text, a, b: "".join(each.lower() for each in text)),
    "turn it into capitals": ("text.upper()", lambda text, a, b: "".join(each.upper() for each in text)),
    "turn it round": ("text[::-1]", lambda text, a, b: "".join(reversed(text))),
    "take off spaces at both ends": ("text.strip()", lambda text, a, b: text.lstrip(" ").rstrip(" ")),
}


class ChangeText:
    name = "change_text"
    levels = (1, 2)
    functions = ("change_text", "clean", "tidy", "reform", "make_text")
    arguments = ("text",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        changes = []
        for kind in rng.sample(list(_CHANGES)[: 2 if level == 1 else None], level):
            a, b = rng.sample(LETTERS, 2)
            changes.append({"kind": kind, "a": a if "{a}" in kind else "", "b": b if "{b}" in kind else ""})
        return {"changes": changes, "empty": rng.choice(["none", "empty", "?", "-", "nothing"])}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        words = [each["kind"].format(a=each["a"], b=each["b"]) for each in rules["changes"]]
        then = ", then ".join(words)
        return [
            (f"Change the text: {then}.", f"Take the text, {then}, and return it."),
            (f'If nothing is left, return "{rules["empty"]}".', f'An empty result gives "{rules["empty"]}".'),
        ]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        lines = [f"text = {_CHANGES[each['kind']][0].format(a=each['a'], b=each['b'])}" for each in rules["changes"]]
        guard = [] if buggy else ["if not text:", f"    return {literal(rules['empty'])}"]
        return [*lines, *guard, "return text"]

    def answer(self, rules: Rules, *args: Any) -> Any:
        text = args[0]
        for each in rules["changes"]:
            text = _CHANGES[each["kind"]][1](text, each["a"], each["b"])
        return text or rules["empty"]

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        letters = "".join(each["a"] for each in rules["changes"])
        some = [" ".join(word(rng, letter=letters[:1]) for _ in range(rng.randint(1, 3))) for _ in range(9)]
        return [[each] for each in [*some, "", f"  {some[0]} ", letters[:1] * 3, f" {letters[-1:]} ", "  "]]


def _longest(group: list[str]) -> str:
    return sorted(group, key=lambda each: -len(each))[0]


_GROUP_KEYS = {
    "first letter": ("word[0].lower()", "word[0]", lambda word: word.lower()[0]),
    "last letter": ("word[-1].lower()", "word[-1]", lambda word: word.lower()[-1]),
}
_GROUP_VALUES = {
    "the list of its words": ("group", lambda group: group),
    "the number of its words": ("len(group)", len),
    "its first word": ("group[0]", lambda group: group[0]),
    "its last word": ("group[-1]", lambda group: group[-1]),
    "its longest word, the earlier one if two are as long": ("max(group, key=len)", _longest),
}


class GroupWords:
    name = "group_words"
    levels = (2, 3)
    functions = ("group_words", "by_letter", "sort_into", "index_of", "grouped")
    arguments = ("words",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        return {
            "key": rng.choice(list(_GROUP_KEYS)),
            "value": rng.choice(list(_GROUP_VALUES)),
            "least": rng.randint(2, 6),
            "size": rng.randint(2, 3) if level == 3 else 1,
        }

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        key, value = rules["key"], rules["value"]
        out: list[tuple[str, ...]] = [
            (
                f"Group the words by their {key} as a small letter.",
                f"Put words with the same {key}, made small, together.",
            ),
            (f"Return a dict that gives {value}.", f"The dict holds for every letter {value}."),
            (
                f"Skip words of fewer than {rules['least']} letters.",
                f"Words shorter than {rules['least']} do not count.",
            ),
        ]
        if rules["size"] > 1:
            size = rules["size"]
            out.append((f"Leave out groups of fewer than {size} words.", f"Groups with fewer than {size} words go."))
        return out

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        large = rules["size"] > 1
        right, blunt, _ = _GROUP_KEYS[rules["key"]]
        end = f" if len(group) >= {rules['size']}" if large and not buggy else ""
        return [
            "groups = {}",
            "for word in words:",
            f"    if len(word) >= {rules['least']}:",
            f"        key = {blunt if buggy and not large else right}",
            "        groups.setdefault(key, []).append(word)",
            f"return {{key: {_GROUP_VALUES[rules['value']][0]} for key, group in groups.items(){end}}}",
        ]

    def answer(self, rules: Rules, *args: Any) -> Any:
        key, value = _GROUP_KEYS[rules["key"]][2], _GROUP_VALUES[rules["value"]][1]
        long = [each for each in args[0] if len(each) >= rules["least"]]
        groups = {letter: [each for each in long if key(each) == letter] for letter in map(key, long)}
        return {letter: value(group) for letter, group in groups.items() if len(group) >= rules["size"]}

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        long = [each for each in WORDS if len(each) >= 5]
        some = rng.sample(long, 4)
        twins = [
            [each, each.upper(), other.lower(), other] for each, other in zip(some, rng.sample(long, 4), strict=True)
        ]
        even = [[one, other] * rules["size"] for one, other in (rng.sample(long, 2) for _ in range(3))]
        return [[each] for each in [*word_lists(rng), *twins, *even]]
