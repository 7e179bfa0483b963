"""The loss of a critic, per token.

Not here: the critic, its targets (`token_advantages.py`), aggregation (`aggregation.py`).
Shape suffixes: `_B` sample, `_T` token.
"""

import torch


def value_loss(
    values_BT: torch.Tensor,
    old_values_BT: torch.Tensor,
    returns_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip: float,
) -> torch.Tensor:
    """Clipped squared error per token [B, T], to be minimised; value and gradient 0 where the mask is 0.

    `0.5 * max((V - R)**2, (clip(V, V_before - clip, V_before + clip) - R)**2)` with V_before the value by the critic
    before the step's first update (`old_values_BT`). `clip` infinity is the plain squared error.
    Formula: Schulman et al. 2017, as in OpenAI baselines.
    """
    masked_BT = ~mask_BT.bool()
    columns = (values_BT, old_values_BT, returns_BT)
    values_BT, before_BT, returns_BT = (column.masked_fill(masked_BT, 0.0) for column in columns)
    clipped_BT = values_BT.clamp(before_BT - clip, before_BT + clip)
    return torch.maximum((values_BT - returns_BT).square(), (clipped_BT - returns_BT).square()) / 2
