"""The sections about an agent's way of acting and the tools it is offered. Not here: what the tools do (`tools/`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from agent_rl.config.base import Positive, Seconds, Section, known_to
from agent_rl.registry import CHAT_FORMATS
from agent_rl.renamed import TOOL_ALIASES

AgentType = Annotated[str, known_to(CHAT_FORMATS)]


class AgentConfig(Section):
    type: AgentType = "hf"
    """How the model acts: `hf` calls tools as its chat template writes them, `react` by Thought, Action and Action
    Input, `code` by fenced Python blocks, or the import path of a chat format. Without calls and blocks a reply is the
    final answer."""


class SearchToolConfig(Section):
    """The `search` tool."""

    mode: Literal["web", "corpus"] = "web"
    """`web` requests a provider; `corpus` ranks passages by BM25: the task's `documents`, or those of `corpus_path`."""
    corpus_path: Path | None = None
    """Passages shared by all tasks, `.jsonl` with `title` and `text`; null: each task brings its `documents`."""
    max_results: Positive = 5
    """Passages of one answer."""
    max_snippet_chars: Positive = 500
    """Characters of one passage that the model reads."""
    provider: str = "tavily"
    """`tavily`, `serper`, `bing`; any other name takes `endpoint`."""
    endpoint: str | None = None
    """Address of requests; null: the provider's own."""
    api_key_env: str | None = None
    """Environment variable with the key; null: the provider's, such as TAVILY_API_KEY."""
    default_params: dict[str, Any] = Field(default_factory=dict)
    """Sent with every request, such as `{search_depth: advanced}`."""
    timeout_s: Seconds = 10.0
    """Longest wait for one answer."""
    max_retries: Annotated[int, Field(ge=0)] = 3
    """Further attempts after a failure that may pass: no connection, a timeout, HTTP 429 and 5xx."""
    backoff_factor: Annotated[float, Field(ge=0.0)] = 0.5
    """Seconds before the first further attempt; doubled before each next one."""
    rate_limit_per_min: Annotated[int, Field(ge=0)] = 60
    """Requests a minute, of all episodes together; 0: no limit."""

    def keys_without_effect(self) -> Mapping[str, str]:
        if self.mode == "web":
            return {"corpus_path": "with mode 'web'"}
        web = ("provider", "endpoint", "api_key_env", "default_params", "timeout_s", "max_retries", "backoff_factor")
        return dict.fromkeys((*web, "rate_limit_per_min"), "with mode 'corpus'")


_IN_SANDBOX = ("code_exec", "pytest_run")


class CodeExecToolConfig(Section):
    """The sandbox of the tools `code_exec` and `pytest_run` of `tools.use`."""

    time_limit_s: Seconds = 5.0
    """Seconds that one program, or one run of pytest, may take."""
    memory_mb: Annotated[int, Field(ge=32)] = 256
    """Memory that it may take."""
    output_chars: Positive = 2000
    """Characters that the model reads of what a program prints, stderr included, or of pytest's report."""
    workers: Positive = 2
    """Warm processes that run programs; as many as there are free cores."""
    sandbox_tier: Literal["auto", "namespaces", "landlock", "rlimits"] = "auto"
    """Isolation of what the policy wrote; `auto` takes the best that works, `rlimits` (nearly none) must be named."""


class MCPServerConfig(Section):
    """A server of the Model Context Protocol, whose tools are offered beside the others."""

    command: tuple[str, ...] = ()
    """Program and arguments of a server on its standard streams."""
    url: str | None = None
    """Address of a server with streamable HTTP."""
    include: tuple[str, ...] = ()
    """Only these of its tools; empty: all."""
    sandbox: bool = True
    """Run `command` inside the sandbox: no network, a private folder. Off for servers that need more."""
    timeout_s: Seconds = 30.0
    """Longest wait for the handshake, and for a call once it was sent."""

    def keys_without_effect(self) -> Mapping[str, str]:
        return {"sandbox": "without command"} if not self.command else {}

    @model_validator(mode="after")
    def _check_way(self) -> "MCPServerConfig":
        if bool(self.command) == bool(self.url):
            raise ValueError("a server needs one of command and url, and not both")
        return self


class ToolsConfig(Section):
    use: tuple[str, ...] = ()
    """Tools offered beside the environment's own, by name or import path, such as `[search, calculator]`. Built in:
    `calculator`, `search`, `code_exec`, `pytest_run`, `file_write`, `file_read`, `answer`."""
    search: SearchToolConfig = SearchToolConfig()
    code_exec: CodeExecToolConfig = CodeExecToolConfig()
    mcp: tuple[MCPServerConfig, ...] = ()
    """Servers, `[{command: [python, server.py]}, {url: "http://127.0.0.1:8000/mcp", include: [add]}]`."""

    @field_validator("use")
    @classmethod
    def _with_our_names(cls, use: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(TOOL_ALIASES.get(name, name) for name in use)

    def keys_without_effect(self) -> Mapping[str, str]:
        without = {} if "search" in self.use else {"search": "without 'search' in tools.use"}
        if not set(_IN_SANDBOX) & set(self.use):
            without["code_exec"] = "without 'code_exec' or 'pytest_run' in tools.use"
        return without
