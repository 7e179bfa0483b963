"""The one error that ends a run of `nat finetune`, and texts of errors in one line.

Not here: failures of single episodes, which are counted (`play.py`).
"""

import os

KEY_VARIABLE = "AGENT_RL_KEY"
"""Where both sides look for the server's key unless `api_key_env` names another variable."""
MAX_CHARS = 400


class FinetuneError(RuntimeError):
    """A run of `nat finetune` cannot go on: one sentence with what happened, where, and what to do."""


def one_line(error: object) -> str:
    """An error as `KeyError: 'x'`, on one line of at most 400 characters; a text as it is."""
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    text = " ".join(text.split())
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 3]}..."


def key_of(variable: str) -> str:
    """The server's key. FinetuneError when the environment variable is not set or empty."""
    if key := os.environ.get(variable):
        return key
    raise FinetuneError(
        f"the environment variable {variable} is not set; set it to the key that `agent-rl serve-trainer` was started "
        "with"
    )
