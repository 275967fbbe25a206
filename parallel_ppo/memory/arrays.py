"""The arrays of every run; those of optional features are declared with them (`features/`).

T steps, E envs, S slices, P parameters: the policy's and those of curiosity's predictors.
"""

from typing import Any

import torch

from parallel_ppo.memory.table import Array, Rollout, Scratch, Start, State, Table, array, f4, f8, i8, u1

BLOCK = 16384  # parameters per block of the reduction; the gradient norm is summed block by block
MAX_SCALARS = 32  # of an algorithm, for a minibatch


class RolloutBuffer(Rollout):
    """One rollout. On its instances are also the rollout arrays of the features of a run: see `of`."""

    observation = array("T+1 E observation", "observations", written="collect", sampled=True, by_node=True)
    action = array("T E action", f4, written="collect", sampled=True)
    action_mask = array("T E choices", u1, written="collect", sampled=True)
    log_prob = array("T E", f4, written="collect", sampled=True, gathered="revalues")
    value = array("T+1 E", f4, written="collect", sampled=True, gathered=True)
    reward = array("T E", f4, written="collect", gathered=True)
    episode_start = array("T+1 E", u1, written="collect", gathered=True)
    truncated = array("T E", u1, written="collect", gathered=True)
    final_value = array("T E", f4, written="collect", gathered=True)
    level_seed = array("T E", "int32", written="collect", gathered=True)  # where an episode ends, else -1
    level_complete = array("T E", "int8", written="collect", gathered=True)
    info = array("T E info", f4, written="collect", gathered=True)  # where an episode ends
    advantage = array("T E", f4, written="targets", sampled=True)
    target_return = array("T E", f4, written="targets", sampled=True)
    learner_value = array("T+1 E", f4, written="revalue", when="revalues", gathered=True)
    learner_log_prob = array("T E", f4, written="revalue", when="revalues", gathered=True)

    rollout_arrays: list[Array]

    def of(self, table: type[Table]) -> Any:
        """The same, typed as the arrays of a feature: there is one namespace."""
        return self

    def sampled_rows(self) -> dict[str, torch.Tensor]:
        """The sampled arrays as [T * E, ...]."""
        steps, envs = self.reward.shape
        names = [one.name for one in self.rollout_arrays if one.sampled]
        columns = {name: torch.from_numpy(getattr(self, name))[:steps] for name in names}
        return {name: column.reshape(steps * envs, *column.shape[2:]) for name, column in columns.items()}

    def gathered_columns(self) -> list[Any]:
        return [getattr(self, one.name) for one in self.rollout_arrays if one.gathered]


class EnvironmentStart(Start):
    carry_observation = array("E observation", "observations")
    carry_start = array("E", u1)
    state_length = array("E", i8)
    state_bytes = array("E state", u1, used="state_length", sparse=True)


class Learner(State):
    parameters = array("P", f4, versioned="versions")
    first_moment = array("P", f4, saved="adam.first_moment")
    second_moment = array("P", f4, saved="adam.second_moment", least=0)


class Progress(Scratch):
    """The collect's progress, and the iteration whose start a slot holds (written last; -1 is empty)."""

    steps_done = array("S", i8)
    state_stamp = array("slots S", i8, initial=-1)
    evaluation = array("evaluation", f8, written="evaluate")


class Gradients(Scratch):
    microbatch_gradient = array("microbatches policy", f4, written="gradient", by_node=True)
    predictor_gradient = array("predictor_microbatches predictors", f4, written="gradient", by_node=True)
    microbatch_statistics = array("microbatches statistics", f8, written="gradient")
    gradient = array("P", f4, written="reduce")
    gradient_squares = array("blocks", f8, written="reduce")


class OptimizerSteps(Scratch):
    """The plan of an update, and what its optimizer steps need and leave: see `kernels/steps.c`."""

    step_header = array("1", i8)
    step_futex = array("1", "uint32")
    stepped = array("3 stepped", f4)
    step_claims = array("claims", i8)
    step_rows = array("epochs S samples", i8)
    step_scalars = array("steps scalars", f8)
    step_rates = array("steps 2", f8)
    step_results = array("steps results", f8)
    step_times = array("times 3", f8)
