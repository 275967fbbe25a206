"""Tables of algorithms, networks, augmentations and kinds of curiosity, readable without torch.

Each names its defaults and its limits; the arithmetic is in `algorithms/`, `policies/` and `features/curiosity/`.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from parallel_ppo.printable import listed

# --- algorithms ---------------------------------------------------------------------------------------------


class AlgorithmKind(NamedTuple):
    defaults: dict[str, Any]  # of the section `training`; a file or a flag overrides them
    single_pass: bool = True  # learns from each sample once, in one step per batch
    may_lag: bool = False  # collection may use older parameters than the update
    in_turn: bool = False  # each slice is an actor that takes its own optimizer steps


ONE_PASS = {"n_epochs": 1, "normalize_advantages": False, "clip_value_loss": False}
RMSPROP = {"optimizer": "rmsprop", "learning_rate": 7e-4}
ACTOR_CRITIC = ONE_PASS | RMSPROP | {"n_steps": 5, "gae_lambda": 1.0}

ALGORITHM_KINDS = {
    "ppo": AlgorithmKind({}, single_pass=False, may_lag=True),
    "a2c": AlgorithmKind(ACTOR_CRITIC),
    "a3c": AlgorithmKind(ACTOR_CRITIC, in_turn=True),
    "impala": AlgorithmKind(ONE_PASS | {"n_steps": 20, "lag": 1}, may_lag=True),
    "appo": AlgorithmKind({"lag": 1, "clip_value_loss": False}, single_pass=False, may_lag=True),
}

# --- networks -----------------------------------------------------------------------------------------------


class NetworkKind(NamedTuple):
    trunk: str  # module:Class of the part between observation and features
    reads: Literal["images", "vectors", "both"]
    initial: Literal["orthogonal", "fan_in", "own"]  # how weights are drawn; own: by the constructor
    separate_value_trunk: bool = False
    smallest_image: int = 1  # pixels; the last layer of a smaller image would be empty
    has_width: bool = False  # `training.width` scales its channels
    default_microbatch: int | None = 64  # samples; None: all of a slice's samples in a minibatch
    default_slice: int = 8  # environments at most; small if a forward pass is cheap beside their steps


NETWORKS = {
    "impala": NetworkKind("parallel_ppo.policies.trunks:Impala", "images", "fan_in", has_width=True),
    "impoola": NetworkKind("parallel_ppo.policies.trunks:Impoola", "images", "fan_in", has_width=True),
    "nature": NetworkKind("parallel_ppo.policies.trunks:Nature", "images", "orthogonal", smallest_image=36),
    "small_image": NetworkKind("parallel_ppo.policies.trunks:SmallImage", "images", "orthogonal"),
    "mlp": NetworkKind(
        "parallel_ppo.policies.trunks:Mlp",
        "vectors",
        "orthogonal",
        separate_value_trunk=True,
        default_microbatch=None,
        default_slice=4,
    ),
}
LARGEST_SMALL_IMAGE = 32  # pixels a side


def automatic(images: Sequence[tuple[int, ...]]) -> str:
    """The network that `auto` chooses for observations with these (height, width, channels)."""
    if not images:
        return "mlp"
    is_small = all(max(shape[:2]) <= LARGEST_SMALL_IMAGE for shape in images)
    return "small_image" if is_small else "impala"


def network_kind(policy: str) -> NetworkKind:
    return NetworkKind(policy, "both", "own") if is_own(policy) else NETWORKS[policy]


def is_own(policy: str) -> bool:
    """True for a network of the user, `module:Class`."""
    return ":" in policy


def checked_policy(policy: str) -> str:
    if policy not in ("auto", *NETWORKS) and not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", policy):
        raise ValueError(f"expected auto, {', '.join(NETWORKS)}, or your own network as module:Class")
    return policy


def that_read(what: str) -> str:
    """For messages: `impala, nature or small_image`."""
    return listed([name for name, kind in NETWORKS.items() if kind.reads == what], "or")


# --- recurrent policies -------------------------------------------------------------------------------------


class RecurrentKind(NamedTuple):
    gates: int  # rows of each weight, times the size
    states: int  # numbers that each unit remembers


RECURRENT_KINDS = {
    "none": RecurrentKind(0, 0),
    "gru": RecurrentKind(3, 1),
    "lstm": RecurrentKind(4, 2),
}

# --- augmentations ------------------------------------------------------------------------------------------


class AugmentationKind(NamedTuple):
    needs_colors: bool = False  # channels are red, green, blue, once or several times
    needs_square: bool = False


AUGMENTATION_KINDS = {
    "crop": AugmentationKind(),
    "color_jitter": AugmentationKind(needs_colors=True),
    "cutout": AugmentationKind(),
    "cutout_color": AugmentationKind(),
    "grayscale": AugmentationKind(needs_colors=True),
    "flip": AugmentationKind(),
    "rotate": AugmentationKind(needs_square=True),
    "random_conv": AugmentationKind(),
}

# --- curiosity ----------------------------------------------------------------------------------------------

CURIOSITY_KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "rnd": {"combine": "advantage"},
    "icm": {"combine": "reward", "normalize": False, "intrinsic_coef": 0.01, "update_share": 1.0},
    "ngu": {"combine": "reward", "intrinsic_coef": 0.3},
}
CURIOUS_ALGORITHMS = "ppo", "a2c"  # collect with the parameters that they update


def curiosity_defaults(kind: str, combine: str | None) -> dict[str, Any]:
    """Defaults of the section `curiosity`; a file or a flag overrides them."""
    defaults = CURIOSITY_KINDS.get(kind, {})
    if (combine or defaults.get("combine")) == "advantage":
        return defaults | {"normalize": True, "intrinsic_coef": 1.0}
    return defaults


def cannot_be_whitened(env: str, how: str, num_steps: int) -> str:
    return (
        f"curiosity.kind: the observations of {env} cannot be whitened, they {how} in {num_steps:,} steps of a"
        " random agent; use another observation, or --curiosity none"
    )
