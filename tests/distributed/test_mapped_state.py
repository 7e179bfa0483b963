"""An optimizer's state from a mapped file ends up in the optimizer's own memory."""

import torch

from agent_rl.distributed.mapped_state import copied_state
from agent_rl.modeling.tensor_files import load_tensors, save_tensors


def optimizer_of(weight, *, num_steps):
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    for _ in range(num_steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return optimizer


def test_the_state_is_copied_into_the_tensors_that_were_there_before(tmp_path):
    saved = optimizer_of(torch.nn.Parameter(torch.zeros(1000)), num_steps=3)
    save_tensors(saved.state_dict(), tmp_path / "state.pt")
    weight = torch.nn.Parameter(torch.zeros(1000))
    optimizer = optimizer_of(weight, num_steps=1)
    places = {name: value.data_ptr() for name, value in optimizer.state[weight].items()}
    with copied_state(optimizer):
        optimizer.load_state_dict(load_tensors(tmp_path / "state.pt", mapped=True))
    assert {name: value.data_ptr() for name, value in optimizer.state[weight].items()} == places
    (wanted,) = saved.state.values()
    assert all(torch.equal(optimizer.state[weight][name], value) for name, value in wanted.items())


def test_without_a_state_of_before_nothing_of_the_file_stays_in_use(tmp_path):
    path = tmp_path / "state.pt"
    saved = optimizer_of(torch.nn.Parameter(torch.zeros(1000)), num_steps=3)
    save_tensors(saved.state_dict(), path)
    weight = torch.nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    with copied_state(optimizer):
        optimizer.load_state_dict(load_tensors(path, mapped=True))
    path.write_bytes(b"\xff" * path.stat().st_size)  # in place, so that a view of the file would show it
    (wanted,) = saved.state.values()
    assert all(torch.equal(optimizer.state[weight][name], value) for name, value in wanted.items())
    with open("/proc/self/maps", encoding="utf-8") as maps:
        assert str(path) not in maps.read()
