"""First messages of an episode: the system message and the request.

Styles: `compact` states the rules of the job in a few lines (small models), `guide` adds the toolkit's anatomy (large
ones, `guide.py`). The tools themselves are described by the chat template, not here.
"""

from collections.abc import Iterable
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


_FREE = """Choose a package name that begins with nat_ and describes the agent; PACKAGE stands for it above."""


def first_messages(spec: NATSpec | None, request: str, style: PromptStyle = "compact") -> list[Message]:
    """`initial_messages` of a plan; without one the request in a person's own words, the layout left to the model."""
    if spec is not None:
        return initial_messages(spec, style)
    compact = COMPACT.format(files=_FILES.format(client=""), logic="logic.py holds pure functions.", it="them")
    system = compact if style == "compact" else f"{GUIDE}\n\n{compact}"
    return [Message.system(f"{system}\n{_FREE}"), Message.user(request)]


REPAIR = """You repair agents for the NVIDIA NeMo Agent Toolkit.
The project in the workspace has a fault. Find it with nat_check, pytest_run and file_read.
Write the wrong file again with file_write, then call submit.
Files: {files}."""
EXTEND = """You extend agents for the NVIDIA NeMo Agent Toolkit.
The project in the workspace works. Read what you need with file_read.
Write every file that changes with file_write, then call submit.
Files: {files}."""


def started_messages(
    spec: NATSpec, kind: Literal["repair", "extend"], files: Iterable[str], style: PromptStyle = "compact"
) -> list[Message]:
    """System and user message of an episode whose workspace begins with files."""
    compact = (REPAIR if kind == "repair" else EXTEND).format(files=", ".join(files))
    return [Message.system(compact if style == "compact" else f"{GUIDE}\n\n{compact}"), Message.user(spec.request)]


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
