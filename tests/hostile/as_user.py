"""Run the table as another user and print it as JSON: `python as_user.py TIER [UID]`, UID only for root.

The interpreter may lie below a folder that only root may enter, such as root's home. In a private mount namespace
such a folder is covered by an empty one that everybody may enter, with the needed paths bound back in.
"""

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

_NEWNS, _BIND, _REC, _PRIVATE = 0x20000, 4096, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind, options)]
    if _libc.mount(*arguments[:3], ctypes.c_ulong(flags), arguments[3]) < 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


def _closed_parent(path: str) -> str | None:
    """The topmost folder on the way to `path` that others may not enter."""
    for parent in reversed(Path(path).parents):
        if not parent.stat().st_mode & 0o001:
            return str(parent)
    return None


def make_reachable(paths: list[str]) -> None:
    """Let every user reach `paths`, here and in children only. Raises OSError where mounts are forbidden."""
    closed = {path: _closed_parent(path) for path in paths}
    if not any(closed.values()):
        return
    if _libc.unshare(_NEWNS) < 0:
        raise OSError(ctypes.get_errno(), "no private mount namespace")
    _mount("none", "/", None, _REC | _PRIVATE)
    handles = {path: os.open(path, os.O_PATH) for path, parent in closed.items() if parent}
    for parent in sorted(set(filter(None, closed.values()))):
        _mount("tmpfs", parent, "tmpfs", 0, "mode=755,size=1m")
    for path, handle in handles.items():
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{handle}", path, None, _BIND | _REC)
        os.close(handle)


def become(uid: int, program: str = __file__, arguments: Sequence[str] | None = None) -> None:
    """Start `program` as `uid`, in its own group only, with no way back; by default with the first argument of ours."""
    project = str(Path(__file__).resolve().parents[2])
    toolkits = [path for path in Path(project).glob(".venv*") if path.is_dir()]
    bases = [os.path.dirname(os.path.dirname(os.path.realpath(path / "bin" / "python"))) for path in toolkits]
    needed = (sys.base_prefix, sys.prefix, project, *toolkits, *bases)
    make_reachable(list(dict.fromkeys(os.path.realpath(path) for path in needed)))
    os.chdir("/")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": project, "PYTHONDONTWRITEBYTECODE": "1"}
    given = sys.argv[1:2] if arguments is None else list(arguments)
    os.execve(sys.executable, [sys.executable, program, *given], environment)


def main() -> None:
    if len(sys.argv) > 2:
        become(int(sys.argv[2]))
    from cases import CASES, LOWER_TIER_CASES, Bench

    bench = Bench(sys.argv[1])
    try:
        about = {key: value for key, value in bench.sandbox.describe().items() if key in ("tier", "reasons")}
        print(json.dumps({"about": about, "uid": os.getuid()}), flush=True)
        for case in CASES if sys.argv[1] == "namespaces" else LOWER_TIER_CASES:
            print(json.dumps({"name": case.name, **asdict(bench.run(case))}), flush=True)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
