"""Episodes that are only looked at: which levels, which randomness, and how they are played.

Episode k belongs to slot k % 8 of slice k // 8. A slice is always played as one batch of 8 environments,
one episode from each: taking the first N episodes that finish would favour short ones. All randomness is
keyed by (seed, levels, slice), so results do not depend on who plays a slice, or when. n slots.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from parallel_ppo.envs.contract import SliceEnv
from parallel_ppo.envs.families import are_training_frames, make_slice
from parallel_ppo.exits import NumbersError
from parallel_ppo.keyed import generator, integer_seed
from parallel_ppo.policies.actor import Actor
from parallel_ppo.policies.network import Past
from parallel_ppo.settings.env_families import family_of
from parallel_ppo.settings.schema import EnvSettings, Settings

SLOTS = 8
LEVEL_SETS = ("train", "test")
LAST_LEVEL = 2**31 - 1
MOST_COMPARED = 100_000  # training levels; first frames of more take minutes and gigabytes


class Played(NamedTuple):
    """One finished episode; NaN where the environment does not report it. Kept as a row of float64."""

    episode_return: float
    length: float
    level_seed: float
    complete: float  # 1: the level was solved
    cut: float  # 1: stopped by `evaluation.max_steps`
    seen: float = 0.0  # 1: a test level whose first frame is that of a training level


class Moment(NamedTuple):
    """The state of the slots after a step, as far as their episodes count."""

    ended: dict[int, Played]  # by slot
    playing: np.ndarray  # [n] bool
    episode_return: np.ndarray  # [n] of the episode that is being played, or was last
    length: np.ndarray  # [n]


def unseen(episodes: Sequence[Played]) -> list[Played]:
    """Without those that began with the first frame of a training level; all, if nothing else is left."""
    return [episode for episode in episodes if not episode.seen] or list(episodes)


def num_slices(num_episodes: int) -> int:
    return -(-num_episodes // SLOTS)


def result_shape(settings: Settings) -> tuple[int, int, int]:
    """The shape of the shared array of results; empty if nothing is evaluated."""
    chosen = settings.evaluation
    return len(LEVEL_SETS), chosen.num_episodes if chosen.interval is not None else 0, len(Played._fields)


# --- levels -------------------------------------------------------------------------------------------------


def has_unseen_levels(env: EnvSettings) -> bool:
    bounded = family_of(env.id).HAS_LEVELS and env.num_levels > 0
    return bounded and env.start_level + env.num_levels < LAST_LEVEL


def level_range(env: EnvSettings, level_set: str) -> tuple[int, int]:
    """First level and number of levels (0: all) of a set. Test levels are all those beyond the training
    levels.
    """
    if level_set == "train":
        return env.start_level, env.num_levels
    assert has_unseen_levels(env)
    first = env.start_level + env.num_levels
    return first, LAST_LEVEL - first


def level_set_settings(settings: Settings, level_set: str, iteration: int, num_envs: int = SLOTS) -> Settings:
    """The settings of slices that play `level_set`: its levels, and a seed that training never uses."""
    start_level, num_levels = level_range(settings.env, level_set)
    seed = integer_seed(settings.training.seed, f"evaluation {level_set}", iteration)
    return settings.changed(
        "env",
        num_envs=num_envs,
        slice_envs=num_envs,
        start_level=start_level,
        num_levels=num_levels,
        level_sampler="uniform",
    ).changed("training", seed=seed, algorithm="ppo", num_actors=None, lag=0)


# --- playing ------------------------------------------------------------------------------------------------


def play_slice(
    settings: Settings,
    level_set: str,
    slice_index: int,
    iteration: int,
    *,
    actor: Actor,
    num_episodes: int,
) -> Iterator[tuple[int, Played]]:
    """The first `num_episodes` slots of a slice, each as it ends. Every slot plays one episode."""
    chosen = level_set_settings(settings, level_set, iteration)
    quota = (np.arange(SLOTS) < num_episodes).astype(np.int64)
    env = make_slice(chosen, slice_index)
    try:
        seen = np.zeros(SLOTS)
        if level_set == "test" and settings.env.num_levels <= MOST_COMPARED:
            seen = are_training_frames(settings.env, env.reset()).astype(float)
        for moment in play(env, chosen, slice_index, actor=actor, quota=quota):
            for slot, played in moment.ended.items():
                yield slot, played._replace(seen=float(seen[slot]))
    finally:
        env.close()


def play(
    env: SliceEnv,
    settings: Settings,
    slice_index: int,
    *,
    actor: Actor,
    quota: np.ndarray,
) -> Iterator[Moment]:
    """The start, and then each step until every slot has played its `quota` of episodes.

    All slots are stepped all the time, in one shape.
    """
    draws = generator(settings.training.seed, "evaluation action", slice_index)
    left, max_steps = quota.copy(), settings.evaluation.max_steps
    total, length = np.zeros(len(quota)), np.zeros(len(quota), np.int64)
    fresh = np.zeros(len(quota), bool)  # ended in the last step, and another episode follows
    actor.refresh()
    observation, start = env.reset(), np.ones(len(quota), np.uint8)
    state = actor.first_state(len(quota))
    yield Moment({}, left > 0, total, length)
    while left.any():
        past = None if state is None else Past(state, start[None])
        action = choose(actor, observation, env.action_mask, past, draws, settings)
        step = env.step(action)
        observation, start = step.observation, step.episode_start.astype(np.uint8)
        total[fresh], length[fresh] = 0, 0
        playing = left > 0
        _check_rewards(step.reward, settings.env.id, slice_index)
        total[playing] += step.reward[playing]
        length[playing] += 1
        over = playing & (step.episode_start | (length >= max_steps))
        cut = over & ~step.episode_start
        ended = {
            slot: Played(
                float(total[slot]),
                float(length[slot]),
                _known(step.level_seed, slot, cut),
                _known(step.level_complete, slot, cut),
                float(cut[slot]),
            )
            for slot in over.nonzero()[0].tolist()
        }
        left[over] -= 1
        left[cut] = 0  # its environment is still inside the episode
        fresh = over & (left > 0)
        yield Moment(ended, left > 0, total, length)


def choose(
    actor: Actor,
    observation: np.ndarray,
    mask: np.ndarray | None,
    past: Past | None,
    draws: np.random.Generator,
    settings: Settings,
) -> np.ndarray:
    """An action for every slot: the most likely one, or one drawn as in training."""
    if settings.evaluation.deterministic:
        return actor.most_likely(observation, mask, past)
    return actor.act(observation, actor.draw_noise(draws, len(observation)), mask, past).action


def _known(values: np.ndarray | None, slot: int, cut: np.ndarray) -> float:
    is_known = values is not None and values[slot] >= 0 and not cut[slot]
    return float(values[slot]) if values is not None and is_known else float("nan")


def _check_rewards(reward: np.ndarray, env_id: str, slice_index: int) -> None:
    if not np.isfinite(reward).all():
        slot = int(np.argmin(np.isfinite(reward)))
        raise NumbersError(
            f"environment {slice_index * SLOTS + slot} ({env_id}) gave the reward {reward[slot]} in an"
            " evaluation"
        )
