"""`agent-rl sft`: a warm start on demonstrations, or with `--data` any model on conversations of one's own.

Not here: the two themselves (`train_sft.py`, `sft_chats.py`).
"""

from typing import Any

import typer


def main(context: typer.Context) -> Any:
    """Read the arguments by the command that they are for."""
    from agent_rl.scripts import sft_chats, train_sft

    words = context.args
    is_own = any(word == "--data" or word.startswith("--data=") for word in words)
    if words in (["--help"], ["-h"]):
        print("With --data: your own conversations, for any model; `agent-rl sft --data FILE --help` has its options.")
    chosen = sft_chats.app if is_own else train_sft.app
    return chosen(words, prog_name="agent-rl sft", standalone_mode=False)
