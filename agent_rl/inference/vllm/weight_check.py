"""Whether servers sample from the weights that a model's files hold: checksums there against checksums of the files.

Nothing is sent, and what a server has stays as it is. Not here: what a server's worker knows (`server/worker.py`), the
proof that weights arrived which a run sent (`distributed/weight_verification.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agent_rl.distributed.model_checksums import UnreadableWeightsError, checksums_of_model
from agent_rl.errors import ConfigError, EngineError
from agent_rl.inference.vllm.server.members import Members

if TYPE_CHECKING:
    from agent_rl.inference.vllm.servers import VLLMServers

_REMEDY = "start it with `agent-rl serve-vllm --model` and this model, or leave out --served, so that weights are sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCheck:
    """What is known of the weights that servers have."""

    servers: tuple[str, ...]
    name: str
    """Of the model that they are to have."""
    label: str
    """The servers' own for their weights: `default` as they were started, `7/3` as a run sent them."""
    unknown: Mapping[str, str]
    """Why the weights could not be compared, by address; empty: all of them are those of the model."""

    @property
    def sentence(self) -> str:
        where = f"Weights as the server{'s' * (len(self.servers) > 1)} {', '.join(self.servers)} had them"
        if not self.unknown:
            return f"{where}, by their checksums those of {self.name}."
        why = "; ".join(dict.fromkeys(self.unknown.values()))
        whose = "" if len(self.unknown) == len(self.servers) else f" of {', '.join(self.unknown)}"
        return f"{where}; that those{whose} are {self.name} could not be checked: {why}."


def check_weights(servers: "VLLMServers", source: str | Path, *, name: str, dtype: torch.dtype) -> WeightCheck:
    """Compare once. ConfigError for a server whose weights are others or torn, or that names them unlike the rest."""
    labels = {address: servers.get(address, "/weight_info")["weight_version"] for address in servers.addresses}
    if len(set(labels.values())) > 1:
        told = ", ".join(f"{label!r} at {address}" for address, label in labels.items())
        raise ConfigError(
            f"vllm.servers have weights of several names ({told}); start them alike, or name those of one kind"
        )
    label = labels[servers.addresses[0]]
    try:
        expected = checksums_of_model(source, dtype)
    except UnreadableWeightsError as error:
        unknown = dict.fromkeys(servers.addresses, str(error))
        return WeightCheck(servers=servers.addresses, name=name, label=label, unknown=unknown)
    answers = Members(servers, servers.addresses).call(lambda address: _ask(servers, address), may_leave=False)
    unknown = {}
    for address, workers in answers.items():
        for worker in workers:
            if why := worker.get("unknown"):
                unknown[address] = why
            elif why := _difference(worker, expected, name):
                raise ConfigError(f"vllm.servers: {address} has other weights than {name}: {why}; {_REMEDY}")
    return WeightCheck(servers=servers.addresses, name=name, label=label, unknown=unknown)


def _ask(servers: "VLLMServers", address: str) -> list[Mapping[str, Any]]:
    """The answer of each of the server's workers; one of an earlier version, or of another make, knows nothing."""
    try:
        return servers.post(address, "/collective_rpc", {"method": "agent_rl_weights"})["results"]
    except EngineError as error:
        return [{"unknown": f"it was not started by this version of `agent-rl serve-vllm` ({error})"}]


def _difference(worker: Mapping[str, Any], expected: Mapping[str, str], name: str) -> str | None:
    """Of one worker's weights from the expected ones, as a clause; None without one."""
    if "torn" in worker:
        return f"they are not whole ({worker['torn']})"
    theirs = worker["checksums"]
    for tensor in sorted(theirs.keys() | expected.keys()):
        if theirs.get(tensor) != expected.get(tensor):
            found, wanted = theirs.get(tensor, "is missing"), expected.get(tensor, "is missing")
            return f"{tensor} {found} there, {wanted} in {name}"
    return None
