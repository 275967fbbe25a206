"""The table of curiosities: what each says where nobody else does. Needs no torch. The arithmetic is in
`features/curiosity/`.
"""

import math
from collections.abc import Sequence
from typing import Any

# Advantages of two value heads, or rewards that are added up before there are any advantages.
COMBINATIONS: dict[str, dict[str, Any]] = {
    "advantage": {"normalize": True, "intrinsic_coef": 1.0},
    "reward": {},
}
CURIOSITY_KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "rnd": {"combine": "advantage"},
    "icm": {"combine": "reward", "normalize": False, "intrinsic_coef": 0.01, "update_share": 1.0},
    "ngu": {"combine": "reward", "intrinsic_coef": 0.3},
}
ALGORITHMS = "ppo", "a2c"  # those that learn from a sample with the parameters that collected it


def checked_curiosity(kind: str) -> str:
    if kind not in CURIOSITY_KINDS:
        raise ValueError(f"kind: expected {', '.join(CURIOSITY_KINDS)}")
    return kind


def curiosity_defaults(kind: str, combine: str | None) -> dict[str, Any]:
    """Of the section `curiosity`, below what a file or a flag says."""
    own = CURIOSITY_KINDS.get(kind, {})
    return own | COMBINATIONS.get(str(combine or own.get("combine")), {})


def cannot_be_whitened(env: str, how: str, num_steps: int) -> str:
    """A line for the user."""
    return (
        f"curiosity.kind: the observations of {env} cannot be whitened, they {how} in {num_steps:,} steps of a"
        " random agent; use another observation, or --curiosity none"
    )


def predictor_samples(microbatch_sizes: Sequence[int], share: float) -> tuple[int, ...]:
    """How many samples of each of a slice's microbatches train the predictors: the first ones. A slice's samples
    are in random order, keyed by epoch and slice, so the first are as good a draw as any; and whole microbatches
    cost less than a part of every one.
    """
    left, found = max(1, math.floor(share * sum(microbatch_sizes) + 0.5)), list[int]()
    for size in microbatch_sizes:
        found.append(min(size, left))
        left -= found[-1]
    return tuple(found)
