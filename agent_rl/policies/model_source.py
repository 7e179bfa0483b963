"""Which files a policy's weights are, whoever opens them: a checkpoint of a run, a model folder, a name on a hub.

Not here: reading the weights (`make_policy.py`, `served_policy.py`), writing checkpoints.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agent_rl import resources
from agent_rl.config import Config
from agent_rl.distributed.checkpoint import MANIFEST_FILE, MODEL_FOLDER, checkpoints_in, step_of, verify_checkpoint
from agent_rl.errors import CheckpointError
from agent_rl.policies.hf_policy import ADAPTER_FILE

CHECKPOINT_NAMES = ("step_", ".partial-")
"""How folders begin that a run writes; one without a manifest was not written whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where the weights of a policy are: `ModelSource.find(config, "runs/nat_grpo/checkpoints/step_00080")`."""

    config: Config
    """With `model.path` of this model."""
    weights: Path | None
    """Model folder of a checkpoint, or of adapters; None reads `model.path`."""
    name: str
    """As the caller gave it."""

    @classmethod
    def find(cls, config: Config, given: str | None) -> Self:
        """The model that `given` names: a checkpoint's folder, or whatever `model.path` takes; None: `model.path`.

        Raises CheckpointError for a path that is not there, a checkpoint that is not whole, a folder without files.
        """
        if given is None:
            return cls(config=config, weights=None, name=config.model.path)
        folder = resources.find(given)
        given = str(folder)
        # Anything else may be the name of a model on a hub.
        if not folder.exists() and (config.policy.type == "minimind" or folder.is_absolute()):
            raise CheckpointError(f"{given}: no such file or folder; name a checkpoint or a model")
        if (folder / MODEL_FOLDER).is_dir():
            if (folder / MANIFEST_FILE).exists() or folder.name.startswith(CHECKPOINT_NAMES):
                verify_checkpoint(folder)
            return cls(config=config, weights=folder / MODEL_FOLDER, name=given)
        if (folder / "checkpoints").is_dir():
            raise CheckpointError(
                f"{given} is the folder of a run; name one of its checkpoints, {folder}/checkpoints/*"
            )
        if folder.is_dir() and not any(path.is_file() for path in folder.iterdir()):
            inside = sorted(path.name for path in folder.glob("step_*"))
            raise CheckpointError(
                f"{given} holds no files of a model; "
                + (f"name one of the checkpoints in it, such as {folder / inside[-1]}" if inside else "name another")
            )
        if (folder / ADAPTER_FILE).is_file():
            return cls(config=config, weights=folder, name=given)
        model = config.model.model_copy(update={"path": given})
        return cls(config=config.model_copy(update={"model": model}), weights=None, name=given)

    @property
    def run_config_file(self) -> Path | None:
        """The configuration of the run whose checkpoint this is, `RUN/checkpoints/step_00080/model`; None without."""
        if self.weights is None or len(self.weights.parents) < 3:
            return None
        found = self.weights.parents[2] / "config.yaml"
        return found if found.is_file() and self.weights.parents[1].name == "checkpoints" else None

    @property
    def step(self) -> int | None:
        """Of the checkpoint that this is; None for any other model."""
        step = -1 if self.weights is None else step_of(self.weights.parent)
        return None if step < 0 else step

    @property
    def run_folder(self) -> Path | None:
        """Of the run whose checkpoint this is, or else what it lies in; None for any other model."""
        if self.weights is None or self.step is None:
            return None
        within = self.weights.resolve().parents[1]
        return within.parent if within.name == "checkpoints" else within

    def digest(self) -> str | None:
        """SHA-256 over the files of the model; None for a name on a hub."""
        return _digest_of(self.weights or Path(self.config.model.path))

    def base_digest(self) -> str | None:
        """The same of the model that adapters belong to; None where there are no adapters."""
        has_base = self.weights is not None and (self.weights / ADAPTER_FILE).is_file()
        return _digest_of(Path(self.config.model.path)) if has_base else None


def every_checkpoint(given: str) -> list[str]:
    """The checkpoints of a run by step, of which `given` is the folder or that of its checkpoints.

    CheckpointError where there are none.
    """
    folder = resources.find(given)
    if not folder.is_dir():
        raise CheckpointError(f"{given}: no such folder; name the folder of a run or of its checkpoints")
    inside = folder / "checkpoints"
    found = checkpoints_in(inside if inside.is_dir() else folder)
    if not found:
        raise CheckpointError(f"{given} holds no checkpoints, step_*; name the folder of a run or of its checkpoints")
    return [str(path) for path in found]


def _digest_of(source: Path) -> str | None:
    files = sorted(path for path in source.iterdir() if path.is_file()) if source.is_dir() else [source]
    if not files or not files[0].is_file():
        return None
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
