"""What other libraries call the keys, tools and rewards of this one: for hints in errors, `agent-rl translate`, docs.

Names are those of AgentFly's guide, Miniagent's README, verl, SkyRL and TRL; they differ between releases. A test holds
that ours exist and that the tables of the docs agree. Not here: turning values (`config/translate.py`).
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple


class Renamed(NamedTuple):
    """`Renamed("train.steps", "epochs * rows / rollout.groups_per_step")`."""

    ours: str
    """Our key; empty where nothing here takes it, and then `note` has the reason."""
    note: str = ""


_ONE_DISTRIBUTION = "it would sample from another distribution than the one that is trained"
_EPOCHS = Renamed("train.steps", "epochs * rows / rollout.groups_per_step")
_MINIBATCHES = Renamed("train.minibatches", "how many, not how large")
_TOKENS = Renamed("train.micro_batch_tokens", "in tokens")
_LAUNCHER = "Accelerate's file says, configs/accelerate/"
_WINDOW = Renamed("policy.max_context", "the whole window: prompt, replies and tool outputs")
_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."

VERL: Mapping[str, Renamed] = {
    "algorithm.adv_estimator": Renamed("algorithm.advantage"),
    "algorithm.kl_ctrl.horizon": Renamed("algorithm.kl.horizon"),
    "algorithm.kl_ctrl.kl_coef": Renamed("algorithm.kl.coef"),
    "algorithm.kl_ctrl.target_kl": Renamed("algorithm.kl.target"),
    "algorithm.kl_ctrl.type": Renamed("algorithm.kl.target", "a number is adaptive, null is fixed"),
    "algorithm.kl_penalty": Renamed("algorithm.kl.kind"),
    "algorithm.norm_adv_by_std_in_grpo": Renamed("algorithm.scale_by_std"),
    "algorithm.use_kl_in_reward": Renamed("algorithm.kl.place"),
    "critic.cliprange_value": Renamed("critic.value_clip"),
    "critic.model.path": Renamed("critic.backbone", "a copy of the policy, or a head on it"),
    "critic.optim.lr": Renamed("critic.learning_rate"),
    "critic.ppo_micro_batch_size_per_gpu": _TOKENS,
    "critic.ppo_mini_batch_size": _MINIBATCHES,
    "data.max_prompt_length": _WINDOW,
    "data.max_response_length": _WINDOW,
    "data.train_batch_size": Renamed("rollout.groups_per_step"),
    "data.train_files": Renamed("data.train_path"),
    "data.val_batch_size": Renamed("", "held-out tasks are rolled out together, data.max_eval_tasks of them"),
    "data.val_files": Renamed("data.eval_path"),
    "trainer.critic_warmup": Renamed("critic.warmup_steps"),
    "trainer.experiment_name": Renamed("run.name"),
    "trainer.logger": Renamed("log.trackers", "the console is always there"),
    "trainer.max_actor_ckpt_to_keep": Renamed("checkpoint.keep"),
    "trainer.n_gpus_per_node": Renamed("", _LAUNCHER),
    "trainer.nnodes": Renamed("", _LAUNCHER),
    "trainer.project_name": Renamed("log.project"),
    "trainer.resume_from_path": Renamed("checkpoint.resume"),
    "trainer.resume_mode": Renamed("checkpoint.resume"),
    "trainer.save_freq": Renamed("checkpoint.every"),
    "trainer.test_freq": Renamed("eval.every"),
    "trainer.total_epochs": _EPOCHS,
    "trainer.total_training_steps": Renamed("train.steps"),
    "trainer.val_before_train": Renamed("eval.before_training"),
    "actor_rollout_ref.model.enable_gradient_checkpointing": Renamed("model.gradient_checkpointing"),
    "actor_rollout_ref.model.lora_alpha": Renamed("model.lora.alpha"),
    "actor_rollout_ref.model.lora_rank": Renamed("model.lora.rank"),
    "actor_rollout_ref.model.path": Renamed("model.path"),
    "actor_rollout_ref.nccl_timeout": Renamed("run.timeout_s"),
    "actor_rollout_ref.ref.fsdp_config.param_offload": Renamed("", _LAUNCHER),
    _ACTOR + "clip_ratio": Renamed("algorithm.clip_low", "and algorithm.clip_high"),
    _ACTOR + "clip_ratio_c": Renamed("algorithm.dual_clip"),
    _ACTOR + "clip_ratio_high": Renamed("algorithm.clip_high"),
    _ACTOR + "clip_ratio_low": Renamed("algorithm.clip_low"),
    _ACTOR + "entropy_coeff": Renamed("algorithm.entropy_coef"),
    _ACTOR + "fsdp_config.optimizer_offload": Renamed("", _LAUNCHER),
    _ACTOR + "fsdp_config.param_offload": Renamed("", _LAUNCHER),
    _ACTOR + "grad_clip": Renamed("train.max_grad_norm"),
    _ACTOR + "kl_loss_coef": Renamed("algorithm.kl.coef"),
    _ACTOR + "kl_loss_type": Renamed("algorithm.kl.kind"),
    _ACTOR + "loss_agg_mode": Renamed("algorithm.aggregation", "with underscores"),
    _ACTOR + "optim.lr": Renamed("train.learning_rate"),
    _ACTOR + "optim.lr_warmup_steps": Renamed("train.warmup_steps"),
    _ACTOR + "policy_loss.loss_mode": Renamed("algorithm.loss", "gspo is algorithm.ratio_level: sequence"),
    _ACTOR + "ppo_epochs": Renamed("train.epochs"),
    _ACTOR + "ppo_max_token_len_per_gpu": Renamed("train.micro_batch_tokens"),
    _ACTOR + "ppo_micro_batch_size_per_gpu": _TOKENS,
    _ACTOR + "ppo_mini_batch_size": _MINIBATCHES,
    _ACTOR + "use_kl_loss": Renamed("algorithm.kl.place"),
    _ROLLOUT + "gpu_memory_utilization": Renamed("vllm.gpu_memory_share"),
    _ROLLOUT + "log_prob_micro_batch_size_per_gpu": _TOKENS,
    _ROLLOUT + "max_num_seqs": Renamed("policy.max_batch_size"),
    _ROLLOUT + "multi_turn.max_assistant_turns": Renamed("rollout.max_turns"),
    _ROLLOUT + "n": Renamed("rollout.group_size"),
    _ROLLOUT + "name": Renamed("policy.type"),
    _ROLLOUT + "response_length": _WINDOW,
    _ROLLOUT + "temperature": Renamed("policy.temperature"),
    _ROLLOUT + "tensor_model_parallel_size": Renamed("vllm.servers", "agent-rl serve-vllm --tensor-parallel"),
    _ROLLOUT + "top_k": Renamed("", _ONE_DISTRIBUTION),
    _ROLLOUT + "top_p": Renamed("", _ONE_DISTRIBUTION),
}

_AGENT = {
    "agent_type": Renamed("agent.type"),
    "backend": Renamed("rollout.async_workers", "0 is one by one"),
    "model_name_or_path": Renamed("model.path"),
    "reward_name": Renamed("env.options.reward"),
    "template": Renamed("model.chat_template", "a .jinja file; without one the tokenizer's own counts"),
    "tools": Renamed("tools.use"),
}
AGENTFLY: Mapping[str, Renamed] = {
    **{f"agent.init_args.{name}": to for name, to in _AGENT.items()},
    **{f"agent.{name}": to for name, to in _AGENT.items() if name != "backend"},
    "agent.max_tokens_per_turn": Renamed("policy.max_new_tokens"),
    "agent.max_turns": Renamed("rollout.max_turns"),
    "agent.num_chains": Renamed("rollout.group_size"),
    "agent.use_agent": Renamed("", "every run trains an agent"),
}

_SKY = "trainer.algorithm."
SKYRL: Mapping[str, Renamed] = {
    "data.train_data": Renamed("data.train_path"),
    "data.val_data": Renamed("data.eval_path"),
    "generator.max_input_length": _WINDOW,
    "generator.max_num_seqs": Renamed("policy.max_batch_size"),
    "generator.max_turns": Renamed("rollout.max_turns"),
    "generator.n_samples_per_prompt": Renamed("rollout.group_size"),
    "generator.sampling_params.max_generate_length": Renamed("policy.max_new_tokens"),
    "generator.sampling_params.temperature": Renamed("policy.temperature"),
    "generator.sampling_params.top_p": Renamed("", _ONE_DISTRIBUTION),
    _SKY + "advantage_estimator": Renamed("algorithm.advantage"),
    _SKY + "clip_ratio_c": Renamed("algorithm.dual_clip"),
    _SKY + "dynamic_sampling.max_sample_batches": Renamed("rollout.max_attempts"),
    _SKY + "entropy_loss_coef": Renamed("algorithm.entropy_coef"),
    _SKY + "eps_clip_high": Renamed("algorithm.clip_high"),
    _SKY + "eps_clip_low": Renamed("algorithm.clip_low"),
    _SKY + "gamma": Renamed("algorithm.gamma"),
    _SKY + "grpo_norm_by_std": Renamed("algorithm.scale_by_std"),
    _SKY + "kl_estimator_type": Renamed("algorithm.kl.kind"),
    _SKY + "kl_loss_coef": Renamed("algorithm.kl.coef"),
    _SKY + "lambd": Renamed("algorithm.lam"),
    _SKY + "loss_reduction": Renamed("algorithm.aggregation", "sequence_mean is seq_mean_token_mean"),
    _SKY + "policy_loss_type": Renamed("algorithm.loss", "gspo is algorithm.ratio_level: sequence"),
    _SKY + "use_kl_in_reward": Renamed("algorithm.kl.place"),
    _SKY + "use_kl_loss": Renamed("algorithm.kl.place"),
    _SKY + "value_clip": Renamed("critic.value_clip"),
    "trainer.ckpt_interval": Renamed("checkpoint.every"),
    "trainer.critic.optimizer_config.lr": Renamed("critic.learning_rate"),
    "trainer.epochs": _EPOCHS,
    "trainer.eval_interval": Renamed("eval.every"),
    "trainer.gradient_checkpointing": Renamed("model.gradient_checkpointing"),
    "trainer.logger": Renamed("log.trackers", "the console is always there"),
    "trainer.max_ckpts_to_keep": Renamed("checkpoint.keep"),
    "trainer.micro_train_batch_size_per_gpu": _TOKENS,
    "trainer.policy.model.lora.alpha": Renamed("model.lora.alpha"),
    "trainer.policy.model.lora.rank": Renamed("model.lora.rank"),
    "trainer.policy.model.path": Renamed("model.path"),
    "trainer.policy.optimizer_config.lr": Renamed("train.learning_rate"),
    "trainer.policy.optimizer_config.max_grad_norm": Renamed("train.max_grad_norm"),
    "trainer.policy.optimizer_config.num_warmup_steps": Renamed("train.warmup_steps"),
    "trainer.policy_mini_batch_size": _MINIBATCHES,
    "trainer.project_name": Renamed("log.project"),
    "trainer.resume_mode": Renamed("checkpoint.resume"),
    "trainer.resume_path": Renamed("checkpoint.resume"),
    "trainer.run_name": Renamed("run.name"),
    "trainer.seed": Renamed("run.seed"),
    "trainer.train_batch_size": Renamed("rollout.groups_per_step"),
    "trainer.update_epochs_per_batch": Renamed("train.epochs"),
}

TRL: Mapping[str, Renamed] = {
    "beta": Renamed("algorithm.kl.coef"),
    "chat_template_kwargs": Renamed("model.chat_template_kwargs"),
    "dataset_name": Renamed("data.train_path", "hf://owner/name"),
    "delta": Renamed("algorithm.dual_clip"),
    "epsilon": Renamed("algorithm.clip_low", "and algorithm.clip_high where epsilon_high is not given"),
    "epsilon_high": Renamed("algorithm.clip_high"),
    "eval_steps": Renamed("eval.every"),
    "gradient_accumulation_steps": _TOKENS,
    "gradient_checkpointing": Renamed("model.gradient_checkpointing"),
    "importance_sampling_level": Renamed("algorithm.ratio_level"),
    "learning_rate": Renamed("train.learning_rate"),
    "load_in_4bit": Renamed("model.load_in_4bit"),
    "load_in_8bit": Renamed("model.load_in_4bit", "4 bits only"),
    "lora_alpha": Renamed("model.lora.alpha"),
    "lora_r": Renamed("model.lora.rank"),
    "loss_type": Renamed("algorithm.aggregation"),
    "lr_scheduler_type": Renamed("train.schedule"),
    "mask_truncated_completions": Renamed("algorithm.mask_truncated"),
    "max_completion_length": Renamed("policy.max_new_tokens", "of one turn"),
    "max_grad_norm": Renamed("train.max_grad_norm"),
    "max_prompt_length": _WINDOW,
    "max_steps": Renamed("train.steps"),
    "model_name_or_path": Renamed("model.path"),
    "num_generations": Renamed("rollout.group_size"),
    "num_iterations": Renamed("train.epochs"),
    "num_train_epochs": _EPOCHS,
    "output_dir": Renamed("run.output_dir", "the run's folder is run.name in it"),
    "per_device_train_batch_size": Renamed(
        "rollout.groups_per_step", "tasks, not completions; train.micro_batch_tokens bounds memory"
    ),
    "report_to": Renamed("log.trackers"),
    "run_name": Renamed("run.name"),
    "save_steps": Renamed("checkpoint.every"),
    "save_total_limit": Renamed("checkpoint.keep"),
    "scale_rewards": Renamed("algorithm.scale_by_std"),
    "seed": Renamed("run.seed"),
    "temperature": Renamed("policy.temperature"),
    "top_k": Renamed("", _ONE_DISTRIBUTION),
    "top_p": Renamed("", _ONE_DISTRIBUTION),
    "use_vllm": Renamed("policy.type"),
    "vllm_gpu_memory_utilization": Renamed("vllm.gpu_memory_share"),
    "vllm_tensor_parallel_size": Renamed("vllm.servers", "agent-rl serve-vllm --tensor-parallel"),
    "warmup_steps": Renamed("train.warmup_steps"),
    "weight_decay": Renamed("train.weight_decay"),
}

MINIAGENT: Mapping[str, Renamed] = {
    "env.failure_penalty": Renamed("env.options.failure_penalty"),
    "env.max_tool_turns": Renamed("rollout.max_turns"),
    "env.max_turns": Renamed("rollout.max_turns"),
    "env.success_reward": Renamed("env.options.success_reward"),
    "env.system_prompt": Renamed("env.options.system_prompt"),
    "env.timeout_penalty": Renamed("env.options.timeout_penalty"),
    "policy.max_tokens": Renamed("policy.max_new_tokens"),
    "policy.top_k": Renamed("", _ONE_DISTRIBUTION),
    "policy.top_p": Renamed("", _ONE_DISTRIBUTION),
    "rollout.episodes_per_iteration": Renamed("rollout.groups_per_step", "tasks, each rollout.group_size times"),
    "tools.search.timeout": Renamed("tools.search.timeout_s"),
    "train.clip_range": Renamed("algorithm.clip_low", "and algorithm.clip_high"),
    "train.iterations": Renamed("train.steps"),
    "train.lr": Renamed("train.learning_rate"),
    "train.normalize_advantages": Renamed("algorithm.scale_by_std"),
}

LIBRARIES: Mapping[str, Mapping[str, Renamed]] = {
    "Miniagent": MINIAGENT,
    "verl": VERL,
    "AgentFly": {**AGENTFLY, **VERL},
    "SkyRL": SKYRL,
    "TRL": TRL,
}
"""Keys by library, theirs to ours. AgentFly trains with verl and has its keys."""
OTHERS: Mapping[str, Renamed] = {
    "run.imports": Renamed("plugins"),
    "model.quantization": TRL["load_in_4bit"],
}
"""Keys that users try, of no library."""
_TOO_COMMON = ("name", "type", "path", "n", "tools", "template", "backend", "gamma", "seed")
"""Last parts of keys that say nothing without what is before them."""

TOOL_ALIASES = {"python_executor": "code_exec", "google_search": "search"}
"""Names of other libraries for tools of `tools.use`, taken as they are."""
TOOL_HINTS = {
    "python": "code_exec",
    "python_interpreter": "code_exec",
    "code_interpreter": "code_exec",
    "web_search": "search",
    "submit": "answer",
    "final_answer": "answer",
    "write_file": "file_write",
    "read_file": "file_read",
}
"""Names of tools in other libraries, for errors."""
REWARD_HINTS = {
    "accuracy_reward": "math_reward_string_equal",
    "gsm8k": "math_reward_string_equal",
    "math": "math_reward_string_equal",
    "math_reward": "math_reward_string_equal",
    "exact_match": "exact_match_reward",
    "em": "exact_match_reward",
    "f1": "qa_f1_reward",
}
"""Names of rewards in other libraries, for errors."""


def called_elsewhere(key: str) -> dict[str, list[str]]:
    """By library, what it calls a key of ours: `{"TRL": ["max_steps", "num_train_epochs (epochs * rows / ...)"]}`.

    Keys that AgentFly has from verl are those of verl.
    """
    tables = {**LIBRARIES, "AgentFly": AGENTFLY}
    found = {
        library: [name + (f" ({to.note})" if to.note else "") for name, to in table.items() if to.ours == key]
        for library, table in tables.items()
    }
    return {library: names for library, names in found.items() if names}


def hint(key: str, value: Any = None, *, is_whole: bool = False, ours: Collection[str] | None = None) -> str:
    """`"; KEY is a key of verl; here it is train.steps (...)"` for a key of another library, or a section of such keys.

    `key` is dotted; where it holds a mapping, the first key in it that is known is named. Empty for an unknown one, and
    where it is called `key` here too. `is_whole` looks at whole keys; otherwise the last part of one is enough. `ours`
    are the only keys that may be named.
    """
    if isinstance(value, Mapping):
        below = (hint(f"{key}.{name}", inner, is_whole=is_whole, ours=ours) for name, inner in value.items())
        return next(filter(None, below), "")
    libraries, renamed = _find(key, is_whole=is_whole)
    if renamed is None or renamed.ours == key or (ours is not None and renamed.ours and renamed.ours not in ours):
        return ""
    of = f"; {key} is a key of {' and '.join(libraries)}" if libraries else ""
    if not renamed.ours:
        return f"{of}; nothing here takes it: {renamed.note}"
    return f"{of}; here it is {renamed.ours}" + (f" ({renamed.note})" if renamed.note else "")


def _find(key: str, *, is_whole: bool) -> tuple[tuple[str, ...], Renamed | None]:
    named = tuple(name for name, table in LIBRARIES.items() if key in table)
    if named:
        return named, LIBRARIES[named[0]][key]
    if key in OTHERS:
        return (), OTHERS[key]
    last = key.rpartition(".")[2]
    if is_whole or last in _TOO_COMMON:
        return (), None
    found = [to for table in LIBRARIES.values() for theirs, to in table.items() if theirs.rpartition(".")[2] == last]
    return (), found[0] if len({to.ours for to in found}) == 1 else None
