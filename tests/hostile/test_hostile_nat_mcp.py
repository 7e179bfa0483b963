"""The host's end of a conversation with an MCP server that floods it."""

import json
import time

from agent_rl.envs.nat.judge.worker.mcp_client import converse
from agent_rl.sandbox.session import SessionEnded


class FloodingSession:
    """A session whose program has a hundred times the same line ready, each after `wait_s`."""

    def __init__(self, line: str, wait_s: float = 0.0) -> None:
        self.line, self.wait_s, self.num_read = line, wait_s, 0

    def write_line(self, text: str, timeout_s: float = 2.0) -> None: ...

    def read_line(self, timeout_s: float) -> str:
        if self.num_read == 100:
            raise SessionEnded("closed", "the program ended or closed its output")
        self.num_read += 1
        time.sleep(self.wait_s)
        return self.line


def message(params: list[object]) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": "x", "params": params})


def test_a_message_of_too_many_values_is_not_read() -> None:
    session = FloodingSession(message([[]] * 30_000))
    conversation = converse(session, [], 60.0)  # type: ignore[arg-type]
    assert session.num_read == 1 and conversation.error and not conversation.has_ended


def test_messages_that_are_there_already_do_not_make_a_request_wait_beyond_its_deadline() -> None:
    session = FloodingSession(message([]), wait_s=0.02)
    conversation = converse(session, [], 0.1)  # type: ignore[arg-type]
    assert session.num_read < 20 and str(conversation.error).startswith("no answer to initialize")
