"""The observation normalizer: running mean and scale of vector observations. The arrays that act are part of the
policy: kernels, policy files and ONNX read them.
"""

import numpy as np

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.features.moments import EPSILON, Moments, Slices
from parallel_ppo.memory.arrays import RolloutBuffer
from parallel_ppo.memory.shared import SharedMemory
from parallel_ppo.memory.table import State, array, f4, f8
from parallel_ppo.settings.schema import Settings


class ObservationState(State):
    observation_count = array("", f8, saved="observations.count", least=0)
    observation_center = array("vector", f8, saved="observations.mean")
    observation_squares = array("vector", f8, saved="observations.squares", least=0)
    observation_mean = array("vector", f4, versioned="version_mean")  # published, as is the next
    observation_scale = array("vector", f4, versioned="version_scale", initial=1)


class Observations:
    def __init__(self, settings: Settings, spec: EnvSpec, memory: SharedMemory) -> None:
        self.settings, self.spec, self.own = settings, spec, memory.of(ObservationState)
        own = self.own
        self.moments = Moments(own.observation_count, own.observation_center, own.observation_squares)

    def learn(self, rollout: RolloutBuffer, cluster: Slices) -> None:
        """Slice by slice, in order: the same for any number of workers and nodes."""
        if not self.settings.training.normalize_observations:
            return
        sizes, found = self.settings.sizes, []
        observation = self.spec.vectors(rollout.observation[:-1])
        for index in cluster.slices:
            columns = slice(index * sizes.slice_envs, (index + 1) * sizes.slice_envs)
            moments = Moments.of(observation[:, columns].reshape(-1, observation.shape[-1]))
            found.append(np.stack([moments.mean, moments.squares]))
        for mean, squares in cluster.gather_slices(np.stack(found)):
            self.moments.add(Moments(float(sizes.num_steps * sizes.slice_envs), mean, squares))

    def publish(self) -> None:
        """The mean and scale that the next rollouts are seen with."""
        is_known = bool(self.moments.num)
        self.own.observation_mean[...] = self.moments.mean if is_known else 0
        self.own.observation_scale[...] = 1 / np.sqrt(self.moments.variance + EPSILON) if is_known else 1
