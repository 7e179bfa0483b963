"""What a run left is removed, whatever it is and whatever happens to it meanwhile; nothing else is touched."""

import os
from pathlib import Path

import pytest

from agent_rl.sandbox.guest import trees


def make_locked_tree(top: Path) -> None:
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "file").write_text("x")
    (top / "link").symlink_to("/")
    os.mkfifo(top / "pipe")
    for path in (top / "a" / "b", top / "a", top):
        path.chmod(0)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_locked_tree_goes_and_what_its_links_name_stays(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(0o755)
    box = tmp_path / "box"
    make_locked_tree(box)
    box.chmod(0o700)
    (box / "to_victim").symlink_to(victim)
    trees.remove_tree(str(box))
    assert (list(tmp_path.iterdir()), mode_of(victim)) == ([victim], 0o755)
    with pytest.raises(FileNotFoundError):
        trees.remove_tree(str(box))


@pytest.mark.parametrize("place", ["top", "inside"])
def test_a_link_that_takes_the_place_of_a_folder_is_not_followed(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, box = tmp_path / "victim", tmp_path / "box"
    victim.mkdir(0o755)
    (box / "a").mkdir(parents=True)
    some_entries = trees._some_entries

    def swap(folder: Path) -> None:
        folder.rmdir()
        folder.symlink_to(victim)

    def swap_what_was_found(handle: int) -> list[os.DirEntry[str]]:
        entries = some_entries(handle)
        for entry in entries:
            entry.is_dir(follow_symlinks=False)  # looked at and remembered before it becomes a link
        if (box / "a").is_dir():
            swap(box / "a")
        return entries

    if place == "top":
        swap(box / "a")
        swap_top = box.rename(tmp_path / "away")
        box.symlink_to(swap_top / "a")
    else:
        monkeypatch.setattr(trees, "_some_entries", swap_what_was_found)
    with pytest.raises(NotADirectoryError):
        trees.remove_tree(str(box))
    assert mode_of(victim) == 0o755


def test_what_servers_that_are_gone_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_parent", lambda: str(tmp_path))
    living = Path(trees.make_scratch(1))
    (tmp_path / f"{living.name}_7_{'0' * 16}").mkdir()
    victim = tmp_path / "agent_rl_victim"
    victim.mkdir(0o755)
    kept = set(tmp_path.iterdir())
    gone = "agent_rl_1_abcdefgh"
    (tmp_path / gone).mkdir(0o000)
    make_locked_tree(tmp_path / f"{gone}_7_{'1' * 16}")
    (tmp_path / f"{gone}_7_{'1' * 16}.0.3").mkdir()
    (tmp_path / f"agent_rl_2_ijklmnop_8_{'2' * 16}").mkdir()
    (tmp_path / f"agent_rl_2_ijklmnop_8_{'3' * 16}").symlink_to(victim)
    (tmp_path / "agent_rl_3_qrstuvwx").symlink_to(victim)
    trees.remove_stale()
    assert (set(tmp_path.iterdir()), mode_of(victim)) == (kept, 0o755)
