"""`agent-rl`: the installed face of the scripts. `agent-rl COMMAND --help` tells the options of each."""

from typing import Annotated

import typer

from agent_rl.registry import import_object
from agent_rl.scripts import check_data, configuration, evaluate_model, prepare_dataset, prepare_tasks, train
from agent_rl.scripts.commands import (
    chat,
    export,
    init,
    metrics,
    plan,
    play,
    preflight,
    report,
    sandbox_info,
    serve_trainer,
    serve_vllm,
    sft,
    tools,
    translate,
    view,
)
from agent_rl.scripts.common import WITH_SHORT_HELP, reads, run_app

app = typer.Typer(
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Train tool-using language-model agents with GRPO.",
    context_settings=WITH_SHORT_HELP,
)


def _print_version(is_given: bool) -> None:
    if is_given:
        import agent_rl

        print(f"agent_rl {agent_rl.__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


EXAMPLES = {
    "train": "agent-rl train --config configs/math_grpo.yaml train.steps=20 run.name=first",
    "eval": "agent-rl eval --config configs/math_grpo.yaml --checkpoint model/math_minimind --output-dir evaluated",
    "report": "agent-rl report runs/first",
    "view": "agent-rl view runs/first",
    "plan": "agent-rl plan --config configs/nat_grpo_1gpu.yaml --set gpu=H200",
    "export": "agent-rl export runs/first/checkpoints/step_00020 --output-dir exported",
    "play": "agent-rl play --config configs/math_grpo.yaml --checkpoint model/math_minimind",
    "chat": "agent-rl chat --config configs/math_grpo.yaml",
    "preflight": "agent-rl preflight --config configs/nat_grpo.yaml",
}
"""Shown below the options of a command."""

app.command("init", help="Make a project to start from: a task, a score, a configuration, tests.")(init.main)
app.command("train", help="Train a policy with GRPO from a config file.", epilog=EXAMPLES["train"])(train.train_command)
app.command("eval", help="Evaluate a checkpoint or any model on a task file.", epilog=EXAMPLES["eval"])(
    evaluate_model.main
)
app.command("prepare-dataset", help="Make the NAT task files.")(prepare_dataset.main)
app.command("prepare-tasks", help="Make the task files of an environment.")(prepare_tasks.main)
app.command("check-data", help="Check task files without a model: reference solutions succeed, negative ones fail.")(
    check_data.main
)
app.command(
    "sft",
    help="Supervised training: a warm start on demonstrations, or with --data any model on your own conversations.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)(sft.main)
app.command("report", help="Report on a training run: a page, data, a few lines.", epilog=EXAMPLES["report"])(
    report.main
)
app.command("view", help="Browse a run's episodes and tokens on a local page.", epilog=EXAMPLES["view"])(view.main)
app.command("metrics", help="Export the runs of a folder to Prometheus, those that were killed too.")(metrics.main)
app.command("play", help="Play one episode in the terminal, or watch a model play it.", epilog=EXAMPLES["play"])(
    play.main
)
app.command(
    "chat", help="Talk to a model in the terminal, with the tools of a configuration.", epilog=EXAMPLES["chat"]
)(chat.main)
app.command(
    "export", help="A checkpoint as a folder for other programs, with a model card.", epilog=EXAMPLES["export"]
)(export.main)
app.command("serve-vllm", help="Start vLLM servers for `vllm.servers` and watch over them.")(serve_vllm.main)
app.command("serve-trainer", help="Train on what agents elsewhere play through an OpenAI-compatible endpoint.")(
    serve_trainer.main
)
app.command("plan", help="What a run needs on every GPU, and whether it fits.", epilog=EXAMPLES["plan"])(plan.main)
app.command("preflight", help="Check this machine for a run before it starts.", epilog=EXAMPLES["preflight"])(
    preflight.main
)
app.add_typer(sandbox_info.app, name="sandbox")
app.add_typer(tools.app, name="tools")
app.add_typer(configuration.app, name="config")
app.command("translate", help="Turn a configuration of AgentFly, Miniagent, verl, SkyRL or TRL into one of ours.")(
    translate.main
)
for name in ("create", "plan"):
    reads()(import_object(f"agent_rl.envs.nat.create.commands:{name}"))
app.command("create")(import_object("agent_rl.envs.nat.create.commands:create"))
app.command("run")(import_object("agent_rl.envs.nat.create.commands:run"))
app.add_typer(import_object("agent_rl.envs.nat.service.commands:app"), name="serve")
app.add_typer(import_object("agent_rl.envs.nat.commands:app"), name="nat")
app.add_typer(import_object("agent_rl.envs.nat.service.feedback.commands:app"), name="feedback")


def main() -> None:
    run_app(app)


if __name__ == "__main__":
    main()
