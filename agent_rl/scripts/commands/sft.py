"""`agent-rl sft`: a warm start on demonstrations, or with `--data` any model on conversations of one's own.

Not here: the two themselves (`train_sft.py`, `sft_chats.py`).
"""

from typing import Any

import typer

from agent_rl.errors import ConfigError


def _is_key(option: str) -> bool:
    from agent_rl.config import Config
    from agent_rl.config.base import keys_called

    return bool(keys_called(option.removeprefix("--").replace("-", "_"), Config))


def _options(app: typer.Typer) -> set[str]:
    return {option for parameter in typer.main.get_command(app).params for option in parameter.opts}


def main(context: typer.Context) -> Any:
    """Read the arguments by the command that they are for."""
    from agent_rl.scripts import sft_chats, train_sft

    words = context.args
    is_own = any(word == "--data" or word.startswith("--data=") for word in words)
    if words in (["--help"], ["-h"]):
        print("With --data: your own conversations, for any model; `agent-rl sft --data FILE --help` has its options.")
    chosen, other = (sft_chats.app, train_sft.app) if is_own else (train_sft.app, sft_chats.app)
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    # What is a key of the configuration is answered with the key, where options are read.
    wrong = [each for each in sorted(given & (_options(other) - _options(chosen))) if not (is_own and _is_key(each))]
    if wrong:
        raise ConfigError(
            f"{wrong[0]}: sft takes it {'without' if is_own else 'with'} --data alone; leave one of them out"
        )
    return chosen(words, prog_name="agent-rl sft", standalone_mode=False)
