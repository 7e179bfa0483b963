"""Have a trained model write an agent on request; the same command as `agent-rl create`.

    python agent_rl/scripts/deploy_trained.py --checkpoint runs/nat_grpo/checkpoints/step_00080 --spec task.json
    python agent_rl/scripts/deploy_trained.py "Convert km, miles and metres, two decimals" planner.source=gemini

docs/create.md explains it, docs/DEPLOYMENT.md the service for many (`agent-rl serve`).
"""

import sys

if __name__ == "__main__":  # run by its path, where the package need not be installed
    sys.path.insert(0, __file__.rpartition("/agent_rl/")[0])

from agent_rl.registry import import_object
from agent_rl.scripts.common import make_app, run_app

app = make_app(import_object("agent_rl.envs.nat.create.commands:create"), __doc__)

if __name__ == "__main__":
    run_app(app)
