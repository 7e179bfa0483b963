"""Errors of this environment that a user can fix."""

from agent_rl.errors import UserError


class NatUnavailableError(UserError):
    """The toolkit's own interpreter is missing or broken, so nothing can be scored."""


class PlannerError(UserError):
    """The online planner cannot continue: no SDK, no key, a progress file of another run, or repeated failed calls."""
