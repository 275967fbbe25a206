"""An episode's memory: how unlike all that was seen since its start is an observation? (Badia et al. 2020.)

In NumPy, in order of time, one environment after the other. n envs of a slice, M entries, D numbers of an
embedding, k neighbours.
"""

import math
from typing import NamedTuple

import numpy as np

from parallel_ppo.kernels import numerics
from parallel_ppo.settings.schema import CuriositySettings


class Memories(NamedTuple):
    """The memories of a slice's environments, updated in place and carried into the next iteration."""

    episodic_memory: np.ndarray  # [n, M * D] float32; the oldest entry makes room when it is full
    episodic_used: np.ndarray  # [n] numbers in use, D for each entry
    episodic_next: np.ndarray  # [n] entries ever written, since the episode's start
    episodic_distance: np.ndarray  # [n, 2] how many squared distances there were in all episodes, their mean

    def forget(self, env: int) -> None:
        """An episode starts. How far apart things are is remembered."""
        self.episodic_used[env] = self.episodic_next[env] = 0

    def remember(self, env: int, embedding: np.ndarray) -> None:
        entries = self.episodic_memory[env].reshape(-1, len(embedding))
        entries[self.episodic_next[env] % len(entries)] = embedding
        self.episodic_next[env] += 1
        self.episodic_used[env] = min(self.episodic_next[env], len(entries)) * len(embedding)

    def seen(self, env: int, width: int) -> np.ndarray:
        """[entries, D]"""
        return self.episodic_memory[env, : self.episodic_used[env]].reshape(-1, width)

    def novelty(self, env: int, embedding: np.ndarray, chosen: CuriositySettings) -> float:
        """The similarity of an embedding to the memory; 0 if the memory is empty."""
        seen = self.seen(env, len(embedding))
        if not len(seen):
            return 0.0
        squared = numerics.row_sums(np.square(seen - embedding))
        if len(squared) > chosen.ngu_neighbours:
            squared = np.partition(squared, chosen.ngu_neighbours - 1)[: chosen.ngu_neighbours]
        squared = np.sort(squared).astype(np.float64)  # a sum in one order
        count, mean = self.episodic_distance[env]
        count += len(squared)
        mean += numerics.total(squared - mean) / count
        self.episodic_distance[env] = count, mean
        return similarity_reward(squared / mean if mean > 0 else squared, chosen)


def similarity_reward(distances: np.ndarray, chosen: CuriositySettings) -> float:
    """From squared distances to the nearest neighbours, in units of their running mean: 1 / similarity."""
    apart = np.maximum(distances - chosen.ngu_cluster_distance, 0)
    kernel = chosen.ngu_kernel_epsilon / (apart + chosen.ngu_kernel_epsilon)
    similarity = math.sqrt(numerics.total(kernel)) + chosen.ngu_constant
    return 0.0 if similarity > chosen.ngu_max_similarity else 1 / similarity


def episodic_rewards(
    memories: Memories, embedding: np.ndarray, episode_start: np.ndarray, chosen: CuriositySettings
) -> np.ndarray:
    """[T, n]: what each next observation is worth in its episode. `embedding` is [T + 1, n, D].

    An observation that opens an episode is its first entry and earns nothing.
    """
    num_rows, num_envs, _ = embedding.shape
    reward = np.zeros((num_rows - 1, num_envs), np.float32)
    for env in range(num_envs):
        for t in range(num_rows):
            if episode_start[t, env]:
                memories.forget(env)
                memories.remember(env, embedding[t, env])
            elif t:
                reward[t - 1, env] = memories.novelty(env, embedding[t, env], chosen)
                memories.remember(env, embedding[t, env])
    return reward
