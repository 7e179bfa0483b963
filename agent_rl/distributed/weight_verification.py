"""Checks that every engine samples from exactly the trainer's weights.

Checksums show that nothing was lost or altered on the way. Log-probs show that the engine computes with these weights:
not with a copy of older ones, nor with cached keys and values of older ones.
Not here: the calls to the engines and the trainer.
"""

from collections.abc import Mapping, Sequence

from agent_rl.errors import UserError
from agent_rl.inference.base import Probe, Receipt

_REMEDY = "restart the servers, if vLLM runs in servers, and continue with checkpoint.resume=auto"


class WeightSyncError(UserError):
    """An engine does not sample from the trainer's weights, or they could not be sent."""

    is_everywhere = True


def check_receipts(receipts: Sequence[Receipt], checksums: Mapping[str, str], *, version: int) -> None:
    """WeightSyncError when an engine did not receive exactly the tensors of the trainer's `checksums`, by name."""
    if not receipts:
        raise WeightSyncError(f"no engine received weights {version}; see that the servers of vllm.servers are up")
    for receipt in receipts:
        theirs = receipt.checksums
        for name in sorted(checksums.keys() | theirs.keys()):
            if theirs.get(name) != checksums.get(name):
                raise WeightSyncError(
                    f"{receipt.where} did not receive weights {version} as they were sent: {name} has checksum "
                    f"{theirs.get(name, 'none (it is missing)')} there and {checksums.get(name, 'none (not sent)')} at "
                    f"the trainer; {_REMEDY}"
                )


def check_probes(
    probes: Sequence[Probe], receipts: Sequence[Receipt], *, version: int, num_tokens: int, may_be_lost: bool
) -> None:
    """WeightSyncError for an engine that sampled too few tokens, with other weights, or after cached keys and values.

    Unless it `may_be_lost` after its receipt, as servers may, each engine must have sampled.
    """
    received = {receipt.where for receipt in receipts}
    silent = received - {probe.where for probe in probes}
    if silent and (not may_be_lost or not probes):
        raise WeightSyncError(f"{min(silent)} received weights {version} and sampled nothing with them; {_REMEDY}")
    for probe in probes:
        if probe.where not in received:
            raise WeightSyncError(f"{probe.where} samples and received no weights {version}; {_REMEDY}")
        if probe.version != version:
            raise WeightSyncError(
                f"{probe.where} samples with weights {probe.version} after weights {version} were sent; {_REMEDY}"
            )
        if probe.num_cached:
            raise WeightSyncError(
                f"{probe.where} took {probe.num_cached} tokens of its prompt from a cache of older weights than "
                f"{version}, expected 0; {_REMEDY}"
            )
        if not len(probe.token_ids) == len(probe.logprobs) == num_tokens:
            raise WeightSyncError(
                f"{probe.where} sampled {len(probe.token_ids)} tokens with {len(probe.logprobs)} log-probs to verify "
                f"weights {version}, expected {num_tokens}; {_REMEDY}"
            )


def check_gap(probe: Probe, trainer_logprobs: Sequence[float], *, max_gap: float) -> float:
    """Largest difference between the engine's log-probs and the trainer's; WeightSyncError beyond `max_gap`."""
    gaps = [abs(theirs - ours) for theirs, ours in zip(probe.logprobs, trainer_logprobs, strict=True)]
    for place, gap in enumerate(gaps):
        if not gap <= max_gap:  # also when one of them is not a number
            raise WeightSyncError(
                f"{probe.where} does not sample from the trainer's weights {probe.version}: token {place} of its probe "
                f"has log-prob {probe.logprobs[place]:.6f} there and {trainer_logprobs[place]:.6f} at the trainer, "
                f"further apart than vllm.max_logprob_gap = {max_gap:g}; {_REMEDY}"
            )
    return max(gaps)
