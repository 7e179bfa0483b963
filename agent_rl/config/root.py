"""A whole run: all sections, and what they demand of each other. Not here: the sections, reading files."""

from collections.abc import Iterable, Mapping

from pydantic import model_validator

from agent_rl.config.base import Section
from agent_rl.config.engines import EngineCapabilities, EngineSection
from agent_rl.config.functions import OPTION_KEYS, check_functions, needs_group
from agent_rl.config.learning import AlgorithmConfig, CriticConfig, TrainConfig
from agent_rl.config.sections import (
    CheckpointConfig,
    DataConfig,
    EnvConfig,
    EvalConfig,
    LogConfig,
    ModelConfig,
    PolicyConfig,
    RolloutConfig,
    RunConfig,
)
from agent_rl.config.tools import AgentConfig, ToolsConfig
from agent_rl.config.vllm import VLLMConfig
from agent_rl.config.yaml_text import dump_settings
from agent_rl.errors import ConfigError


class Config(Section):
    """A whole run. `load_config` makes it; the resolved form is saved with the run."""

    plugins: tuple[str, ...] = ()
    """Modules that register values of your own, imported first: `[my_package.my_rewards, path/to/file.py]`."""
    run: RunConfig = RunConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig
    policy: PolicyConfig = PolicyConfig()
    vllm: VLLMConfig = VLLMConfig()
    agent: AgentConfig = AgentConfig()
    env: EnvConfig
    tools: ToolsConfig = ToolsConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    critic: CriticConfig = CriticConfig()
    train: TrainConfig
    eval: EvalConfig = EvalConfig()
    log: LogConfig = LogConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps made of one step's episodes."""
        return self.train.epochs * self.train.minibatches

    @property
    def engine(self) -> EngineCapabilities:
        """What the inference engine of `policy.type` can do."""
        section = getattr(self, self.policy.type, None)
        if isinstance(section, EngineSection):
            return section.capabilities(self)
        return EngineCapabilities(dtype=self.model.dtype)

    @property
    def max_logprob_gap(self) -> float:
        """The engine's `max_logprob_gap`, or what rounding explains where anything is computed in this number format.

        Both are for temperature 1; below it, logits and their rounding are divided by it.
        """
        is_half = "bfloat16" in (self.model.dtype, self.engine.dtype, self.train.autocast)
        at_one = self.engine.max_logprob_gap or (0.1 if is_half else 1e-4)
        return at_one / min(1.0, self.policy.temperature)

    def keys_without_effect(self) -> Mapping[str, str]:
        unused = self._engine_keys_without_effect()
        if self.policy.type == "minimind":
            for key in ("attention", "gradient_checkpointing", "lora", "load_in_4bit"):
                unused[f"model.{key}"] = "with policy.type 'minimind', only with 'huggingface' and 'vllm'"
        if self.policy.type in ("minimind", "huggingface"):
            unused["model.head_dtype"] = f"with policy.type {self.policy.type!r}, only with 'vllm'"
        if not self.engine.sleeps:
            unused["train.offload_while_sampling"] = (
                "without an engine inside the process that sleeps during updates (policy.type 'vllm' with vllm.sleep)"
            )
        if self.algorithm.advantage != "gae":
            unused["critic"] = f"with algorithm.advantage {self.algorithm.advantage!r}, only with 'gae'"
        elif self.updates_per_step == 1:
            unused["critic.value_clip"] = "with one update a step; set train.epochs or train.minibatches"
        if not self.eval.temperatures or not self.eval.every:
            unused["checkpoint.keep_best"] = "without evaluations in between; set eval.every"
        if self.algorithm.correction.kind != "none" and self.updates_per_step == 1:
            for key in ("clip_low", "clip_high", "dual_clip", "ratio_level"):
                unused[f"algorithm.{key}"] = (
                    "with a correction and one update a step, where the ratio is always 1; set train.epochs or "
                    "train.minibatches"
                )
        return unused

    def _engine_keys_without_effect(self) -> dict[str, str]:
        unused = {}
        for name, section in self:
            if not isinstance(section, EngineSection):
                continue
            if name == self.policy.type:
                unused |= section.keys_without_effect_in(self)
            else:
                unused[name] = f"with policy.type {self.policy.type!r}, only with {name!r}"
        return unused

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
        if self.rollout.max_staleness:
            self._check_staleness()
        if self.critic.warmup_steps >= self.train.steps:
            raise ValueError(f"critic.warmup_steps {self.critic.warmup_steps} leaves no step for the policy")
        if self.train.minibatches > self.rollout.groups_per_step:
            raise ValueError(
                f"train.minibatches is {self.train.minibatches} but rollout.groups_per_step only "
                f"{self.rollout.groups_per_step}: a minibatch holds whole groups"
            )
        if self.model.lora.rank and self.model.dtype == "bfloat16" and self.train.autocast == "none":
            raise ValueError(
                "model.lora with model.dtype 'bfloat16' needs train.autocast=bfloat16: adapters are float32, and would "
                "be multiplied in float32, at a tenth of a GPU's speed"
            )
        if self.model.load_in_4bit:
            self._check_4bit()
        if self.model.attention == "flash_attention_2" and "bfloat16" not in (self.model.dtype, self.train.autocast):
            raise ValueError("model.attention 'flash_attention_2' computes in bfloat16 only; set model.dtype to it")
        return self

    def _check_4bit(self) -> None:
        if not self.model.lora.rank:
            raise ValueError(
                "model.load_in_4bit without adapters would train nothing, as 4-bit weights are frozen; set "
                "model.lora.rank=16, or remove it"
            )
        if self.engine.has_own_weights:
            raise ValueError(
                f"model.load_in_4bit with policy.type {self.policy.type!r}: it would sample from whole weights, whose "
                "log-probs are not those of the 4-bit weights that are trained; use policy.type 'huggingface'"
            )
        if self.algorithm.advantage == "gae" and self.critic.backbone == "own":
            raise ValueError(
                "model.load_in_4bit with critic.backbone 'own': a critic's own model is trained whole, which 4-bit "
                "weights cannot be; set critic.backbone=shared"
            )

    def _check_staleness(self) -> None:
        wanted = f"rollout.max_staleness is {self.rollout.max_staleness}"
        if not self.engine.supports_async:
            able = [n for n, part in self if isinstance(part, EngineSection) and part.capabilities(self).supports_async]
            raise ValueError(
                f"{wanted}, but policy.type {self.policy.type!r} samples from the weights that are being updated; use "
                f"{' or '.join(map(repr, able))}, or set it to 0"
            )
        if not self.rollout.async_workers:
            raise ValueError(f"{wanted}, but rollout.async_workers 0 runs no episode in the background; raise it")
        if self.algorithm.correction.kind == "none":
            raise ValueError(
                f"{wanted}, but algorithm.correction is none: old tokens need weights; set kind to token_tis"
            )

    def keys_to_omit(self) -> Iterable[str]:
        return ["rollout.max_attempts"] if needs_group(self.algorithm.advantage) is False else []

    def check_functions(self, *, are_all_registered: bool = True) -> None:
        """ConfigError where the estimator and the loss do not fit the other keys; imports them.

        Without `are_all_registered` unknown names are taken for ones that will be registered later.
        """
        given = self.algorithm.model_fields_set.intersection((*OPTION_KEYS, "options"))
        is_needed = given or self.rollout.group_size == 1 or self._is_given("rollout.max_attempts")
        if not (is_needed or are_all_registered):
            return  # without the time that importing them takes
        check_functions(self.algorithm, are_all_registered=are_all_registered)
        advantage = f"algorithm.advantage {self.algorithm.advantage!r}"
        if self._is_given("rollout.max_attempts") and needs_group(self.algorithm.advantage) is False:
            raise ConfigError(
                f"rollout.max_attempts has no effect with {advantage}, which does not compare the episodes of a group; "
                "remove it"
            )
        if self.rollout.group_size == 1 and needs_group(self.algorithm.advantage):
            raise ConfigError(f"rollout.group_size is 1, but {advantage} compares episodes of one task; use at least 2")

    def to_yaml(self) -> str:
        """The resolved configuration as YAML that `load_config` reads back to an equal object."""
        return dump_settings(self.model_dump(mode="json"))
