"""What `nat finetune` can be asked and this plug-in cannot do, said before anything is played."""

from nat.data_models.finetuning import FinetuneConfig

from nat_agent_rl.errors import FinetuneError


def check_run(run: FinetuneConfig) -> None:
    """FinetuneError with the first option that is missing, or not offered."""
    options = run.run_configuration
    evaluators = options.config_file.eval.evaluators
    name = run.reward_function.name if run.reward_function else None
    if name not in evaluators:
        raise FinetuneError(
            f"finetuning.reward_function names the evaluator {name!r}, eval.evaluators has "
            f"{', '.join(evaluators) or 'none'}; name one of these"
        )
    if options.endpoint is not None:
        raise FinetuneError("--endpoint plays elsewhere, where no episode can be named; leave it out")
    if run.curriculum_learning.enabled:
        raise FinetuneError("finetuning.curriculum_learning is not offered; leave it out, or use rows_per_epoch")
    if run.target_model not in (None, "policy"):
        raise FinetuneError(
            f"finetuning.target_model is {run.target_model!r}; leave it out: what is trained are the calls of the llm "
            "with _type: agent_rl_policy"
        )
