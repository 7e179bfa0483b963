"""`agent-rl`: the installed face of the scripts. `agent-rl COMMAND --help` tells the options of each."""

import importlib.metadata
from typing import Annotated

import typer

from agent_rl.registry import import_object
from agent_rl.scripts import check_data, evaluate_model, prepare_dataset, prepare_tasks, train, train_sft
from agent_rl.scripts.commands import plan, preflight, report, sandbox_info, serve_vllm, view
from agent_rl.scripts.common import run_app

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Train tool-using language-model agents with GRPO.",
)


def _print_version(is_given: bool) -> None:
    if is_given:
        print(f"agent_rl {importlib.metadata.version('agent_rl')}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("train", help="Train a policy with GRPO from a config file.")(train.train_command)
app.command("eval", help="Evaluate a checkpoint or any model on a task file.")(evaluate_model.main)
app.command("prepare-dataset", help="Make the NAT task files.")(prepare_dataset.main)
app.command("prepare-tasks", help="Make the task files of an environment.")(prepare_tasks.main)
app.command("check-data", help="Check task files without a model: reference solutions succeed, negative ones fail.")(
    check_data.main
)
app.command("sft", help="Train the warm start on demonstrations.")(train_sft.main)
app.command("report", help="Report on a training run: a page, data, a few lines.")(report.main)
app.command("view", help="Browse a run's episodes and tokens on a local page.")(view.main)
app.command("serve-vllm", help="Start vLLM servers for `vllm.servers` and watch over them.")(serve_vllm.main)
app.command("plan", help="What a run needs on every GPU, and whether it fits.")(plan.main)
app.command("preflight", help="Check this machine for a run before it starts.")(preflight.main)
app.add_typer(sandbox_info.app, name="sandbox")
app.add_typer(import_object("agent_rl.envs.nat.commands:app"), name="nat")


def main() -> None:
    run_app(app)


if __name__ == "__main__":
    main()
