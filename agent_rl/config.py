"""The configuration: strict typed sections, one YAML file, `section.key=value` overrides.

Unknown keys, wrong types and keys that would have no effect are errors that name the file, the key, what was
got and the nearest valid name. Nothing is read from the environment, and nothing of ours is imported here
besides the error vocabulary.
"""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails

from agent_rl.errors import ConfigError, nearest

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Seconds = Annotated[float, Field(gt=0.0)]
ModelT = TypeVar("ModelT", bound=BaseModel)


class Section(BaseModel):
    """Base of every section: unknown keys are refused, values are frozen once read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunConfig(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    """Folder of the run, under `output_dir`."""
    output_dir: Path = Path("runs")
    """Where run folders are made."""
    seed: int = 0
    """Seed of task order, sampling and hidden cases."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1`, ..."""


class CurriculumStage(Section):
    until_step: Positive
    """Last step of the stage; the first step of a run is 1."""
    max_level: int
    """Highest `level` of the tasks drawn."""


# YAML reads a bare `off` as false.
CurriculumMode = Annotated[
    Literal["off", "stages", "success"], BeforeValidator(lambda mode: "off" if mode is False else mode)
]
_KEYS_OF_MODE = {"off": (), "stages": ("stages",), "success": ("threshold", "window", "review")}


class CurriculumConfig(Section):
    """From easy to hard by the integer `level` of a task row; a key that the mode does not use is refused."""

    mode: CurriculumMode = "off"
    """`off` draws from all tasks, `stages` from levels fixed by step, `success` opens levels as they are mastered."""
    stages: tuple[CurriculumStage, ...] = ()
    """Stages in order, `[{until_step: 30, max_level: 1}, ...]`; after the last one all levels are open."""
    threshold: Fraction = 0.7
    """Mean success at the highest open level that opens the next one."""
    window: Positive = 32
    """Newest groups of the highest open level over which that mean is taken; before there are as many, none opens."""
    review: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.25
    """Share of tasks drawn from earlier levels; the rest is of the highest open one."""

    @model_validator(mode="after")
    def _check_mode(self) -> "CurriculumConfig":
        for key in type(self).model_fields:
            if key in self.model_fields_set - {"mode", *_KEYS_OF_MODE[self.mode]}:
                mode = next(mode for mode, keys in _KEYS_OF_MODE.items() if key in keys)
                raise ValueError(
                    f"{key} has no effect in mode {self.mode!r}, only in {mode!r}; remove it or change the mode"
                )
        if self.mode == "stages" and not self.stages:
            raise ValueError("mode 'stages' needs stages; add [{until_step: 30, max_level: 1}] or the like")
        for first, second in pairwise(self.stages):
            if second.until_step <= first.until_step or second.max_level <= first.max_level:
                raise ValueError("until_step and max_level must rise from each of the stages to the next")
        return self

    @model_serializer(mode="wrap")
    def _only_keys_of_mode(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The resolved configuration must read back, so it holds no key that would be refused."""
        return {key: value for key, value in serialize(self).items() if key in ("mode", *_KEYS_OF_MODE[self.mode])}


class DataConfig(Section):
    train_path: Path
    """File of training tasks, `.jsonl` or `.parquet`."""
    eval_path: Path
    """File of held-out tasks, likewise."""
    max_eval_tasks: Positive = 200
    """Held-out tasks used, from the top of the file."""
    curriculum: CurriculumConfig = CurriculumConfig()


class LoraConfig(Section):
    """Low-rank adapters: they alone are trained, in float32. No dropout: sampler and trainer must be one function."""

    rank: Annotated[int, Field(ge=0)] = 0
    """Rank of an adapter's two matrices; 0 trains the whole model."""
    alpha: Annotated[float, Field(gt=0.0)] = 32.0
    """What an adapter adds is scaled by `alpha / rank`."""
    target_modules: tuple[str, ...] = ()
    """Names of the layers that get one, such as `[q_proj, v_proj]`; empty: all linear layers but the head."""

    @model_validator(mode="after")
    def _check_rank(self) -> "LoraConfig":
        if self.rank == 0 and (unused := sorted(self.model_fields_set - {"rank"})):
            raise ValueError(f"{unused[0]} has no effect with rank 0; remove it or set a rank")
        return self

    @model_serializer(mode="wrap")
    def _only_used_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return serialize(self) if self.rank else {"rank": 0}


class ModelConfig(Section):
    path: str
    """Folder in Hugging Face format with its tokenizer; or, for `huggingface`, a hub name; for `minimind`, a `.pth`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the weights, in training and in generation."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """What Transformers computes attention with in training."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: slower, much less memory."""
    lora: LoraConfig = LoraConfig()


class PolicyConfig(Section):
    type: Literal["minimind", "huggingface"] = "minimind"
    """`minimind` is our own module (MiniMind, dense Qwen3 or Llama); `huggingface` a causal LM of Transformers."""
    max_new_tokens: Positive = 512
    """Token budget of one turn."""
    max_context: Positive = 1024
    """Window in tokens: conversation and completion together."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Sampling temperature while training; the trainer uses the same."""
    max_batch_size: Positive = 128
    """Completions drawn at the same time; never more than windows fit into the cache (`max_cached_tokens`)."""
    max_cached_tokens: Positive | None = None
    """Tokens the key/value cache holds, a whole window for each completion; null: `max_batch_size * max_context`."""


class EnvConfig(Section):
    name: str = "nat_agent_creation"
    """Registered environment."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of that environment, checked by it (for NAT: `agent_rl/envs/nat_agent_env.py`)."""


class RolloutConfig(Section):
    group_size: Annotated[int, Field(ge=2)] = 8
    """Episodes per task; they are compared with each other, so at least 2."""
    groups_per_step: Positive = 16
    """Tasks per step."""
    async_workers: Annotated[int, Field(ge=0)] = 128
    """Episodes played at the same time by threads; 0 plays them one after the other."""
    max_turns: Positive = 30
    """Turns of one episode."""
    max_tool_calls: Positive = 64
    """Tool calls of one episode."""
    max_invalid_turns: Positive = 3
    """Turns in a row with an unreadable call before the episode ends."""
    episode_timeout_s: Seconds = 300.0
    """Deadline of one episode, in seconds."""


class AlgorithmConfig(Section):
    advantage: Literal["grpo"] = "grpo"
    """Advantage estimator."""
    scale_by_std: bool = True
    """Divide group-centred rewards by the group's standard deviation."""
    clip_low: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Lower clip of the policy ratio."""
    clip_high: Annotated[float, Field(gt=0.0)] = 0.28
    """Upper clip of the policy ratio."""
    aggregation: Literal["token_mean", "seq_mean_token_mean"] = "token_mean"
    """How token losses become one number, over the whole step."""


class TrainConfig(Section):
    steps: Positive
    """Optimizer steps."""
    learning_rate: Annotated[float, Field(gt=0.0)]
    """Peak learning rate."""
    final_learning_rate: Annotated[float, Field(ge=0.0)] = 0.0
    """Learning rate of the last step; it falls to it linearly."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises from 0."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.99)
    """AdamW moments."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """AdamW weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    """Gradient clipping by total norm."""
    micro_batch_tokens: Positive = 8192
    """Most tokens, padding included, in one forward and backward pass."""
    autocast: Literal["none", "bfloat16"] = "none"
    """Number format of matrix products in the trainer's forward and backward."""


