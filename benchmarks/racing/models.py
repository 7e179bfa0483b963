"""The models of a race: where each comes from, its sizes of a step, and its warm start on demonstrations of a task.

Both trainers begin with the folder that is made here. Not here: what they do with it.
"""

from dataclasses import dataclass
from pathlib import Path

from racing.commands import agent_rl_command
from racing.tasks import RaceTask

from agent_rl.errors import ConfigError, nearest_or_all

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class RaceModel:
    """A model and the settings that go with its size."""

    name: str
    policy: str
    """Our `policy.type`."""
    learning_rate: float
    """Of GRPO, on both sides."""
    trl_rows: int
    sft_learning_rate: float
    sft_epochs: int
    folder: Path | None
    """None: random weights, made here."""

    def base(self, folder: Path) -> Path:
        """The model before its warm start; random weights are written to `folder`."""
        if self.folder is None:
            if not (folder / "config.json").is_file():
                write_random_model(folder)
            return folder
        if not (self.folder / "config.json").is_file():
            raise ConfigError(f"--models {self.name}: {self.folder} is no model's folder; run `make smollm2`")
        return self.folder


MODELS = {
    "small": RaceModel(
        name="small",
        policy="minimind",
        learning_rate=1e-4,
        trl_rows=64,
        sft_learning_rate=1e-3,
        sft_epochs=4,
        folder=None,
    ),
    "smollm2": RaceModel(
        name="smollm2",
        policy="huggingface",
        learning_rate=5e-6,
        trl_rows=16,
        sft_learning_rate=5e-5,
        sft_epochs=1,
        folder=ROOT / "model/smollm2-135m",
    ),
}


def find_model(name: str) -> RaceModel:
    """ConfigError for a name that is no model."""
    if name not in MODELS:
        raise ConfigError(f"--models {name!r} is no model of a race{nearest_or_all(name, MODELS)}")
    return MODELS[name]


def write_random_model(folder: Path) -> None:
    """A MiniMind of 1.3 million parameters whose tokens are bytes, as a folder of `Qwen3ForCausalLM`."""
    import torch

    from agent_rl.agent.phrase_bpe import as_pretrained, train_phrase_bpe
    from agent_rl.modeling.minimind import MiniMindConfig, MiniMindForCausalLM

    torch.manual_seed(0)
    tokenizer = as_pretrained(train_phrase_bpe([""], word_vocab_size=0))
    config = MiniMindConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=1024,
        rope_theta=1e4,
    )
    tokenizer.save_pretrained(folder)
    MiniMindForCausalLM(config).save_pretrained(folder)


def warm_start(model: RaceModel, task: RaceTask, data: Path, folder: Path, *, seed: int, device: str) -> Path:
    """The model after `agent-rl sft --data` on the task's demonstrations; one that was stopped goes on."""
    made = folder / "model"
    mark = folder / "finished"
    if not mark.exists():
        base = model.base(folder / "base")
        words = ["sft", "--data", str(data / "demonstrations.jsonl"), "--model-path", str(base)]
        words += ["--output-dir", str(folder), "--policy-type", model.policy, "--epochs", str(model.sft_epochs)]
        words += [f"train.learning_rate={model.sft_learning_rate}", f"policy.max_context={task.max_context}"]
        agent_rl_command(*words, f"run.seed={seed}", f"run.device={device}", log=folder / "output.log")
        mark.touch()
    return made
