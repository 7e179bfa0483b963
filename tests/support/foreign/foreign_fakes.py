"""Small environments with Gymnasium's methods, and fakes of packages for where the packages are not installed."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PACKAGES = Path(__file__).parent / "packages"


def load_fake(name: str, request: pytest.FixtureRequest) -> None:
    """Let `import name` find the fake until the test is over."""
    _forget(name, request)
    request.getfixturevalue("monkeypatch").syspath_prepend(str(PACKAGES))


def load_real(name: str, request: pytest.FixtureRequest) -> None:
    """Skip the test unless the package itself is installed."""
    _forget(name, request)
    if find_spec(name) is None:
        pytest.skip(f"needs the package {name}")


def _forget(name: str, request: pytest.FixtureRequest) -> None:
    """Import the package and what imports it anew, and as before when the test is over."""

    def loaded() -> list[str]:
        return [
            each
            for each in sys.modules
            if each.split(".")[0] == name or (name == "verifiers" and each.startswith("vf_"))
        ]

    kept = {each: sys.modules.pop(each) for each in loaded()}

    def restore() -> None:
        for each in loaded():
            del sys.modules[each]
        sys.modules.update(kept)

    request.addfinalizer(restore)


class Guess:
    """Guess a number that `seed` gives, in three steps; what the constructor is given is handed out as it is."""

    num_open = 0

    def __init__(
        self, first: Any = "Guess from 0 to 9.", answer: Any = None, result: Any = ..., reward: Any = ...
    ) -> None:
        type(self).num_open += 1
        self._first, self._answer, self._result, self._reward = first, answer, result, reward
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.number = (options or {}).get("number", (seed or 0) % 10)
        return self._first, {}

    def step(self, action: str) -> Any:
        if self._result is not ...:
            return self._result
        self._num_steps += 1
        is_right = action.strip() == str(self.number)
        said = "right" if is_right else "higher" if action.strip() < str(self.number) else "lower"
        reward = float(is_right) if self._reward is ... else self._reward
        return self._answer or said, reward, is_right, self._num_steps == 3, {"num_steps": self._num_steps}

    def close(self) -> None:
        type(self).num_open -= 1


class OldGuess:
    """The same before Gymnasium 0.26: `seed`, one value of `reset`, four of `step`, no `close`."""

    def seed(self, seed: int) -> None:
        self.number = seed % 10

    def reset(self) -> str:
        return "Guess from 0 to 9."

    def step(self, action: str) -> tuple[str, int, bool, dict[str, Any]]:
        is_right = action == str(self.number)
        return "right" if is_right else "wrong", int(is_right), is_right, {}


def in_words(observation: Any) -> str:
    """For `describe`."""
    return f"You see {observation}."


def to_move(text: str) -> int:
    """For `act`."""
    moves = ("left", "down", "right", "up")
    if text.strip() not in moves:
        raise ValueError(f"{text!r} is no move; say one of {', '.join(moves)}")
    return moves.index(text.strip())


class Letters:
    """Two turns; the reward of each is the share of the letter a."""

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self._num_steps = 0
        return "post"[: 1 + (seed or 0) % 4], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        return "again", action.count("a") / max(1, len(action)), self._num_steps == 2, False, {}
