"""Generate requests as a user would type them: the planner's input (`planner/planner.py`).

They are loose on purpose: no user states every rule. They do not give a right agent's answers, and most name no
family. Requests for several tools are among the examples too; the planner refuses those after one short call.
"""

import itertools
import random
from collections.abc import Callable, Iterator

EXAMPLES: tuple[str, ...] = (
    "I need a little tool that converts kilometres, miles and metres into each other, two decimals.",
    "Convert temperatures for our kitchen: Celsius, Fahrenheit and Kelvin, whole degrees are fine.",
    "make me a data size converter, bytes kB MB KiB, the number of decimals should be configurable",
    "Something that cleans up product titles: trim them, lower case, single spaces, underscores instead of blanks.",
    "I'd like a text tool that takes the initials of every word and writes them in upper case.",
    "Reverse a text and swap upper and lower case. Nothing longer than 80 characters, but let me change that limit.",
    "Price per unit: divide price by count, add a fixed fee of 3, and complain if count is zero.",
    "Calculator for box volumes, width times height times depth, negative numbers make no sense there.",
    "A loan helper would be great: monthly rate from amount, interest per year and number of months.",
    "How many days lie between two dates? Format is 2024-03-31, please reject anything else.",
    "Tell me the last day of the month for a date written like 31.12.2025.",
    "Add n business days to a date, weekends don't count, and I want to pass the holidays.",
    "From a CSV with region and amount: the sum of amount per region, largest first.",
    "Given a JSON list of orders, keep the paid ones and give me the average total.",
    "Check part numbers: they start with PX, have a dash and are at least 8 characters long.",
    "Is this membership number valid? 7 digits, the last one is a weighted check digit modulo 11.",
    "Search our kitchen notes: I type a few words and get the two best matching notes, most matches first.",
    "A BM25 search over a dozen short support articles, top 3 titles.",
    "Ask our stock service for an item and tell me how many are left; 404 means the item does not exist.",
    "Fetch the weather station reading from the API, try again twice if it answers 500, then say it is unavailable.",
    "One agent where I write 'convert | 3 | km | m' or 'shout | hello' and it calls the right tool.",
    "First check the order code, then build a label from it in capitals; stop when the code is wrong.",
    "A ReAct agent that can look things up in our notes and do unit conversions, at most five tool calls.",
    "An assistant (ReAct, any model) that decides by itself whether to use the calculator or the date tool.",
    "An MCP server with one tool that turns minutes into hours and days.",
    "Serve a slug maker over MCP: lower case, blanks to underscores, digits removed.",
    "A counter with add, subtract and reset that never goes above 100, as a function group.",
    "Small in-memory store: put, get, delete, and undo for the last change.",
)
"""At least one for each kind of task."""

_DIMENSIONS = {
    "length": ["m", "km", "cm", "mm", "inch", "ft", "mile"],
    "mass": ["g", "kg", "mg", "ton", "carat", "ounce"],
    "duration": ["s", "min", "h", "day", "week"],
    "data size": ["byte", "bit", "kB", "MB", "KiB"],
    "angle": ["deg", "turn", "quadrant", "grad"],
    "temperature": ["Celsius", "Fahrenheit", "Kelvin"],
    "area": ["square metre", "hectare", "acre", "square kilometre"],
    "pressure": ["Pa", "bar", "kPa", "atm"],
}
_TEXT_STEPS = [
    "trim it", "make it lower case", "make it upper case", "reverse it", "squeeze repeated blanks", "sort the words",
    "drop repeated words", "remove the digits", "join the words with underscores", "swap upper and lower case",
    "capitalise every word", "keep only the first letter of each word", "write it twice",
]  # fmt: skip
_QUANTITIES = ["price", "rate", "count", "weight", "height", "width", "depth", "speed"]
_DATE_FORMATS = ["2025-03-31", "31.03.2025", "03/31/2025", "20250331"]
_COLUMNS = ["amount", "price", "hours", "stock", "score", "weight"]
_GROUPS = ["region", "city", "team", "shop", "kind", "month"]
_TOPICS = ["garden", "kitchen", "office", "workshop", "travel", "library", "hiking", "music"]
_SERVICES = ["stock", "weather", "parcel", "booking", "price", "room"]


def requests(count: int, seed: int) -> Iterator[str]:
    """`count` different requests: the examples in an order of the seed, then variations. More only adds to the end."""
    return itertools.islice(_stream(seed), count)


def _stream(seed: int) -> Iterator[str]:
    rng = random.Random(f"user-requests-{seed}")
    yield from rng.sample(EXAMPLES, len(EXAMPLES))
    seen = set(EXAMPLES)
    for kind in itertools.cycle(_KINDS):
        text = _as_request(kind(rng), rng)
        if text not in seen:
            seen.add(text)
            yield text


