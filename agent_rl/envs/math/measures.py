"""Word problems about work, ways, time, areas and ages. `stories.py` explains how families work."""

import random

from agent_rl.envs.math.stories import NAMES, Problem
from agent_rl.envs.math.terms import number


def speed(level: int, rng: random.Random) -> Problem:
    what = rng.choice(("train", "bus", "boat", "truck", "ferry"))
    pace, hours = rng.randint(4, 24) * 5, rng.randint(2, 9)
    parts = [(f"A {what} goes {pace} kilometres an hour.", f"A {what} travels at {pace} kilometres an hour.")]
    steps = [number(pace) + hours, number(pace) * hours]
    question = (
        f"How many kilometres does it go in {hours} hours?",
        f"How far does it get in {hours} hours, in kilometres?",
    )
    if level >= 2:
        before = rng.randint(5, 95)
        parts.append((f"Before that it went {before} kilometres.", f"It has gone {before} kilometres already."))
        steps.append(steps[-1] + before)
        question = (
            f"How many kilometres is it in all after {hours} more hours?",
            f"It goes on for {hours} hours. How many kilometres is that in all?",
        )
    if level >= 3:
        way = int(steps[-1].value) + rng.randint(5, 200)
        parts.append((f"The whole way is {way} kilometres.", f"It has to go {way} kilometres in all."))
        steps.append(number(way) - steps[-1])
        question = (
            f"It goes on for {hours} hours. How many kilometres are left?",
            f"How many kilometres are still to go after {hours} more hours?",
        )
    return Problem(parts=(*parts, question), right=steps[-1], buggy=steps[-2])


def wages(level: int, rng: random.Random) -> Problem:
    name, hours, pay = rng.choice(NAMES), rng.randint(3, 9), rng.randint(9, 30)
    parts = [(f"{name} earns {pay} dollars an hour.", f"{name} gets {pay} dollars for an hour of work.")]
    question = (f"How many dollars is that for {hours} hours?", f"How many dollars does {name} earn in {hours} hours?")
    steps = [number(pay) + hours, number(pay) * hours]
    if level >= 2:
        days = rng.randint(2, 6)
        question = (
            f"How many dollars does {name} get in all for {days} days of {hours} hours each?",
            f"{name} works {days} days, {hours} hours a day. How many dollars is that in all?",
        )
        steps.append(steps[-1] * days)
    if level >= 3:
        bonus = rng.randint(5, 80)
        parts.append((f"A bonus of {bonus} dollars is paid once.", f"There is one bonus of {bonus} dollars."))
        steps.append(steps[-1] + bonus)
    if level >= 4:
        tax = rng.randint(20, 100)
        parts.append((f"In all {tax} dollars go to insurance.", f"In all {name} has to pay {tax} dollars of tax."))
        steps.append(steps[-1] - tax)
        question = (
            f"How many dollars does {name} keep from {days} days of {hours} hours each?",
            f"{name} works {days} days, {hours} hours a day. How many dollars are left?",
        )
    return Problem(parts=(*parts, question), right=steps[-1], buggy=steps[-2])


def areas(level: int, rng: random.Random) -> Problem:
    place, length, width = rng.choice(("garden", "field", "yard", "park")), rng.randint(6, 40), rng.randint(5, 30)
    opening = (
        f"A {place} is {length} metres long and {width} metres wide.",
        f"A rectangular {place} has sides of {length} and {width} metres.",
    )
    area = number(length) * width
    if level == 1:
        question = ("How many square metres large is it?", "What is its area in square metres?")
        return Problem(parts=(opening, question), right=area, buggy=number(length) + width)
    if level == 2 and rng.random() < 0.5:
        question = ("How many metres long is the fence around it?", "How long is the way around it, in metres?")
        return Problem(parts=(opening, question), right=(number(length) + width) * 2, buggy=number(length) + width)
    a, b = rng.randint(2, 5), rng.randint(2, 4)
    price = rng.randint(2, 9)
    if level == 2:
        question = (f"Grass costs {price} dollars a square metre. How many dollars is that for the whole {place}?",)
        return Problem(parts=(opening, question), right=area * price, buggy=area)
    inner = (f"A part of {a} by {b} metres is paved.", f"A part of {a} by {b} metres is under water.")
    rest = area - number(a) * b
    if level == 3:
        question = ("How many square metres are left?", "How large is the rest in square metres?")
        return Problem(parts=(opening, inner, question), right=rest, buggy=area)
    question = (f"Seed for the rest costs {price} dollars a square metre. How many dollars is that in all?",)
    return Problem(parts=(opening, inner, question), right=rest * price, buggy=area * price)


