"""PPO for machines with CPUs: the same bits at any number of workers. What is offered here is imported
when it is used.
"""

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

__all__ = [
    "CallbackError", "InputError", "Policy", "Progress", "Run", "RunError", "__version__", "evaluate", "export",
    "load", "play", "push", "train", "verify",
]  # fmt: skip
_HOMES = {
    "CallbackError": "exits",
    "InputError": "exits",
    "Policy": "library.policy",
    "Progress": "training.callbacks",
    "Run": "library.run",
    "RunError": "exits",
    "evaluate": "library.commands",
    "export": "library.commands",
    "load": "library.policy",
    "play": "library.commands",
    "push": "library.commands",
    "train": "library.training",
    "verify": "library.commands",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'parallel_ppo' has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(f"parallel_ppo.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
