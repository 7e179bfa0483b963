"""Servers, and their client, as far as new weights go: state that is easily looked at, and failures on demand."""

from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from agent_rl.distributed.checksums import checksum
from agent_rl.errors import EngineError
from agent_rl.inference.base import Probe, digest_of

A, B = "http://a:8000", "http://b:8000"
WEIGHTS = {"embed": torch.tensor([1.0, 2.0]), "head": torch.tensor([[3.0]])}


class FakeServer:
    """One server's state, and its calls."""

    def __init__(self) -> None:
        self.start()
        self.calls: list[str] = []
        self.failing: dict[str, str] = {}
        """Paths that fail while the server lives, with what it says."""
        self.num_stuck_flushes = 0
        self.logprob_shift = 0.0

    def start(self) -> None:
        """A new process."""
        self.is_there = True
        self.label = "default"
        self.is_paused = False
        self.adapters: dict[str, str] = {}
        self.state: str | None = None
        """Digest of what was received last."""
        self.weights = {"embed": torch.zeros(2), "head": torch.zeros(1, 1)}

    def post(self, path: str, json: Any) -> Any:
        self.calls.append(path)
        if path in self.failing:
            raise EngineError(f"{path} was answered 500: {self.failing[path]}")
        match path:
            case "/pause" | "/resume":
                self.is_paused = path == "/pause"
            case "/update_weight_version":
                self.label = json["new_version"]
            case "/reset_prefix_cache":
                self.num_stuck_flushes -= 1
                return {"success": self.num_stuck_flushes < 0}
            case "/v1/load_lora_adapter":
                assert json["lora_name"] not in self.adapters
                self.adapters[json["lora_name"]] = json["lora_path"]
            case "/v1/unload_lora_adapter":
                del self.adapters[json["lora_name"]]
            case "/collective_rpc" if json["method"] == "agent_rl_load_files":
                assert self.is_paused
                self.weights = {name: tensor for file in json["args"][0] for name, tensor in load_file(file).items()}
                return {"results": [self.note(self.weights)] * 2}
            case "/collective_rpc" if json["method"] == "agent_rl_state":
                return {"results": [self.state] * 2}
            case "/collective_rpc":
                assert json["method"] == "agent_rl_adapter_checksums"
                return {"results": [self.note(load_file(f"{json['args'][0]}/adapter_model.safetensors"))]}
        return {}

    def note(self, weights: dict[str, Tensor]) -> dict[str, str]:
        sums = sums_of(weights)
        self.state = digest_of(sums)
        return sums


class FakeServers:
    """What a `ServerEngine` uses of `VLLMServers`."""

    def __init__(self) -> None:
        self.servers = {A: FakeServer(), B: FakeServer()}
        self.addresses = (A, B)
        self.pool = self
        self.rejoin: Callable[[str], bool] | None = None
        self.weight_version: int | None = None
        self.weight_label: str | None = None
        self.is_held = False
        self.adapter: str | None = None
        self.known_down: set[str] = set()

    def post(self, address: str, path: str, json: Any = None, **options: Any) -> Any:
        try:
            return self._find(address).post(path, json)
        finally:
            if not self.servers[address].is_there:
                self.known_down.add(address)

    def post_all(self, path: str, json: Any = None, **options: Any) -> dict[str, Any]:
        """To those that are not known to be down."""
        up = [address for address in self.addresses if address not in self.known_down] or self.addresses
        return {address: self.post(address, path, json) for address in up}

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False

    def get(self, address: str, path: str, **options: Any) -> Any:
        server = self._find(address)
        if path == "/v1/models":
            return {"data": [{"id": name} for name in ("policy", *server.adapters)]}
        return {"/health": "", "/get_world_size": {"world_size": 2}, "/weight_info": {"weight_version": server.label}}[
            path
        ]

    def probe(self, address: str, prompt_ids: tuple[int, ...], *, num_tokens: int, **options: Any) -> Probe:
        server = self._find(address)
        assert not server.is_paused
        assert self.adapter is None or self.adapter in server.adapters
        first = float(server.weights["embed"].sum())
        return Probe(
            where=address,
            version=int(server.label.replace("default", "0").split("/")[0]),
            num_cached=0,
            token_ids=(11, 12)[:num_tokens],
            logprobs=(-first + server.logprob_shift, -0.5)[:num_tokens],
        )

    def _find(self, address: str) -> FakeServer:
        if not self.servers[address].is_there:
            raise EngineError(f"{address} failed: ConnectError")
        return self.servers[address]


def sums_of(weights: dict[str, Tensor]) -> dict[str, str]:
    return {name: checksum(tensor) for name, tensor in weights.items()}
