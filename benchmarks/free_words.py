"""What becomes of requests without a plan: `python benchmarks/free_words.py --checkpoint runs/nat_minimind_words`.

The requests are as users would type them (`factory/user_requests.py`, the planner's own examples), in words that no
demonstration has. Those about dates and for several tools are left out: the small models were never shown such agents.
Prints a line for each, then how many of the first projects and of all `--candidates` build, serve and pass their own
tests.
Not here: whether an agent does what was meant, which nobody can tell without a plan.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from agent_rl.envs.nat.create.creator import AgentCreator
from agent_rl.envs.nat.create.settings import load_serve_config
from agent_rl.envs.nat.factory.user_requests import EXAMPLES, requests
from agent_rl.telemetry.statistics import wilson_interval

ROOT = Path(__file__).resolve().parents[1]
ROOM = ["writes.free_words=true", "policy.max_context=1536", "policy.max_new_tokens=1200", "creation.deadline_s=300"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, help="a model that was shown such requests; none that ships was")
    parser.add_argument("--requests", type=int, default=40, help="how many")
    parser.add_argument("--candidates", type=int, default=4, help="projects a request, the first one greedy")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    options = parser.parse_args()
    first, built = 0, 0
    with AgentCreator.open(load_serve_config(ROOT / "configs/serve.yaml", ROOM), checkpoint=options.checkpoint) as made:
        for text in itertools.islice(within_reach(options.seed), options.requests):
            creation = made.create(text, candidates=options.candidates)
            if creation.state == "refused":
                sys.exit(f"{options.checkpoint}: {creation.reason}")
            first += creation.candidates[0].verdict == "built"
            built += creation.state == "built"
            problem = "" if creation.state == "built" else "; ".join(creation.reason.splitlines())[:120]
            print(f"{creation.state:8} {len(creation.candidates)}  {text[:90]}  {problem}", flush=True)
    for name, num in (("the first project", first), (f"one of {options.candidates}", built)):
        low, high = wilson_interval(num, options.requests)
        share = 100 * num / options.requests
        print(f"{name} is built: {share:.1f} % of {options.requests} [{100 * low:.1f}, {100 * high:.1f}]")


def within_reach(seed: int) -> Iterator[str]:
    """Requests for one tool of a family that the starter has; the examples, which are of all kinds, are left out."""
    stream = itertools.islice(requests(100_000, seed), len(EXAMPLES), None)
    return (text for text in stream if "a date tool" not in text.lower())


if __name__ == "__main__":
    main()
