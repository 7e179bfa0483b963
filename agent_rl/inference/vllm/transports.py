"""How a trainer's weights get to vLLM's servers: as files that both sides see, or by NCCL from GPU to GPU.

Process 0 sends for all. Not here: gathering (`distributed/weight_stream.py`), pausing and verifying
(`server_engine.py`, `distributed/weight_sync.py`), what the servers' workers do (`worker.py`).
"""

import importlib.util
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from agent_rl.distributed.weight_stream import WeightStream
from agent_rl.distributed.weight_verification import WeightSyncError
from agent_rl.errors import UserError
from agent_rl.inference.base import Receipt
from agent_rl.inference.vllm.server.members import Members

FILE_BYTES = 2 * 10**9
"""About as much is held and written at once."""


class FileTransport:
    """Safetensors files in `folder/version_<n>`; the last version stays there for servers that come back."""

    def __init__(self, folder: Path) -> None:
        """`folder` is seen under the same path by trainer and servers.

        Folders of other versions in it are removed, also those of earlier runs; nothing else is.
        """
        self._folder = folder.resolve()
        self._paths: list[str] = []

    def send(self, members: Members, tensors: Iterable[tuple[str, Tensor]], version: int) -> list[Receipt]:
        """Write and let all members read. WeightSyncError when the disk is full or the folder cannot be written."""
        place = self._folder / f"version_{version}"
        hidden = self._folder / f".version_{version}"
        try:
            shutil.rmtree(hidden, ignore_errors=True)
            hidden.mkdir(parents=True)
            names = self._write(hidden, tensors)
            shutil.rmtree(place, ignore_errors=True)
            hidden.rename(place)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(hidden, ignore_errors=True)
            raise WeightSyncError(
                f"weights {version} could not be written to {hidden} ({error}); free space there, or set "
                "vllm.weight_folder to another folder that trainer and servers see"
            ) from None
        self._paths = [str(place / name) for name in names]
        receipts = self._load(members)
        for old in self._folder.iterdir():
            if re.fullmatch(r"\.?version_\d+", old.name) and old.is_dir() and old != place:
                shutil.rmtree(old, ignore_errors=True)  # a folder that stays is removed next time
        return receipts

    def reload(self, members: Members) -> list[Receipt] | None:
        """The weights of the last `send` to servers that came back; None if they are not available again."""
        return self._load(members) if self._paths else None

    def _write(self, folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
        """Names of the files."""
        names: list[str] = []
        held: dict[str, Tensor] = {}

        def write() -> None:
            names.append(f"weights_{len(names):05d}.safetensors")
            save_file(held, folder / names[-1])
            held.clear()

        for name, tensor in tensors:
            held[name] = tensor.to("cpu", copy=True).contiguous()
            if sum(other.nbytes for other in held.values()) >= FILE_BYTES:
                write()
        if held:
            write()
        return names

    def _load(self, members: Members) -> list[Receipt]:
        return receipts_of(members.post("/collective_rpc", {"method": "agent_rl_load_files", "args": [self._paths]}))


class NCCLTransport:
    """vLLM's weight transfer over NCCL: one broadcast to all GPUs of all servers. Untested on GPUs.

    The servers were started with `--weight-transfer nccl`. The group of process 0's GPU and theirs is made at the first
    `send`, and anew when other servers are there than before. A server that comes back has no weights to read until
    the next `send`. When one is lost while weights are sent, the send fails.
    """

    def __init__(self, *, timeout_s: float = 600.0) -> None:
        """`timeout_s` bounds making the group, and one send."""
        self._timeout_s = timeout_s
        self._sender: Any = None

    def send(self, members: Members, tensors: WeightStream, version: int) -> list[Receipt]:
        """EngineError when a server fails or does not answer in time; UserError without vLLM in this interpreter."""
        if importlib.util.find_spec("vllm") is None:
            raise UserError(
                f"vllm.weight_transfer=nccl needs vLLM in the trainer's interpreter too, {sys.executable} has none; "
                "install it there, or set vllm.weight_transfer=files"
            )
        from agent_rl.inference.vllm.nccl_sender import NCCLSender

        if self._sender is not None and not self._sender.still_reaches(members):
            self._close()
        if self._sender is None:
            self._sender = NCCLSender(members, timeout_s=self._timeout_s)
        with ExitStack() as after_failure:
            after_failure.callback(self._close)
            self._sender.send(tensors)
            answers = members.post("/collective_rpc", {"method": "agent_rl_received"}, may_leave=False)
            receipts = receipts_of(answers)
            after_failure.pop_all()
        return receipts

    def reload(self, members: Members) -> list[Receipt] | None:
        return None

    def _close(self) -> None:
        self._sender.close()
        self._sender = None


Transport = FileTransport | NCCLTransport


def receipts_of(answers: Mapping[str, Any]) -> list[Receipt]:
    """Receipts from the workers' answers; WeightSyncError if the workers of one server differ."""
    receipts = []
    for address, answer in answers.items():
        first, *others = answer["results"]
        for other in others:
            if differing := sorted(name for name in first | other if first.get(name) != other.get(name)):
                raise WeightSyncError(
                    f"two workers of {address} received different tensors: {differing[0]} has checksum "
                    f"{first.get(differing[0])} at one and {other.get(differing[0])} at the other; restart this server "
                    "and continue with checkpoint.resume=auto"
                )
        receipts.append(Receipt(where=address, checksums=first))
    return receipts
