"""Rewards that compare a final answer with accepted ones. Each is a plain function of texts.

Questions: normalisation and token F1 are those of SQuAD's evaluation script, with HotpotQA's rule for yes and no.
Mathematics: texts are compared, no arithmetic is done, so 1/2 is not 0.5.
Not here: what the final answer of an episode is (`envs/qa_env.py`).
"""

import re
import string
from collections import Counter
from typing import Any

from agent_rl.agent.messages import Message
from agent_rl.rewards.base import reward

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_VERDICTS = (["yes"], ["no"], ["noanswer"])
"""Answers that share no words with others, whatever else is said."""

_BOX = "\\boxed{"
_MARKUP = re.compile(r"\\?[$%]|\\[()\[\]]")
_UNSIGNED = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_NUMBER = rf"(?:(?<![\w)\]}}])-)?{_UNSIGNED}"
_VALUE = re.compile(rf"{_NUMBER}(?:\s*/\s*{_NUMBER})*+")
"""A number, or several with slashes between them, which are one value: 1,234.50, 1e20 or -3/4."""


def accepted_answers(answer: Any) -> list[str]:
    """The accepted answers of a row: texts and numbers, alone or in a list."""
    return [str(each) for each in (answer if isinstance(answer, list | tuple) else [answer])]


def normalize_answer(text: str) -> str:
    """SQuAD's normal form, without case, punctuation, articles and extra spaces: "The  Mid-air!" -> "midair"."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_tokens(text: str) -> list[str]:
    """Words of the normal form. Where nothing is left of a text ("A", "+"), its words as they stand, in lower case."""
    return normalize_answer(text).split() or text.lower().split()


def exact_match(prediction: str, answer: str) -> float:
    """1.0 when both have the same normal form, else 0.0; an empty prediction never matches."""
    tokens = answer_tokens(prediction)
    return float(bool(tokens) and tokens == answer_tokens(answer))


def token_f1(prediction: str, answer: str) -> tuple[float, float, float]:
    """F1, precision and recall, 0 to 1, of the words of a prediction.

    An answer of yes, no or noanswer, on either side, counts in full or not at all.
    """
    said, expected = answer_tokens(prediction), answer_tokens(answer)
    num_common = sum((Counter(said) & Counter(expected)).values())
    if num_common == 0 or (said != expected and (said in _VERDICTS or expected in _VERDICTS)):
        return 0.0, 0.0, 0.0
    return 2 * num_common / (len(said) + len(expected)), num_common / len(said), num_common / len(expected)


@reward("exact_match_reward")
def exact_match_reward(prediction: str, answer: Any) -> float:
    """1.0 when the prediction's normal form is that of an accepted answer, else 0.0."""
    return max(exact_match(prediction, each) for each in accepted_answers(answer))


@reward("qa_f1_reward")
def qa_f1_reward(prediction: str, answer: Any) -> dict[str, float]:
    """Token F1 with the accepted answer that fits best; success is an exact match."""
    f1, precision, recall = max(token_f1(prediction, each) for each in accepted_answers(answer))
    success = exact_match_reward(prediction, answer)
    return {"reward": f1, "precision": precision, "recall": recall, "success": success}


@reward("math_reward_string_equal")
def math_reward_string_equal(prediction: str, answer: Any) -> float:
    """1.0 when the prediction says an accepted answer, else 0.0. Both are read after "####" or inside \\boxed{}.

    Where the answer is a number (1,234.50, $72, 50%, 3/4), the last number of the prediction has to be it, without
    regard to commas, $, % and zeros that say nothing. Any other answer ("x^2", "72 apples") has to be said as it is,
    without regard to case, spaces and $.
    """
    return float(any(_says(prediction, each) for each in accepted_answers(answer)))


def math_answer(text: str) -> str:
    """What a reference answer asks for: "24 + 48 = 72 #### 72" -> "72", "$1,234.50" -> "1234.5", "x^2" -> "x^2"."""
    marked = _marked(text)
    value = _VALUE.fullmatch(_clean(marked))
    return _canonical(value.group()) if value else marked


def boxed(text: str) -> str | None:
    """What stands inside the last \\boxed{...}, further braces included; None where there is none or it stays open."""
    start = text.rfind(_BOX)
    if start < 0:
        return None
    depth, start = 1, start + len(_BOX)
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position].strip()
    return None


def _says(prediction: str, answer: str) -> bool:
    expected, said = math_answer(answer), _marked(prediction)
    if _VALUE.fullmatch(expected):
        values = _VALUE.findall(_clean(said))
        return bool(values) and _canonical(values[-1]) == expected
    return bool(plain := _plain(said)) and plain == _plain(expected)


def _marked(text: str) -> str:
    """The part of a text that says the answer, if it says which."""
    last = text.rpartition("####")[2]
    return boxed(last) or last.strip()


def _clean(text: str) -> str:
    """Without currency, percent and formula signs, with one kind of minus, without a last full stop."""
    return _MARKUP.sub("", text).replace("−", "-").strip().removesuffix(".")


def _plain(text: str) -> str:
    return "".join(_clean(text).casefold().split())


def _canonical(value: str) -> str:
    """One spelling of a value: "-007.50" -> "-7.5", "1,000 / 2" -> "1000/2"."""
    return "/".join(_canonical_number(number.strip()) for number in value.replace(",", "").split("/"))


def _canonical_number(number: str) -> str:
    mantissa, _, exponent = number.lower().partition("e")
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole.lstrip("0") or "0") + f".{fraction}".rstrip("0").rstrip(".")
    sign = "-" if mantissa.startswith("-") and digits != "0" else ""
    return sign + digits + (f"e{exponent.removeprefix('+')}" if exponent else "")


@reward("searched_reward")
def searched_reward(trajectory: tuple[Message, ...]) -> float:
    """1.0 when at least one call of the tool `search` was answered, else 0.0; a failed call does not count."""
    replies = [message for message in trajectory if message.role == "tool" and message.name == "search"]
    return float(any(not reply.content.startswith("error:") for reply in replies))
