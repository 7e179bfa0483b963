"""What bounded staleness buys on 8 GPUs: `python benchmarks/async_simulation.py [--steps N] [--seed S] [--KEY NUMBER]`.

A simulation by events: seconds for the default steps, a minute for 10,000. The scheduler is the very one of training
(`rollout/staleness.py`); time is a model, made of the numbers of `Plan`, which are printed and can all be set. Its
defaults are a dense 32B model in bfloat16 on H100s; data sheet figures times an efficiency, none of them measured
here. Compared are

- all 8 GPUs for both, by turns (synchronous, colocated);
- `train_gpus` for training and the rest for generation, with a staleness of at most 0 (synchronous), 1, 2 and 4.

The program fails if a group that is learned from is ever older than the bound.

Not modelled: whether the model's training state fits into the memory of `train_gpus` (of 32B with AdamW it does not
without offloading or adapters); a first prefill, since a group shares its prompt, and the tools' answers as tokens; a
key/value cache that fills up in the middle of an episode; prefix caches; episodes that are cut off by a deadline;
evaluations and checkpoints; groups without signal that are replaced; and whether older episodes teach as much as new
ones.
"""

import argparse
import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean

from agent_rl.rollout.staleness import GroupSlot, StalenessManager

STALENESS = (0, 1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every number of the model; seconds end in `_s`."""

    gpus: float = 8
    train_gpus: float = 4
    engine_gpus: float = 4
    """GPUs that one engine is split over."""
    groups_per_step: float = 16
    group_size: float = 8
    weights: float = 32.8e9
    """Parameters, 2 bytes each."""
    kv_bytes: float = 262_144
    """Of the cache, a token: 2 x 64 layers x 8 heads x 128 x 2 bytes."""
    gpu_bytes: float = 80e9
    memory_share: float = 0.9
    """Of a GPU's memory, for weights and cache while it generates."""
    flops: float = 989e12
    """Of a GPU, 16 bits, dense."""
    bandwidth: float = 3.35e12
    """Of a GPU's memory, bytes/s."""
    train_efficiency: float = 0.35
    prefill_efficiency: float = 0.5
    bandwidth_efficiency: float = 0.6
    decode_overhead_s: float = 0.004
    """Of a decode step, whatever the batch."""
    flops_per_weight: float = 8
    """Of a trained token: forward 2, backward 4, forward again 2."""
    prompt_tokens: float = 2000
    median_tokens: float = 2500
    """Generated in an episode; log-normal."""
    spread: float = 0.8
    """Standard deviation of the logarithm: the longest of 128 is about 7 times the median."""
    most_tokens: float = 16_000
    tool_s: float = 20
    """Mean time in tools of an episode; exponential."""
    sync_s: float = 10
    """New weights from trainer to generator, which stands still."""
    switch_s: float = 30
    """The same between training and generation on the same GPUs, waking up and going to sleep included."""

    @property
    def mean_context(self) -> float:
        return self.prompt_tokens + self.median_tokens * math.exp(self.spread**2 / 2) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """Who does what: `Mode(name="staleness 1", max_staleness=1, train_gpus=4, generate_gpus=4, sync_s=10)`."""

    name: str
    max_staleness: int
    train_gpus: float
    generate_gpus: float
    sync_s: float
    is_shared: bool = False
    """The same GPUs do both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    steps_per_hour: float
    generator_idle: float
    """Share of the time in which nothing is generated; with shared GPUs, and nothing is trained."""
    trainer_idle: float
    """Share of the time in which nothing is trained; with shared GPUs, and nothing is generated."""
    mean_decoding: float
    """Episodes that run at the same time."""
    dropped_share: float
    """Of the groups that were started."""
    staleness_mean: float
    staleness_max: int


@dataclass(slots=True)
class Episode:
    """One episode: half of its tokens, its tools, the other half."""

    slot: GroupSlot
    half: float
    tool_s: float
    is_second_half: bool = False


class Generator:
    """Engines that advance all running episodes at the same speed, which falls with their number."""

    def __init__(self, plan: Plan, generate_gpus: float) -> None:
        self._plan = plan
        self._num_engines = generate_gpus / plan.engine_gpus
        cache = plan.engine_gpus * plan.gpu_bytes * plan.memory_share - 2 * plan.weights
        self.most_decoding = int(self._num_engines * cache / (plan.kv_bytes * plan.mean_context))
        if self.most_decoding < 1:
            raise SystemExit("the weights leave no room for an episode; raise engine_gpus or gpu_bytes")
        self.now = self.idle_s = self.decoded_s = 0.0
        self._drawn = 0.0
        """Tokens that an episode would have if it had been generated from the beginning."""
        self._decoding: list[tuple[float, int, Episode]] = []
        self._in_tools: list[tuple[float, int, Episode]] = []
        self._waiting: deque[Episode] = deque()
        self._count = 0

    def step_s(self, num_decoding: int) -> float:
        """Of one token for each of them."""
        plan, batch = self._plan, num_decoding / self._num_engines
        read = 2 * plan.weights + batch * plan.mean_context * plan.kv_bytes
        memory_s = read / (plan.engine_gpus * plan.bandwidth * plan.bandwidth_efficiency)
        products_s = 2 * plan.weights * batch / (plan.engine_gpus * plan.flops * plan.prefill_efficiency)
        return plan.decode_overhead_s + max(memory_s, products_s)

    @property
    def prefill_s(self) -> float:
        """To read the contexts of all running episodes again, after the weights changed."""
        plan = self._plan
        products = 2 * plan.weights * plan.mean_context * len(self._decoding) / self._num_engines
        return products / (plan.engine_gpus * plan.flops * plan.prefill_efficiency)

    def add(self, episode: Episode) -> None:
        self._waiting.append(episode)
        self._fill()

    def drop(self, slots: set[int]) -> None:
        """Forget the episodes of these groups."""
        self._decoding = [entry for entry in self._decoding if entry[2].slot.id not in slots]
        self._in_tools = [entry for entry in self._in_tools if entry[2].slot.id not in slots]
        self._waiting = deque(episode for episode in self._waiting if episode.slot.id not in slots)
        heapq.heapify(self._decoding)
        heapq.heapify(self._in_tools)
        self._fill()

    def run(self, until: float) -> GroupSlot | None:
        """Continue to the end of an episode, whose group is returned, or to the time `until`."""
        while True:
            step_s = self.step_s(len(self._decoding))
            drawn_at = self.now + (self._decoding[0][0] - self._drawn) * step_s if self._decoding else math.inf
            back_at = self._in_tools[0][0] if self._in_tools else math.inf
            if min(drawn_at, back_at) > until:
                self._pass(until, step_s)
                return None
            if back_at < drawn_at:
                self._pass(back_at, step_s)
                self.add(heapq.heappop(self._in_tools)[2])
                continue
            self._pass(drawn_at, step_s)
            episode = heapq.heappop(self._decoding)[2]
            self._fill()
            if episode.is_second_half:
                return episode.slot
            episode.is_second_half = True
            self._push(self._in_tools, self.now + episode.tool_s, episode)

    def stand_still(self, seconds: float) -> None:
        """Generate nothing; tools continue."""
        self.idle_s += seconds
        self.now += seconds
        while self._in_tools and self._in_tools[0][0] <= self.now:
            self.add(heapq.heappop(self._in_tools)[2])

    def _pass(self, time: float, step_s: float) -> None:
        elapsed = time - self.now
        if self._decoding:
            self._drawn += elapsed / step_s
            self.decoded_s += elapsed * len(self._decoding)
        else:
            self.idle_s += elapsed
        self.now = time

    def _fill(self) -> None:
        while self._waiting and len(self._decoding) < self.most_decoding:
            episode = self._waiting.popleft()
            self._push(self._decoding, self._drawn + episode.half, episode)

    def _push(self, heap: list[tuple[float, int, Episode]], key: float, episode: Episode) -> None:
        self._count += 1  # the first of two equal keys goes first
        heapq.heappush(heap, (key, self._count, episode))


class Simulation:
    """Steps of one mode, one after the other, as the asynchronous source and the trainer make them."""

    def __init__(self, plan: Plan, mode: Mode, *, seed: int) -> None:
        self._plan, self._mode = plan, mode
        self._random = random.Random(seed)
        self._generator = Generator(plan, mode.generate_gpus)
        self._manager = StalenessManager(groups_per_step=int(plan.groups_per_step), max_staleness=mode.max_staleness)
        self._num_left: dict[int, int] = {}
        self._num_tokens: dict[int, float] = {}
        self._learned_s = 0.0
        self._staleness: list[int] = []

    def run(self, num_steps: int) -> Result:
        for version in range(num_steps):
            self._step(version)
        generator, total_s = self._generator, self._generator.now
        generator_idle, trainer_idle = generator.idle_s / total_s, 1 - self._learned_s / total_s
        if self._mode.is_shared:  # nothing is generated while they train
            generator_idle = trainer_idle = generator_idle + trainer_idle - 1
        return Result(
            steps_per_hour=num_steps / total_s * 3600,
            generator_idle=generator_idle,
            trainer_idle=trainer_idle,
            mean_decoding=generator.decoded_s / total_s,
            dropped_share=self._manager.num_dropped / self._manager.num_started,
            staleness_mean=fmean(self._staleness),
            staleness_max=max(self._staleness),
        )

    def _step(self, version: int) -> None:
        late = {slot.id for slot in self._manager.advance_to(version)}
        if late:
            self._generator.drop(late)
        while (slots := self._manager.pop_batch()) is None:
            self._start()
            self._run(math.inf)
        self._start()
        for slot in slots:
            staleness = version - slot.version
            if not 0 <= staleness <= self._mode.max_staleness:
                raise SystemExit(f"{self._mode.name}, step {version}: a group is {staleness} updates old")
            self._staleness.append(staleness)
        self._learn(sum(self._num_tokens.pop(slot.id) for slot in slots))
        self._generator.stand_still(self._mode.sync_s + self._generator.prefill_s)

    def _start(self) -> None:
        plan = self._plan
        for _ in range(self._manager.num_free):
            slot = self._manager.start()
            self._num_left[slot.id] = int(plan.group_size)
            self._num_tokens[slot.id] = plan.prompt_tokens
            for _ in range(int(plan.group_size)):
                sampled = self._random.lognormvariate(math.log(plan.median_tokens), plan.spread)
                sampled = min(sampled, plan.most_tokens)
                tool_s = self._random.expovariate(1 / plan.tool_s) if plan.tool_s else 0.0
                self._num_tokens[slot.id] += sampled
                self._generator.add(Episode(slot, sampled / 2, tool_s))

    def _run(self, until: float) -> bool:
        """Until an episode is over, or the time; whether it was an episode."""
        if (slot := self._generator.run(until)) is None:
            return False
        self._num_left[slot.id] -= 1
        if not self._num_left[slot.id]:
            del self._num_left[slot.id]
            self._manager.finish(slot.id)
        return True

    def _learn(self, num_tokens: float) -> None:
        plan = self._plan
        seconds = learn_s(plan, num_tokens, self._mode.train_gpus)
        self._learned_s += seconds
        until = self._generator.now + seconds
        while self._run(until):
            pass


def learn_s(plan: Plan, num_tokens: float, train_gpus: float) -> float:
    """Of one update."""
    products = plan.flops_per_weight * plan.weights * num_tokens
    return products / (train_gpus * plan.flops * plan.train_efficiency)


def modes(plan: Plan) -> list[Mode]:
    """What is compared; the first is what the others are measured by."""
    apart = plan.gpus - plan.train_gpus
    together = Mode(
        name="synchronous, colocated",
        max_staleness=0,
        train_gpus=plan.gpus,
        generate_gpus=plan.gpus,
        sync_s=plan.switch_s,
        is_shared=True,
    )
    split = Mode(
        name="synchronous, apart", max_staleness=0, train_gpus=plan.train_gpus, generate_gpus=apart, sync_s=plan.sync_s
    )
    return [together, *(replace(split, max_staleness=k, name=f"staleness {k}" if k else split.name) for k in STALENESS)]


def table(plan: Plan, *, num_steps: int, seed: int) -> str:
    """A line for each mode."""
    lines = [
        f"{'':24}{'steps/h':>9}{'x':>7}{'generator':>11}{'trainer':>9}{'episodes':>10}{'groups':>9}{'staleness':>12}",
        f"{'':24}{'':9}{'':7}{'idle':>11}{'idle':>9}{'running':>10}{'dropped':>9}{'mean':>7}{'max':>5}",
    ]
    base = None
    for mode in modes(plan):
        result = Simulation(plan, mode, seed=seed).run(num_steps)
        base = base or result.steps_per_hour
        lines.append(
            f"{mode.name:24}{result.steps_per_hour:9.2f}{result.steps_per_hour / base:7.2f}"
            f"{result.generator_idle:11.1%}{result.trainer_idle:9.1%}{result.mean_decoding:10.0f}"
            f"{result.dropped_share:9.1%}{result.staleness_mean:7.2f}{result.staleness_max:5d}"
        )
    return "\n".join(lines)


def assumptions(plan: Plan) -> str:
    """All numbers, and what follows from them for the modes with GPUs of their own."""
    generate_gpus = plan.gpus - plan.train_gpus
    apart, num_episodes = Generator(plan, generate_gpus), int(plan.groups_per_step * plan.group_size)
    tokens = num_episodes * 2 * (plan.mean_context - plan.prompt_tokens) + plan.groups_per_step * plan.prompt_tokens
    batch = min(num_episodes, apart.most_decoding)
    alone, together = (number / apart.step_s(number) for number in (1, batch))
    numbers = [f"{field.name}={getattr(plan, field.name):g}" for field in fields(plan)]
    return (
        f"{' '.join(numbers)}\n"
        f"hence, with {generate_gpus:g} GPUs to generate: at most {apart.most_decoding} episodes at a time; one alone "
        f"{alone:.0f} tokens/s, {batch} together {together:.0f} tokens/s\n"
        f"a step has {num_episodes} episodes, about {tokens / 1e3:.0f} thousand tokens: an update takes about "
        f"{learn_s(plan, tokens, plan.train_gpus):.0f} s on {plan.train_gpus:g} GPUs, "
        f"{learn_s(plan, tokens, plan.gpus):.0f} s on {plan.gpus:g}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    for field in fields(Plan):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=float, default=field.default)
    options = vars(parser.parse_args())
    num_steps, seed = options.pop("steps"), options.pop("seed")
    plan = Plan(**options)
    print(f"{Path(__file__).name}: {num_steps} steps, seed {seed}; a model, nothing measured\n{assumptions(plan)}\n")
    print(table(plan, num_steps=num_steps, seed=seed))


if __name__ == "__main__":
    main()
