"""Whether a file holds what its name says, by its first bytes: a Parquet file called .jsonl is told so.

Not here: reading it.
"""

import re
from pathlib import Path

from agent_rl.errors import DataError

_HEAD_BYTES = 2**16
_ROW = re.compile(rb'\s*\{\s*"')
_ARRAY = re.compile(rb"\s*\[\s*\{")
_NEXT_ARRAY = re.compile(rb"\]\s*\n\s*\[")
"""Lines that are arrays each, which no format here has."""


def check_kind(path: Path, suffix: str) -> None:
    """DataError for a file of another format than `suffix` says, as far as its first bytes tell."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    what, right = _kind(head.removeprefix(b"\xef\xbb\xbf"))
    if not right or right == suffix or (suffix == ".json" and right == ".jsonl"):  # whose reader tells them apart
        return
    if right == ".jsonl.gz" and suffix != ".jsonl":
        raise DataError(f"{path}: is {what} and no {suffix} file; unpack it")
    raise DataError(f"{path}: is {what} and no {suffix} file; call it {path.name.removesuffix(suffix)}{right}")


def _kind(head: bytes) -> tuple[str, str]:
    """What the bytes are, and the suffix of that; both empty where they do not tell."""
    if head.startswith(b"PAR1"):
        return "a Parquet file", ".parquet"
    if head.startswith(b"\x1f\x8b"):
        return "packed by gzip", ".jsonl.gz"
    if _ROW.match(head):
        return "JSON in lines", ".jsonl"
    if _ARRAY.match(head) and not _NEXT_ARRAY.search(head):
        return "one JSON array", ".json"
    return "", ""
