"""The simulation of asynchronous training: its arithmetic by hand, its bound over many steps, its table."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import async_simulation as sim
import pytest

from agent_rl.rollout.staleness import GroupSlot, StalenessManager

PATH = Path(sim.__file__)
EVEN = sim.Plan(
    gpus=2,
    train_gpus=1,
    engine_gpus=1,
    groups_per_step=1,
    group_size=1,
    weights=1,
    kv_bytes=1,
    gpu_bytes=1e6,
    flops=1,
    bandwidth=1e30,
    train_efficiency=1,
    prefill_efficiency=1e30,
    decode_overhead_s=0.01,
    flops_per_weight=0.1,
    prompt_tokens=0,
    median_tokens=1000,
    spread=0,
    tool_s=0,
    sync_s=5,
)
"""An episode takes 1000 x 0.01 = 10 s, an update of its tokens 1000 x 0.1 = 100 s, new weights 5 s."""
SMALL = sim.Plan(groups_per_step=2, group_size=2)


def run(plan: object, name: str, num_steps: int, seed: int = 0) -> object:
    mode = next(mode for mode in sim.modes(plan) if mode.name == name)
    return sim.Simulation(plan, mode, seed=seed).run(num_steps)


def test_a_synchronous_step_takes_its_parts_one_after_the_other() -> None:
    result = run(EVEN, "synchronous, apart", 20)
    assert result.steps_per_hour == pytest.approx(3600 / (10 + 100 + 5))
    assert result.generator_idle == pytest.approx(105 / 115)
    assert result.trainer_idle == pytest.approx(15 / 115)
    assert result.mean_decoding == pytest.approx(10 / 115)


def test_with_staleness_episodes_run_while_the_trainer_updates() -> None:
    # The first step waits 10 s for its episode; all others find theirs over.
    result = run(EVEN, "staleness 1", 20)
    assert result.steps_per_hour == pytest.approx(20 * 3600 / (10 + 20 * 105))
    assert result.trainer_idle == pytest.approx(1 - 20 * 100 / (10 + 20 * 105))
    assert (result.staleness_max, result.staleness_mean) == (1, pytest.approx(19 / 20))


def test_on_shared_gpus_only_the_switch_is_idle() -> None:
    # Twice the GPUs update in half the time; one episode cannot use a second engine, so 10 s.
    result = run(replace(EVEN, switch_s=30), "synchronous, colocated", 20)
    assert result.steps_per_hour == pytest.approx(3600 / (10 + 50 + 30))
    assert result.generator_idle == result.trainer_idle == pytest.approx(30 / 90)


def test_an_episode_in_its_tools_generates_nothing() -> None:
    generator = sim.Generator(EVEN, 1)
    generator.add(sim.Episode(GroupSlot(0, 0), 500, 7.0))  # generates 0-5 s, tools until 12 s, generates until 17 s
    generator.add(sim.Episode(GroupSlot(0, 1), 500, 0.0))  # generates 0-10 s
    assert generator.run(4.0) is None
    assert [generator.run(100.0) for _ in range(2)] == [GroupSlot(0, 1), GroupSlot(0, 0)]
    assert generator.now == pytest.approx(17)
    assert (generator.decoded_s, generator.idle_s) == (pytest.approx(20), pytest.approx(2))


def test_episodes_that_do_not_fit_into_the_cache_wait() -> None:
    # A token is a byte and an episode 500 on average, of 700 x 0.9 - 2: one at a time.
    cramped = replace(EVEN, group_size=2, gpu_bytes=700)
    assert sim.Generator(cramped, 1).most_decoding == 1
    assert run(cramped, "synchronous, apart", 10).steps_per_hour == pytest.approx(3600 / (20 + 200 + 5))
    with pytest.raises(SystemExit, match="the weights leave no room"):
        sim.Generator(replace(EVEN, gpu_bytes=2), 1)


def test_dropped_episodes_free_memory() -> None:
    generator = sim.Generator(replace(EVEN, gpu_bytes=700), 1)
    for group in (0, 1, 2):
        generator.add(sim.Episode(GroupSlot(0, group), 500, 0.0))
    generator.run(2.0)
    generator.drop({0, 1})
    assert generator.run(100.0) == GroupSlot(0, 2)
    assert generator.now == pytest.approx(2 + 10)


@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
def test_ten_thousand_steps_never_learn_from_older_groups(staleness: int) -> None:
    name = f"staleness {staleness}" if staleness else "synchronous, apart"
    result = run(SMALL, name, 10_000)
    assert result.staleness_max == staleness
    assert (result.dropped_share > 0) == (staleness > 0)


def test_a_group_that_is_too_old_ends_the_program() -> None:
    mode = next(mode for mode in sim.modes(SMALL) if mode.name == "staleness 1")
    simulation = sim.Simulation(SMALL, mode, seed=0)
    simulation._manager = StalenessManager(groups_per_step=2, max_staleness=4)
    with pytest.raises(SystemExit, match="staleness 1, step 2: a group is 2 updates old"):
        simulation.run(100)


def test_staleness_helps_in_the_default_plan() -> None:
    plan = sim.Plan()
    rates = [run(plan, mode.name, 100).steps_per_hour for mode in sim.modes(plan)]
    _colocated, apart, one, two, four = rates
    assert apart < one < two < four


def test_a_seed_decides_everything() -> None:
    one, again, other = (run(SMALL, "staleness 2", 200, seed) for seed in (1, 1, 2))
    assert one == again != other


def test_the_program_prints_its_assumptions_and_a_line_for_each_mode() -> None:
    command = [sys.executable, str(PATH), "--steps", "5", "--seed", "3", "--groups-per-step", "2", "--tool-s", "0"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=400, check=True).stdout
    assert "5 steps, seed 3; a model, nothing measured" in out
    assert "groups_per_step=2 " in out
    assert "tool_s=0 " in out
    for mode in sim.modes(sim.Plan()):
        assert f"\n{mode.name} " in out
