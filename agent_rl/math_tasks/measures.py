"""Word problems about work, ways, time, areas and ages. How families work is said in `stories.py`."""

import random

from agent_rl.math_tasks.stories import NAMES, Problem
from agent_rl.math_tasks.terms import number


def speed(level: int, rng: random.Random) -> Problem:
    what = rng.choice(("train", "bus", "boat", "truck", "rider"))
    pace, hours = rng.randint(4, 24) * 5, rng.randint(2, 9)
    parts = [(f"A {what} goes {pace} kilometres an hour.", f"A {what} travels at {pace} kilometres an hour.")]
    steps = [number(pace) + hours, number(pace) * hours]
    asked = (f"How many kilometres does it go in {hours} hours?", f"How far is it after {hours} hours, in kilometres?")
    if level >= 2:
        before = rng.randint(5, 95)
        parts.append((f"Before that it went {before} kilometres.", f"It has gone {before} kilometres already."))
        steps.append(steps[-1] + before)
        asked = (
            f"How many kilometres is it in all after {hours} more hours?",
            f"It goes on for {hours} hours. How many kilometres is that in all?",
        )
    if level >= 3:
        way = int(steps[-1].value) + rng.randint(5, 200)
        parts.append((f"The whole way is {way} kilometres.", f"It has to go {way} kilometres in all."))
        steps.append(number(way) - steps[-1])
        asked = (
            f"It goes on for {hours} hours. How many kilometres are left?",
            f"How many kilometres are still to go after {hours} more hours?",
        )
    return Problem(parts=(*parts, asked), right=steps[-1], careless=steps[-2])


def wages(level: int, rng: random.Random) -> Problem:
    name, hours, pay = rng.choice(NAMES), rng.randint(3, 9), rng.randint(9, 30)
    parts = [(f"{name} earns {pay} dollars an hour.", f"{name} gets {pay} dollars for an hour of work.")]
    asked = (f"How many dollars is that for {hours} hours?", f"How many dollars does {name} earn in {hours} hours?")
    steps = [number(pay) + hours, number(pay) * hours]
    if level >= 2:
        days = rng.randint(2, 6)
        asked = (
            f"How many dollars does {name} earn in {days} days of {hours} hours?",
            f"{name} works {days} days, {hours} hours a day. How many dollars is that?",
        )
        steps.append(steps[-1] * days)
    if level >= 3:
        bonus = rng.randint(5, 80)
        parts.append((f"A bonus of {bonus} dollars is paid once.", f"Once there are {bonus} dollars more."))
        steps.append(steps[-1] + bonus)
    if level >= 4:
        rent = rng.randint(20, 100)
        parts.append((f"{rent} dollars are kept for insurance.", f"{name} has to pay {rent} dollars of it as tax."))
        steps.append(steps[-1] - rent)
        asked = (
            f"How many dollars does {name} keep from {days} days of {hours} hours?",
            f"{name} works {days} days, {hours} hours a day. How many dollars are left?",
        )
    return Problem(parts=(*parts, asked), right=steps[-1], careless=steps[-2])


def areas(level: int, rng: random.Random) -> Problem:
    place, length, width = rng.choice(("garden", "field", "yard", "hall")), rng.randint(6, 40), rng.randint(5, 30)
    opening = (
        f"A {place} is {length} metres long and {width} metres wide.",
        f"The sides of a {place} are {length} and {width} metres.",
    )
    area = number(length) * width
    if level == 1:
        asked = ("How many square metres is it?", "What is its area in square metres?")
        return Problem(parts=(opening, asked), right=area, careless=number(length) + width)
    if level == 2 and rng.random() < 0.5:
        asked = ("How many metres is the fence around it?", "How long is the way around it, in metres?")
        return Problem(parts=(opening, asked), right=(number(length) + width) * 2, careless=number(length) + width)
    a, b = rng.randint(2, 5), rng.randint(2, 4)
    price = rng.randint(2, 9)
    if level == 2:
        asked = (f"Grass costs {price} dollars a square metre. How many dollars is it for all?",)
        return Problem(parts=(opening, asked), right=area * price, careless=area)
    inner = (f"A part of {a} by {b} metres is paved.", f"{a} by {b} metres of it are under water.")
    rest = area - number(a) * b
    if level == 3:
        asked = ("How many square metres are left?", "How large is the rest in square metres?")
        return Problem(parts=(opening, inner, asked), right=rest, careless=area)
    asked = (f"Seed for the rest costs {price} dollars a square metre. How many dollars is that?",)
    return Problem(parts=(opening, inner, asked), right=rest * price, careless=area * price)


