"""How figures are written: for people, and as JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from parallel_ppo.reports.statistics import Estimate

UNKNOWN = "-"


def number(value: float, digits: int = 0) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else UNKNOWN


def estimate(value: Estimate, digits: int = 0, unit: str = "") -> str:
    """`182 steps/s (178 to 186)`."""
    if not math.isfinite(value.value):
        return UNKNOWN
    text = f"{value.value:,.{digits}f}{unit}"
    return f"{text} ({span(value, digits)})" if math.isfinite(value.low) else text


def span(value: Estimate, digits: int = 0) -> str:
    return f"{value.low:,.{digits}f} to {value.high:,.{digits}f}"


def percent(value: Estimate) -> str:
    return estimate(Estimate(100 * value.value, 100 * value.low, 100 * value.high), 0, "%")


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{minutes // 60} h {minutes % 60:02d} min"


def json_ready(value: Any) -> Any:
    """NaN and infinities as null, NumPy numbers as Python's."""
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
