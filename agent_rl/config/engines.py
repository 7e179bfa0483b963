"""Policies and inference engines by name, and the capabilities that the library reads instead of an engine's name.

An engine with weights of its own is one folder in `inference/`, one line in `ENGINES`, and one section of the
configuration under the same name (an `EngineSection`). Does not: import an engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_rl.config.base import Section
from agent_rl.registry import Registry

if TYPE_CHECKING:
    from agent_rl.config.root import Config

ENGINES: Registry[Callable[..., Any]] = Registry(
    "inference engine", {"vllm": "agent_rl.inference.vllm.make_engine:make_engine"}
)
"""Makers of engines: `(config, backend, load_model, *, source, run_folder) -> (model, inference.base.RemoteEngine)`.

`load_model` reads the trained model; a maker calls it once it knows that the engine is available. `source` is what an
engine that starts in this process loads before it is sent weights.
"""
_MAKERS = "agent_rl.policies.make_policy"
POLICIES: Registry[Callable[..., Any]] = Registry(
    "policy",
    {
        **dict.fromkeys(("minimind", "huggingface"), f"{_MAKERS}:make_colocated"),
        **dict.fromkeys(ENGINES.names(), f"{_MAKERS}:make_remote"),
    },
)
"""Makers of the trained model and its policy: `(config, backend, *, run_folder, checkpoint) -> (model, policy)`.

They are a `TrainedModel` and a `BasePolicy`. `checkpoint` is a checkpoint's model folder; None: `model.path`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapabilities:
    """What an inference engine can do. The defaults are those of an engine that samples from the trained module."""

    has_own_weights: bool = False
    """New weights are sent to it after every update and verified."""
    supports_async: bool = False
    """It can sample while the trainer updates; new weights interrupt completions, which then continue."""
    servers: tuple[str, ...] = ()
    """Addresses of servers that all processes share; empty: one engine in every process."""
    sends_files: bool = False
    """New weights go to the servers as files."""
    weight_folder: Path | None = None
    """Folder of these files; None: `weights` in the run's folder."""
    needs_gpus: bool = False
    """It runs on GPUs only, with these settings."""
    dtype: str = "float32"
    """Number format that it samples in."""
    sleeps: bool = False
    """It frees its GPU memory while the trainer updates."""
    gpu_memory_share: float = 0.0
    """Of a GPU, for weights and cache of an engine inside the process that sizes its cache itself."""
    max_logprob_gap: float | None = None
    """Largest gap of a probe token's log-prob at temperature 1; None: by number format."""


class EngineSection(Section):
    """Settings of one inference engine, for runs whose `policy.type` is the name of the section."""

    def capabilities(self, config: "Config") -> EngineCapabilities:
        """What the engine can do with these settings, in a run with this configuration."""
        raise NotImplementedError

    def keys_without_effect_in(self, config: "Config") -> Mapping[str, str]:
        """Keys of the whole configuration (dotted) that do nothing with this engine, each with the reason."""
        return {}
