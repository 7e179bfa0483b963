"""The planner's settings, and the service they name as one `Generate`: Gemini, or any OpenAI-compatible endpoint.

Not here: what is sent (`planner.py`), how the services are called (`client.py`, `openai_client.py`).
"""

from dataclasses import dataclass
from typing import Literal

from agent_rl.envs.nat.errors import PlannerError
from agent_rl.envs.nat.factory.planner.client import GeminiClient, Generate, PatientCaller
from agent_rl.envs.nat.factory.planner.openai_client import OpenAIClient

Source = Literal["gemini", "openai"]
GEMINI_MODEL = "gemini-3.8-flash"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    source: Source = "gemini"
    model: str | None = None
    """None is Gemini's default; an OpenAI-compatible endpoint needs one."""
    base_url: str | None = None
    """Another address of the service; None is Google's."""
    key_name: str | None = None
    """Environment variable with the key of an OpenAI-compatible endpoint."""
    timeout_s: float = 120.0
    """Of one call."""
    requests_per_minute: float = 60.0
    """Calls, repeated ones included; a request takes two, or one more than it has tools."""
    max_attempts: int = 6
    """Of one call, when it fails for a passing reason."""
    max_failures: int = 3
    """Requests in a row whose calls may fail before the run stops."""
    max_tools: int = 1
    """Most tools of an agent."""
    report_every: int = 10
    price_in: float | None = None
    """Per million input tokens; the cost is shown when both prices are given."""
    price_out: float | None = None

    def __post_init__(self) -> None:
        names = ("timeout_s", "requests_per_minute", "max_attempts", "max_failures", "max_tools", "report_every")
        for name in names:
            if not getattr(self, name) > 0:
                raise PlannerError(f"planner setting {name} is {getattr(self, name)}; it must be above 0")


def open_service(settings: PlannerSettings) -> Generate:
    """The service. Raises PlannerError where the address, the model, the key or the SDK is missing."""
    if settings.source == "gemini":
        if settings.key_name:
            raise PlannerError(
                "Gemini's key is read from GEMINI_API_KEY or GOOGLE_API_KEY; leave the key's name out, or name an "
                "OpenAI-compatible endpoint"
            )
        return GeminiClient(
            model=settings.model or GEMINI_MODEL, timeout_s=settings.timeout_s, base_url=settings.base_url
        )
    if not settings.base_url or not settings.model:
        missing = "base URL" if not settings.base_url else "model"
        raise PlannerError(f"an OpenAI-compatible planner needs a base URL and a model, and no {missing} was given")
    return OpenAIClient(
        base_url=settings.base_url,
        model=settings.model,
        timeout_s=settings.timeout_s,
        key_name=settings.key_name,
    )


def paced(generate: Generate, settings: PlannerSettings) -> PatientCaller:
    """The service at the pace of the settings."""
    return PatientCaller(
        generate=generate, requests_per_minute=settings.requests_per_minute, max_attempts=settings.max_attempts
    )
