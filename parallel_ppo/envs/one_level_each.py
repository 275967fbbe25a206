"""A slice of environments that each repeat one level, for films of chosen levels."""

from collections.abc import Callable, Sequence

import numpy as np

from parallel_ppo.envs.contract import SliceEnv, Step, View
from parallel_ppo.envs.families import make_slice
from parallel_ppo.settings.schema import Settings


class OneLevelEach:
    action_mask = None

    def __init__(self, settings: Settings, levels: Sequence[int]) -> None:
        self.envs: list[SliceEnv] = []
        for index, level in enumerate(levels):
            chosen = settings.changed("env", num_envs=1, slice_envs=1, start_level=level, num_levels=1)
            self.envs.append(make_slice(chosen, index, num_views=1))

    def reset(self) -> np.ndarray:
        return np.concatenate([env.reset() for env in self.envs])

    def step(self, action: np.ndarray) -> Step:
        steps = [env.step(action[index : index + 1]) for index, env in enumerate(self.envs)]

        def joined(part: Callable[[Step], np.ndarray | None], missing: int) -> np.ndarray:
            """A step without an ended episode has no levels."""
            return np.concatenate(
                [np.array([missing]) if part(step) is None else part(step) for step in steps]
            )

        return Step(
            np.concatenate([step.observation for step in steps]),
            np.concatenate([step.reward for step in steps]),
            np.concatenate([step.episode_start for step in steps]),
            None,
            None,
            joined(lambda step: step.level_seed, -1),
            joined(lambda step: step.level_complete, 0),
        )

    def get_state(self) -> list[bytes]:
        return [state for env in self.envs for state in env.get_state()]

    def set_state(self, states: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        found = [env.set_state([state]) for env, state in zip(self.envs, states, strict=True)]
        observations, exact = zip(*found, strict=True)
        return np.concatenate(observations), np.concatenate(exact)

    def views(self) -> list[View]:
        return [view for env in self.envs for view in env.views()]

    def close(self) -> None:
        for env in self.envs:
            env.close()
