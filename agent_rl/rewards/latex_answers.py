"""The reward `math_verify`: is an answer, written in LaTeX, the mathematics of an accepted one?

By the package math-verify, in a sandbox, as SymPy may run a text and may never come to an end with it. Not here: how a
text is read (`latex_judge.py`), comparison without arithmetic (`answers.py`).
"""

import atexit
import importlib.util
import sys
import threading
from pathlib import Path
from typing import Any

from agent_rl.errors import ConfigError
from agent_rl.rewards.answers import accepted_answers
from agent_rl.rewards.base import reward
from agent_rl.sandbox.limits import JobResult, Limits, Status
from agent_rl.sandbox.sandbox import Sandbox

if importlib.util.find_spec("math_verify") is None:
    raise ConfigError(
        "env.options.reward = 'math_verify' needs the package math-verify; run `pip install math-verify`, or take "
        "math_reward_string_equal, which compares texts"
    )

MAX_CHARS = 20_000
"""Of a prediction; a longer one is no answer."""
LIMITS = Limits(cpu_s=5, wall_s=60.0, memory_mb=1024, processes=4, output_kb=4)
"""The time of computing decides, which does not depend on what else the machine does."""
_SERVERS = 2

_lock = threading.Lock()
_opened: list[Sandbox] = []


@reward("math_verify")
def math_verify(prediction: str, answer: Any) -> dict[str, float]:
    """1.0 when the prediction is mathematically an accepted answer, which is success too, else 0.0.

    Both are read inside \\boxed{} or $...$, where there are any, else as a formula: fractions, roots, sets, tuples,
    intervals, matrices, equations. 1/2, 0.5 and \\frac{2}{4} are the same, and so are (x+1)^2 and x^2+2x+1. What
    cannot be read, or takes more than 5 seconds of computing or 1 GiB, earns nothing; the part `unread` is 1.0 then.
    """
    if not prediction.strip() or len(prediction) > MAX_CHARS:
        return {"reward": 0.0, "success": 0.0, "unread": 1.0}
    sandbox, request = _sandbox(), {"prediction": prediction, "answers": accepted_answers(answer)}

    def run() -> tuple[JobResult, bool]:
        done = sandbox.call("judge", limits=LIMITS, **request)
        return done, done.is_settled

    done = sandbox.memo.answer([request], run)
    verdict = done.result if done.status is Status.OK else {"is_right": False, "is_read": False}
    right = float(verdict["is_right"])
    return {"reward": right, "success": right, "unread": float(not verdict["is_read"])}


def _sandbox() -> Sandbox:
    """One for all episodes of this process; it starts with the first answer. SandboxError where none can be had."""
    with _lock:
        if not _opened:
            judge = str(Path(__file__).with_name("latex_judge.py"))
            _opened.append(
                Sandbox.open(python=sys.executable, jobs=[judge], limits=LIMITS, size=_SERVERS, reuse_verdicts=True)
            )
            atexit.register(_opened[0].close)
        return _opened[0]
