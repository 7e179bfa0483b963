"""Rewards that compare a final answer with accepted ones. Each is a plain function of texts.

Questions: normalisation and token F1 are those of SQuAD's evaluation script, with HotpotQA's rule for yes and no.
Mathematics: texts are compared, no arithmetic is done, so 1/2 is not 0.5 and 10^{3} is not 1000.
Not here: what the final answer of an episode is (`envs/qa_env.py`).
"""

import re
import string
from collections import Counter
from decimal import Decimal
from typing import Any

from agent_rl.agent.messages import Message
from agent_rl.rewards.base import reward

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_VERDICTS = (["yes"], ["no"], ["noanswer"])
"""Answers that share no words with others, whatever else the text holds."""

_BOX = "\\boxed{"
_UNSIGNED = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_NUMBER = rf"(?:(?<![\w)\]}}])-)?{_UNSIGNED}"
_VALUE = re.compile(rf"{_NUMBER}(?:\s*/\s*{_NUMBER})*+")
"""A number, or several with slashes between them, which are one value: 1,234.50, 1e20 or -3/4."""
_MAX_EXPONENT_DIGITS = 3
"""Of exponents that are written out: 1e-5 is 0.00001. Larger ones are compared as they stand."""

# Other spellings of the same
_SAME_SIGN = str.maketrans(dict.fromkeys("‐‑‒–—―−﹣－", "-") | dict.fromkeys("\u00a0\u2007\u2009\u202f~", " "))
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:bf|it|rm)|mbox)\{([^{}]*)\}")
_DEGREES = re.compile(r"°|\^\\circ(?![a-zA-Z])|\^\{\\circ\}")
_BLANK = re.compile(
    r"\\?[$%]|\\[()\[\] ,;:]"
    r"|\\(?:left|right|quad|qquad|displaystyle|approx|implies|[Rr]ightarrow|therefore)(?![a-zA-Z])"
)
_SPACED_GROUPS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])")
_SPACED_SIGN = re.compile(r"(^|[=(:*<>≈])[ \t]*+(?:(-)|\+)[ \t]*+(?=[0-9.])")

# The last number of a text
_WORD_OR_VALUE = re.compile(
    r"[^\W\d_]++(?:[\^_](?:-?[0-9]++|\{-?[0-9]++\})|[23](?![0-9]|[.,][0-9]))?"  # a unit's power is no number
    rf"|(?P<value>{_VALUE.pattern})"
)
_VARIABLE = r"[a-zA-Z](?![a-zA-Z])"
_FUNCTION = (
    r"(?<![a-zA-Z])(?:sqrt|cbrt|log|ln|lg|exp|(?:arc|a)?(?:sin|cos|tan)h?|csc|cot|mod)"
    r"(?:_\{?\w{1,9}\}?|[0-9]{1,3})?(?![a-zA-Z])"
)
_OPERATOR_BEFORE = r"(?:[0-9)\]}]|\b[b-zB-HJ-Z])[ \t]*(?:[x×·⋅∙∗÷∕⁄/+]|\*{1,2})|\S[ \t]*-"  # 2 x 3, y * 3, 10 - 7
_BOUND_TO_WHAT_IS_BEFORE = re.compile(
    r"(?:[0-9][.,:]|\w_|(?:[0-9](?:[ \t]+:)?"  # 1.5.2, 1,5, 5:30, 5_30, 3 1/2 and 5 : 30
    rf"|{_OPERATOR_BEFORE}"
    r"|[/∕⁄^√∛∜±∓\\]|[\^_}\]\\]\{|\\[a-zA-Z]+\{?"  # 10^3, ±3, 10^{3}, \frac{3}{4} and \cdot 3
    rf"|{_FUNCTION})[ \t]*)$"  # log_2 8
)
_CALLED = re.compile(rf"(?:[\^√∛∜][ \t]*|[0-9)]|(?<![a-zA-Z])(?:[a-zA-Z]'*|max|min|gcd|lcm|abs)|{_FUNCTION}[ \t]*)$")
"""What stands before the bracket of a number that is only part of something: 10^(3), 2(3), f(3), log_2(8)."""
_BOUND_BRACKET = re.compile(rf"(?:{_OPERATOR_BEFORE}|[-±∓](?=[(\[{{])|{_FUNCTION})[ \t]*(?:[(\[{{][ \t]*)++$")
"""Of a number alone in brackets: 10 - (7), -(3), sqrt{2}."""
_OPERATOR = r"(?:[×·⋅∙∗÷+±∓-]|\*{1,2})"
_OPERAND = rf"(?:\(?{_VARIABLE}|{_FUNCTION}|pi(?![a-zA-Z])|[√∛∜α-λν-ω]|\\[a-zA-Z])"
_BOUND_TO_WHAT_IS_BEHIND = re.compile(
    rf"[exyzin](?![a-zA-Z])|[ \t]*+\\[a-zA-Z]|\({_VARIABLE}"  # 2x, 2\pi and 2(x)
    r"|[)\]}]*+(?:[ \t]*+(?:[\^²³¹⁰-₉¼-¾⅐-⅞√∛∜π]|pi(?![a-zA-Z])|[α-λν-ω](?![^\W\d_])"  # 2^n, 2½, 2 pi and 2θ
    rf"|{_FUNCTION}(?:\(|[ \t]*{_VARIABLE})"  # 2 sin x
    rf"|[/∕⁄][ \t]*(?![dghlmsL](?![a-zA-Z])){_OPERAND})"  # 2/x, but 2/s
    rf"|{_OPERATOR}{_OPERAND}|[ \t]++{_OPERATOR}[ \t]++(?![aAI](?![a-zA-Z])){_OPERAND})"  # 2*x, 2 - x, but 2 - a lot
)


