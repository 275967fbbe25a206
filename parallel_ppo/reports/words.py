"""Numbers as text for people."""

from __future__ import annotations

import math

from parallel_ppo.reports.statistics import Estimate, SeedEstimate

UNKNOWN = "-"


def number(value: float, digits: int = 0) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else UNKNOWN


def estimate(value: Estimate, digits: int = 0, unit: str = "") -> str:
    """`182x (178 to 186)`; below five seeds `8.4 (seeds 8.2, 8.6)`."""
    if not math.isfinite(value.value):
        return UNKNOWN
    text = f"{value.value:,.{digits}f}{unit}"
    if math.isfinite(value.low):
        return f"{text} ({span(value, digits)})"
    if isinstance(value, SeedEstimate) and len(value.seeds) > 1:
        return f"{text} (seeds {', '.join(f'{seed:,.{digits}f}' for seed in value.seeds)})"
    return text


def span(value: Estimate, digits: int = 0) -> str:
    return f"{value.low:,.{digits}f} to {value.high:,.{digits}f}"


def interval(value: Estimate, digits: int = 0, without: str = "") -> str:
    return f"95 %: {span(value, digits)}" if math.isfinite(value.low) else without


def percent(value: Estimate) -> str:
    return estimate(Estimate(100 * value.value, 100 * value.low, 100 * value.high), 0, "%")


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return UNKNOWN
    if round(seconds, 3) < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{minutes // 60:,} h {minutes % 60:02d} min"
