"""A policy from a checkpoint or any model, which samples as a run with the same configuration does.

Not here: running episodes (`rollout/rollout.py`), counting (`evaluation.py`).
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from agent_rl.config import Config
from agent_rl.core.policy_sync import make_policy_sync, module_to_train
from agent_rl.distributed.backend import Backend
from agent_rl.errors import ConfigError
from agent_rl.learning.update import PolicyUpdater
from agent_rl.policies.api.chat_policy import PREFIX, ApiModel, ApiPolicy
from agent_rl.policies.make_policy import make_policy
from agent_rl.policies.model_source import ModelSource
from agent_rl.policies.policy import BasePolicy
from agent_rl.policies.served_policy import open_checked_policy, open_served_policy

if TYPE_CHECKING:
    from agent_rl.inference.vllm.weight_check import WeightCheck


class PolicySource(ModelSource):
    """A model's files, and how an evaluation opens them: vLLM's servers are sent them, or are asked for what they have.

    `openai:MODEL` is a model behind an address, which has no files here.
    """

    @classmethod
    def find(cls, config: Config, given: str | None) -> Self:
        if given is None or not given.startswith(PREFIX):
            return super().find(config, given)
        ApiModel.parse(given)
        if config.agent.type != "hf":
            raise ConfigError(f"{given}: agent.type {config.agent.type!r} needs a model's tokens; leave it at hf")
        model = config.model.model_copy(update={"path": given})
        return cls(config=config.model_copy(update={"model": model}), weights=None, name=given)

    @contextmanager
    def open(self, run_folder: Path) -> Iterator[BasePolicy]:
        """The policy, once an engine with weights of its own has them; files of weights go to `run_folder`.

        Raises a UserError for what cannot be read, does not fit the configuration, or does not answer.
        """
        config = self.config
        if self.name.startswith(PREFIX):
            with closing(ApiPolicy(ApiModel.parse(self.name), timeout_s=config.rollout.episode_timeout_s)) as asked:
                yield asked
            return
        backend = _one_process(config.run.device, config)
        if config.policy.type == "vllm" and not config.vllm.servers:
            with closing(open_served_policy(self)) as alone:
                yield alone
            return
        model, policy = make_policy(config, backend, run_folder=run_folder, checkpoint=self.weights)
        with closing(policy):
            if policy.remote_engine is not None:
                updater = PolicyUpdater(module_to_train(model, policy, backend), config, backend)
                make_policy_sync(config, policy, model, updater, backend, run_folder=run_folder).sync_weights(0)
            yield policy

    def check_servers(self) -> None:
        """ConfigError where there are no servers that could have this model."""
        if self.name.startswith(PREFIX):
            raise ConfigError(f"--served is for a model that vllm.servers have, {self.name} is elsewhere; leave it out")
        if self.config.policy.type != "vllm" or not self.config.vllm.servers:
            raise ConfigError(
                "--served evaluates the weights that vLLM's servers have, and the configuration names none; set "
                "policy.type=vllm and vllm.servers=[http://HOST:PORT]"
            )

    @contextmanager
    def open_served(self) -> "Iterator[tuple[BasePolicy, WeightCheck]]":
        """The policy of `vllm.servers` with the weights that they have, and what is known of these; no model is read.

        Raises as `open`, and ConfigError where the weights are others than this model's.
        """
        self.check_servers()
        _one_process("cpu", self.config)
        policy, check = open_checked_policy(self)
        with closing(policy):
            yield policy, check


def _one_process(device: str, config: Config) -> Backend:
    backend = Backend(device, timeout_s=config.run.timeout_s)
    if backend.num_processes > 1:
        raise ConfigError(f"an evaluation is one process, got {backend.num_processes}; start it without a launcher")
    return backend