def accepted_answers(answer: Any) -> list[str]:
    """The accepted answers of a row: texts and numbers, alone or in a list; 1e-05 is written 0.00001."""
    listed = answer if isinstance(answer, list | tuple) else [answer]
    return [format(Decimal(str(each)), "f") if isinstance(each, float) else str(each) for each in listed]


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
    given, expected = answer_tokens(prediction), answer_tokens(answer)
    num_common = sum((Counter(given) & Counter(expected)).values())
    if num_common == 0 or (given != expected and (given in _VERDICTS or expected in _VERDICTS)):
        return 0.0, 0.0, 0.0
    return 2 * num_common / (len(given) + len(expected)), num_common / len(given), num_common / len(expected)


def matches(prediction: str, answer: Any) -> float:
    """1.0 when the prediction's normal form is that of an accepted answer, else 0.0."""
    return max(exact_match(prediction, each) for each in accepted_answers(answer))


@reward("exact_match_reward")
def exact_match_reward(prediction: str, answer: Any) -> dict[str, float]:
    """1.0 when the prediction's normal form is that of an accepted answer, which is success too, else 0.0."""
    matched = matches(prediction, answer)
    return {"reward": matched, "success": matched}


@reward("qa_f1_reward")
def qa_f1_reward(prediction: str, answer: Any) -> dict[str, float]:
    """Token F1 with the accepted answer that fits best; success is an exact match.

    Naming two candidates pays: "Velm Orsk" earns 2/3 whichever of the two is right, and a guess at one earns 1/2 on
    average. A policy learns that sooner or later; exact_match_reward gives nothing for it.
    """
    f1, precision, recall = max(token_f1(prediction, each) for each in accepted_answers(answer))
    return {"reward": f1, "precision": precision, "recall": recall, "success": matches(prediction, answer)}


@reward("math_reward_string_equal")
def math_reward_string_equal(prediction: str, answer: Any) -> dict[str, float]:
    """1.0 when the prediction gives an accepted answer, which is success too, else 0.0. Both are read after "####" or
    inside \\boxed{}.

    Where the answer is a number (1,234.50, $72, 50%, 3/4), the last number of the prediction has to be it, without
    regard to commas, $, %, a plus, insignificant zeros, and units behind it. A number that is only part of something
    does not count: 10^3, \\frac{3}{4}, 2\\sqrt{3}, 3 1/2, 5:30, 10 - 7, ±2, f(3), 3pi and 3/x give no number at all.
    Any other answer ("x^2", "72 apples") has to be repeated as it is, without regard to case, spaces and $.
    """
    right = float(any(_gives(prediction, each) for each in accepted_answers(answer)))
    return {"reward": right, "success": right}


