"""The code environment by its old path, imported when it is used; the code is `agent_rl.envs.code.env`."""

from agent_rl.registry import import_object

CodeExecEnv = import_object("agent_rl.envs.code.env:CodeExecEnv")
