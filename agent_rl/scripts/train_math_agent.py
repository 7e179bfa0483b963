"""Train an agent that solves word problems with a calculator.

    python agent_rl/scripts/train_math_agent.py --config configs/math_grpo.yaml
    python agent_rl/scripts/train_math_agent.py --config configs/math_grpo.yaml --preview-tasks 2

Anything of the form section.key=value after the options overrides the config file.
"""

from agent_rl.scripts.common import make_app, run_app
from agent_rl.scripts.train import train_command

app = make_app(train_command, __doc__)

if __name__ == "__main__":
    run_app(app)
