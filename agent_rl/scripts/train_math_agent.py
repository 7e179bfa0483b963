"""Train an agent that solves word problems with a calculator.

    python agent_rl/scripts/train_math_agent.py --config configs/math_grpo.yaml
    python agent_rl/scripts/train_math_agent.py --config configs/math_grpo.yaml --preview-tasks 2

Anything of the form section.key=value after the options overrides the config file.
"""

import typer

from agent_rl.scripts.common import run_app
from agent_rl.scripts.train import train_command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command(help=__doc__)(train_command)

if __name__ == "__main__":
    run_app(app)
