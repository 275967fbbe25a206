"""Prioritized level replay against a twin that looks at one episode at a time, and the settings it
refuses.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from parallel_ppo.exits import InputError
from parallel_ppo.features.levels import LevelReplay, LevelState, drawn_levels
from parallel_ppo.memory.table import private
from parallel_ppo.settings.schema import EnvSettings
from tests.conftest import small_settings

FIRST, LEVELS, ENVS, STEPS = 40, 12, 5, 30


def replay(num_levels: int = LEVELS, temperature: float = 0.5) -> LevelReplay:
    env = EnvSettings(
        start_level=FIRST, num_levels=num_levels, plr_temperature=temperature, plr_staleness=0.3
    )
    return LevelReplay(env, private(LevelState, levels=num_levels))


def learn(replay: LevelReplay, **part: np.ndarray) -> None:
    replay.learn(SimpleNamespace(**part))  # type: ignore[arg-type]


def rollouts(number: int) -> list[dict[str, np.ndarray]]:
    rng, found = np.random.default_rng(4), []
    for _ in range(number):
        start = (rng.random((STEPS + 1, ENVS)) < 0.12).astype(np.uint8)
        if found:  # an episode that opens with an iteration ended in the one before
            start[0] = found[-1]["episode_start"][-1]
        found.append({
            "advantage": rng.normal(0, 1, (STEPS, ENVS)).astype(np.float32),
            "episode_start": start,
            "level_seed": rng.integers(FIRST, FIRST + LEVELS - 2, (STEPS, ENVS)).astype(np.int32),
        })  # fmt: skip
    return found


def slow_scores(parts: list[dict[str, np.ndarray]]) -> tuple[dict[int, float], dict[int, int], int]:
    """One stretch of steps after another: those that end an episode by time, then those that are cut off."""
    score, last, episodes = {}, {}, 0
    for part in parts:
        stretches = []
        for env in range(ENVS):
            ends = [t + 1 for t in range(STEPS) if part["episode_start"][t + 1, env]]
            for begin, end in zip([0, *ends], [*ends, STEPS], strict=True):
                if begin < end:
                    stretches.append((end not in ends, end, env, begin))
        for is_cut_off, end, env, begin in sorted(stretches):
            episodes += not is_cut_off
            level = int(part["level_seed"][end - 1, env]) - FIRST
            score[level] = float(np.mean(np.abs(part["advantage"][begin:end, env].astype(np.float64))))
            last[level] = episodes
    return score, last, episodes


def slow_probabilities(
    parts: list[dict[str, np.ndarray]], temperature: float, staleness: float
) -> list[float]:
    score, last, episodes = slow_scores(parts)
    ranked = sorted(score, key=lambda level: -score[level])
    by_score = {level: (1 / rank) ** (1 / temperature) for rank, level in enumerate(ranked, 1)}
    by_age = {level: episodes - last[level] for level in score}
    result = []
    for level in range(LEVELS):
        if level not in score:
            result.append(1 / LEVELS)  # unseen: (share unseen) / (number unseen)
            continue
        mixed = (1 - staleness) * by_score[level] / sum(by_score.values())
        mixed += staleness * by_age[level] / sum(by_age.values())
        result.append(mixed * len(score) / LEVELS)
    return result


@pytest.mark.parametrize("temperature", [0.1, 0.5, 3.0])
def test_scores_and_probabilities_are_those_of_the_twin(temperature: float) -> None:
    parts, found = rollouts(4), replay(temperature=temperature)
    assert found.probabilities() == pytest.approx([1 / LEVELS] * LEVELS)
    for part in parts:
        learn(found, **part)
    score, last, _ = slow_scores(parts)
    assert 3 < len(score) <= LEVELS - 2 and {level for level in range(LEVELS) if found.seen[level]} == set(
        score
    )
    assert {level: found.score[level] for level in score} == pytest.approx(score)
    assert {level: found.last_played[level] for level in last} == last
    assert found.probabilities() == pytest.approx(slow_probabilities(parts, temperature, 0.3), rel=1e-9)
    assert found.probabilities().sum() == pytest.approx(1) and found.cumulative()[-1] == 1
    assert found.columns()["levels_seen"] == len(score)


def test_a_level_that_was_just_played_alone_is_played_again() -> None:
    """One level seen, no other to be stale against."""
    found, start = replay(num_levels=1), np.zeros((2, ENVS), np.uint8)
    start[1, 0] = 1
    seeds = np.full((1, ENVS), FIRST, np.int32)
    learn(found, advantage=np.ones((1, ENVS), np.float32), episode_start=start, level_seed=seeds)
    assert found.probabilities() == pytest.approx([1])


def test_draws_fall_on_levels_as_often_as_they_should() -> None:
    found = replay()
    for part in rollouts(4):
        learn(found, **part)
    levels = drawn_levels(found.cumulative(), (np.arange(100_000) + 0.5) / 100_000)
    shares = np.bincount(levels, minlength=LEVELS) / 100_000
    assert shares == pytest.approx(found.probabilities(), abs=1e-4)


def test_a_level_that_is_played_for_long_gets_a_score_before_its_episode_ends() -> None:
    """Else all environments that come free would follow to it, iteration after iteration."""
    found, start = replay(), np.zeros((STEPS + 1, ENVS), np.uint8)
    seeds = np.full((STEPS, ENVS), -1, np.int32)
    seeds[-1] = FIRST + np.arange(ENVS)
    for size in (3.0, 0.5):
        advantage = np.full((STEPS, ENVS), -size, np.float32)
        learn(found, advantage=advantage, episode_start=start, level_seed=seeds)
        assert found.score[:ENVS] == pytest.approx([size] * ENVS)
    assert found.seen.sum() == ENVS and found.num_episodes == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"env__id": "CartPole-v1"}, "env.level_sampler: is an option of Procgen"),
        ({"env__num_levels": 0}, r"env.level_sampler: .* env.num_levels must be 1 to 100000.*; got 0"),
        (
            {"env__num_levels": 200_000},
            r"env.level_sampler: .* env.num_levels must be 1 to 100000.*; got 200000",
        ),
        ({"env__use_sequential_levels": True}, r"env.use_sequential_levels: cannot be combined"),
        (
            {"env__level_sampler": "uniform", "env__plr_temperature": 0.3},
            r"env.plr_temperature: has no effect unless",
        ),
        ({"env__level_sampler": "random"}, r"env.level_sampler: got 'random'"),
    ],
)
def test_levels_that_cannot_be_prioritized(changes: dict[str, object], reason: str) -> None:
    chosen = {"env__level_sampler": "plr", "env__num_levels": 200} | changes
    game = str(chosen.pop("env__id", "coinrun"))
    if game != "coinrun":
        del chosen["env__num_levels"]
    with pytest.raises(InputError, match=reason):
        small_settings(game, "auto", **chosen)
