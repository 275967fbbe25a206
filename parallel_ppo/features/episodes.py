"""Finished episodes, read off a rollout's rewards and starts, and the returns of the last ones. T steps, E envs."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from parallel_ppo.memory.arrays import RolloutBuffer
from parallel_ppo.memory.shared import SharedMemory
from parallel_ppo.memory.table import State, array, f8, i8

RECENT = 100  # episodes that `final_return_mean` and `best` look at


class EpisodeState(State):
    episode_return = array("E", f8, saved="episode.return")
    episode_length = array("E", i8, saved="episode.length", least=0)
    recent_count = array("", i8)
    recent_return = array(str(RECENT), f8, saved="recent.returns", used="recent_count")
    recent_length = array(str(RECENT), i8, saved="recent.lengths", used="recent_count", least=0)


class Episode(NamedTuple):
    iteration: int
    step: int  # of the run, over all environments
    env: int
    episode_return: float
    length: int
    level_seed: int | None
    success: bool | None  # None: the environment does not report it
    info: tuple[float, ...] = ()

    def as_dict(self, info_keys: Sequence[str] = ()) -> dict[str, float | int | None]:
        values = {key: value for key, value in self._asdict().items() if key != "info"}
        values = {"return" if key == "episode_return" else key: value for key, value in values.items()}
        info = zip(info_keys, self.info, strict=True)
        return values | {f"info/{key}": value if math.isfinite(value) else None for key, value in info}


def episode_columns(episodes: Sequence[Episode], info_keys: Sequence[str]) -> dict[str, float | None]:
    """Means over the episodes of an iteration, of what their environments report."""
    reported = {"success_rate": [episode.success for episode in episodes if episode.success is not None]}
    columns: dict[str, float | None] = {
        name: float(np.mean(values)) for name, values in reported.items() if values
    }
    for index, key in enumerate(info_keys):
        values = [value for episode in episodes if math.isfinite(value := episode.info[index])]
        columns[f"info/{key}"] = float(np.mean(values)) if values else None
    return columns


class Episodes:
    def __init__(self, memory: SharedMemory) -> None:
        self.own: EpisodeState = memory.of(EpisodeState)

    @property
    def recent_returns(self) -> list[float]:
        return self.own.recent_return[: int(self.own.recent_count)].tolist()

    @property
    def recent_lengths(self) -> list[int]:
        return self.own.recent_length[: int(self.own.recent_count)].tolist()

    def finish(self, rollout: RolloutBuffer, iteration: int, env_steps: int) -> list[Episode]:
        """Advances the unfinished episodes by one iteration and returns those that ended, in order of time."""
        own, found = self.own, list[Episode]()
        num_steps, num_envs = rollout.reward.shape
        restarted = rollout.episode_start[0].nonzero()  # or not restored: its episode was abandoned
        own.episode_return[restarted] = own.episode_length[restarted] = 0
        for t in range(num_steps):
            own.episode_return += rollout.reward[t]
            own.episode_length += 1
            for env in rollout.episode_start[t + 1].nonzero()[0].tolist():
                level, complete = int(rollout.level_seed[t, env]), int(rollout.level_complete[t, env])
                episode = Episode(
                    iteration + 1,
                    env_steps + (t + 1) * num_envs,
                    env,
                    float(own.episode_return[env]),
                    int(own.episode_length[env]),
                    level if level >= 0 else None,
                    bool(complete) if complete >= 0 else None,
                    tuple(rollout.info[t, env].tolist()),
                )
                found.append(episode)
                self._remember(episode)
                own.episode_return[env] = own.episode_length[env] = 0
        return found

    def _remember(self, episode: Episode) -> None:
        own, count = self.own, int(self.own.recent_count)
        if count == RECENT:
            own.recent_return[:-1], own.recent_length[:-1] = own.recent_return[1:], own.recent_length[1:]
            count -= 1
        own.recent_return[count], own.recent_length[count] = episode.episode_return, episode.length
        own.recent_count[...] = count + 1
