"""The source that waits for clients: when an update is complete, and what follows a rollback."""

from pathlib import Path

import pytest
import torch
from builders import episode, turn
from fakes import tiny_config

from agent_rl.distributed.processes import Processes
from agent_rl.endpoint.errors import EndpointError
from agent_rl.records import TrajectoryGroup
from agent_rl.serving.groups import ReadGroups
from agent_rl.serving.served_source import ServedSource

GROUPS = ReadGroups(
    groups=(TrajectoryGroup(task_id="t", trajectories=(episode(1.0, turn()), episode(0.0, turn()))),),
    episode_ids=("a", "b"),
    num_mismatches=0,
)


class Resumed:
    """How often requests were let in again."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def resumed() -> Resumed:
    return Resumed()


@pytest.fixture
def source(tmp_path, resumed: Resumed) -> ServedSource:
    return ServedSource(tiny_config(tmp_path), Processes(device=torch.device("cpu"), timeout_s=5.0), on_done=resumed)


def test_an_update_is_complete_once_its_whole_step_is(source: ServedSource, resumed: Resumed) -> None:
    assert source.ask(GROUPS) == 1
    assert len(source.collect(step=1).groups) == 1
    source.commit()
    with pytest.raises(EndpointError) as caught:
        source.ask(GROUPS)
    assert (caught.value.code, resumed.count) == ("update_running", 0)
    source.last_metrics = lambda: {"reward/mean": 0.5}
    source.finish()
    assert source.status is not None
    assert (source.status.state, source.status.weight_version) == ("completed", 1)
    assert (source.status.metrics, resumed.count) == ({"reward/mean": 0.5}, 1)
    assert source.ask(GROUPS) == 2


def test_after_a_rollback_clients_go_on_from_the_step_that_it_led_to(source: ServedSource, resumed: Resumed) -> None:
    source.ask(GROUPS)
    source.collect(step=1)
    source.commit()
    source.rewind(0)
    source.finish()
    assert source.status is not None
    assert (source.status.state, source.status.weight_version, resumed.count) == ("completed", 0, 1)
    assert source.ask(GROUPS) == 1


def test_requests_are_let_in_again_before_the_next_update_may_be_asked_for(tmp_path: Path) -> None:
    codes: list[str] = []

    def ask_again() -> None:
        with pytest.raises(EndpointError) as caught:
            source.check_free()
        codes.append(caught.value.code)

    processes = Processes(device=torch.device("cpu"), timeout_s=5.0)
    source = ServedSource(tiny_config(tmp_path), processes, on_done=ask_again)
    source.ask(GROUPS)
    source.collect(step=1)
    source.commit()
    source.finish()
    source.check_free()
    assert codes == ["update_running"]
