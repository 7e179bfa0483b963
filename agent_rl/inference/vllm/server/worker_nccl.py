"""vLLM's NCCL weight transfer with checksums of what arrived; vLLM's factory imports it by name (`worker.py`).

Imports vLLM. Not here: the sender (`transports.py`). Untested on GPUs.
"""

from typing import Any

from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferUpdateInfo

from agent_rl.inference.vllm.server.worker import check_filled, hide_expected_warnings, recorded, whole_or_restored


class NCCLEngine(NCCLWeightTransferEngine):
    """Loads the tensors that the trainer broadcasts and stores their checksums until `take_received`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._received: dict[str, str] = {}
        self._filled: set[str] = set()

    def start_weight_update(self) -> None:
        hide_expected_warnings()
        self._received, self._filled = {}, set()
        super().start_weight_update()

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        with whole_or_restored(self.model, self.vllm_config), recorded(self.model, self._received) as filled:
            super().receive_weights(update_info)
        self._filled |= filled

    def finish_weight_update(self) -> None:
        """ValueError when parameters got no tensor."""
        super().finish_weight_update()
        check_filled(self.model, self._filled, self.vllm_config)

    @property
    def is_unfinished(self) -> bool:
        """Whether tensors came that `take_received` was not asked for: an update failed, or goes on."""
        return bool(self._received)

    def take_received(self) -> dict[str, str]:
        """Checksums of all tensors of the last update; empty on a second call."""
        received, self._received = self._received, {}
        return received