def math_answer(text: str) -> str:
    """The value of a reference answer: "24 + 48 = 72 #### 72" -> "72", "$1,234.50" -> "1234.5", "x^2" -> "x^2"."""
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


def _gives(prediction: str, answer: str) -> bool:
    expected, given = math_answer(answer), _marked(prediction)
    if _VALUE.fullmatch(expected):
        return expected in (math_answer(prediction), _last_value(_clean(given)))
    return bool(plain := _plain(given)) and plain == _plain(expected)


def _last_value(text: str) -> str | None:
    """The last number of a text in its one spelling; None where it is only part of something, or there is none."""
    values = [match for match in _WORD_OR_VALUE.finditer(text) if match["value"]]
    if not values:
        return None
    before, behind = text[: values[-1].start()], text[values[-1].end() :]
    if before.endswith("*"):  # **72** is emphasis
        behind = behind.lstrip("*")
    is_bound = _BOUND_TO_WHAT_IS_BEFORE.search(before) or _BOUND_TO_WHAT_IS_BEHIND.match(behind)
    if is_bound or _is_argument(before) or _BOUND_BRACKET.search(before):
        return None
    return _canonical(values[-1]["value"])


def _is_argument(before: str) -> bool:
    """Whether what stands behind the text is in the bracket of a function, a power or a product."""
    called, bracket, inside = before.rpartition("(")
    return bool(bracket) and not re.search(r"[a-zA-Z)]", inside) and bool(_CALLED.search(called))


def _marked(text: str) -> str:
    """The part of a text that is marked as the answer; all of it where none is."""
    last = text.rpartition("####")[2]
    return boxed(last) or last.strip()


def _clean(text: str) -> str:
    """Without currency, percent and formula signs and spaces inside numbers, with one kind of minus that stands at its
    number, without the plus of a number, without a last full stop.
    """
    text = _WRAPPED.sub(r"\1", text.translate(_SAME_SIGN).replace("{,}", ",").replace("\\!", ""))
    text = text.replace("+/-", "±").replace("+-", "±")
    text = _BLANK.sub(" ", _DEGREES.sub(" ", text)).strip()
    text = _SPACED_GROUPS.sub(lambda number: number[0].replace(" ", ""), text)
    return _SPACED_SIGN.sub(r"\1\2", text).removesuffix(".").rstrip()


def _plain(text: str) -> str:
    """Without case and spaces, but for those between two digits: 3 1/2 is not 31/2."""
    return re.sub(r"(?<![0-9]) | (?![0-9])", "", " ".join(_clean(text).casefold().split()))


def _canonical(value: str) -> str:
    """One spelling of a value: "-007.50" -> "-7.5", "1,000 / 2" -> "1000/2", "1e-5" -> "0.00001"."""
    return "/".join(_canonical_number(number.strip()) for number in value.replace(",", "").split("/"))


def _canonical_number(number: str) -> str:
    mantissa, _, exponent = number.lower().partition("e")
    if exponent and len(exponent.lstrip("+-0")) <= _MAX_EXPONENT_DIGITS:
        mantissa, exponent = format(Decimal(number), "f"), ""
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole.lstrip("0") or "0") + f".{fraction}".rstrip("0").rstrip(".")
    sign = "-" if mantissa.startswith("-") and digits != "0" else ""
    return sign + digits + (f"e{exponent.removeprefix('+')}" if exponent else "")


@reward("searched_reward")
def searched_reward(trajectory: tuple[Message, ...]) -> float:
    """1.0 when at least one call of the tool `search` was answered, else 0.0; a failed call does not count."""
    replies = [message for message in trajectory if message.role == "tool" and message.name == "search"]
    return float(any(not reply.content.startswith("error:") for reply in replies))
