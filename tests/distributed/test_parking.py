"""An optimizer's state that is moved away between updates."""

import pytest
import torch

from agent_rl.distributed.parking import ParkedState


def test_a_parked_state_is_the_same_afterwards_and_readable_meanwhile():
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = torch.optim.AdamW([weight], lr=0.5)
    weight.grad = torch.tensor([1.0, -1.0])
    optimizer.step()
    before = {name: value.clone() for name, value in optimizer.state[weight].items()}
    places = {name: value.data_ptr() for name, value in optimizer.state[weight].items()}
    master, buffer = torch.tensor([3.0, 4.0]), torch.ones(100)
    part = buffer[10:20]
    state = ParkedState(optimizer, torch.device("cpu"), masters=[master], buffers=[buffer])
    for _ in range(2):
        state.park()
        assert state.is_parked
        assert buffer.untyped_storage().nbytes() == 0
        assert master.tolist() == [3.0, 4.0]
        saved = optimizer.state_dict()["state"][0]
        assert all(torch.equal(saved[name], value) for name, value in before.items())
        moved = {name for name, value in optimizer.state[weight].items() if value.data_ptr() != places[name]}
        assert moved == {"exp_avg", "exp_avg_sq"}
        state.unpark()
        part.fill_(7.0)  # a view as it was
        assert buffer[15] == 7.0
        assert all(torch.equal(value, before[name]) for name, value in optimizer.state[weight].items())


def test_what_is_unparked_and_stepped_is_parked_anew():
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    state = ParkedState(optimizer, torch.device("cpu"))
    state.park()  # nothing yet
    state.unpark()
    for expected in (1.0, 1.9):
        weight.grad = torch.tensor([1.0])
        optimizer.step()
        state.park()
        assert float(optimizer.state[weight]["momentum_buffer"]) == pytest.approx(expected)
        state.unpark()
