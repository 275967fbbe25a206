"""n slots, all stepped as one batch of one shape."""

import numpy as np
import pytest
import torch

from parallel_ppo.envs.contract import Step
from parallel_ppo.envs.families import make_slice, probe
from parallel_ppo.evaluation.loaded_policy import chosen_env
from parallel_ppo.exits import InputError, NumbersError
from parallel_ppo.kernels.choice import unusable
from parallel_ppo.policies.actor import Actor
from parallel_ppo.policies.parameters import initialize, num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.schema import EnvSettings, Settings
from parallel_ppo.workers import playing
from tests.conftest import small_settings


class Scripted:
    """Slot i's episodes have the lengths `lengths[i]`, over and over; a step pays 1, the last one 10."""

    action_mask = None

    def __init__(self, lengths: list[list[int]]) -> None:
        self.lengths, self.episode = lengths, [0] * len(lengths)
        self.left = [row[0] for row in lengths]
        self.reward = None

    def reset(self) -> np.ndarray:
        return np.zeros((len(self.lengths), 4), np.float32)

    def step(self, action: np.ndarray) -> Step:
        self.left = [left - 1 for left in self.left]
        ended = np.array([left == 0 for left in self.left])
        reward = np.where(ended, 10, 1).astype(np.float32) if self.reward is None else self.reward
        levels = np.array(self.episode, np.int32)
        for slot in ended.nonzero()[0]:
            self.episode[slot] += 1
            row = self.lengths[slot]
            self.left[slot] = row[self.episode[slot] % len(row)]
        return Step(self.reset(), reward, ended, None, None, levels, ended)


def make_actor(settings: Settings, seed: int | None = None) -> Actor:
    """With a policy whose parameters are all 0, or drawn."""
    spec = probe(settings)
    flat = torch.zeros(num_flat(Policy(settings, spec)))
    actor = Actor(settings, spec, flat, torch.zeros(spec.vector_shape), torch.ones(spec.vector_shape))
    if seed is not None:
        initialize(actor.policy, flat, seed)
    return actor


def run(env: Scripted, quota: list[int], **settings: object) -> dict[int, list[playing.Played]]:
    chosen = small_settings(**settings)
    actor, shapes = make_actor(chosen), []

    def prepare(rows: torch.Tensor) -> torch.Tensor:
        shapes.append(len(rows))
        return rows

    actor.prepare = prepare
    found: dict[int, list[playing.Played]] = {}
    for moment in playing.play(env, chosen, 0, actor=actor, quota=np.array(quota)):
        for slot, episode in moment.ended.items():
            found.setdefault(slot, []).append(episode)
    assert set(shapes) == {len(quota)}
    return found


def test_each_slot_plays_its_quota_however_long_it_takes() -> None:
    found = run(Scripted([[2], [50], [3, 4], [5]]), [1, 1, 2, 0])
    assert [[episode.length for episode in found[slot]] for slot in range(3)] == [[2], [50], [3, 4]]
    assert [[episode.episode_return for episode in found[slot]] for slot in range(3)] == [
        [11],
        [59],
        [12, 13],
    ]
    assert found[2][1].level_seed == 1 and found[0][0].complete == 1 and 3 not in found


def test_episodes_without_an_end_are_cut_and_marked() -> None:
    found = run(Scripted([[3], [10**9]]), [2, 2], evaluation__max_steps=20)
    assert [episode.cut for episode in found[0]] == [0, 0]
    (endless,) = found[1]
    assert endless.cut == 1 and endless.length == 20 and np.isnan(endless.complete)


def test_a_reward_that_is_no_number_names_the_environment() -> None:
    env = Scripted([[3], [3]])
    env.reward = np.array([0, np.nan], np.float32)
    with pytest.raises(NumbersError, match=r"environment 1 \(CartPole-v1\)"):
        run(env, [1, 1])


@pytest.mark.procgen
def test_train_and_test_levels_do_not_meet() -> None:
    settings = small_settings("coinrun", "nature", env__num_levels=5, env__start_level=100)
    seen = {}
    for part in playing.LEVEL_SETS:
        env = make_slice(playing.level_set_settings(settings, part, 0), 3, num_views=8)
        seen[part] = [view.level_seed for view in env.views()]
        env.close()
    assert all(100 <= level < 105 for level in seen["train"])
    assert all(level >= 105 for level in seen["test"]) and len(set(seen["test"])) == 8


