"""The trainer's side of vLLM's NCCL weight transfer, for several servers in one group. Imports vLLM.

Rank 0 is this process's GPU; the GPUs of the servers follow, server by server. vLLM's own engine does the broadcast;
what is added is several servers, one pass over a stream, and an end to waiting when a server fails. Untested on GPUs.
"""

import contextlib
import itertools
import queue
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

from agent_rl.distributed.weight_stream import WeightStream
from agent_rl.errors import ConfigError, EngineError
from agent_rl.inference.vllm.server.members import Members
from agent_rl.inference.vllm.server.worker import gpu_id
from agent_rl.inference.vllm.server_answers import FIRST_LABEL

PACKED_BYTES = 128 * 2**20
"""Bytes that are copied before they are sent, about, and twice, in addition to the gathered bucket."""


class NCCLSender:
    """`NCCLSender(members, timeout_s=600).send(stream)`; losing a member makes it unusable."""

    def __init__(self, members: Members, *, timeout_s: float) -> None:
        """Make the group, with the GPU that is current.

        EngineError that names the server when one refuses or fails, or the servers when there is no group in time;
        ConfigError for a server on this process's GPU.
        """
        self._members = Members(members.servers, members.addresses)
        if torch.cuda.is_available():
            check_other_gpus(self._members, gpu_id(torch.device("cuda", torch.cuda.current_device())))
        self._source = StreamSource()
        offsets, world_size = rank_offsets(members)
        self._client = EveryServer(self._members, offsets, timeout_s=timeout_s, abort=self._abort)
        info = NCCLTrainerInitInfo(
            master_address=address_towards(members.addresses),
            master_port=free_port(),
            world_size=world_size,
            rank=0,
            packed_buffer_size_bytes=PACKED_BYTES,
        )
        self._engine: NCCLTrainerWeightTransferEngine | None = None
        self._outcomes: queue.SimpleQueue[NCCLTrainerWeightTransferEngine | Exception] = queue.SimpleQueue()
        self._engine = self._join(info, timeout_s)

    def still_reaches(self, members: Members) -> bool:
        """Whether these are the servers of the group, none of them started again since."""
        if set(members.addresses) != set(self._members.addresses):
            return False
        labels = members.call(lambda address: members.servers.get(address, "/weight_info")["weight_version"])
        return FIRST_LABEL not in labels.values()

    def send(self, stream: WeightStream) -> None:
        """Broadcast; EngineError when a server fails or does not answer in time; the group is unusable then."""
        self._source.stream = stream
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", r"Tensor '.*' has size .* exceeds buffer_size_bytes")
                self._engine.send_weights()
        except (RuntimeError, AssertionError) as error:  # of NCCL, or of a closed group after `_abort`
            raise self._client.failure or EngineError(f"sending weights by NCCL failed: {error}") from error

    def close(self) -> None:
        """Leave the group; servers that still answer leave it too."""
        for address in self._members.addresses:
            with contextlib.suppress(EngineError):
                self._members.servers.post(address, "/shutdown_weight_transfer_engine", timeout_s=60.0)
        self._engine.shutdown()

    def _join(self, info: NCCLTrainerInitInfo, timeout_s: float) -> NCCLTrainerWeightTransferEngine:
        """Make the group in a thread, which cannot be stopped while it waits in NCCL for a missing server."""
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        is_late = threading.Event()

        def join() -> None:
            try:
                if device is not None:
                    torch.cuda.set_device(device)  # every thread has its own
                engine = NCCLTrainerWeightTransferEngine.trainer_init(info, client=self._client, source=self._source)
                self._outcomes.put(engine)
                if is_late.is_set():
                    engine.shutdown()
            except Exception as error:  # vLLM's boundary: raised where the group is waited for
                self._outcomes.put(error)

        threading.Thread(target=join, name="nccl-group", daemon=True).start()
        try:
            outcome = self._outcomes.get(timeout=timeout_s)
        except queue.Empty:
            outcome = TimeoutError(f"there is none after {timeout_s:g} s")
        if not isinstance(outcome, Exception):
            return outcome
        is_late.set()
        if self._client.failure is not None:
            raise self._client.failure
        names = ", ".join(self._members.addresses)
        raise EngineError(
            f"the NCCL group of {info.world_size} GPUs, of this process and {names}, could not be made: {outcome}; "
            "restart the servers"
        ) from outcome

    def _abort(self) -> None:
        """End the wait for a missing server; called while another thread waits in NCCL."""
        if self._engine is not None:
            self._engine.shutdown()
        else:
            self._outcomes.put(self._client.failure)


class StreamSource(WeightSource):
    """The tensors for vLLM's engine: copies of the stream's, several of which it packs into one."""

    stream: WeightStream

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, empty.dtype, tuple(empty.shape)) for name, empty in self.stream.kinds]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, tensor.clone()) for name, tensor in self.stream)


class EveryServer:
    """The calls that vLLM's engine makes to one server, made to all at the same time; all must succeed."""

    def __init__(
        self, members: Members, offsets: dict[str, int], *, timeout_s: float, abort: Callable[[], None]
    ) -> None:
        self.failure: EngineError | None = None
        """Of the two calls that run beside NCCL in another thread."""
        self._members = members
        self._offsets = offsets
        self._timeout_s = timeout_s
        self._abort = abort

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._beside_nccl(
            "/init_weight_transfer_engine",
            lambda address: {"init_info": init_info | {"rank_offset": self._offsets[address]}},
        )

    def start_weight_update(self) -> None:
        self.failure = None
        self._members.post("/start_weight_update", timeout_s=self._timeout_s, may_leave=False)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._beside_nccl("/update_weights", lambda _: {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._members.post("/finish_weight_update", timeout_s=self._timeout_s, may_leave=False)

    def _beside_nccl(self, path: str, json_for: Callable[[str], dict[str, Any]]) -> None:
        def take_part(address: str) -> None:
            try:
                self._members.servers.post(address, path, json_for(address), timeout_s=self._timeout_s)
            except EngineError as error:
                self._fail(error)  # at once: the others wait in NCCL for this one
                raise

        try:
            self._members.call(take_part, may_leave=False)
        except EngineError as error:
            self._fail(error)
            raise

    def _fail(self, error: EngineError) -> None:
        if self.failure is None:
            self.failure = error
            self._abort()


def rank_offsets(members: Members) -> tuple[dict[str, int], int]:
    """The first rank of each server's GPUs, and the number of all ranks, the trainer's included."""
    sizes = members.call(lambda address: members.servers.get(address, "/get_world_size")["world_size"], may_leave=False)
    *firsts, world_size = itertools.accumulate(sizes.values(), initial=1)
    return dict(zip(sizes, firsts, strict=True)), world_size


def check_other_gpus(members: Members, own: str) -> None:
    """ConfigError where a server has the trainer's GPU, `own`: NCCL takes a GPU into a group once."""
    answers = members.post("/collective_rpc", {"method": "agent_rl_device"}, may_leave=False)
    for address, answer in answers.items():
        if own in answer["results"]:
            raise ConfigError(
                f"vllm.weight_transfer = 'nccl': {address} is on the GPU that process 0 trains on ({own}), and NCCL "
                "sends between different GPUs only; set vllm.weight_transfer=files, or start the server on another GPU"
            )


def address_towards(servers: Sequence[str]) -> str:
    """This machine's own address on the network of the servers, by preference one that other machines see too."""
    own = []
    for server in servers:
        parts = urlsplit(server)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname, parts.port or 80))  # a datagram socket: nothing is sent
            own.append(probe.getsockname()[0])
    return next((address for address in own if not address.startswith("127.")), own[0])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]
