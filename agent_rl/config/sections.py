"""The sections about a run, its data, its model and its episodes. Not here: how it learns (`learning.py`)."""

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from agent_rl.config.base import Fraction, Positive, Seconds, Section, known_to, written_as
from agent_rl.config.engines import POLICIES
from agent_rl.registry import TRACKERS

_SOME_TEXT = r"(?s).*\S.*"


class RunConfig(Section):
    name: Annotated[
        str,
        written_as(r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits, '.', '_' and '-', first a letter or a digit"),
    ] = "run"
    """Folder of the run, under `output_dir`."""
    output_dir: Path = Path("runs")
    """Where run folders are made."""
    seed: int = 0
    """Seed of task order, sampling and hidden cases."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1`, ..."""
    timeout_s: Seconds = 1800.0
    """Longest wait of a process for the others, before the run ends with an error."""


class CurriculumStage(Section):
    until_step: Positive
    """Last step of the stage; the first step of a run is 1."""
    max_level: int
    """Highest `level` of the sampled tasks."""


# YAML reads a bare `off` as false.
CurriculumMode = Annotated[
    Literal["off", "stages", "success"], BeforeValidator(lambda mode: "off" if mode is False else mode)
]
_KEYS_OF_MODE = {"off": (), "stages": ("stages",), "success": ("threshold", "window", "review")}


class CurriculumConfig(Section):
    """From easy to hard by the integer `level` of a task row; a key that the mode does not use is refused."""

    mode: CurriculumMode = "off"
    """`off` samples from all tasks, `stages` from levels fixed by step, `success` opens levels as they are mastered."""
    stages: tuple[CurriculumStage, ...] = ()
    """Stages in order, `[{until_step: 30, max_level: 1}, ...]`; after the last one all levels are open."""
    threshold: Fraction = 0.7
    """Mean success at the highest open level that opens the next one."""
    window: Positive = 32
    """Newest groups of the highest open level over which that mean is taken; before there are as many, none opens."""
    review: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.25
    """Share of tasks sampled from earlier levels; the rest is of the highest open one."""

    def keys_without_effect(self) -> Mapping[str, str]:
        return {
            key: f"in mode {self.mode!r}, only in {mode!r}"
            for mode, keys in _KEYS_OF_MODE.items()
            for key in keys
            if mode != self.mode
        }

    @model_validator(mode="after")
    def _check_stages(self) -> "CurriculumConfig":
        if self.mode == "stages" and not self.stages:
            raise ValueError("mode 'stages' needs stages; add [{until_step: 30, max_level: 1}] or the like")
        for first, second in pairwise(self.stages):
            if second.until_step <= first.until_step or second.max_level <= first.max_level:
                raise ValueError("until_step and max_level must rise from each of the stages to the next")
        return self


GIVEN_IN_PYTHON = "python:"
"""How names of environments and paths of data begin that are none: a run records that they were given in Python."""


def _as_path(given: Any) -> Any:
    """A path, but for an address, whose two slashes a path would not keep, and for what is none."""
    is_none = isinstance(given, str) and given.startswith(("hf://", GIVEN_IN_PYTHON))
    return Path(given) if isinstance(given, str) and not is_none else given


DataPath = Annotated[Path | str, BeforeValidator(_as_path)]


class DataConfig(Section):
    train_path: DataPath | None = None
    """Training tasks: a `.jsonl`, `.jsonl.gz`, `.json`, `.csv` or `.parquet` file; with the package `datasets` a folder
    that it saved, or `hf://owner/name[/config][:split]`. Null only where rows are given in Python; the `config.yaml` of
    such a run has `python:`, their number and checksum."""
    eval_path: DataPath | None = None
    """Held-out tasks, likewise. Null also without evaluations."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Names of columns that are called otherwise in the data: `{prompt: question, answer: target}`. The same for
    training and held-out tasks."""
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

    def keys_without_effect(self) -> Mapping[str, str]:
        return {} if self.rank else dict.fromkeys(("alpha", "target_modules"), "with rank 0")


class ModelConfig(Section):
    path: Annotated[str, written_as(_SOME_TEXT, "a folder or a name, got an empty text; give one")]
    """Folder in Hugging Face format with its tokenizer; or, for `huggingface`, a hub name; for `minimind`, a `.pth`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the weights, in training and in generation."""
    head_dtype: Literal["float32"] | None = None
    """Number format of the output layer's products in training and generation, so that both round less apart where the
    rest is bfloat16; null: as the rest. Costs time: a vocabulary's products in float32."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """What Transformers computes attention with in training, for models that need padded rows; all others attend by
    PyTorch's fused kernels over flat rows."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: slower, much less memory."""
    chat_template: Path | None = None
    """A `.jinja` file that takes the place of the tokenizer's chat template; the saved model has it too."""
    chat_template_kwargs: (
        dict[
            Annotated[str, written_as(r"[A-Za-z_]\w*", "the name of a variable: letters, digits and '_'")],
            StrictBool | StrictInt | StrictFloat | StrictStr,
        ]
        | None
    ) = None
    """Values for variables of the chat template, such as `{enable_thinking: false}` for Qwen3; the saved model's
    template has them too."""
    lora: LoraConfig = LoraConfig()
    load_in_4bit: bool = False
    """Hold the frozen weights of linear layers but the head in 4 bits (NF4) under the adapters of `lora`: QLoRA. For
    `huggingface`, without DeepSpeed; needs `requirements-qlora.txt`."""

    def keys_to_omit(self) -> Iterable[str]:
        return [key for key in ("chat_template", "chat_template_kwargs", "load_in_4bit") if not getattr(self, key)]


class PolicyConfig(Section):
    type: Annotated[str, known_to(POLICIES)] = "minimind"
    """`minimind` is our own module (MiniMind, dense Qwen3 or Llama); `huggingface` a causal LM of Transformers; `vllm`
    trains the same and samples with vLLM (section `vllm`); or an import path, `my_pkg.my_policy:make_policy`."""
    max_new_tokens: Positive = 512
    """Token budget of one turn."""
    max_context: Positive = 1024
    """Window in tokens: conversation and completion together."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Sampling temperature while training; the trainer uses the same."""
    max_batch_size: Positive = 128
    """Completions sampled at the same time; never more than windows fit into the cache (`max_cached_tokens`)."""
    max_cached_tokens: Positive | None = None
    """Tokens the key/value cache holds; null: `max_batch_size * max_context`, on GPUs vLLM takes `gpu_memory_share`."""
    share_contexts: bool = True
    """Compute completions with equal contexts once until their samples differ; `minimind` and `huggingface`."""


class EnvConfig(Section):
    name: str
    """Registered environment, or an import path, `my_pkg.my_env:MyEnv`; `mixture` is several ones
    ([mixture.md](mixture.md)). `python:...` in the `config.yaml` of a run: its
    environment was given in Python."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of that environment, checked by it; those of the built-in ones are below."""


class RayConfig(Section):
    """Ray actors that environments run in, with their checkers and sandboxes; see [distributed.md](distributed.md)."""

    address: str | None = None
    """Address of the cluster, such as `10.0.0.1:6379`; null: RAY_ADDRESS, or else the cluster that this machine is part
    of. `local` starts one for the run, on this machine."""
    actors: Positive = 4
    """Actors of each training process."""
    cpus_per_actor: Positive = 1
    """CPUs that Ray sets aside for an actor; it may run any number of environments."""
    timeout_s: Seconds = 300.0
    """Longest wait for an actor while there is none, at the start and after all were lost."""


class RolloutConfig(Section):
    group_size: Positive = 8
    """Episodes per task; estimators that compare them with each other need at least 2."""
    groups_per_step: Positive = 16
    """Tasks per step."""
    max_attempts: Positive = 1
    """Times that more tasks are sampled at most, until `groups_per_step` groups have variance; 1 takes all."""
    async_workers: Annotated[int, Field(ge=0)] = 128
    """Episodes that threads run at the same time; 0 runs them one after the other."""
    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Steps that the weights of a token may be behind when it is learned from; above 0 episodes run while the
    trainer updates, which needs `policy.type: vllm`."""
    max_turns: Positive = 30
    """Turns of one episode."""
    max_tool_calls: Positive = 64
    """Tool calls of one episode."""
    max_invalid_turns: Positive = 3
    """Turns in a row with an unreadable call before the episode ends."""
    episode_timeout_s: Seconds = 300.0
    """Deadline of one episode, in seconds."""
    workers: Literal["local", "ray"] = "local"
    """Where environments run: inside the training processes, or in actors of a `ray` cluster (section `rollout.ray`;
    `requirements-ray.txt`). The policy stays with the trainer."""
    ray: RayConfig = RayConfig()

    def keys_without_effect(self) -> Mapping[str, str]:
        return {} if self.workers == "ray" else {"ray": "with workers 'local'"}


class EvalConfig(Section):
    every: Annotated[int, Field(ge=0)] = 0
    """Steps between evaluations; 0 evaluates only before the first and after the last step."""
    before_training: bool = True
    """Evaluate before the first step too; without it the table at the end compares with the first evaluation."""
    temperatures: tuple[Annotated[float, Field(ge=0.0)], ...] = (0.0, 1.0)
    """Evaluate once per temperature; 0 is greedy. Empty: no evaluation at all."""
    stop_at: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """End the run after an evaluation that solved this share of the held-out tasks, at the first of the temperatures;
    null: at `train.steps`."""

    def keys_without_effect(self) -> Mapping[str, str]:
        if not self.temperatures:
            return dict.fromkeys(("every", "before_training", "stop_at"), "without temperatures")
        return {} if self.every else {"stop_at": "without eval.every"}


class AlarmConfig(Section):
    """A rule over one metric; it takes the place of the built-in rules on that metric."""

    metric: str
    """Name as in `docs/metrics.md`."""
    above: float | None = None
    """Bad is a value above this; give it or `below`."""
    below: float | None = None
    """Bad is a value below this."""
    steps: Positive = 1
    """Bad steps in a row before the alarm goes off."""
    action: Literal["warn", "stop", "rollback"] = "warn"
    """`warn` reports it, `stop` saves a checkpoint and ends the run, `rollback` goes back to the best checkpoint, or
    the newest, and on from there with half the learning rate and other samples."""

    @model_validator(mode="after")
    def _check_limit(self) -> "AlarmConfig":
        if (self.above is None) == (self.below is None):
            raise ValueError("an alarm needs one of above and below, and not both")
        if re.match(r"(env/[^/]+/)?eval/", self.metric):
            raise ValueError(f"an alarm on {self.metric!r}: alarms watch training steps and no evaluations")
        return self


def _check_webhook(given: str) -> str:
    if not given.startswith(("http://", "https://")) or not urlsplit(given).hostname:
        raise ValueError("expected a web address, https://...")
    return given


class LogConfig(Section):
    trackers: tuple[Annotated[str, known_to(TRACKERS)], ...] = ("tensorboard",)
    """Where metrics go besides `metrics.jsonl`: `tensorboard`, `wandb`, `trackio`, or an import path; with their
    packages also `mlflow`, `comet_ml`, `aim`, `clearml`, `dvclive`, `swanlab`, through Accelerate. `wandb` gets a table
    of the best and worst episodes too, at the steps of `samples_every`."""
    project: str = "agent_rl"
    """Project of a tracker, such as Weights & Biases and Trackio, that the run belongs to."""
    alarms: tuple[AlarmConfig, ...] = ()
    """Rules besides the built-in ones, which warn: `[{metric: policy/entropy, below: 0.02, action: stop}]`."""
    transcripts_per_step: Annotated[int, Field(ge=0)] = 2
    """Best and worst episodes of a step written to transcripts/, this many of each."""
    samples_every: Annotated[int, Field(ge=0)] = 10
    """Steps between those whose episodes are all saved with every token in samples/, for `agent-rl view`; the first and
    the last step are saved too, and one at which an alarm stops the run. 0 saves none."""
    progress: bool = True
    """Show the live line below the lines of the steps; not shown where standard output is no terminal."""
    notify: Annotated[str, AfterValidator(_check_webhook)] | None = None
    """Web address that gets a JSON message when the run ends, fails or raises an alarm; null: none. See
    [running.md](running.md)."""

    def keys_without_effect(self) -> Mapping[str, str]:
        is_used = set(self.trackers) - {"tensorboard"}
        return {} if is_used else {"project": "without 'wandb' or 'trackio' in log.trackers"}


class CheckpointConfig(Section):
    every: Annotated[int, Field(ge=0)] = 20
    """Steps between checkpoints; 0 saves only at the end and on Ctrl-C."""
    keep: Positive = 2
    """Newest checkpoints that are retained."""
    keep_best: bool = True
    """Retain also the one whose evaluation had the most successes, at the first of `eval.temperatures`."""
    resume: Annotated[str, written_as(_SOME_TEXT, "never, auto or a checkpoint, got an empty text")] = "never"
    """`never`, `auto` (newest checkpoint of this run's folder), or the path of a checkpoint."""
