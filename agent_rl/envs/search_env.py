"""The search environment by its old path, imported when it is used; the code is `agent_rl.envs.search.env`."""

from agent_rl.registry import import_object

SearchEnv = import_object("agent_rl.envs.search.env:SearchEnv")
