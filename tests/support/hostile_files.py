"""The hostile solutions and suites, read from their folders."""

from pathlib import Path

HOSTILE = Path(__file__).resolve().parents[1] / "hostile"


def load(folder: Path) -> dict[str, bytes]:
    """The files of a folder; a last `.txt` is only there so that no tool of ours takes the file for its own."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)).removesuffix(".txt"): path.read_bytes() for path in files}
