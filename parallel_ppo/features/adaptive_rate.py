"""The KL-adaptive learning rate, as in rsl_rl: before each optimizer step it falls if the policy has moved too far
from the one that collected, and grows if it has moved too little.

The divergence is the estimate of `algorithms/ppo.py`. At the first step of an update the policy has not moved and
the estimate is only rounding, so that step keeps the rate. `kernels/steps.c: rate_of` is the same rule in C; the
rate of a step is part of its row of results, so a step that is done again finds the same.
"""

from parallel_ppo.memory.shared import SharedMemory
from parallel_ppo.memory.table import State, array, f8
from parallel_ppo.settings.schema import Settings, TrainingSettings


class RateState(State):
    adapted_rate = array("", f8, saved="schedules.learning_rate", least=0)

    @classmethod
    def is_needed(cls, settings: Settings) -> bool:
        return settings.training.learning_rate_schedule == "adaptive"


class AdaptiveRate:
    def __init__(self, settings: Settings, memory: SharedMemory) -> None:
        self.training, self.own = settings.training, memory.of(RateState)
        self.own.adapted_rate[...] = self.training.learning_rate

    @property
    def rate(self) -> float:
        """At the start of the next update."""
        return float(self.own.adapted_rate)

    def learn(self, rate: float) -> None:
        """The next update begins with the rate of this one's last step."""
        self.own.adapted_rate[...] = rate


def adapted(training: TrainingSettings, rate: float, divergence: float) -> float:
    """The rate of an optimizer step, but the first of an update, from the rate of the step before."""
    if divergence > 2 * training.adaptive_kl:
        return max(rate / training.adaptive_factor, training.adaptive_min)
    if 0 < divergence < training.adaptive_kl / 2:
        return min(rate * training.adaptive_factor, training.adaptive_max)
    return rate
