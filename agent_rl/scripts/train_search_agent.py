"""Train an agent that answers questions by searching.

    python agent_rl/scripts/train_search_agent.py --config configs/search_qa_grpo.yaml
    python agent_rl/scripts/train_search_agent.py --config configs/search_qa_grpo.yaml --preview-tasks 2

Anything of the form section.key=value after the options overrides the config file.
"""

import sys

if __name__ == "__main__":  # run by its path, where the package need not be installed
    sys.path.insert(0, __file__.rpartition("/agent_rl/")[0])

from agent_rl.scripts.common import make_app, run_app
from agent_rl.scripts.train import train_command

app = make_app(train_command, __doc__)

if __name__ == "__main__":
    run_app(app)
