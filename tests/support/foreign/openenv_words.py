"""Functions between the model's replies and OpenEnv's actions and observations."""

from typing import Any

import numpy


def to_guess(reply: str) -> dict[str, Any]:
    if reply == "wrong field":
        return {"gess": reply}
    if not reply.isdigit():
        raise ValueError("say a number")
    return {"guess": reply}


def in_words(observation: dict[str, Any]) -> str:
    return f"You see: {observation['hint']}"


def to_text(reply: str) -> str:
    return reply


def to_object(reply: str) -> dict[str, Any]:
    return {"guess": {"set": {1}, "array": numpy.int64(3)}[reply]}


def to_price(reply: str) -> dict[str, Any]:
    return {"guess": float(reply)}


def to_none(observation: dict[str, Any]) -> None:
    return None
