"""The levels of one run, as a page and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from parallel_ppo.printable import count
from parallel_ppo.reports import html
from parallel_ppo.reports import theme as themes
from parallel_ppo.reports.curves import LEAST_EPISODES, RETURN_WINDOW
from parallel_ppo.reports.groups import short_env
from parallel_ppo.reports.levels import RECENT, Level, growth, known_levels, levels_of, solved_over_time
from parallel_ppo.reports.runs import Episodes, Run
from parallel_ppo.reports.statistics import recent_mean
from parallel_ppo.reports.theme import Theme
from parallel_ppo.reports.words import number
from parallel_ppo.storage.files import write_atomically

HEADER = (
    "level",
    "episodes",
    "solved",
    f"of the last {RECENT}",
    "first solved at step",
    "last solved at step",
)
OPEN_ROWS = 20  # the others are folded: on a narrow page a row is a paragraph
MOST_ROWS = 500
MAP_BINS = 30
MOST_NAMES = 20  # of levels beside the map
LEAST_FOR_A_MAP = 2.0  # episodes per level
Drawing = Callable[[Axes, Episodes, Sequence[Level], Theme], None]


def write_levels(run: Run, directory: Path, theme: Theme) -> list[Path]:
    """Nothing where the episodes do not tell."""
    episodes = known_levels(run)
    if episodes is None:
        return []
    levels = levels_of(episodes)
    figure = levels_figure(run, episodes, levels, theme)
    page = directory / "levels.html"
    write_atomically(page, levels_page(run, episodes, levels).encode())
    return [themes.save(figure, directory / f"levels.{kind}") for kind in ("png", "svg")] + [page]


def title(run: Run) -> str:
    return f"Levels of {short_env(run.env_id)}: {run.path.resolve().name}"


def levels_page(run: Run, episodes: Episodes, levels: Sequence[Level]) -> str:
    solved = sum(level.is_solved for level in levels)
    last = episodes.success[-RETURN_WINDOW:]
    cards = [
        html.card(number(len(levels)), "Levels played", f"in {number(len(episodes.level))} episodes"),
        html.card(number(solved), "Solved", f"in most of their last {RECENT} episodes"),
        html.card(number(len(levels) - solved), "Not solved", "the hardest stand first below"),
        html.card(
            f"{last.mean():.0%}", "Success rate", f"of the last {count(len(last), 'training episode')}"
        ),
    ]
    rows = [
        [
            f"level {level.number}",
            number(level.episodes),
            f"{level.solved / level.episodes:.0%}",
            f"{level.recent:.0%}",
            number(level.first_solved),
            number(level.last_solved),
        ]
        for level in levels[:MOST_ROWS]
    ]
    left_out = len(levels) - len(rows)
    notes = [f"{count(left_out, 'level')} with the best results not listed"] if left_out else []
    shown, others = rows[:OPEN_ROWS], rows[OPEN_ROWS:]
    body = [
        f"<h1>{html.escape(title(run))}</h1>",
        html.cards(cards),
        html.pictures(
            [
                ("success rate", lambda theme: _panel(_draw_rate, episodes, levels, theme)),
                ("levels solved", lambda theme: _panel(_draw_growth, episodes, levels, theme)),
                ("each level over time", lambda theme: _panel(_draw_map, episodes, levels, theme)),
            ]
        ),
        "<h2>Levels</h2>",
        html.table(HEADER, shown, numbers_from=1),
        html.folded(count(len(others), "more level"), html.table(HEADER, others, numbers_from=1))
        if others
        else "",
        html.bullets("Notes", notes),
    ]
    return html.page(title=title(run), body=body)


def levels_figure(run: Run, episodes: Episodes, levels: Sequence[Level], theme: Theme) -> Figure:
    with themes.drawing(theme):
        _, body, figure = themes.headed_figure(15, 4.6, title=title(run))
        for axes, draw in zip(body.subplots(1, 3), (_draw_rate, _draw_growth, _draw_map), strict=True):
            draw(axes, episodes, levels, theme)
    return figure


def _panel(draw: Drawing, episodes: Episodes, levels: Sequence[Level], theme: Theme) -> Figure:
    return themes.panel_figure(lambda axes, theme: draw(axes, episodes, levels, theme), theme, legend=())


def _draw_rate(axes: Axes, episodes: Episodes, levels: Sequence[Level], theme: Theme) -> None:
    axes.set_title(f"Success rate (last {RETURN_WINDOW} episodes, %)")
    at = np.sort(episodes.step)
    rate = recent_mean(episodes.step, episodes.success, at, window=RETURN_WINDOW, minimum=LEAST_EPISODES)
    if not np.isfinite(rate).any():
        themes.empty(axes, f"fewer than {LEAST_EPISODES} episodes have finished")
        return
    axes.plot(at, 100 * rate, color=theme.series[1], linewidth=2)
    axes.set_ylim(0, 100)
    _steps(axes)


def _draw_growth(axes: Axes, episodes: Episodes, levels: Sequence[Level], theme: Theme) -> None:
    axes.set_title("Levels: played, and solved at least once")
    steps, seen, solved = growth(episodes)
    for name, numbers, color, side in (
        ("played", seen, theme.muted, "bottom"),
        ("solved", solved, theme.series[1], "top"),
    ):
        axes.plot(steps, numbers, color=color, linewidth=2)
        end = steps[-1], numbers[-1]
        axes.annotate(
            name, end, (6, 0), textcoords="offset points", annotation_clip=False, color=color, va=side
        )
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _steps(axes)


def _draw_map(axes: Axes, episodes: Episodes, levels: Sequence[Level], theme: Theme) -> None:
    axes.set_title("Share solved, each level over time")
    if len(episodes.level) < LEAST_FOR_A_MAP * len(levels):
        themes.empty(axes, "most levels were played only once")
        return
    shares, bounds = solved_over_time(episodes, list(levels), bins=MAP_BINS)
    colors = LinearSegmentedColormap.from_list("solved", theme.series[:2]).with_extremes(bad=theme.background)
    drawn = axes.imshow(
        np.ma.masked_invalid(shares),
        aspect="auto",
        interpolation="nearest",
        cmap=colors,
        vmin=0,
        vmax=1,
        extent=(0, bounds[-1], len(levels), 0),
    )
    axes.grid(False)
    names = [str(level.number) for level in levels] if len(levels) <= MOST_NAMES else []
    axes.set_yticks(np.arange(len(names)) + 0.5, names)
    axes.set_ylabel("level, hardest on top")
    axes.figure.colorbar(drawn, ax=axes, format=lambda value, _: f"{value:.0%}")
    _steps(axes)
    axes.set_xlabel(f"{axes.get_xlabel()} (blank: not played)")


def _steps(axes: Axes) -> None:
    themes.steps_axis(axes)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=4)
