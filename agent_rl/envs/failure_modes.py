"""Why an episode failed: one label by rule, from its recorded end, reward parts, problems and messages.

Rules are tried in order and the first that holds names the failure, so a cause comes before its consequences. These are
the rules for any environment and for questions; an environment adds its own as `EnvFactory.failure_rules`. Rules match
what environments note, never text that a model chose. Not here: judging an episode again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_rl.telemetry.statistics import is_success
from agent_rl.tools.answer_tool import AnswerTool

NOT_SCORED = "environment error"
"""The label of an episode without a score; it is no failure of the model and is not counted as one."""
OTHER = "other"


@dataclass(frozen=True)
class FailedEpisode:
    """The record of a failed episode, as an evaluation writes it (`telemetry.trajectory_json.evaluated_record`)."""

    record: Mapping[str, Any]

    @property
    def stop_reason(self) -> str:
        return str(self.record["stop_reason"])

    @property
    def problems(self) -> Sequence[str]:
        """What the environment noted at the end."""
        return self.record.get("problems") or ()

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The conversation; empty in records of earlier versions."""
        return self.record.get("messages") or ()

    def share(self, name: str) -> float:
        """The reward part `share/NAME`; 1 when it is not reported."""
        return self.record["reward_parts"].get(f"share/{name}", 1.0)

    @property
    def has_unreadable_call(self) -> bool:
        return any(message.get("tool_errors") for message in self.messages)

    @property
    def has_failed_call(self) -> bool:
        return any(info.get("tool_errors") for info in self._infos)

    @property
    def used_a_tool(self) -> bool:
        """Whether the model called any tool but `answer`."""
        calls = [call for message in self.messages for call in message.get("tool_calls", ())]
        return any(call.get("name") != AnswerTool.name for call in calls)

    def noted(self, name: str) -> Any:
        """The last value that the environment noted under `name`, or None."""
        return next((info[name] for info in reversed(self._infos) if name in info), None)

    @property
    def _infos(self) -> list[Mapping[str, Any]]:
        return [info for message in self.messages if isinstance(info := message.get("info"), Mapping)]


@dataclass(frozen=True, slots=True)
class FailureRule:
    """`FailureRule("timeout", "the deadline passed", lambda e: e.stop_reason == "timeout")`."""

    label: str
    meaning: str
    """For reports; rules with the same label may have different ones."""
    holds: Callable[[FailedEpisode], bool]


ENDS = (
    FailureRule(
        "ran out of tokens",
        "a reply or the conversation hit its token limit",
        lambda e: e.stop_reason in ("max_tokens", "context_full"),
    ),
    FailureRule("timeout", "the episode's deadline passed", lambda e: e.stop_reason == "timeout"),
    FailureRule(
        "unreadable call",
        "calls that could not be parsed ended the episode",
        lambda e: e.stop_reason == "invalid_calls",
    ),
    FailureRule("too many calls", "the budget of tool calls was used up", lambda e: e.stop_reason == "tool_budget"),
)
"""Ends that explain a failure in any environment; tried before an environment's own rules."""
OUT_OF_TURNS = FailureRule("ran out of turns", "the turn budget was used up", lambda e: e.stop_reason == "max_turns")
QUESTION_RULES = (
    OUT_OF_TURNS,
    FailureRule("no answer", "the last reply holds no answer", lambda e: e.noted("prediction") == ""),
    FailureRule(
        "wrong answer, no tool used",
        "the model called no tool",
        lambda e: e.noted("prediction") is not None and not e.used_a_tool,
    ),
    FailureRule(
        "wrong answer, a call failed",
        "a tool returned an error",
        lambda e: e.noted("prediction") is not None and e.has_failed_call,
    ),
    FailureRule("wrong answer", "tools were called and returned results", lambda e: e.noted("prediction") is not None),
)
"""For environments that note the final answer as `prediction`."""


class FailureModes:
    """`FailureModes(factory.failure_rules).label(record)`."""

    def __init__(self, rules: Iterable[FailureRule] = (OUT_OF_TURNS,)) -> None:
        self._rules = (*ENDS, *rules)

    def label(self, record: Mapping[str, Any]) -> str | None:
        """The label of an episode's record: None for a success, `NOT_SCORED` without a score, `OTHER` if no rule holds.

        The record needs `reward`, `reward_parts` and `stop_reason`.
        """
        if record["reward"] is None:
            return NOT_SCORED
        if is_success(record["reward_parts"]):
            return None
        episode = FailedEpisode(record)
        return next((rule.label for rule in self._rules if rule.holds(episode)), OTHER)

    @property
    def meanings(self) -> dict[str, str]:
        """Label -> meaning, for reports."""
        found: dict[str, list[str]] = {}
        for rule in self._rules:
            found.setdefault(rule.label, []).append(rule.meaning)
        return {label: "; or ".join(dict.fromkeys(all_of)) for label, all_of in found.items()} | {
            OTHER: "no rule applies"
        }
