"""The keys of the plug-in's sections in a workflow's YAML file, with a line of help each."""

from typing import Literal

from nat.data_models.finetuning import TrainerAdapterConfig, TrainerConfig, TrajectoryBuilderConfig
from nat.data_models.llm import LLMBaseConfig
from pydantic import ConfigDict, Field

from nat_agent_rl.errors import KEY_VARIABLE

STRICT = ConfigDict(extra="forbid", protected_namespaces=())
SERVER = "Address of `agent-rl serve-trainer`, such as http://127.0.0.1:8601."
KEY = "Environment variable that holds the server's key."


class AgentRLPolicyConfig(LLMBaseConfig, name="agent_rl_policy"):
    """The policy in training, behind the trainer's endpoint."""

    model_config = STRICT

    server: str = Field(description=SERVER)
    api_key_env: str = Field(default=KEY_VARIABLE, description=KEY)
    model_name: str = Field(default="policy", description="Name of the model at the endpoint.")
    max_tokens: int | None = Field(
        default=None, gt=0, description="Most tokens of one completion; unset: the server's."
    )
    request_timeout_s: float = Field(
        default=600.0, gt=0, description="Longest wait for one completion, and for weights that change."
    )


class AgentRLTrainerConfig(TrainerConfig, name="agent_rl_trainer"):
    """Epochs: play, one update, repeat. The algorithm and its keys are in the server's own configuration."""

    model_config = STRICT


class AgentRLAdapterConfig(TrainerAdapterConfig, name="agent_rl_trainer_adapter"):
    """The way to the trainer."""

    model_config = STRICT

    server: str = Field(description=SERVER)
    api_key_env: str = Field(default=KEY_VARIABLE, description=KEY)
    timeout_s: float = Field(
        default=60.0, gt=0, description="Longest wait for an answer, and for completions to end before an update."
    )
    update_timeout_s: float = Field(default=3600.0, gt=0, description="Longest time that one update may take.")


class AgentRLBuilderConfig(TrajectoryBuilderConfig, name="agent_rl_trajectory_builder"):
    """How the dataset is played."""

    model_config = STRICT

    group_size: int = Field(default=8, ge=1, description="Episodes of each row; their rewards are compared.")
    rows_per_epoch: int | None = Field(
        default=None, ge=1, description="Rows sampled for each epoch; unset: the whole dataset, in its order."
    )
    episode_timeout_s: float = Field(default=300.0, gt=0, description="Longest run of the workflow on one row.")
    failed_episodes: Literal["zero", "drop"] = Field(
        default="zero",
        description="What a workflow that raised after the policy had answered is worth: reward 0, or it is left out.",
    )
    success_score: float = Field(default=1.0, description="Smallest score that counts as success.")
    seed: int = Field(default=0, description="Where the choice of rows and the seeds of episodes come from.")
