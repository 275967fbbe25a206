"""The table of algorithms: their defaults and what each allows. Needs no torch. The arithmetic is in
`algorithms/`.
"""

from typing import Any, NamedTuple


class AlgorithmKind(NamedTuple):
    defaults: dict[str, Any]  # of the section `training`, below what a file or a flag says
    single_pass: bool = True  # each sample is learned from once, in one step per batch
    may_lag: bool = False  # collection may use older parameters than the update
    in_turn: bool = False  # each slice is an actor with a gradient and an optimizer step of its own


ONE_PASS = {"n_epochs": 1, "normalize_advantages": False, "clip_value_loss": False}
RMSPROP = {"optimizer": "rmsprop", "learning_rate": 7e-4}
ACTOR_CRITIC = ONE_PASS | RMSPROP | {"n_steps": 5, "gae_lambda": 1.0}

ALGORITHM_KINDS = {
    "ppo": AlgorithmKind({}, single_pass=False, may_lag=True),
    "a2c": AlgorithmKind(ACTOR_CRITIC),
    "a3c": AlgorithmKind(ACTOR_CRITIC, in_turn=True),
    "impala": AlgorithmKind(ONE_PASS | {"n_steps": 20, "lag": 1, "max_grad_norm": 40.0}, may_lag=True),
    "appo": AlgorithmKind({"lag": 1, "clip_value_loss": False}, single_pass=False, may_lag=True),
}


def checked_algorithm(name: str) -> str:
    if name not in ALGORITHM_KINDS:
        raise ValueError(f"algorithm: expected {', '.join(ALGORITHM_KINDS)}")
    return name
