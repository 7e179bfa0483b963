"""What the policy reads first: the system message and the request.

Styles: `compact` states the rules of the job in a few lines (small models). The tools themselves are described by the
chat template, not here.
"""

from agent_rl.agent.messages import Message
from agent_rl.nat.spec import NATSpec

COMPACT = """You write complete agents for the NVIDIA NeMo Agent Toolkit.
Write every file of the project with file_write, then call submit.
Files: src/PACKAGE/__init__.py, src/PACKAGE/logic.py, src/PACKAGE/register.py, src/PACKAGE/configs/config.yml, \
mcp_server.py, tests/test_PACKAGE.py, pyproject.toml.
logic.py holds one pure function, named {function}. The tests import it."""


def initial_messages(spec: NATSpec) -> list[Message]:
    """System and user message of an episode."""
    return [Message.system(COMPACT.format(function=spec.function)), Message.user(spec.request)]
