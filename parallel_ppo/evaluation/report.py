"""The report of an evaluation: estimates with intervals, as a table and as JSON."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from parallel_ppo.reports import statistics
from parallel_ppo.reports.procgen_scores import normalized_score
from parallel_ppo.reports.statistics import Estimate
from parallel_ppo.settings.env_families import family_of
from parallel_ppo.settings.schema import EnvSettings
from parallel_ppo.workers.playing import Played, level_range, unseen

Report = dict[str, Any]


def part_report(episodes: Sequence[Played], env: EnvSettings, part: str) -> Report:
    returns = np.array([episode.episode_return for episode in episodes])
    lengths = np.array([episode.length for episode in episodes])
    mean = statistics.bootstrap(returns)
    first, number = level_range(env, part)
    known = [int(episode.level_seed) for episode in episodes if not math.isnan(episode.level_seed)]
    if env.distribution_mode == "exploration" and known:
        first, number = known[0], 1  # which the game chose
    return {
        "first_level": first if number else None,
        "num_levels": number or None,
        "return": {
            "mean": _plain(mean),
            "min": float(returns.min()),
            "max": float(returns.max()),
        },
        "length": {"mean": _plain(statistics.bootstrap(lengths))},
        "success_rate": _plain(success_rate(episodes)) if family_of(env.id).HAS_LEVELS else None,
        "normalised_score": _normalized(mean, env),
        "unfinished": int(sum(episode.cut for episode in episodes)),
        "episodes": [_episode(episode, env) for episode in episodes],
    }


def first_frames_report(test: Sequence[Played], *, included: bool) -> Report:
    """Returns on test levels by both protocols: with and without those whose first frame is that of a training level."""
    without, every = (
        statistics.bootstrap([episode.episode_return for episode in part]) for part in (unseen(test), test)
    )
    return {
        "seen": int(sum(episode.seen for episode in test)),
        "included": included,
        "return_without_seen": _plain(without),
        "return_with_seen": _plain(every),
    }


def success_rate(episodes: Sequence[Played]) -> Estimate:
    """An episode that was cut was not solved."""
    return statistics.rate(sum(episode.complete == 1 for episode in episodes), len(episodes))


def gap_report(train: Sequence[Played], test: Sequence[Played], env: EnvSettings) -> Report:
    """The loss on unseen levels: train minus test."""
    returns = [np.array([episode.episode_return for episode in part]) for part in (train, test)]
    gap = difference(*returns)
    zero = normalized_score(env.id, 0.0, distribution_mode=env.distribution_mode)
    scaled = None
    if zero is not None:
        width = 1 / (_score(1.0, env) - zero)
        scaled = _plain(Estimate(*(value / width for value in (gap.value, gap.low, gap.high))))
    return {
        "return": _plain(gap),
        "success_rate": _plain(statistics.difference_of_rates(success_rate(train), success_rate(test)))
        if family_of(env.id).HAS_LEVELS
        else None,
        "normalised_score": scaled,
    }


def difference(above: np.ndarray, below: np.ndarray, *, seed: int = 0) -> Estimate:
    """Difference of two means; both are resampled independently."""
    value = float(above.mean() - below.mean())
    if min(len(above), len(below)) < 2 or np.ptp(above) == np.ptp(below) == 0:
        return Estimate(value)
    draws = np.random.default_rng(seed)
    samples = [
        values[draws.integers(0, len(values), size=(statistics.RESAMPLES, len(values)))].mean(axis=1)
        for values in (above, below)
    ]
    return Estimate(value, *statistics.interval(samples[0] - samples[1]))


def _score(value: float, env: EnvSettings) -> float:
    score = normalized_score(env.id, value, distribution_mode=env.distribution_mode)
    assert score is not None
    return score


def _normalized(mean: Estimate, env: EnvSettings) -> Report | None:
    if normalized_score(env.id, mean.value, distribution_mode=env.distribution_mode) is None:
        return None
    return _plain(Estimate(*(_score(value, env) for value in (mean.value, mean.low, mean.high))))


def _plain(estimate: Estimate) -> Report:
    """With null for NaN, which JSON does not have."""
    return {name: None if math.isnan(value) else value for name, value in vars(estimate).items()}


def _episode(episode: Played, env: EnvSettings) -> Report:
    return {
        "return": episode.episode_return,
        "length": int(episode.length),
        "level_seed": None if math.isnan(episode.level_seed) else int(episode.level_seed),
        "success": episode.complete == 1 if family_of(env.id).HAS_LEVELS else None,
    }


# --- the table ----------------------------------------------------------------------------------------------


def table(report: Report) -> Table:
    parts: dict[str, Report] = report["levels"]
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("")
    for part in parts:
        grid.add_column(part, justify="right")
    if report["gap"] is not None:
        grid.add_column("gap", justify="right")
    rows = [
        ("return, mean", _mean_return, "return", ".2f"),
        ("normalized score", lambda part: _text(part["normalised_score"], ".3f"), "normalised_score", ".3f"),
        ("success rate", lambda part: _text(part["success_rate"], ".0%"), "success_rate", ".0%"),
        ("length, mean", lambda part: _text(part["length"]["mean"], ".0f"), None, ""),
        ("unfinished", lambda part: str(part["unfinished"]) if part["unfinished"] else "", None, ""),
        ("levels", _levels, None, ""),
    ]
    if (frames := report.get("first_frames")) and frames["seen"]:
        what = "counted" if frames["included"] else "left out"
        seen = f"{frames['seen']} of {report['num_episodes']}, {what}"
        rows.append(
            (
                "first frame is a training level's",
                lambda part: seen if part is parts["test"] else "",
                None,
                "",
            )
        )
    for name, cell, key, pattern in rows:
        cells = [cell(part) for part in parts.values()]
        if not any(cells):
            continue
        if report["gap"] is not None:
            cells.append(_text(report["gap"][key], pattern) if key else "")
        grid.add_row(name, *cells)
    return grid


def _mean_return(part: Report) -> str:
    returns = part["return"]
    is_certain = len(part["episodes"]) > 1 and returns["min"] == returns["max"]
    return _text(returns["mean"]) + (" (all equal)" if is_certain else "")


def _levels(part: Report) -> str:
    if part["num_levels"] is None:
        return "all" if part["episodes"][0]["level_seed"] is not None else ""
    last = part["first_level"] + part["num_levels"] - 1
    if part["num_levels"] == 1:
        return f"{last} only"
    return f"{part['first_level']} - {'' if last >= 2**31 - 2 else last}".rstrip(" -") + (
        " and up" if last >= 2**31 - 2 else ""
    )


def _text(estimate: Report | None, pattern: str = ".2f") -> str:
    if estimate is None:
        return ""
    value = format(estimate["value"], pattern)
    if estimate["low"] is None:
        return value
    return f"{value} [{format(estimate['low'], pattern)}, {format(estimate['high'], pattern)}]"
