"""PPO for CPU machines: the same bits for any number of workers. Names are imported at first use."""

import importlib
from typing import TYPE_CHECKING, Any

from parallel_ppo.version import VERSION as __version__

if TYPE_CHECKING:
    from parallel_ppo.exits import CallbackError, InputError, RunError
    from parallel_ppo.library.commands import evaluate, export, play, push, verify
    from parallel_ppo.library.policy import Policy, load
    from parallel_ppo.library.run import Run
    from parallel_ppo.library.training import train
    from parallel_ppo.training.callbacks import Progress

_NAMES = {
    "exits": ("CallbackError", "InputError", "RunError"),
    "library.commands": ("evaluate", "export", "play", "push", "verify"),
    "library.policy": ("Policy", "load"),
    "library.run": ("Run",),
    "library.training": ("train",),
    "training.callbacks": ("Progress",),
}
__all__ = [
    "CallbackError",
    "InputError",
    "Policy",
    "Progress",
    "Run",
    "RunError",
    "__version__",
    "evaluate",
    "export",
    "load",
    "play",
    "push",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            globals()[name] = found = getattr(importlib.import_module(f"parallel_ppo.{module}"), name)
            return found
    raise AttributeError(f"module 'parallel_ppo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
