"""vLLM's servers as one engine with weights of its own: `ServerEngine(servers, FileTransport(folder), max_gap=1e-3)`.

Process 0 directs the servers for all processes. A server that comes back gets the present weights here and must pass
verification before it samples again. Not here: completions (`servers.py`), how weights travel (`transports.py`),
comparing with the trainer (`distributed/weight_sync.py`).
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from agent_rl.distributed.weight_verification import WeightSyncError, check_receipts, gap_of
from agent_rl.errors import EngineError
from agent_rl.inference.base import Cancel, Probe, Receipt
from agent_rl.inference.vllm.server.members import MemberLostError, Members
from agent_rl.inference.vllm.server_answers import FIRST_LABEL
from agent_rl.inference.vllm.transports import Transport, receipts_of
from agent_rl.records import Completion, SamplingParams

if TYPE_CHECKING:
    from agent_rl.inference.vllm.servers import VLLMServers

_QUICK_S = 60.0
"""For what a server does at once."""
_FLUSH_S = 10.0
_ADAPTER = "adapter-"
_ABORT = {"mode": "abort"}
"""Running completions end at once, with the tokens sampled so far."""


class ServerEngine:
    """A `RemoteEngine` of `VLLMServers`, and their `rejoin`.

    With `NCCLTransport` there is nothing to read again: a server that comes back waits for the next change of weights.
    """

    is_shared = True

    def __init__(self, servers: "VLLMServers", transport: Transport | None, *, max_gap: float) -> None:
        """`transport` is None on every process but 0.

        `max_gap`, in nats, is how far the log-probs of a server that came back may be from those of the others.
        """
        self.weight_version = 0
        self._servers = servers
        self._transport = transport
        self._max_gap = max_gap
        self._num_resumes = 0
        """On all processes the same."""
        self._label = FIRST_LABEL
        """What up-to-date servers call their weights."""
        self._members = Members(servers, servers.addresses)
        self._adapter: tuple[str, Path] | None = None
        """Name and folder."""
        self._receipt: Receipt | None = None
        """Of the last load; the same for all servers."""
        self._last_probe: Probe | None = None
        self._sample_probe: Callable[[str], Probe]
        """From the server of an address, as the last probe was sampled."""
        self._lock = threading.Lock()
        """Held while a server rejoins."""
        self._is_changing = False
        servers.pool.rejoin = self.rejoin

    def complete(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        return self._servers.complete(prompt_ids, sampling, cancel)

    def counters(self) -> Mapping[str, float]:
        return self._servers.counters()

    def close(self) -> None:
        self._servers.close()

    def sleep(self) -> None:
        """Does nothing: servers have GPUs of their own."""

    def hold(self) -> None:
        """Queue this process's completions; probes are sent."""
        self._servers.hold()

    def release(self) -> None:
        self._servers.release()

    def pause(self) -> None:
        """Of all servers that answer, also of those that did not rejoin yet: they get the new weights like the others.

        With no server up it waits for one, as long as `vllm.start_timeout_s`.
        """
        try:
            self._pause_those_up()
        except EngineError:  # one was lost that seemed to be up, and is known to be down now
            self._pause_those_up()
        with self._lock:
            self._is_changing = True
        self._members = Members(self._servers, self._servers.addresses)
        _pause(self._members)

    def load(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> list[Receipt]:
        """All weights to all servers, from process 0; nothing on every other."""
        if self._transport is None:
            return []
        receipts = self._transport.send(self._members, tensors, version)
        self._receipt = receipts[0]
        return receipts

    def load_adapter(self, folder: Path, version: int) -> list[Receipt]:
        """The adapter in `folder` to all servers; on every process but 0 only records its name."""
        self._adapter = (f"{_ADAPTER}{version}", folder.resolve())
        if self._transport is None:
            return []
        receipts = self._load_adapter(self._members)
        self._receipt = receipts[0]
        return receipts

    def flush(self) -> None:
        """EngineError when a server still holds keys and values after some seconds."""
        self._members.call(self._flush)

    def resume(self, version: int) -> None:
        """Sample again as `version`; every process but 0 only records it.

        A server that was started again since it sent its receipt leaves. WeightSyncError when none is left.
        """
        self._num_resumes += 1
        # Counted, so that one that was cut off is not believed when a run went back to an earlier version.
        self._label = f"{version}/{self._num_resumes}"
        if self._adapter is not None:
            self._servers.adapter = self._adapter[0]
        if self._transport is not None:
            if self._adapter is not None:
                self._members.call(self._forget_old_adapters)
            _label(self._members, self._label)
        self._servers.pool.weight_version = self.weight_version = version
        self._servers.pool.weight_label = self._label
        if self._transport is not None:
            self._members.post("/resume", timeout_s=_QUICK_S)
            self._members.call(self._check_it_has_them)

    def probe(self, prompt_ids: tuple[int, ...], *, num_tokens: int, temperature: float, seed: int) -> list[Probe]:
        """From every server that was not lost since `pause`."""
        options = {"num_tokens": num_tokens, "temperature": temperature, "seed": seed}
        self._sample_probe = partial(self._servers.probe, prompt_ids=prompt_ids, **options)
        probes = self._members.call(self._sample_probe)
        self._last_probe = next(iter(probes.values()))
        self._is_changing = False
        return list(probes.values())

    def rejoin(self, address: str) -> bool:
        """Give the server the present weights and check that it samples as the others do; False: not now.

        EngineError or WeightSyncError when it does not; it is left paused then.
        """
        if self._transport is None:
            return False  # process 0 does it, and then the server is found up to date
        with self._lock:
            if self._is_changing or self._last_probe is None or self._receipt is None:
                return False
            returned = Members(self._servers, [address])
            _pause(returned)
            try:
                return self._bring_up_to_date(returned, self._last_probe, self._receipt)
            except (EngineError, WeightSyncError):
                # Running and under the right version, it would be taken for one that was only out of reach.
                with contextlib.suppress(EngineError):
                    _pause(returned)
                raise

    def _pause_those_up(self) -> None:
        self._servers.post_all("/pause", params=_ABORT, timeout_s=_QUICK_S)

    def _bring_up_to_date(self, returned: Members, last: Probe, expected: Receipt) -> bool:
        receipts = self._load_adapter(returned) if self._adapter is not None else self._transport.reload(returned)
        if receipts is None:
            return False
        check_receipts(receipts, expected.checksums, version=self.weight_version)
        returned.call(self._flush)
        _label(returned, self._label)
        returned.post("/resume", timeout_s=_QUICK_S)
        returned.call(self._check_it_has_them)
        _check_alike(self._sample_probe(returned.addresses[0]), last, max_gap=self._max_gap)
        return True

    def _load_adapter(self, members: Members) -> list[Receipt]:
        name, folder = self._adapter

        def load(address: str) -> Any:
            if name in self._adapters_at(address):  # of a run that was resumed
                self._servers.post(address, "/v1/unload_lora_adapter", {"lora_name": name}, timeout_s=_QUICK_S)
            self._servers.post(address, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
            return self._servers.post(
                address, "/collective_rpc", {"method": "agent_rl_adapter_checksums", "args": [str(folder)]}
            )

        return receipts_of(members.call(load))

    def _forget_old_adapters(self, address: str) -> None:
        for name in self._adapters_at(address):
            if name != self._servers.adapter:
                self._servers.post(address, "/v1/unload_lora_adapter", {"lora_name": name}, timeout_s=_QUICK_S)
        # Requests on their way to the server as others were held wait there, and the old adapter would answer them.
        self._servers.post(address, "/abort_requests", {}, timeout_s=_QUICK_S)

    def _check_it_has_them(self, address: str) -> None:
        """MemberLostError when the server's weights are not those of the receipt."""
        states = self._servers.post(address, "/collective_rpc", {"method": "agent_rl_state"}, timeout_s=_QUICK_S)[
            "results"
        ]
        if set(states) != {self._receipt.digest}:
            # Under the present label its answers would be believed.
            self._servers.post(address, "/update_weight_version", {"new_version": FIRST_LABEL}, timeout_s=_QUICK_S)
            raise MemberLostError(
                f"{address} no longer has weights {self.weight_version}, which it received: it was started again"
            )

    def _adapters_at(self, address: str) -> list[str]:
        models = self._servers.get(address, "/v1/models")["data"]
        return [model["id"] for model in models if model["id"].startswith(_ADAPTER)]

    def _flush(self, address: str) -> None:
        deadline = time.monotonic() + _FLUSH_S
        while self._servers.post(address, "/reset_prefix_cache", timeout_s=_QUICK_S) != {"success": True}:
            if time.monotonic() > deadline:
                raise EngineError(f"{address} still holds keys and values of older weights after {_FLUSH_S:g} s")
            time.sleep(0.1)


def _pause(members: Members) -> None:
    members.post("/pause", params=_ABORT, timeout_s=_QUICK_S)


def _label(members: Members, label: str) -> None:
    members.post("/update_weight_version", {"new_version": label}, timeout_s=_QUICK_S)


def _check_alike(probe: Probe, expected: Probe, *, max_gap: float) -> None:
    """WeightSyncError when a server samples other tokens than another did, or the same with other log-probs.

    With the same seed, they may only differ after a token that rounding decided.
    """
    pairs = zip(probe.token_ids, expected.token_ids, strict=True)
    num_alike = next((place for place, (one, other) in enumerate(pairs) if one != other), len(probe.token_ids))
    gap = gap_of(probe.logprobs[:num_alike], expected.logprobs[:num_alike]) if num_alike else math.inf
    if not gap <= max_gap:
        raise WeightSyncError(
            f"{probe.where} came back and does not sample from weights {expected.version}: its probe begins with token "
            f"{probe.token_ids[0]} of log-prob {probe.logprobs[0]:.6f}, and began with {expected.token_ids[0]} of "
            f"{expected.logprobs[0]:.6f} at {expected.where}; restart this server"
        )
