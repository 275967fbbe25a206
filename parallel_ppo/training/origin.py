"""The origin of settings. Settings can name code: the modules of environments, wrappers, networks and
callbacks, and arguments of constructors. Nothing that they name is imported before they are known to be this
user's own (signed with their key) or the user trusts them.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from parallel_ppo.exits import InputError
from parallel_ppo.settings.env_families import family_of
from parallel_ppo.settings.kinds import is_own
from parallel_ppo.settings.layers import read_settings
from parallel_ppo.settings.rules import checked
from parallel_ppo.settings.schema import Settings
from parallel_ppo.storage.files import Damaged
from parallel_ppo.storage.run_directory import RunDirectory
from parallel_ppo.storage.user_key import is_signed


def named_code(settings: Settings) -> dict[str, str]:
    """The settings that can run code, by key, in full."""
    env, network = settings.env, settings.training.policy
    named = {
        "env.id": env.id if family_of(env.id).names_code(env.id) else None,
        "env.wrappers": env.wrappers,
        "env.kwargs": env.kwargs,
        "training.policy": network if is_own(network) else None,
        **{
            f"training.{name}_schedule": schedule
            for name in ("learning_rate", "clip_range")
            if is_own(schedule := getattr(settings.training, f"{name}_schedule"))
        },
        "logging.callbacks": settings.logging.callbacks,
    }
    return {key: repr(value) for key, value in named.items() if value}


def refuse(file: Path, code: dict[str, str]) -> None:
    """`code` is what this user neither signed nor trusts."""
    for key, value in code.items():
        raise InputError(
            f"{file}: sets {key} to {value[:80]}, which can run code, and was not signed with this user's key;"
            " use --trust-checkpoint if you know where it comes from"
        )


def saved_settings(root: Path, *, trust: bool) -> Settings:
    """The settings of the run that is resumed. Those that name code are believed if a checkpoint of the
    run that this user signed names the same.
    """
    file = root / "config.yaml"
    settings = read_settings(file=file, flags={})
    code = named_code(settings)
    if code and not trust:
        own = next(_signed_settings(RunDirectory.existing(root).checkpoints), None)
        known = named_code(own) if own is not None else {}
        refuse(file, {key: value for key, value in code.items() if known.get(key) != value})
    return checked(settings)


def _signed_settings(checkpoints: Path) -> Iterator[Settings]:
    """The settings in the checkpoints that this user signed."""
    # NumPy's threads are set before it is imported: its QR, which draws initial weights, rounds by threads.
    from parallel_ppo.storage.array_files import read_metadata

    for weights in sorted(checkpoints.glob("step_*/policy.safetensors")):
        try:
            metadata = read_metadata(weights)
            if is_signed(metadata.get("signature", ""), metadata["settings"].encode()):
                yield read_settings(file=None, flags={}, base=json.loads(metadata["settings"]))
        except (Damaged, InputError, KeyError, ValueError, TypeError, AttributeError, RecursionError):
            continue
