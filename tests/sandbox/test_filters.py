"""The system call filter of every machine, played instruction by instruction: also of those that we do not have."""

import errno
import os
import struct
from pathlib import Path

import pytest

from agent_rl.sandbox.guest import filters

ALLOWED, KILLED = "allowed", "killed"


def answer(machine: str, number: int, *arguments: int, monkeypatch: pytest.MonkeyPatch, network: bool = True) -> str:
    """What the filter says of one system call: allowed, killed or the name of an error, `0` for no effect."""
    monkeypatch.setattr(filters, "MACHINE", machine)
    program = filters.seccomp_program(filters.filter_families(network=network))
    code = list(struct.iter_unpack("HBBI", program))
    values = [argument & (2**64 - 1) for argument in (*arguments, *[0] * (6 - len(arguments)))]
    arch = filters._AUDIT_ARCH[filters._MACHINES[machine]]
    data = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, arch, 0, *values)
    at = loaded = 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == filters._RETURN:
            break
        if operation == filters._LOAD:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif operation == filters._AND:
            loaded &= value
        else:
            holds = {
                filters._EQUAL: loaded == value,
                filters._AT_LEAST: loaded >= value,
                filters._ANY_BIT: bool(loaded & value),
            }
            at += if_true if holds[operation] else if_false
    if value == filters._ALLOW:
        return ALLOWED
    return KILLED if value == filters._KILL else errno.errorcode.get(value & 0xFFFF, str(value & 0xFFFF))


@pytest.mark.parametrize("machine", filters._MACHINES)
def test_calls_that_the_filter_was_not_written_for_do_not_exist(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"x86_64": range(335, 424), "aarch64": range(295, 424)}[machine]
    futexes = (449, 454, 455, 456)
    for number in (*old, *futexes, *range(453, 700), 2**20):
        assert answer(machine, number, monkeypatch=monkeypatch) == "ENOSYS", number
    for number in (424, 434, 436, 437, 439, 441, 452):
        assert answer(machine, number, monkeypatch=monkeypatch) == ALLOWED, number


@pytest.mark.parametrize("machine", filters._MACHINES)
def test_calls_in_the_table_are_answered_as_it_says(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    column = filters._MACHINES[machine]
    for name, numbers in filters._DENIED.items():
        if (number := numbers[column]) is not None:
            assert answer(machine, number, monkeypatch=monkeypatch) == "EPERM", name
    for name, numbers in filters._WITHOUT_EFFECT.items():
        assert answer(machine, numbers[column], monkeypatch=monkeypatch) == "0", name
    read_and_futex = {"x86_64": (0, 202), "aarch64": (63, 98)}[machine]
    assert {answer(machine, number, monkeypatch=monkeypatch) for number in read_and_futex} == {ALLOWED}
    assert answer(machine, filters._SOCKET[column], 16, monkeypatch=monkeypatch) == "EAFNOSUPPORT"
    assert answer(machine, filters._SOCKET[column], 1, monkeypatch=monkeypatch) == ALLOWED
    if machine == "x86_64":
        assert answer(machine, 0x40000000, monkeypatch=monkeypatch) == KILLED


@pytest.mark.parametrize("machine", filters._MACHINES)
def test_sizes_of_socket_buffers_stay_and_other_options_can_be_set(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setsockopt, whole_socket = {"x86_64": 54, "aarch64": 208}[machine], 1
    sizes, reuse_address = (7, 8, 32, 33), 2
    for option in sizes:
        assert answer(machine, setsockopt, 3, whole_socket, option, monkeypatch=monkeypatch) == "0"
    assert answer(machine, setsockopt, 3, whole_socket, reuse_address, monkeypatch=monkeypatch) == ALLOWED


@pytest.mark.parametrize("machine", filters._MACHINES)
def test_pairs_of_sockets_are_of_one_family_and_reach_no_address(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    socketpair = {"x86_64": 53, "aarch64": 199}[machine]
    unix, stream, datagram, raw, packets, close_on_exec = 1, 1, 2, 3, 5, 0o2000000
    for network in (True, False):
        for kind in (stream, packets, stream | close_on_exec):
            assert answer(machine, socketpair, unix, kind, monkeypatch=monkeypatch, network=network) == ALLOWED
        for family in set(range(46)) - {unix}:
            for kind in (stream, datagram):
                refused = answer(machine, socketpair, family, kind, monkeypatch=monkeypatch, network=network)
                assert refused == "EAFNOSUPPORT", family
    for kind in (datagram, raw, datagram | close_on_exec, 4, 0):
        assert answer(machine, socketpair, unix, kind, monkeypatch=monkeypatch, network=False) == "ESOCKTNOSUPPORT"
    assert answer(machine, socketpair, unix, datagram, monkeypatch=monkeypatch, network=True) == ALLOWED


@pytest.mark.parametrize("machine", filters._MACHINES)
def test_a_process_is_made_below_its_maker_and_not_beside_it(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = {"x86_64": 56, "aarch64": 220}[machine]
    fork, vfork, thread, parent = 17, 0x4000 | 0x100 | 17, 0x3D0F00, 0x8000
    for flags in (fork, vfork, thread):
        assert answer(machine, clone, flags, monkeypatch=monkeypatch) == ALLOWED
        assert answer(machine, clone, flags | parent, monkeypatch=monkeypatch) == "EPERM"


def test_what_is_hidden_is_left_out_and_all_beside_it_is_not(tmp_path: Path) -> None:
    """Folders that hold something hidden show their names alone."""
    packages = tmp_path / "lib" / "packages"
    for name in ("ours/deep", "theirs"):
        (packages / name).mkdir(parents=True)
    for path in (packages / "single.py", tmp_path / "keys.conf", tmp_path / "read_me"):
        path.write_text("")
    (tmp_path / "lib64").symlink_to(tmp_path / "lib")
    (packages / "also_ours").symlink_to(packages / "ours")
    hidden = {str(packages / "ours"), str(tmp_path / "keys.conf")}
    readable, listable = filters.all_but(hidden, [str(tmp_path), str(tmp_path / "lib64"), "/proc"])
    shown = {packages / "theirs", packages / "single.py", tmp_path / "read_me", Path("/proc")}
    assert (set(map(Path, readable)), set(map(Path, listable))) == (shown, {tmp_path, tmp_path / "lib", packages})
    assert filters.all_but({"/nowhere"}, [str(tmp_path)]) == ([str(tmp_path)], [])


def test_the_filter_of_this_machine_has_the_numbers_of_its_kernel() -> None:
    assert os.uname().machine not in filters._MACHINES or filters.seccomp_program(())
