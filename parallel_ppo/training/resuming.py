"""Resuming: the newest checkpoint that is whole, on the node that has it."""

import numpy as np
import torch

from parallel_ppo.exits import InputError
from parallel_ppo.policies.parameters import sha256, views
from parallel_ppo.settings.learning import learning_settings
from parallel_ppo.settings.schema import SCHEDULE_ENDS
from parallel_ppo.training import checkpoint
from parallel_ppo.training.run import Run
from parallel_ppo.version import ARITHMETIC


def resumes(run: Run) -> bool:
    """Loads the newest checkpoint. False on a node that does not lead and has none newer than the first node's (with
    a shared file system it never has), and for a run that was ended before its first checkpoint.
    """
    plan = run.plan
    saved = checkpoint.steps(plan.directory.checkpoints) if plan.resume else []
    newest = run.cluster.values_of_all(checkpoint.num_steps(saved[0]) if saved else -1)
    if not plan.resume or not (plan.node.leads or newest[plan.node.rank] > newest[0]):
        return False
    try:
        return _resume(run)
    except InputError as problem:
        if plan.node.leads:
            raise
        run.display.warn(str(problem))  # another node has a whole one, or none does
        return False


def _resume(run: Run) -> bool:
    """False when the run was ended before its first checkpoint: it starts again, and nothing is lost."""
    plan, state, policy, display = run.plan, run.state, run.policy, run.display

    def flat(weights: dict[str, np.ndarray]) -> torch.Tensor:
        vector = torch.zeros(state.memory.policy_end)
        for name, view in views(policy, vector).items():
            view.copy_(torch.from_numpy(weights[name]))
        return vector

    shapes = {name: tuple(view.shape) for name, view in views(policy, state.parameters).items()}
    expected = checkpoint.Expected(
        state.snapshot(),
        shapes,
        {key: value for key, value in learning_settings(plan.settings).items() if key not in SCHEDULE_ENDS},
        lambda weights: sha256(policy, flat(weights)),
        state.memory.misfit,
    )
    found = checkpoint.newest(plan.directory.checkpoints, trust=plan.trust, expected=expected)
    if found is None:
        if plan.directory.has_begun:
            raise InputError(f"{plan.directory.checkpoints}: holds no checkpoint; it was moved or deleted")
        display.note(f"{plan.directory.root} has no checkpoint yet: starting from the beginning")
        return False
    path, snapshot, weights, refused = found
    arithmetic_there = checkpoint.read_manifest(path).arithmetic
    if arithmetic_there != ARITHMETIC:
        display.warn(
            f"{path.name} was saved with arithmetic {arithmetic_there}, this version has {ARITHMETIC}: bits differ"
            " from here on from those that the earlier version would have learned"
        )
    for line in refused:
        display.warn(f"{line}; {path.name} is used instead")
    snapshot.arrays["parameters"] = flat(weights).numpy()
    state.restore(snapshot)
    display.note(f"resuming {plan.directory.root} from step {state.counters.env_steps:,}")
    for key, (before, now) in plan.schedule_changes.items():
        display.note(f"{key}: was {before} and is {now} from here on; what is learned changes with it")
    return True
