"""The code agent's system prompt and tools, and the call that submits a program."""

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.envs.code.tool import CodeExecTool
from agent_rl.tools.base import spec_of

SYSTEM_PROMPT = "Write the Python code that is asked for and run it with code_exec until all tests pass."
TOOL_SPECS = (spec_of(CodeExecTool),)
"""The environment's own tools as the model sees them."""


def submission(code: str) -> Message:
    """One assistant message that calls `code_exec`."""
    return Message.assistant("", (ToolCall(name=CodeExecTool.name, arguments={"code": code}),))