def ages(level: int, rng: random.Random) -> Problem:
    name, other = rng.sample(NAMES, 2)
    age, gap, years = rng.randint(5, 30), rng.randint(2, 25), rng.randint(2, 20)
    opening = (f"{name} is {age} years old.", f"The age of {name} is {age}.")
    if level == 1:
        question = (f"How old will {name} be in {years} years?", f"How old is {name} after {years} more years?")
        return Problem(parts=(opening, question), right=number(age) + years, buggy=number(age) - years)
    if rng.random() < 0.5:
        second = (f"{other} is {gap} years older than {name}.", f"{other} was born {gap} years before {name}.")
        steps = [number(age) + gap]
    else:
        times = rng.randint(2, 4)
        second = (f"{other} is {times} times as old as {name}.", f"{other} is {times} times the age of {name}.")
        steps = [number(age) * times]
    if level == 2:
        question = (f"How old will {other} be in {years} years?", f"How old is {other} after {years} more years?")
        return Problem(parts=(opening, second, question), right=steps[-1] + years, buggy=steps[-1])
    question = (f"How old will both be together in {years} years?", f"What is the sum of their ages in {years} years?")
    together = steps[-1] + age
    if level == 3:
        question = ("What is half the sum of their ages?", "What is the average of the two ages?")
        return Problem(parts=(opening, second, question), right=together / 2, buggy=together)
    both = number(years) * 2
    return Problem(parts=(opening, second, question), right=together + both, buggy=together + years)


_UNITS = (("weeks", "days", 7), ("days", "hours", 24), ("hours", "minutes", 60), ("minutes", "seconds", 60))


def minutes(level: int, rng: random.Random) -> Problem:
    name, hours, extra = rng.choice(NAMES), rng.randint(2, 9), rng.randint(5, 55)
    if level == 1:
        (unit, smaller, size), count = rng.choice(_UNITS), rng.randint(2, 25)
        opening = (f"A trip lasts {count} {unit}.", f"{name} waits for {count} {unit}.")
        question = (f"How many {smaller} is that?", f"How long is that in {smaller}?")
        return Problem(parts=(opening, question), right=number(count) * size, buggy=number(count) + size)
    parts = [
        (f"A trip takes {hours} hours and {extra} minutes.", f"{name} is away for {hours} hours and {extra} minutes."),
    ]
    steps = [number(hours) * 60, number(hours) * 60 + extra]
    question = ("How many minutes is that?", "How long is that in minutes?")
    if level >= 3:
        pause = rng.randint(5, 50)
        parts.append((f"{pause} minutes of it are a pause.", f"{pause} minutes of that are spent on a pause."))
        steps.append(steps[-1] - pause)
        question = ("How many minutes are left without the pause?", "How many minutes is it without the pause?")
    return Problem(parts=(*parts, question), right=steps[-1], buggy=steps[-2])


def tanks(level: int, rng: random.Random) -> Problem:
    rate, time = rng.randint(3, 30), rng.randint(4, 25)
    if level == 1:
        parts: list[tuple[str, ...]] = [
            (
                f"A tap fills an empty tank with {rate} litres a minute.",
                f"{rate} litres a minute flow into an empty tank.",
            )
        ]
        question = (f"How many litres are in it after {time} minutes?", f"How many litres is that in {time} minutes?")
        return Problem(parts=(*parts, question), right=number(rate) * time, buggy=number(rate) + time)
    out = rng.randint(2, rate - 1)
    parts = [
        (f"{rate} litres a minute flow into a tank and {out} litres a minute flow out of it.",),
    ]
    net = number(rate) - out
    question = (
        f"How many more litres are in it after {time} minutes?",
        f"How many litres does it gain in {time} minutes?",
    )
    if level == 2:
        return Problem(parts=(*parts, question), right=net * time, buggy=number(rate) * time)
    start = rng.randint(20, 200)
    parts.append((f"At first {start} litres are in it.", f"There are {start} litres in it at the start."))
    question = (f"How many litres are in it after {time} minutes?", f"How many litres are in it {time} minutes later?")
    return Problem(parts=(*parts, question), right=net * time + start, buggy=net * time)


def reading(level: int, rng: random.Random) -> Problem:
    name, pages, days = rng.choice(NAMES), rng.randint(6, 40), rng.randint(3, 14)
    total = pages * days
    if level == 1:
        parts: list[tuple[str, ...]] = [(f"{name} reads a book of {total} pages, {pages} pages a day.",)]
        question = ("How many days does it take?", "How many days does that last?")
        return Problem(parts=(*parts, question), right=number(total) / pages, buggy=number(total) - pages)
    done = rng.randint(10, 90)
    parts = [
        (f"{name} reads a book of {total + done} pages.", f"The book of {name} has {total + done} pages."),
        (f"{done} pages are read already.", f"{name} has read {done} pages of it."),
    ]
    rest = number(total + done) - done
    if level == 2:
        question = (f"How many days does the rest take at {pages} pages a day?",)
        return Problem(parts=(*parts, question), right=rest / pages, buggy=rest)
    spare = rng.randint(2, 5)
    parts.append((f"From now on {name} reads {pages} pages a day.", f"{name} reads {pages} pages a day."))
    question = (
        f"But first {name} takes a break of {spare} days. In how many days from now is all of it read?",
        f"But {name} starts again only after {spare} days. How many days from now will it take to the end?",
    )
    return Problem(parts=(*parts, question), right=rest / pages + spare, buggy=rest / pages)
