"""Reference projects: the complete set of files that a spec asks for.

They are the teacher's text for supervised warm starts and the yardstick for tests the model writes. They are never
shown to the policy in an episode, and correctness is decided by the oracle and the toolkit, not by likeness to them.
"""

from agent_rl.envs.nat.factory.render.configs import client_config, config, pyproject
from agent_rl.envs.nat.factory.render.logic import render_logic
from agent_rl.envs.nat.factory.render.register import register
from agent_rl.envs.nat.factory.render.server import mcp_server
from agent_rl.envs.nat.factory.render.tests import tests
from agent_rl.envs.nat.spec import NATSpec

__all__ = ["render_logic", "render_project"]


def render_project(spec: NATSpec, *, logic: str | None = None, untested: str = "") -> dict[str, str]:
    """Path -> text of a complete project; `logic` replaces logic.py, `untested` (example, error) has no test."""
    texts = {
        f"src/{spec.package}/__init__.py": "",
        spec.logic_path: render_logic(spec) if logic is None else logic,
        spec.register_path: register(spec),
        spec.config_path: config(spec),
        spec.client_config_path: client_config(spec) if spec.client_group else "",
        "mcp_server.py": mcp_server(spec),
        spec.tests_path: tests(spec, untested),
        "pyproject.toml": pyproject(spec),
    }
    return {path: texts[path] for path in spec.files}
