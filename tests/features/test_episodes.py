"""What is written of an episode when it ends."""

from types import SimpleNamespace

import numpy as np

from parallel_ppo.envs.contract import Step
from parallel_ppo.features.episodes import RECENT, Episodes, EpisodeState
from parallel_ppo.features.recurrence import Walk
from parallel_ppo.memory.table import private
from parallel_ppo.workers.worker import Worker


def unfinished(num_envs: int) -> Episodes:
    own = private(EpisodeState, E=num_envs)
    return Episodes(SimpleNamespace(of=lambda table: own))  # type: ignore[arg-type]


def test_an_episode_says_which_level_it_was_and_whether_it_was_solved() -> None:
    episodes = unfinished(3)
    episodes.own.episode_return[0], episodes.own.episode_length[0] = 5.0, 9
    start = np.zeros((3, 3), np.uint8)
    start[1, 0] = start[2, 1] = start[2, 2] = 1
    rollout = SimpleNamespace(
        reward=np.ones((2, 3), np.float32),
        episode_start=start,
        level_seed=np.array([[40, 0, 0], [0, 41, -1]], np.int32),
        level_complete=np.array([[1, 0, 0], [1, 0, -1]], np.int8),
        info=np.zeros((2, 3, 0)),
    )
    found = [episode.as_dict() for episode in episodes.finish(rollout, iteration=4, env_steps=600)]
    assert [(row["env"], row["level_seed"], row["success"]) for row in found] == [
        (0, 40, True),
        (1, 41, False),
        (2, None, None),
    ]
    assert found[0]["return"] == 6.0 and found[0]["length"] == 10 and found[0]["step"] == 603


def test_the_last_hundred_returns_are_remembered_in_order() -> None:
    episodes, start = unfinished(1), np.ones((RECENT + 8, 1), np.uint8)
    missing = np.full((RECENT + 7, 1), -1)
    rollout = SimpleNamespace(
        reward=np.arange(RECENT + 7.0).reshape(-1, 1), episode_start=start, level_seed=missing,
        level_complete=missing,
        info=np.zeros((*missing.shape, 0)),
    )  # fmt: skip
    episodes.finish(rollout, iteration=0, env_steps=0)  # type: ignore[arg-type]
    assert episodes.recent_returns == list(range(7, RECENT + 7)) and episodes.recent_lengths == [1] * RECENT


def test_a_worker_keeps_what_the_environment_says_of_a_level() -> None:
    names = (
        "observation",
        "reward",
        "episode_start",
        "level_seed",
        "level_complete",
        "truncated",
        "final_value",
    )
    rollout = SimpleNamespace(action=np.zeros((1, 2)), **{name: np.full((2, 2), 99.0) for name in names})
    over = np.array([True, False])
    told = [
        Step(np.zeros(2), np.zeros(2), over, None, None, np.array([7, 8]), np.array([True, False])),
        Step(np.zeros(2), np.zeros(2), over, None, None, None, None),
    ]
    for step, seeds, solved in zip(told, ([7, 8], [-1, -1]), ([1, 0], [-1, -1]), strict=True):
        rollout.level_seed[:] = rollout.level_complete[:] = -1  # as a collect begins
        env = SimpleNamespace(step=lambda action, step=step: step)
        Worker.step(SimpleNamespace(), env, SimpleNamespace(), Walk(rollout, slice(0, 2), None, 1), 0)  # type: ignore[arg-type]
        assert rollout.level_seed[0].tolist() == seeds and rollout.level_complete[0].tolist() == solved
