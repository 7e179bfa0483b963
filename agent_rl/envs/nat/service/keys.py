"""Who may call the service: a file of keys' checksums, and what each key may do.

    [[key]]
    name = "ann"
    sha256 = "..."
    scopes = ["create", "feedback"]
    per_hour = 30

A secret is 256 random bits and is shown once; the file holds its SHA-256 and can be read by its owner alone. A file
that changes is read again, so a key that is removed is refused at once. Without a file everybody who reaches the
service, which is then on loopback, is `local` and may do everything. Not here: limits (`store.py`), HTTP (`gate.py`).
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
import threading
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_rl.errors import ConfigError
from agent_rl.telemetry.files import write_text

Scope = Literal["create", "validate", "feedback", "chat", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""`admin` sees the jobs of all; the others are what they say. Whoever creates may look at what was created."""
LOCAL = "local"
"""The name of everybody where there are no keys."""
PREFIX = "ark_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ApiKey(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=f"^{_NAME.pattern}$")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    scopes: tuple[Scope, ...]
    per_hour: int = Field(ge=1)


class _KeysFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    key: tuple[ApiKey, ...] = ()


class KeyRing:
    """The keys of one service. Safe for threads."""

    def __init__(self, path: Path) -> None:
        """ConfigError for a file that others can read, and for one that is none."""
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._keys: tuple[ApiKey, ...] = ()
        self._renew()
        self.is_open = not self._keys
        """Whether there were no keys at the start; a file that is emptied later opens nothing."""

    def find(self, secret: str) -> ApiKey | None:
        """The key of a secret. Every entry is compared, so the time tells nothing."""
        self._renew()
        digest = _digest(secret)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found

    def _renew(self) -> None:
        with self._lock:
            try:
                status = self._path.stat()
            except FileNotFoundError:
                self._keys, self._stamp = (), None
                return
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                self._keys = read_keys(self._path)
                self._stamp = stamp


def local_key() -> ApiKey:
    """Everybody, where there are no keys."""
    return ApiKey(name=LOCAL, sha256="0" * 64, scopes=SCOPES, per_hour=10**9)


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """The entries of a file. ConfigError in one sentence."""
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise ConfigError(f"{path} can be read by others than its owner; run chmod 600 {path}")
            keys = _KeysFile.model_validate(tomllib.load(file)).key
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); make it readable for the service") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {where}: {first['msg'].lower()}; make keys with agent-rl serve add-key") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML ({error}); make keys with agent-rl serve add-key") from None
    names = [key.name for key in keys]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{path} has two keys with the name {doubled[0]!r}; remove one")
    return keys


def add_key(path: Path, name: str, *, scopes: Sequence[str], per_hour: int) -> str:
    """Add a key to the file, made where it is missing, and return its secret, which is nowhere else."""
    keys = read_keys(path) if path.exists() else ()
    if not _NAME.fullmatch(name) or name == LOCAL:
        raise ConfigError(f"{name!r:.80} is no name for a key; take 1 to 64 letters, digits or _.-, and not {LOCAL!r}")
    if name in [key.name for key in keys]:
        raise ConfigError(f"{path} has a key {name!r}; remove its entry first, or take another name")
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise ConfigError(f"there is no scope {unknown[0]!r:.80}; there are {', '.join(SCOPES)}")
    secret = PREFIX + secrets.token_urlsafe(32)
    wanted = tuple(scope for scope in SCOPES if scope in scopes)
    entries = [*keys, ApiKey(name=name, sha256=_digest(secret), scopes=wanted, per_hour=per_hour)]
    write_text(path, "\n".join(map(_entry, entries)), is_private=True)
    return secret


def _entry(key: ApiKey) -> str:
    scopes = ", ".join(f'"{scope}"' for scope in key.scopes)
    return f'[[key]]\nname = "{key.name}"\nsha256 = "{key.sha256}"\nscopes = [{scopes}]\nper_hour = {key.per_hour}\n'


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
