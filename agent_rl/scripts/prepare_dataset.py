"""Make the NAT task files; the options and what is written: `agent_rl/envs/nat/prepare.py`."""

import sys

if __name__ == "__main__":  # run by its path, where the package need not be installed
    sys.path.insert(0, __file__.rpartition("/agent_rl/")[0])

from agent_rl.registry import import_object
from agent_rl.scripts.common import make_app, run_app

main = import_object("agent_rl.envs.nat.prepare:main")
app = make_app(main)

if __name__ == "__main__":
    run_app(app)
