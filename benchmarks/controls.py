"""What reinforcement learning has to beat, from the same warm start: `python benchmarks/controls.py KIND ...`.

`rejection`: episodes of the training tasks are sampled for half of the minutes, and those that the checker passed are
trained on in the other half; `--rounds` does so several times within the same minutes, each round
sampling from the model of the one before and training on all that was selected. `shuffled`: the default run with the
rewards of a step shuffled among its episodes, which must not rise. `key=value` changes the config.
Supervised learning that continues with the teacher's demonstrations needs no script: `agent-rl sft --init-from
model/nat_minimind`.

Not here: evaluation of what comes out; `agent-rl eval --checkpoint` does it for all of them alike, with DIR/model after
`rejection` and DIR/checkpoints/step_N after `shuffled`.
"""

import argparse
import copy
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from agent_rl import GRPOTrainer, load_config
from agent_rl.config import Config
from agent_rl.data.tasks import read_split
from agent_rl.distributed.backend import Backend
from agent_rl.envs.opening import open_environment
from agent_rl.learning.samples import build_samples
from agent_rl.learning.sft import Conversation, SftSettings, train_sft
from agent_rl.learning.update import UpdateResult
from agent_rl.policies.make_policy import make_in_process_policy
from agent_rl.records import TrajectoryGroup
from agent_rl.rollout.rollout import RolloutRequest, make_worker
from agent_rl.scripts.train_sft import print_progress
from agent_rl.telemetry.statistics import is_success

ROOT = Path(__file__).resolve().parents[1]
TRIAL_CONVERSATIONS = 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("rejection", "shuffled"))
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=ROOT / "configs/nat_grpo.yaml", help="what the run trains on")
    parser.add_argument("--minutes", type=float, default=30.0, help="wall time of `rejection`")
    parser.add_argument("--rounds", type=int, default=1, help="of sampling and learning, in `rejection`")
    parser.add_argument(
        "--learning-rate", type=float, default=1e-3, help="of AdamW, in `rejection`; Muon's is ten times it"
    )
    parser.add_argument("overrides", nargs="*", help="section.key=value")
    options = parser.parse_intermixed_args()
    output = options.output_dir
    settings = [f"run.output_dir={output.parent}", f"run.name={output.name}", *options.overrides]
    config = load_config(options.config, settings)
    if options.kind == "shuffled":
        with ShuffledRewards.from_config(config) as trainer:
            trainer.train()
    else:
        rejection(config, output, 60.0 * options.minutes, options.rounds, options.learning_rate)


class ShuffledRewards(GRPOTrainer):
    """Learns from rewards that belong to other episodes of the same step."""

    def update(self, groups: Sequence[TrajectoryGroup]) -> UpdateResult:
        rng = random.Random(f"shuffle-{self.config.run.seed}-{self.step}")
        rewards = [episode.reward for group in groups for episode in group.trajectories]
        rng.shuffle(rewards)
        dealt = iter(rewards)
        return super().update(
            [
                replace(group, trajectories=tuple(replace(each, reward=next(dealt)) for each in group.trajectories))
                for group in groups
            ]
        )


def rejection(config: Config, output: Path, seconds: float, rounds: int, rate: float) -> None:
    """Sample, select what passed, train on it; write the model to `output/model`."""
    started = time.monotonic()
    backend = Backend(config.run.device, timeout_s=config.run.timeout_s)
    factory = open_environment(config)
    tasks = read_split(config.data, "train", factory.check_task)
    policy = make_in_process_policy(config, device=backend.device)
    factory.start()
    selected: list[Conversation] = []
    group_size, num_groups = config.rollout.group_size, config.rollout.groups_per_step
    with closing(policy), closing(factory):
        worker = make_worker(config, policy, factory)
        shuffled = itertools.cycle(random.Random(config.run.seed).sample(tasks, len(tasks)))
        step, pace = 0, 0.0
        for number in range(1, rounds + 1):
            policy.refresh_weights(step)
            while time.monotonic() - started < seconds * (number - 0.5) / rounds:
                step += 1
                chosen = list(itertools.islice(shuffled, num_groups))
                request = RolloutRequest(
                    tasks=chosen, group_size=group_size, step=step, temperature=config.policy.temperature
                )
                groups = worker.collect(request)
                passed_now = [each for group in groups for each in passed(group)]
                selected += passed_now
                spent = time.monotonic() - started
                print(f"{spent:6.0f} s  {len(passed_now)} of {num_groups * group_size} episodes selected", flush=True)
            if not selected:
                raise SystemExit(f"no episode passed in {step} steps, so there is nothing to learn; raise --minutes")
            pace = pace or conversations_per_second(policy.trained.module, selected)
            left = seconds * number / rounds - (time.monotonic() - started)
            num = max(0, int(pace * left))
            learn(policy.trained.module, selected, num, rate=rate, seed=config.run.seed + number)
        policy.trained.save_pretrained(output / "model")


def passed(group: TrajectoryGroup) -> Iterator[Conversation]:
    """The distinct successful episodes of a group as conversations."""
    seen = set()
    for episode in group.trajectories:
        if is_success(episode.reward_parts):
            for sample in build_samples(episode)[0]:
                if sample.token_ids not in seen:
                    seen.add(sample.token_ids)
                    yield Conversation(token_ids=list(sample.token_ids), loss_mask=list(sample.loss_mask))


def conversations_per_second(model, selected: Sequence[Conversation]) -> float:
    """How fast a copy of the model, which is thrown away, learns."""
    started = time.monotonic()
    trial = SftSettings(num_conversations=TRIAL_CONVERSATIONS)
    train_sft(copy.deepcopy(model), shuffled_for_ever(selected, 0), trial, lambda *_: None)
    return TRIAL_CONVERSATIONS / (time.monotonic() - started)


def learn(model, selected: Sequence[Conversation], num: int, *, rate: float, seed: int) -> None:
    """Fine-tune in place on `num` conversations, as often over `selected` as that takes."""
    print(f"{num} conversations to train on, each {num / len(selected):.1f} times", flush=True)
    settings = SftSettings(num_conversations=num, learning_rate=rate, muon_learning_rate=10 * rate, seed=seed)
    train_sft(model, shuffled_for_ever(selected, seed), settings, print_progress)


def shuffled_for_ever(selected: Sequence[Conversation], seed: int) -> Iterator[Conversation]:
    for epoch in itertools.count():
        yield from random.Random(f"{seed}-{epoch}").sample(selected, len(selected))


if __name__ == "__main__":
    main()