class EvalConfig(Section):
    every: Annotated[int, Field(ge=0)] = 0
    """Steps between evaluations; 0 evaluates only before the first and after the last step."""
    temperatures: tuple[Annotated[float, Field(ge=0.0)], ...] = (0.0, 1.0)
    """Evaluate once per temperature; 0 is greedy. Empty: no evaluation at all."""


class LogConfig(Section):
    transcripts_per_step: Annotated[int, Field(ge=0)] = 2
    """Best and worst episodes of a step written to transcripts/, this many of each."""
    progress: bool = True
    """Show the live progress display; plain lines when off or not on a terminal."""


class CheckpointConfig(Section):
    every: Annotated[int, Field(ge=0)] = 20
    """Steps between checkpoints; 0 saves only at the end and on Ctrl-C."""
    keep: Positive = 2
    """Newest checkpoints kept."""
    resume: str = "never"
    """`never`, `auto` (newest checkpoint of this run's folder), or the path of a checkpoint."""


_KEYS_OF_HUGGINGFACE = ("attention", "gradient_checkpointing", "lora")


class Config(Section):
    """A whole run. `load_config` makes it; the resolved form is saved with the run."""

    run: RunConfig = RunConfig()
    data: DataConfig
    model: ModelConfig
    policy: PolicyConfig = PolicyConfig()
    env: EnvConfig = EnvConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    train: TrainConfig
    eval: EvalConfig = EvalConfig()
    log: LogConfig = LogConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @model_validator(mode="after")
    def _check_across_sections(self) -> "Config":
        if self.policy.max_new_tokens >= self.policy.max_context:
            raise ValueError(
                f"policy.max_new_tokens is {self.policy.max_new_tokens} but policy.max_context is only "
                f"{self.policy.max_context}: leave room for the conversation"
            )
        if self.policy.max_cached_tokens is not None and self.policy.max_cached_tokens < self.policy.max_context:
            raise ValueError(
                f"policy.max_cached_tokens is {self.policy.max_cached_tokens}, but must hold at least one window: "
                f"policy.max_context is {self.policy.max_context}"
            )
        if self.train.final_learning_rate > self.train.learning_rate:
            raise ValueError("train.final_learning_rate is above train.learning_rate; it must not be")
        unused = [key for key in _KEYS_OF_HUGGINGFACE if key in self.model.model_fields_set]
        if self.policy.type == "minimind" and unused:
            raise ValueError(
                f"model.{unused[0]} has no effect with policy.type 'minimind', only with 'huggingface'; remove it"
            )
        if self.model.attention == "flash_attention_2" and "bfloat16" not in (self.model.dtype, self.train.autocast):
            raise ValueError("model.attention 'flash_attention_2' computes in bfloat16 only; set model.dtype to it")
        return self

    @model_serializer(mode="wrap")
    def _only_keys_of_policy_type(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As in `CurriculumConfig`: no key that would be refused when read back."""
        raw = serialize(self)
        if self.policy.type == "minimind":
            raw["model"] = {key: value for key, value in raw["model"].items() if key not in _KEYS_OF_HUGGINGFACE}
        return raw

    def to_yaml(self) -> str:
        """The resolved configuration as YAML that `load_config` reads back to an equal object."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML that refuses a key written twice in one mapping (plain YAML keeps the last one silently)."""


def _unique_mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key_node, _ in node.value:
        key = str(key_node.value)
        if key in seen:
            raise ConfigError(f"key {key!r} is given twice, second time on line {key_node.start_mark.line + 1}")
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def load_config(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Read a YAML file, apply `section.key=value` overrides in order, and validate.

    Values of overrides are YAML, so `train.steps=5` is an int and `eval.temperatures=[0]` a list.
    Raises ConfigError with one sentence for a missing file, bad YAML, an unknown key or a bad value.
    """
    path = Path(path)
    raw = _read_yaml(path)
    for text in overrides:
        _apply_override(raw, text)
    return parse_config(raw, source=str(path))


def parse_config(raw: dict[str, Any], *, source: str) -> Config:
    """Validate a plain mapping; `source` names it in errors."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(_sentence(error.errors()[0], source)) from None


def validate_section(model: type[ModelT], raw: dict[str, Any], *, source: str, prefix: str) -> ModelT:
    """Validate a free-form sub-section (such as `env.options`) against `model`, with the same error sentences."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(_sentence(error.errors()[0], source, root=model, prefix=prefix)) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such config file; the shipped ones are in configs/")
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; remove one of the two") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        detail = " ".join(str(error).split())
        raise ConfigError(f"{path}: not valid YAML ({detail}); correct the file") from None
    if not isinstance(raw, dict):
        found = type(raw).__name__
        raise ConfigError(f"{path}: expected a mapping of sections, got {found}; see configs/nat_grpo.yaml")
    return raw


def _apply_override(raw: dict[str, Any], text: str) -> None:
    key, found, value = text.partition("=")
    parts = key.strip().split(".")
    if not found or len(parts) < 2 or not all(parts):
        raise ConfigError(f"override {text!r}: expected section.key=value, for example train.steps=20")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"override {text!r}: the value is not valid YAML; quote it") from None
    node = raw
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"override {text!r}: {part!r} is a single value, it has no key below it")
    node[parts[-1]] = parsed


def _sentence(detail: ErrorDetails, source: str, *, root: type[BaseModel] = Config, prefix: str = "") -> str:
    """Turn pydantic's first complaint into: file, key, what was got, what was expected."""
    location = [str(part) for part in detail["loc"]]
    key = ".".join([prefix, *location] if prefix else location)
    if detail["type"] == "extra_forbidden":
        parent = _model_at(root, location[:-1])
        known = list(parent.model_fields) if parent else []
        hint = nearest(location[-1], known) or f"; known keys: {', '.join(known)}"
        return f"{source}: unknown key {key!r}{hint}"
    if detail["type"] == "missing":
        return f"{source}: {key!r} is missing; add it"
    message = detail["msg"].removeprefix("Value error, ")
    if not key:
        return f"{source}: {message}"
    return f"{source}: {key} = {detail['input']!r}: {message[0].lower()}{message[1:]}"


def _model_at(root: type[BaseModel], location: list[str]) -> type[BaseModel] | None:
    model: Any = root
    for part in location:
        if part.isdigit():  # an entry of a list of sections
            model = get_args(model)[0]
            continue
        field = getattr(model, "model_fields", {}).get(part)
        model = field.annotation if field else None
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None
