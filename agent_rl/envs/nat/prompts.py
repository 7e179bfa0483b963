"""First messages of an episode: the system message and the request.

Styles: `compact` states the rules of the job in a few lines (small models), `guide` adds the toolkit's anatomy (large
ones, `guide.py`). The tools themselves are described by the chat template, not here.
"""

from typing import Literal

from agent_rl.agent.messages import Message
from agent_rl.envs.nat.factory.families.base import join_names
from agent_rl.envs.nat.factory.render.names import exports
from agent_rl.envs.nat.judge.validator.guide import GUIDE
from agent_rl.envs.nat.spec import NATSpec

PromptStyle = Literal["compact", "guide"]

COMPACT = """You write complete agents for the NVIDIA NeMo Agent Toolkit.
Write every file of the project with file_write, then call submit.
Files: {files}.
{logic} The tests import {it}."""
_FILES = (
    "src/PACKAGE/__init__.py, src/PACKAGE/logic.py, src/PACKAGE/register.py, src/PACKAGE/configs/config.yml, "
    "{client}mcp_server.py, tests/test_PACKAGE.py, pyproject.toml"
)


def initial_messages(spec: NATSpec, style: PromptStyle = "compact") -> list[Message]:
    """System and user message of an episode."""
    client = "src/PACKAGE/configs/config-mcp-client.yml, " if spec.client_group else ""
    files, it = _FILES.format(client=client), "it"
    names = exports(spec)
    if spec.group:
        logic = f"logic.py holds the class {names[0]}."
    elif len(names) == 1:
        logic = f"logic.py holds one pure function, named {names[0]}."
    else:
        logic, it = f"logic.py holds the pure functions {join_names(names)}.", "them"
    compact = COMPACT.format(files=files, logic=logic, it=it)
    return [Message.system(compact if style == "compact" else f"{GUIDE}\n\n{compact}"), Message.user(spec.request)]
