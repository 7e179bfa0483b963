"""Train an agent that writes complete NeMo Agent Toolkit projects.

    python agent_rl/scripts/train_nat_agent.py --config configs/nat_grpo.yaml
    python agent_rl/scripts/train_nat_agent.py --config configs/nat_grpo.yaml --preview-tasks 2
    python agent_rl/scripts/train_nat_agent.py --config configs/nat_grpo.yaml train.steps=20 rollout.group_size=4

Anything of the form section.key=value after the options overrides the config file.
"""

import typer

from agent_rl.scripts.common import run_app
from agent_rl.scripts.train import train_command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command(help=__doc__)(train_command)

if __name__ == "__main__":
    run_app(app)
