"""Word problems about money and sharing: families that sample numbers, tell a story and know the term that solves it.

A problem of level n takes n steps. The buggy term forgets the last step, or takes the wrong operation where there is
one step only. Not here: work, ways, areas and ages (`measures.py`), rows (`generate.py`).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from agent_rl.envs.math.terms import Term, number

NAMES = (
    "Ada", "Ben", "Carla", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jan", "Kim", "Leo", "Mia", "Nils", "Olga",
    "Paul", "Rosa", "Sam", "Tina", "Vera",
)  # fmt: skip
GOODS = ("pens", "apples", "books", "cards", "cups", "stamps", "balls", "plants", "candles", "maps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    parts: tuple[tuple[str, ...], ...]
    """Sentences in order, each in one or more phrasings; the last one is the question."""
    right: Term
    buggy: Term


ProblemSampler = Callable[[int, random.Random], Problem]
"""Samples a problem of a level."""


def shopping(level: int, rng: random.Random) -> Problem:
    name, goods = rng.choice(NAMES), rng.choice(GOODS)
    count, price = rng.randint(3, 24), rng.randint(2, 19)
    parts = [
        (
            f"{name} buys {count} {goods} for {price} dollars each.",
            f"{name} buys {count} {goods} at {price} dollars apiece.",
        )
    ]
    steps = [number(price) + count, number(count) * price]
    if level >= 2:
        fee = rng.randint(2, 15)
        parts.append((f"{name} also pays {fee} dollars for a bag.", f"The delivery costs {fee} dollars."))
        steps.append(steps[-1] + fee)
    if level >= 3:
        off = rng.randint(2, 9)
        parts.append((f"A coupon takes {off} dollars off the bill.", f"The shop takes {off} dollars off the bill."))
        steps.append(steps[-1] - off)
    if level >= 4:
        note = (int(steps[-1].value) // 50 + 1) * 50
        parts.append((f"{name} pays with {note} dollars.", f"{name} gives the cashier {note} dollars."))
        steps.append(number(note) - steps[-1])
        question = ("How many dollars does {} get back?", "How much change in dollars does {} get?")
    else:
        question = ("How many dollars does {} pay?", "What does {} pay in all, in dollars?")
    return Problem(parts=(*parts, tuple(each.format(name) for each in question)), right=steps[-1], buggy=steps[-2])


def sharing(level: int, rng: random.Random) -> Problem:
    name, goods, friends = rng.choice(NAMES), rng.choice(GOODS), rng.randint(2, 12)
    each = rng.randint(3, 15)
    total = friends * each
    if level == 1:
        parts: list[tuple[str, ...]] = [
            (f"{name} has {total} {goods}.", f"There are {total} {goods} in the box of {name}.")
        ]
        right, buggy = number(total) / friends, number(total) - friends
    elif level == 2:
        more = rng.randint(2, total - 2)
        parts = [(f"{name} has {total - more} {goods} and gets {more} more.",)]
        right, buggy = (number(total - more) + more) / friends, number(total - more) + more
    else:
        boxes, size = rng.randint(2, 6), rng.randint(3, 12)
        gone = (boxes * size) % friends or friends
        parts = [
            (f"{name} has {boxes} boxes of {size} {goods}.", f"{name} owns {boxes} boxes with {size} {goods} each."),
            (f"{name} loses {gone} of the {goods}.", f"{name} gives {gone} of the {goods} away."),
        ]
        right = (number(boxes) * size - gone) / friends
        buggy = number(boxes) * size / friends
    shared = "the rest" if level == 3 else f"all the {goods}"
    question = (
        f"{friends} friends share {shared} equally. How many {goods} does each friend get?",
        f"Then {friends} friends get {shared} in equal parts. How many {goods} is that for each friend?",
    )
    return Problem(parts=(*parts, question), right=right, buggy=buggy)


def percentages(level: int, rng: random.Random) -> Problem:
    price, percent = rng.randint(2, 40) * 10, rng.choice([5, 10, 15, 20, 25, 30, 40, 50, 60, 75])
    goods = rng.choice(("coat", "bike", "lamp", "table", "phone", "tent"))
    opening = (f"A {goods} costs {price} dollars.", f"The price of a {goods} is {price} dollars.")
    part = number(price) * percent / 100
    if level == 2:
        question = (
            f"How many dollars is {percent} percent of it?",
            f"How much is {percent} percent of that in dollars?",
        )
        return Problem(parts=(opening, question), right=part, buggy=number(price) - percent)
    change = (f"It gets {percent} percent cheaper.", f"In the sale {percent} percent is taken off.")
    steps = [part, number(price) - part]
    if rng.random() < 0.5:
        change = (f"It gets {percent} percent dearer.", f"A tax of {percent} percent is added.")
        steps = [part, number(price) + part]
    question = ("What does it cost now, in dollars?", "How many dollars is the new price?")
    if level == 4:
        count = rng.randint(2, 9)
        steps.append(steps[-1] * count)
        question = (f"What do {count} of them cost now, in dollars?", f"How many dollars do {count} of them cost now?")
    return Problem(parts=(opening, change, question), right=steps[-1], buggy=steps[-2])


def savings(level: int, rng: random.Random) -> Problem:
    name, weeks, weekly = rng.choice(NAMES), rng.randint(3, 20), rng.randint(4, 25)
    parts = [
        (f"{name} saves {weekly} dollars a week.", f"Every week {name} puts {weekly} dollars aside."),
    ]
    steps = [number(weekly) + weeks, number(weekly) * weeks]
    if level >= 2:
        start = rng.randint(10, 90)
        parts.append((f"At the start there are {start} dollars.", f"{name} already has {start} dollars."))
        steps.append(steps[-1] + start)
    if level >= 3:
        spent = rng.randint(5, 60)
        parts.append((f"Later {name} spends {spent} dollars.", f"Later {name} takes out {spent} dollars for a game."))
        steps.append(steps[-1] - spent)
    question = (
        f"How many dollars are there after {weeks} weeks?",
        f"How many dollars does {name} have after {weeks} weeks?",
    )
    if level >= 4:
        question = (
            f"After {weeks} weeks half of it goes to a sister. How many dollars does she get?",
            f"How many dollars is half of what is there after {weeks} weeks?",
        )
        steps.append(steps[-1] / 2)
    return Problem(parts=(*parts, question), right=steps[-1], buggy=steps[-2])


def tickets(level: int, rng: random.Random) -> Problem:
    adults, children = rng.randint(2, 9), rng.randint(2, 12)
    price = rng.randint(8, 25)
    child_price = rng.randint(3, price - 2)
    place = rng.choice(("zoo", "cinema", "museum", "circus", "pool"))
    parts = [
        (f"At the {place} an adult pays {price} dollars and a child {child_price}.",),
        (f"{adults} adults and {children} children come.", f"A group has {adults} adults and {children} children."),
    ]
    steps = [number(adults) * price + child_price, number(adults) * price + number(children) * child_price]
    question = ("How many dollars do they pay together?", "What do they pay in all, in dollars?")
    if level == 4:
        off = rng.randint(2, 12)
        parts.append((f"A coupon takes {off} dollars off the sum.", f"The whole group gets {off} dollars off."))
        steps.append(steps[-1] - off)
    return Problem(parts=(*parts, question), right=steps[-1], buggy=steps[-2])


def recipes(level: int, rng: random.Random) -> Problem:
    what, unit = rng.choice((("flour", "grams"), ("milk", "millilitres"), ("sugar", "grams"), ("rice", "grams")))
    people, each = rng.randint(2, 8), rng.randint(3, 24) * 5
    guests = rng.randint(2, 15)
    opening = (
        f"A dish for {people} people needs {people * each} {unit} of {what}.",
        f"For {people} people you take {people * each} {unit} of {what}.",
    )
    one = number(people * each) / people
    if level == 1:
        question = (f"How many {unit} is that for each person?", f"How many {unit} of {what} does one person get?")
        return Problem(parts=(opening, question), right=one, buggy=number(people * each) - people)
    steps = [one, one * guests]
    parts = [opening]
    question = (
        f"How many {unit} do {guests} people need?",
        f"How many {unit} of {what} are needed for {guests} people?",
    )
    if level == 3:
        extra = rng.randint(1, 10) * 10
        parts.append(
            (
                f"On top of that the cook adds {extra} {unit} at the end, however many people there are.",
                f"However many people there are, {extra} {unit} come on top of that at the end.",
            )
        )
        question = (
            f"How many {unit} are needed in all for {guests} people?",
            f"How many {unit} of {what} do {guests} people need in all?",
        )
        steps.append(steps[-1] + extra)
    return Problem(parts=(*parts, question), right=steps[-1], buggy=steps[-2])
