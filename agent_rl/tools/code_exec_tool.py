"""The code tool by its old path, imported when it is used; the code is `agent_rl.envs.code.tool`."""

from agent_rl.registry import import_object

CodeExecTool = import_object("agent_rl.envs.code.tool:CodeExecTool")
