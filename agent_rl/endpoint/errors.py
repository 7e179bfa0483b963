"""What the endpoint answers instead of a completion: a status, a code and a sentence.

Not here: the bodies of other dialects' errors (each dialect writes its own).
"""

import importlib.util
from collections.abc import Mapping

from agent_rl.errors import ConfigError
from agent_rl.records import StopReason
from agent_rl.resources import install_command


class EndpointError(Exception):
    """A request is refused and changed nothing, unless it says so."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status."""
        self.code = code
        """For programs, such as `rollout_stopped`."""
        self.message = message
        self.param = param
        """The key of the request that is wrong."""
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """The `type` of OpenAI's error objects."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> EndpointError:
    return EndpointError(400, code, message, param=param)


def no_key() -> EndpointError:
    return EndpointError(401, "invalid_api_key", "this endpoint needs the key of an episode; pass it as the API key")


def stopped(reason: StopReason) -> EndpointError:
    """The episode's budget is used up; an agent can only end now."""
    return EndpointError(400, "rollout_stopped", f"rollout stopped: {reason.value}")


def concluded() -> EndpointError:
    return EndpointError(409, "episode_concluded", "the episode is concluded and takes no other request")


def busy(message: str, *, retry_after_s: int = 1) -> EndpointError:
    return EndpointError(429, "busy", message, headers={"Retry-After": str(retry_after_s)})


def check_installed() -> None:
    """ConfigError where the packages that serve the endpoint are missing."""
    for name in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"the endpoint needs {name}; install it with {install_command('endpoint')}")
