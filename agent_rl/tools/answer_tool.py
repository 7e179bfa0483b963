"""`answer`: ends an episode with a final answer. Not here: whether it is right, which the environment's reward says."""

import json
from typing import Any

from agent_rl.tools.base import BaseTool, ToolResult


class AnswerTool(BaseTool):
    """Its result's facts are `{"answer": "42"}`, also where the answer was the number 42."""

    name = "answer"
    description = "Give the final answer. This ends the task."
    parameters = {"type": "object", "properties": {"answer": {"type": ["string", "number"]}}, "required": ["answer"]}

    def __call__(self, **arguments: Any) -> ToolResult:
        answer = arguments["answer"]
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return ToolResult(text="answered", terminal=True, facts={"answer": text})
