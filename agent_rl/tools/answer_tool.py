"""`answer`: ends an episode with a final answer. Not here: whether it is right, which the environment's reward says."""

from typing import Any

from agent_rl.tools.base import BaseTool, ToolResult


class AnswerTool(BaseTool):
    """Its result's facts are `{"answer": "42"}`."""

    name = "answer"
    description = "Give the final answer. This ends the task."
    parameters = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}

    def __call__(self, **arguments: Any) -> ToolResult:
        return ToolResult(text="answered", terminal=True, facts={"answer": arguments["answer"]})
