"""A file that grows: each whole line once, in whatever pieces it comes, and from the start when it was replaced."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.monitoring import growing_file
from agent_rl.monitoring.growing_file import GrowingFile


class Reader:
    def __init__(self, path: Path) -> None:
        self.lines: list[bytes] = []
        self.file = GrowingFile(path, on_restart=self.lines.clear)

    def read(self) -> list[bytes]:
        for lines in self.file.new_lines():
            self.lines += lines
        return self.lines


@settings(deadline=None)  # a disk under load
@given(st.lists(st.binary(max_size=12), max_size=12))
def test_whatever_the_pieces_the_whole_lines_are_those_of_the_file(tmp_path_factory, pieces: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("grow") / "lines"
    reader, written = Reader(path), b""
    for piece in pieces:
        written += piece
        path.write_bytes(written)
        assert reader.read() == written.split(b"\n")[:-1]


def test_a_line_under_way_is_left_for_the_next_time_and_nothing_is_read_twice(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(growing_file, "_BLOCK_BYTES", 4)
    path = tmp_path / "lines"
    reader = Reader(path)
    assert reader.read() == []
    path.write_bytes(b"first line\nhal")
    assert reader.read() == [b"first line"]
    with path.open("ab") as file:
        file.write(b"f\nthird\n")
    assert reader.read() == [b"first line", b"half", b"third"]
    assert reader.read() == [b"first line", b"half", b"third"]


def test_a_file_with_other_lines_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    reader = Reader(path)
    path.write_bytes(b"1 a\n2 b\n3 c\n")
    reader.read()
    path.write_bytes(b"1 a\n2 b\n3 other\n4 d\n")
    assert reader.read() == [b"1 a", b"2 b", b"3 other", b"4 d"]
    path.write_bytes(b"1 a\n")
    assert reader.read() == [b"1 a"]
    path.unlink()
    assert reader.read() == []