@pytest.mark.procgen
def test_a_test_level_that_begins_as_a_training_level_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small_settings("coinrun", "nature", env__num_levels=5, evaluation__max_steps=2)
    frames = []

    def are_seen(env: EnvSettings, first: np.ndarray) -> np.ndarray:
        frames.append((env.num_levels, first.shape))
        return np.arange(len(first)) == 3

    monkeypatch.setattr(playing, "are_training_frames", are_seen)
    found = {}
    for part in ("train", "test"):
        found[part] = dict(
            playing.play_slice(settings, part, 0, 0, actor=make_actor(settings), num_episodes=8)
        )
    assert frames == [(5, (8, 64, 64, 3))], "of test levels alone"
    assert [slot for slot, each in found["test"].items() if each.seen] == [3]
    assert not any(each.seen for each in found["train"].values())


def test_only_bounded_training_levels_leave_unseen_ones() -> None:
    assert playing.has_unseen_levels(small_settings("coinrun", "nature", env__num_levels=5).env)
    assert not playing.has_unseen_levels(small_settings("coinrun", "nature").env)
    assert not playing.has_unseen_levels(small_settings().env)
    last = small_settings("coinrun", "nature", env__num_levels=2**31 - 1).env
    assert not playing.has_unseen_levels(last)


def test_another_game_must_have_the_levels_of_the_policy() -> None:
    exploring = small_settings("coinrun", "nature", env__distribution_mode="exploration").env
    assert chosen_env(exploring, "maze").distribution_mode == "exploration"
    with pytest.raises(InputError, match=r"env\.distribution_mode: bigfish has no exploration levels"):
        chosen_env(exploring, "bigfish")


def episodes(settings: Settings, index: int, number: int, iteration: int = 0) -> list[tuple]:
    actor = make_actor(settings, seed=1)
    found = playing.play_slice(settings, "train", index, iteration, actor=actor, num_episodes=number)
    return sorted((slot, *episode[:2]) for slot, episode in found)


class Watched(Scripted):
    """Shows noise, and remembers what was done."""

    def __init__(self) -> None:
        super().__init__([[12]] * 8)
        self.draws, self.actions = np.random.default_rng(0), []

    def reset(self) -> np.ndarray:
        return self.draws.integers(0, 256, (8, 64, 64, 3), np.uint8)

    def step(self, action: np.ndarray) -> Step:
        self.actions.append(action.tolist())
        return super().step(action)


@pytest.mark.procgen
@pytest.mark.skipif(unusable("impala", (64, 64, 3)) is not None, reason="native kernels do not run here")
def test_parameters_that_changed_since_the_last_look_are_used() -> None:
    settings = small_settings("coinrun", "impala", training__kernels="native", evaluation__deterministic=True)

    def actions(*seeds: int) -> list:
        actor = make_actor(settings)
        for seed in seeds:
            initialize(actor.policy, actor.parameters, seed)
            env = Watched()
            for _ in playing.play(env, settings, 0, actor=actor, quota=np.ones(8, np.int64)):
                pass
        return env.actions

    assert actions(1, 2) == actions(2) != actions(1)


def test_a_slice_is_a_function_of_its_key() -> None:
    settings = small_settings()
    assert episodes(settings, 0, 8) == episodes(settings, 0, 8)
    assert episodes(settings, 0, 8)[:3] == episodes(settings, 0, 3)
    others = [episodes(settings, 1, 8), episodes(settings, 0, 8, iteration=1),
              episodes(settings.changed("training", seed=8), 0, 8)]  # fmt: skip
    assert all(other != episodes(settings, 0, 8) for other in others)


def test_a_policy_trained_by_a3c_is_played_like_any_other() -> None:
    settings = small_settings(training__algorithm="a3c", training__batch_size=256, training__num_actors=16)
    assert playing.level_set_settings(settings, "train", 0).sizes.slice_envs == playing.SLOTS
    assert len(episodes(settings, 0, 8)) == 8
