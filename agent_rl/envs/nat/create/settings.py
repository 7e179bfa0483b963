"""`configs/serve.yaml`: which model writes agents, what it can write, who plans, how much is tried, and the service.

The sections `model`, `policy`, `vllm` and `agent` are those of a run's configuration; keys of training are refused.
Not here: what the keys do (`creator.py`, `policies/served_policy.py`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from agent_rl.config import Config, apply_override, read_yaml, validate_section
from agent_rl.config.base import Positive, Seconds, Section
from agent_rl.config.sections import ModelConfig, PolicyConfig
from agent_rl.config.tools import AgentConfig
from agent_rl.config.vllm import VLLMConfig
from agent_rl.envs.nat.factory.generate import LEVELS
from agent_rl.envs.nat.factory.planner.services import PlannerSettings
from agent_rl.envs.nat.prompts import PromptStyle
from agent_rl.errors import ConfigError
from agent_rl.resources import find

_UNUSED = {
    "data": {"train_path": "unused", "eval_path": "unused"},
    "env": {"name": "nat_agent_creation"},
    "train": {"steps": 1, "learning_rate": 0.001},
}
"""What a run's configuration must have and serving does not read."""
Port = Annotated[int, Field(ge=0, le=65535)]
_OF_TRAINING = ("attention", "gradient_checkpointing", "lora")


class PlannerConfig(Section):
    """Who turns a request in a person's words into a plan; see [planner.md](planner.md)."""

    source: Literal["none", "gemini", "openai"] = "none"
    """`none`: every request brings its plan (`--spec`), or is given to the model as it is, where `writes.free_words`
    allows it; `gemini`; `openai`: any OpenAI-compatible endpoint with JSON output."""
    model: str | None = None
    """Name of the planner's model; `openai` needs one, null is Gemini's default."""
    base_url: str | None = None
    """Address of the service, such as `http://127.0.0.1:8000/v1`; null: Gemini's own."""
    key_env: str | None = None
    """Environment variable with the key of an `openai` endpoint; null: OPENAI_API_KEY where it is set, else none."""
    timeout_s: Seconds = 60.0
    """Longest wait for one answer."""
    max_attempts: Positive = 3
    """Times that one call is made, when it fails for a passing reason (no connection, HTTP 429 and 5xx)."""
    requests_per_minute: Annotated[float, Field(gt=0.0)] = 60.0
    """Calls a minute, repeated ones included."""
    max_tools: Annotated[int, Field(ge=1, le=6)] = 4
    """Most tools of a plan."""

    def keys_without_effect(self) -> Mapping[str, str]:
        if self.source == "none":
            return dict.fromkeys([key for key in type(self).model_fields if key != "source"], "with source 'none'")
        return {} if self.source == "openai" else {"key_env": "with source 'gemini', whose key is in GEMINI_API_KEY"}

    @property
    def settings(self) -> PlannerSettings | None:
        """As the planner takes them; None without one."""
        if self.source == "none":
            return None
        return PlannerSettings(
            source=self.source,
            model=self.model,
            base_url=self.base_url,
            key_name=self.key_env,
            timeout_s=self.timeout_s,
            max_attempts=self.max_attempts,
            requests_per_minute=self.requests_per_minute,
            max_tools=self.max_tools,
        )


class WritesConfig(Section):
    """What the model was trained to write. Anything else is refused with a sentence, and not tried; so is, whatever
    stands here, what is not in the model's `agent_rl.json`."""

    families: tuple[str, ...] | None = None
    """Task families, of a plan and of its tools; null: those in the model's `agent_rl.json`, without one those of the
    shipped small model."""
    levels: tuple[int, ...] | None = None
    """Levels of plans: 1 and 2 are one tool, 3 to 5 several or a structure; null likewise."""
    max_tools: Positive = 1
    """Most tools of an agent."""
    wording: Literal["terse", "full"] = "terse"
    """How a planner's plan is put to the model: `terse` as in the shipped small model's tasks, `full` spells out what
    that model has learned. A plan that is given keeps its own words."""
    names: Literal["sampled", "planned"] = "sampled"
    """Names of the package and the tools in a planner's plan: `planned` are the planner's own, `sampled` are like those
    of the tasks. The shipped small model copies no others."""
    prompt: PromptStyle = "compact"
    """First message, as `env.options.prompt` in training: `compact`, or `guide` for large models."""
    free_words: bool = False
    """Whether a request without a plan is given to the model as it is, unless its `agent_rl.json` knows no wording but
    its own. Nobody can accept what comes of it: at best it is `built`."""

    @property
    def of_plans(self) -> dict[str, bool]:
        """How a planner words and names what this model is to write."""
        return {"terse": self.wording == "terse", "own_names": self.names == "planned"}

    @model_validator(mode="after")
    def _check_names(self) -> "WritesConfig":
        if unknown := [name for name in self.families or () if name not in LEVELS]:
            raise ValueError(f"there is no task family {unknown[0]!r}; known: {', '.join(LEVELS)}")
        if unknown_levels := [level for level in self.levels or () if level not in range(1, 6)]:
            raise ValueError(f"there is no level {unknown_levels[0]}; levels are 1 to 5")
        return self


