"""The host's side of a conversation with a project that the toolkit has built: orders, answers, the stage reached.

Hidden questions are handed over one by one, each after the answer to the one before, and every order holds a number
that its answer must repeat. A report that is written ahead, or by a process that then leaves, counts for nothing. Not
here: the worker's end (`worker/talk.py`), what the answers are worth (`checker.py`).
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_rl.sandbox.guest.bounded_json import UnreadableJSON, read_json
from agent_rl.sandbox.session import Session, SessionEnded

_MAX_VALUES = 20_000
"""JSON values of one answer."""
_ERROR_CHARS = 300


class _BrokenOff(Exception):
    """The project's process ended, was silent, or broke the rules of the conversation; the message says which."""


class _Raised(Exception):
    """Something in the project raised; the message says what."""


@dataclass(slots=True)
class AgentConversation:
    """What came of it, in the shape that `AgentEvidence` has."""

    report: dict[str, Any] = field(default_factory=lambda: {"stage": "import", "error": None, "runs": []})
    broken_off: str | None = None
    """Why nothing of the report counts."""


def converse_agent(
    session: Session, runs: Sequence[Mapping[str, Any]], tables: bytes, *, answer_s: float
) -> AgentConversation:
    """Have a project imported, and loaded, built and questioned for every run. Raises SandboxError only."""
    conversation = AgentConversation()
    try:
        if tables:
            session.write_line(tables.decode(), answer_s)
        orders = _Orders(session, answer_s)
        try:
            _converse(orders, runs, conversation.report)
            conversation.report["stage"] = "done"
        except _Raised as error:
            conversation.report["error"] = str(error)
        orders.await_end()
    except _BrokenOff as error:
        conversation.broken_off = str(error)
    except SessionEnded as end:
        conversation.broken_off = f"the process broke off at {conversation.report['stage']} ({end})"
    return conversation


def _converse(peer: "_Orders", runs: Sequence[Mapping[str, Any]], report: dict[str, Any]) -> None:
    peer.order("import")
    for number, run in enumerate(runs):
        report["stage"] = "load"
        build = {name: value for name, value in run.items() if name not in ("questions", "leads", "exchanges")}
        answers: list[Any] = []
        report["runs"].append({"applied": peer.order("load", build=build).get("applied"), "answers": answers})
        report["stage"] = "build"
        about = peer.order("build")
        if number == 0:
            report |= {key: about.get(key) for key in ("workflow_type", "workflow_schema", "schemas")}
        report["stage"] = "run"
        always = [[[name, {}] for name in run["swapped"]]] * len(run["questions"])
        for question, leads in zip(run["questions"], run.get("leads", always), strict=True):
            answers.append(peer.order("ask", ask=list(question), leads=leads).get("answer"))
        peer.order("leave")
    peer.order("end")


class _Orders:
    def __init__(self, session: Session, answer_s: float) -> None:
        self._session, self._answer_s = session, answer_s

    def await_end(self) -> None:
        """Wait for the process to leave by itself, with no further word."""
        try:
            self._session.read_line(self._answer_s)
        except SessionEnded as end:
            if end.reason == "closed":
                return
            raise
        raise _BrokenOff("the process answered what it was not asked")

    def order(self, kind: str, **what: Any) -> dict[str, Any]:
        """The facts of the answer. Raises _Raised or _BrokenOff."""
        number = secrets.randbelow(2**53)
        self._session.write_line(json.dumps({"n": number, "do": kind, **what}), self._answer_s)
        line = self._session.read_line(self._answer_s)
        try:
            answer = read_json(line, max_values=_MAX_VALUES)
        except UnreadableJSON as error:
            raise _BrokenOff(f"the process sent what is no answer: {error}") from None
        if not isinstance(answer, dict) or type(answer.get("n")) is not int or answer["n"] != number:
            raise _BrokenOff("the process answered what it was not asked")
        if "error" in answer:
            raise _Raised(str(answer["error"])[:_ERROR_CHARS])
        return answer
