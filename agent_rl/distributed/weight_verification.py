"""Checks that every engine samples from exactly the trainer's weights.

Checksums show that nothing was lost or altered on the way. Log-probs show that the engine computes with these weights:
not with a copy of older ones, nor with cached keys and values of older ones.
Not here: the calls to the engines and the trainer.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from agent_rl.errors import UserError
from agent_rl.inference.base import Probe, Receipt

_REMEDY = "restart the servers, if vLLM runs in servers, and continue with checkpoint.resume=auto"


class WeightSyncError(UserError):
    """An engine does not sample from the trainer's weights, or they could not be sent."""

    is_everywhere = True


class ProbeGapError(WeightSyncError):
    """An engine's log-probs are too far from the trainer's."""


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
    probes: Sequence[Probe],
    receipts: Sequence[Receipt],
    *,
    version: int,
    num_tokens: int,
    may_be_lost: bool,
    may_be_cached: bool = False,
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
        if probe.num_cached and not may_be_cached:
            raise WeightSyncError(
                f"{probe.where} took {probe.num_cached} tokens of its prompt from a cache of older weights than "
                f"{version}, expected 0; {_REMEDY}"
            )
        if not len(probe.token_ids) == len(probe.logprobs) == num_tokens:
            raise WeightSyncError(
                f"{probe.where} sampled {len(probe.token_ids)} tokens with {len(probe.logprobs)} log-probs to verify "
                f"weights {version}, expected {num_tokens}; {_REMEDY}"
            )


def gap_of(logprobs: Sequence[float], others: Sequence[float]) -> float:
    """How far two lists of log-probs are apart: the mean difference, or a tenth of the largest if that is more.

    Rounding differs from token to token: among thousands of probes in bfloat16 some token is always far off, their mean
    is not. Not a number when one of them is not.
    """
    gaps = [abs(one - other) for one, other in zip(logprobs, others, strict=True)]
    return math.nan if any(map(math.isnan, gaps)) else max(fmean(gaps), max(gaps) / 10)


def check_gap(probe: Probe, trainer_logprobs: Sequence[float], *, max_gap: float) -> float:
    """`gap_of` the engine's log-probs and the trainer's; WeightSyncError beyond `max_gap`."""
    gap = gap_of(probe.logprobs, trainer_logprobs)
    if not gap <= max_gap:
        raise ProbeGapError(
            f"{probe.where} does not sample from the trainer's weights {probe.version}: the log-probs of its probe are "
            f"{_short(probe.logprobs)} there and {_short(trainer_logprobs)} at the trainer, {gap:.3g} nats and "
            f"so further apart than vllm.max_logprob_gap = {max_gap:g}; {_REMEDY}"
        )
    return gap


def _short(logprobs: Sequence[float]) -> str:
    shown = ", ".join(f"{logprob:.4f}" for logprob in logprobs[:4])
    return f"({shown}{', ...' if len(logprobs) > 4 else ''})"