def _as_request(wish: str, rng: random.Random) -> str:
    """`wish` begins with an article and has no full stop."""
    opening = rng.choice(
        [
            "I need {}.",
            "Please build {}.",
            "Can you make me {}?",
            "we want {}",
            "Hi! I'm looking for {}.",
            "{}, please.",
        ]
    )
    text = opening.format(wish)
    extra = rng.choice(["", "", "", "", " Over MCP too.", " Keep it simple.", " It's for our team.", " Thanks!"])
    return text[0].upper() + text[1:] + extra if rng.random() < 0.8 else text + extra


def _listed(words: list[str], last: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def _converter(rng: random.Random) -> str:
    dimension = rng.choice(sorted(_DIMENSIONS))
    units = rng.sample(_DIMENSIONS[dimension], rng.randint(2, min(4, len(_DIMENSIONS[dimension]))))
    digits = rng.choice(
        [f"{rng.randint(0, 5)} decimals", f"rounded to {rng.randint(1, 4)} digits", "precision as a setting"]
    )
    sign = rng.choice(["", "", ", nothing below zero", ", refuse negative values"])
    return f"a {_listed(units)} converter ({dimension}), {digits}{sign}"


def _text_tool(rng: random.Random) -> str:
    steps = rng.sample(_TEXT_STEPS, rng.randint(2, 4))
    limit = rng.choice(["", "", f", at most {rng.randrange(40, 121, 10)} characters and I can change that"])
    return (
        rng.choice(["a text tool: ", "a text cleaner that should ", "a helper for texts; "])
        + f"{_listed(steps)}{limit}"
    )


def _calculator(rng: random.Random) -> str:
    first, second, third = rng.sample(_QUANTITIES, 3)
    number = rng.randint(2, 40)
    formula = rng.choice(
        [
            f"{first} divided by {second} plus {number}",
            f"({first} + {second}) / {third}",
            f"{first} times {second} divided by {third}, minus {number}",
            f"{first} / ({second} - {number})",
        ]
    )
    guard = rng.choice(["", f", {first} can't be negative", f", complain about a negative {first}"])
    return f"a calculator for {formula}, {rng.randint(0, 4)} decimals{guard}"


def _date_tool(rng: random.Random) -> str:
    number = rng.randint(2, 45)
    what = rng.choice(
        [
            "the days between two dates",
            f"the date {number} days after a given one",
            f"the date {number} business days later",
            "the weekday of a date",
            "the last day of the month",
            "the last day of the quarter",
            "the number of the week",
        ]
    )
    return f"a date tool that gives {what}, dates look like {rng.choice(_DATE_FORMATS)}"


def _table(rng: random.Random) -> str:
    group, column = rng.choice(_GROUPS), rng.choice(_COLUMNS)
    mark = rng.choice(["comma", "semicolon", "pipe"])
    measure = rng.choice(["sum", "average", "maximum", "minimum", "count"])
    above = rng.choice(["", f", only rows with {column} above {rng.randint(1, 50)}"])
    order = rng.choice(["sorted by name", "biggest first", "smallest first"])
    return f"a tool for {mark}-separated tables: {measure} of {column} per {group}{above}, {order}"


def _validator(rng: random.Random) -> str:
    prefix = "".join(rng.choices("abcdefghkmnpqrstvwx", k=2))
    checks = rng.sample(
        [
            f"starts with {prefix}",
            f"has a {rng.choice(['dash', 'dot', 'colon', 'hash', 'underscore'])} in it",
            f"ends with a {rng.choice(['digit', 'letter'])}",
            f"has at least {rng.randint(5, 9)} characters",
            f"is not longer than {rng.randint(12, 19)} characters (configurable)",
        ],
        rng.randint(2, 4),
    )
    thing = rng.choice(["order code", "part number", "coupon", "badge id", "file name", "serial number"])
    return f"a check whether a {thing} {_listed(checks)}"


def _search(rng: random.Random) -> str:
    score = rng.choice(["most shared words first", "with tf-idf", "with BM25", "how many of my words occur"])
    return f"a search over {rng.randint(5, 20)} short {rng.choice(_TOPICS)} notes, best {rng.randint(1, 5)}, {score}"


def _api(rng: random.Random) -> str:
    service = rng.choice(_SERVICES)
    trouble = rng.choice(
        [
            "404 means there is none",
            f"retry {rng.randint(1, 3)} times on 500",
            f"give up after {rng.randint(2, 20)} seconds",
            "say so when the answer is no JSON",
            f"follow the pages, at most {rng.randint(2, 6)}",
        ]
    )
    return f"a client for our {service} API that tells me the {rng.choice(_COLUMNS)} for an id; {trouble}"


_KINDS: tuple[Callable[[random.Random], str], ...] = (
    _converter, _text_tool, _calculator, _date_tool, _table, _validator, _search, _api,
)  # fmt: skip
