"""Budgets that the user gives replace those of a file, and linear schedules follow a longer budget."""

from collections.abc import Callable, Mapping
from typing import Any

from parallel_ppo.settings.kinds import ALGORITHM_KINDS
from parallel_ppo.settings.schema import STOP_CONDITIONS, Settings

DEFAULT_HOURS = 1.0
USUAL_MINIBATCHES = 8


def with_budgets(
    settings: Settings,
    given: Mapping[str, Any],
    *,
    is_first: bool,
    is_shipped: bool,
    report: Callable[[str], None],
) -> Settings:
    """`given` are the user's own values, by key. `is_first`: no run is resumed; `is_shipped`: the file, if
    any, comes with the project, so the end of its schedules is not the user's choice.
    """
    stops = {stop for stop in STOP_CONDITIONS if given.get(f"training.{stop}") is not None}
    if is_first:
        settings = _with_horizon(settings, given, stops, is_shipped, report)
    training = settings.training
    if stops:
        settings = settings.changed(
            "training", **{stop: None for stop in STOP_CONDITIONS if stop not in stops}
        )
    elif training.duration is None and training.total_timesteps is None:
        settings = settings.changed("training", duration=DEFAULT_HOURS)
    return settings


def _with_horizon(
    settings: Settings,
    given: Mapping[str, Any],
    stops: set[str],
    is_shipped: bool,
    report: Callable[[str], None],
) -> Settings:
    """Where linear schedules by steps end. A budget that is shorter than the file's horizon leaves it as it
    is: the run is then the beginning of the longer one.
    """
    training = settings.training
    horizon, steps = training.schedule_steps or training.total_timesteps, training.total_timesteps
    if (
        not training.with_horizon
        or training.schedule_by != "steps"
        or given.get("training.schedule_steps") is not None
    ):
        return settings
    if "total_timesteps" in stops:
        if is_shipped and horizon is not None and steps is not None and steps > horizon:
            return settings.changed("training", schedule_steps=steps)
    elif stops and horizon is not None:
        report(
            f"linear schedules end after {horizon:,} steps, as in the configuration; --total-timesteps or --set"
            " training.schedule_steps=N changes it"
        )
        return settings.changed("training", schedule_steps=horizon)
    return settings


def one_step_epochs(settings: Settings, given: Mapping[str, Any]) -> str | None:
    """A warning if the user changed the number of samples but not the minibatch size, so that every epoch is
    a single step.
    """
    training, sizes = settings.training, settings.sizes
    is_changed = "env.num_envs" in given or "training.n_steps" in given
    is_chosen = "training.batch_size" in given or ALGORITHM_KINDS[training.algorithm].single_pass
    if not is_changed or is_chosen or sizes.num_minibatches > 1:
        return None
    smaller, rest = divmod(sizes.batch_size, USUAL_MINIBATCHES)
    hint = "" if rest or smaller % sizes.num_slices else f", such as --batch-size {smaller}"
    return (
        f"training.batch_size: {sizes.batch_size} is all samples of an iteration ({sizes.num_envs} environments"
        f" x {sizes.num_steps} steps), so an epoch is one optimizer step, which learns slowly; use a smaller"
        f" one{hint}"
    )
