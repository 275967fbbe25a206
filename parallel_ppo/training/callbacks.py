"""Functions of users that are called after each iteration: they see its metrics and may stop the run.

They get copies, between two iterations, in the first node's coordinator: they cannot change what is learned.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from parallel_ppo.exits import CallbackError, InputError, is_interruption
from parallel_ppo.printable import described
from parallel_ppo.settings.named_code import find

if TYPE_CHECKING:
    from parallel_ppo.training.budget import Budget


@dataclass
class Wishes:
    """What the callbacks of an iteration ask for."""

    write_policy: Callable[[], Path]
    numbers: dict[str, float] = field(default_factory=dict)
    save: bool = False


class Progress(NamedTuple):
    """The state of a run after an iteration."""

    iteration: int
    env_steps: int
    return_mean: float  # of the last 100 episodes; NaN before the first has ended
    metrics: dict[str, Any]  # the iteration's line in metrics.jsonl
    directory: Path
    wishes: Wishes

    @property
    def policy(self) -> Any:
        """The `parallel_ppo.Policy` as it is now."""
        return import_module("parallel_ppo").load(self.wishes.write_policy())

    def evaluate(self, **options: Any) -> dict[str, Any]:
        """As `parallel_ppo.evaluate`, with the policy as it is now."""
        return import_module("parallel_ppo").evaluate(self.wishes.write_policy(), **options)

    def save(self) -> Path:
        """Saves a checkpoint when all callbacks have returned; where it will be."""
        self.wishes.save = True
        return self.directory / "checkpoints" / f"step_{self.env_steps}"

    def log(self, **numbers: float) -> None:
        """Adds `custom/NAME` to the iteration's line in metrics.jsonl and to TensorBoard."""
        for name, number in numbers.items():
            value = float(number)
            self.wishes.numbers[f"custom/{name}"] = value
            if not math.isfinite(value):
                raise ValueError(f"log: got {name}={value}; expected a finite number")


class Callback(NamedTuple):
    """`call` returns None or False to go on, True or a text (the reason) to stop the run."""

    name: str
    call: Callable[[Progress], Any]


def progress_of(record: dict[str, Any], directory: Path, wishes: Wishes) -> Progress:
    mean = record["episode_return_mean"]
    return Progress(
        record["iteration"],
        record["steps_global"],
        math.nan if mean is None else mean,
        copy.deepcopy(record),
        directory,
        wishes,
    )


def stop_reason(name: str, answer: Any) -> str | None:
    """From a callback's answer: None to go on, else the reason to stop. NumPy's bool is accepted too."""
    if isinstance(answer, str) and answer:
        return answer
    if answer is None or type(answer).__name__ in ("bool", "bool_"):
        return name if answer else None
    raise TypeError(f"returned {answer!r:.80}; expected None, True, False or a text with the reason")


def named_callbacks(paths: Sequence[str]) -> list[Callback]:
    """The functions that `logging.callbacks` names; raises if one cannot be found."""
    found = [Callback(path, find("logging.callbacks", path)) for path in paths]
    for callback in found:
        if not callable(callback.call):
            raise InputError(f"logging.callbacks: {callback.name} is not a function")
    return found


class Callbacks:
    def __init__(self, callbacks: Sequence[Callback], directory: Path, budget: "Budget") -> None:
        self.callbacks, self.directory, self.budget = callbacks, directory, budget

    def __call__(self, record: dict[str, Any], wishes: Wishes) -> None:
        """All of them, in order. One that fails ends the run here, where it can be saved whole."""
        for name, call in self.callbacks:
            try:
                reason = stop_reason(name, call(progress_of(record, self.directory, wishes)))
            except CallbackError as error:
                self.budget.fail(error)
            except BaseException as error:  # also sys.exit()
                if is_interruption(error):
                    raise
                self.budget.fail(failure(name, record["iteration"], error, self.directory))
            else:
                if reason is not None:
                    self.budget.stop(reason)


def failure(name: str, iteration: int, error: BaseException, directory: Path) -> CallbackError:
    return CallbackError(
        f"callback {name} failed after iteration {iteration} ({described(error)}); "
        f"the run is saved, continue with --resume {directory}"
    )