class CreationConfig(Section):
    """How much is tried for one request."""

    candidates: Annotated[int, Field(ge=1, le=64)] = 4
    """Most projects that are written: the first greedily, more at `temperature` and only where it is rejected."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Sampling temperature of all but the first."""
    repairs: Annotated[int, Field(ge=0, le=8)] = 0
    """Times that the best rejected project is given back with what was found. The shipped model was not taught to
    repair, so more than 0 is for models that were."""
    max_turns: Positive = 6
    """Replies of the model for one project, and for one repair."""
    deadline_s: Seconds = 120.0
    """Longest time from the request to the verdict."""


class CheckerConfig(Section):
    """What decides; options of the same names as in `env.options`."""

    checkers: Positive = 2
    """Warm processes that run the toolkit; as many as there are free cores."""
    sandbox_tier: Literal["auto", "namespaces", "landlock", "rlimits"] = "auto"
    """Isolation of what the model wrote; `auto` takes the best that works, `rlimits` (nearly none) must be named."""
    nat_python: str | None = None
    """Interpreter with the toolkit; by default AGENT_RL_NAT_PYTHON or .venv-nat."""
    nat_react_python: str | None = None
    """Interpreter with the toolkit's agents too; by default AGENT_RL_NAT_REACT_PYTHON or .venv-nat-react."""


class ServiceConfig(Section):
    """`agent-rl serve`: where it listens, what it takes, what it keeps; see [service.md](service.md)."""

    host: str = "127.0.0.1"
    """Address to listen on. Another than loopback needs keys."""
    port: Port = 8700
    """Port of the API and the page; 0 takes a free one."""
    metrics_port: Port | None = 9202
    """Port of `/metrics` for Prometheus, on the same address; null serves none."""
    store: str = "store"
    """Folder of jobs, packages and feedback; one service writes it."""
    keys: str | None = None
    """File of the keys, made by `agent-rl serve add-key`; null is `keys.toml` in the store."""
    workers: Positive = 8
    """Agents made at the same time; the engine batches what they sample."""
    max_queue: Positive = 64
    """Jobs that may wait; more are sent away with 429."""
    running_per_key: Positive = 2
    """Agents of one key made at the same time; without keys there is no such limit."""
    per_hour: Positive = 30
    """Agents, validations and completions an hour of a new key; the file of the keys has each key's own."""
    max_body_kb: Annotated[int, Field(ge=1, le=65536)] = 256
    """Largest body of a request, in KiB."""
    max_deadline_s: Seconds = 600.0
    """Longest `deadline_s` that a request may ask for."""
    store_mb: Positive = 2048
    """Largest size of the store in MiB; a full one takes no jobs."""
    keep_days: Annotated[float, Field(gt=0.0)] = 7.0
    """Days after which an ended job is removed."""
    keep_rejected_days: Annotated[float, Field(gt=0.0)] = 1.0
    """The same for rejected ones."""
    drain_s: Annotated[float, Field(ge=0.0)] = 30.0
    """After SIGTERM, how long running jobs may go on before they go back to the queue."""


class ServeConfig(Section):
    """A model that writes agents on request. `load_serve_config` makes it."""

    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1`, ..., for a model in this process."""
    model: ModelConfig
    policy: PolicyConfig = PolicyConfig()
    vllm: VLLMConfig = VLLMConfig()
    agent: AgentConfig = AgentConfig()
    planner: PlannerConfig = PlannerConfig()
    writes: WritesConfig = WritesConfig()
    creation: CreationConfig = CreationConfig()
    checker: CheckerConfig = CheckerConfig()
    service: ServiceConfig = ServiceConfig()

    def keys_without_effect(self) -> Mapping[str, str]:
        unused = {f"model.{key}": "without training" for key in _OF_TRAINING}
        return unused | {"policy.temperature": "here, where creation.temperature is read"}

    @property
    def run_config(self) -> Config:
        """The same sections as a run has them, for what opens models."""
        sections = {name: getattr(self, name).model_dump(exclude_unset=True) for name in ("model", "policy", "agent")}
        if "vllm" in self.model_fields_set:
            sections["vllm"] = self.vllm.model_dump(exclude_unset=True)
        return Config.model_validate({"run": {"device": self.device}, **_UNUSED, **sections})

    @model_validator(mode="after")
    def _check_as_a_run(self) -> "ServeConfig":
        try:
            self.run_config  # noqa: B018  its own checks across sections hold here too
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
        return self


def load_serve_config(path: str | Path, overrides: Sequence[str] = ()) -> ServeConfig:
    """Read a YAML file, apply `section.key=value` overrides, and validate. Raises ConfigError with one sentence."""
    file = find(path)
    raw = read_yaml(file, example="configs/serve.yaml")
    for text in overrides:
        apply_override(raw, text, example="creation.candidates=8", root=ServeConfig)
    model = raw.get("model")
    if isinstance(model, dict) and isinstance(model.get("path"), str):
        model["path"] = str(find(model["path"]))
    return validate_section(ServeConfig, raw, source=str(file), prefix="")


def as_serve_config(config: "ServeConfig | str | Path | Mapping[str, Any]") -> ServeConfig:
    """A configuration however it is given: itself, a file, a mapping."""
    if isinstance(config, ServeConfig):
        return config
    if isinstance(config, Mapping):
        return validate_section(ServeConfig, dict(config), source="config", prefix="")
    if not isinstance(config, str | Path):
        raise ConfigError(f"a configuration is a file or a mapping, got {type(config).__name__}")
    return load_serve_config(config)
