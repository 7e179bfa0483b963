"""Make the NAT task files; the options and what is written: `agent_rl/envs/nat/prepare.py`."""

from agent_rl.registry import import_object
from agent_rl.scripts.common import make_app, run_app

main = import_object("agent_rl.envs.nat.prepare:main")
app = make_app(main)

if __name__ == "__main__":
    run_app(app)
