"""Ray itself: imported where it is wanted, and connected to its cluster. Not here: what runs on the cluster."""

import importlib
import importlib.util
import logging
import os
import socket
from typing import Any

from agent_rl.errors import ConfigError
from agent_rl.resources import install_command

_CONNECT_S = 10.0


def import_ray(wanted: str) -> Any:
    """The module; ConfigError that says what is `wanted` and what to install where it is missing."""
    found = importlib.util.find_spec("ray")
    # A folder that happens to be called ray is found too, as a package without a file.
    if found is None or found.origin is None:
        raise ConfigError(
            f"{wanted}, but this interpreter has no Ray; run {install_command('ray')} here and on every node"
        )
    return importlib.import_module("ray")


def connect(ray: Any, address: str | None, *, wanted: str, key: str) -> None:
    """Connect this process to a cluster, unless it is; the connection stays until the process ends.

    `address` is as `rollout.ray.address` has it, `key` where it was given. ConfigError where no cluster answers.
    """
    if ray.is_initialized():
        return
    try:
        _check_port(address or os.environ.get("RAY_ADDRESS", ""))
        ray.init(
            address=address or "auto",
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{wanted}, but no Ray cluster answers ({first_line(error)}); start one with ray start --head, and ray "
            f"start --address on the other nodes, and set RAY_ADDRESS or {key}"
        ) from None


def _check_port(address: str) -> None:
    """OSError when nobody listens at `host:port`, which Ray would wait for without a word."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
        except OSError as error:
            raise OSError(f"{address}: {error.strerror or error}") from None


def first_line(error: Exception) -> str:
    """Of its message; Ray's go on over many."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
