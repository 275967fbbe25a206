"""Finished episodes, read off the slab's rewards and starts. T steps, E envs."""

from typing import NamedTuple

from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.memory import Slab


class Episode(NamedTuple):
    iteration: int
    step: int  # of the run, over all environments
    env: int
    episode_return: float
    length: int
    level_seed: int | None
    success: bool | None  # None: the environment does not say whether the level was solved

    def as_dict(self) -> dict[str, float | int | None]:
        values = self._asdict()
        return {"return" if key == "episode_return" else key: value for key, value in values.items()}


def finished_episodes(state: TrainingState, memory: Slab) -> list[Episode]:
    """Advances the partial episodes of `state` by one iteration and returns those that ended, in order of
    time.
    """
    num_steps, num_envs = memory.reward.shape
    counters, found = state.counters, []
    restarted = memory.episode_start[
        0
    ].nonzero()  # among them what could not be restored, and left its episode
    state.episode_return[restarted] = 0
    state.episode_length[restarted] = 0
    for t in range(num_steps):
        state.episode_return += memory.reward[t]
        state.episode_length += 1
        for env in memory.episode_start[t + 1].nonzero()[0].tolist():
            level, complete = int(memory.level_seed[t, env]), int(memory.level_complete[t, env])
            step = counters.env_steps + (t + 1) * num_envs
            found.append(
                Episode(
                    counters.iteration + 1,
                    step,
                    env,
                    float(state.episode_return[env]),
                    int(state.episode_length[env]),
                    level if level >= 0 else None,
                    bool(complete) if complete >= 0 else None,
                )
            )
            state.recent_returns.append(found[-1].episode_return)
            state.recent_lengths.append(found[-1].length)
            state.episode_return[env] = 0
            state.episode_length[env] = 0
    counters.episodes += len(found)
    return found