def ages(level: int, rng: random.Random) -> Problem:
    name, other = rng.sample(NAMES, 2)
    age, gap, years = rng.randint(5, 30), rng.randint(2, 25), rng.randint(2, 20)
    opening = (f"{name} is {age} years old.", f"The age of {name} is {age}.")
    if level == 1:
        asked = (f"How old is {name} in {years} years?", f"How old will {name} be after {years} years?")
        return Problem(parts=(opening, asked), right=number(age) + years, careless=number(age) - years)
    if rng.random() < 0.5:
        second = (f"{other} is {gap} years older.", f"{other} was born {gap} years before {name}.")
        steps = [number(age) + gap]
    else:
        times = rng.randint(2, 4)
        second = (f"{other} is {times} times as old.", f"{other} is {times} times the age of {name}.")
        steps = [number(age) * times]
    if level == 2:
        asked = (f"How old is {other} in {years} years?", f"How old will {other} be after {years} years?")
        return Problem(parts=(opening, second, asked), right=steps[-1] + years, careless=steps[-1])
    asked = (f"How old are both together in {years} years?", f"What is the sum of their ages after {years} years?")
    together = steps[-1] + age
    if level == 3:
        asked = ("How old are both together, cut in half?", "What is the average of the two ages?")
        return Problem(parts=(opening, second, asked), right=together / 2, careless=together)
    both = number(years) * 2
    return Problem(parts=(opening, second, asked), right=together + both, careless=together + years)


_UNITS = (("weeks", "days", 7), ("days", "hours", 24), ("hours", "minutes", 60), ("minutes", "seconds", 60))


def minutes(level: int, rng: random.Random) -> Problem:
    name, hours, extra = rng.choice(NAMES), rng.randint(2, 9), rng.randint(5, 55)
    if level == 1:
        (unit, smaller, size), count = rng.choice(_UNITS), rng.randint(2, 25)
        opening = (f"A trip lasts {count} {unit}.", f"{name} waits for {count} {unit}.")
        asked = (f"How many {smaller} is that?", f"How long is that in {smaller}?")
        return Problem(parts=(opening, asked), right=number(count) * size, careless=number(count) + size)
    parts = [
        (f"A trip takes {hours} hours and {extra} minutes.", f"{name} is away for {hours} hours and {extra} minutes."),
    ]
    steps = [number(hours) * 60, number(hours) * 60 + extra]
    asked = ("How many minutes is that?", "How long is that in minutes?")
    if level >= 3:
        pause = rng.randint(5, 50)
        parts.append((f"{pause} minutes of it are a pause.", f"{pause} minutes of that are rest."))
        steps.append(steps[-1] - pause)
        asked = ("How many minutes are left without it?", "How many minutes is it without them?")
    return Problem(parts=(*parts, asked), right=steps[-1], careless=steps[-2])


def tanks(level: int, rng: random.Random) -> Problem:
    rate, time = rng.randint(3, 30), rng.randint(4, 25)
    if level == 1:
        parts: list[tuple[str, ...]] = [
            (f"A tap gives {rate} litres a minute.", f"{rate} litres a minute flow into a tank.")
        ]
        asked = (f"How many litres are in after {time} minutes?", f"How many litres is that in {time} minutes?")
        return Problem(parts=(*parts, asked), right=number(rate) * time, careless=number(rate) + time)
    out = rng.randint(1, rate - 1)
    parts = [
        (f"{rate} litres a minute flow into a tank and {out} flow out.",),
    ]
    net = number(rate) - out
    asked = (
        f"How many litres more are in it after {time} minutes?",
        f"By how many litres does it rise in {time} minutes?",
    )
    if level == 2:
        return Problem(parts=(*parts, asked), right=net * time, careless=number(rate) * time)
    start = rng.randint(20, 200)
    parts.append((f"It holds {start} litres at first.", f"There are {start} litres in it at the start."))
    asked = (f"How many litres are in it after {time} minutes?", f"How many litres does it hold {time} minutes later?")
    return Problem(parts=(*parts, asked), right=net * time + start, careless=net * time)


def reading(level: int, rng: random.Random) -> Problem:
    name, pages, days = rng.choice(NAMES), rng.randint(6, 40), rng.randint(3, 14)
    total = pages * days
    if level == 1:
        parts: list[tuple[str, ...]] = [(f"{name} reads a book of {total} pages, {pages} pages a day.",)]
        asked = ("How many days does it take?", "For how many days is that?")
        return Problem(parts=(*parts, asked), right=number(total) / pages, careless=number(total) - pages)
    done = rng.randint(10, 90)
    parts = [
        (f"{name} reads a book of {total + done} pages.", f"The book of {name} has {total + done} pages."),
        (f"{done} pages are read already.", f"{name} has read {done} pages of it."),
    ]
    rest = number(total + done) - done
    if level == 2:
        asked = (f"How many days does the rest take at {pages} pages a day?",)
        return Problem(parts=(*parts, asked), right=rest / pages, careless=rest)
    spare = rng.randint(1, 5)
    parts.append((f"{pages} pages are read a day.", f"{name} reads {pages} pages a day."))
    asked = (f"After {spare} days without reading, in how many days is it done, counted from now?",)
    return Problem(parts=(*parts, asked), right=rest / pages + spare, careless=rest / pages)
