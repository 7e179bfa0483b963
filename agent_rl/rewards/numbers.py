"""Numbers as people's functions give them: Python's, NumPy's, PyTorch's. Not here: what a number means (`base.py`)."""

import math
from typing import Any, SupportsFloat


def as_number(value: Any) -> float:
    """One number, NumPy's and PyTorch's included; ValueError for texts, arrays of several and whatever else."""
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):
        raise ValueError(f"{value!r:.80} is no number")
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # arrays of several, huge integers
        raise ValueError(f"{value!r:.80} is not one number") from None


def finite_number(value: Any) -> float:
    """As `as_number`, and finite."""
    number = as_number(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number
