"""Pictures of a policy and its value function over the state plane, with one episode on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from parallel_ppo.exits import InputError
from parallel_ppo.reports.theme import Theme, drawing, new_figure

NEEDED = ("env_id", "env_steps", "axes", "action", "choices", "actions", "value", "trajectory")


def read_plane(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a state plane ({error})") from None
    missing = [name for name in NEEDED if not isinstance(content, dict) or name not in content]
    if missing:
        raise InputError(f"{path}: is no state plane (it has no {missing[0]!r})")
    return content


def draw_plane(content: dict[str, Any], theme: Theme) -> Figure:
    """Policy, value, and the episode over time."""
    with drawing(theme):
        figure = new_figure(13, 4.6)
        policy, value, course = figure.subplots(1, 3)
        path = np.array(content["trajectory"])
        _draw_policy(figure, policy, content, theme)
        _draw_value(figure, value, content)
        for axes in (policy, value):
            _draw_path(axes, path, content, theme)
        _draw_course(course, path, content, theme)
        figure.suptitle(
            f"{content['env_id']} after {content['env_steps']:,} steps; an episode of {len(path)} steps with return {path[:, 3].sum():.1f}",
            x=0.01, ha="left",
        )  # fmt: skip
        return figure


def _extent(content: dict[str, Any]) -> tuple[float, float, float, float]:
    (left, right), (bottom, top) = ((axis["low"], axis["high"]) for axis in content["axes"])
    return left, right, bottom, top


def _draw_policy(figure: Figure, axes: Axes, content: dict[str, Any], theme: Theme) -> None:
    grid, choices = np.array(content["actions"]), content["choices"]
    options: dict[str, Any] = {"origin": "lower", "aspect": "auto", "extent": _extent(content)}
    if choices:
        colors = ListedColormap([theme.series[1], theme.grid, theme.series[0]][: len(choices)])
        norm = BoundaryNorm(np.arange(len(choices) + 1) - 0.5, len(choices))
        image = axes.imshow(grid, cmap=colors, norm=norm, interpolation="nearest", **options)
        bar = figure.colorbar(image, ax=axes, ticks=range(len(choices)))
        bar.ax.set_yticklabels(choices)
    else:
        image = axes.imshow(grid, cmap="coolwarm", **options)
        bar = figure.colorbar(image, ax=axes)
    bar.set_label(content["action"])
    axes.set_title("policy: most likely action")


def _draw_value(figure: Figure, axes: Axes, content: dict[str, Any]) -> None:
    image = axes.imshow(
        np.array(content["value"]), cmap="viridis", origin="lower", aspect="auto", extent=_extent(content)
    )
    figure.colorbar(image, ax=axes).set_label("value (scaled as in training)")
    axes.set_title("value function")


def _draw_path(axes: Axes, path: np.ndarray, content: dict[str, Any], theme: Theme) -> None:
    horizontal, vertical = content["axes"]
    axes.set_xlabel(horizontal["label"])
    axes.set_ylabel(vertical["label"])
    axes.grid(False)
    jumps = np.abs(np.diff(path[:, 0])) > 0.5 * (horizontal["high"] - horizontal["low"])
    pieces = np.split(path, np.flatnonzero(jumps) + 1)  # an angle that passes pi comes back at -pi
    for piece in pieces:
        axes.plot(piece[:, 0], piece[:, 1], color="black", linewidth=2.4)
        axes.plot(piece[:, 0], piece[:, 1], color="white", linewidth=1.2)
    axes.plot(*path[0, :2], marker="o", color="white", markeredgecolor="black", markersize=8)
    axes.plot(*path[-1, :2], marker="*", color=theme.series[0], markeredgecolor="black", markersize=13)
    axes.set_xlim(horizontal["low"], horizontal["high"])
    axes.set_ylim(vertical["low"], vertical["high"])


def _draw_course(axes: Axes, path: np.ndarray, content: dict[str, Any], theme: Theme) -> None:
    """Each column divided by its largest size, so that one axis holds them all."""
    names = [content["axes"][0]["label"], content["axes"][1]["label"], content["action"]]
    for index, name in enumerate(names):
        column = path[:, index] - (1 if content["choices"] and index == 2 else 0)
        largest = float(np.abs(column).max()) or 1.0
        axes.plot(column / largest, color=theme.series[index], linewidth=1.6, label=f"{name} / {largest:.3g}")
    axes.set_xlabel("step of the episode")
    axes.set_ylim(-1.1, 1.6)
    axes.legend(loc="upper right", fontsize=8)
    axes.set_title("the episode: ○ start, ★ end")
