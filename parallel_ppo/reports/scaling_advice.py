"""Which phase holds a configuration back, and which setting to change."""

from __future__ import annotations

import math
from collections.abc import Sequence

from parallel_ppo.reports.scaling import Extrapolation, Measurement, Model, Shape, SizeSummary, busiest

MUCH_IDLE = 0.15


def advice(
    summaries: Sequence[SizeSummary],
    measurements: Sequence[Measurement],
    *,
    model: Model | None,
    extrapolation: Sequence[Extrapolation],
    shape: Shape,
) -> list[str]:
    """Plain sentences, most important first."""
    usable = [summary for summary in summaries if summary.fitted] or list(summaries[:1])
    lines = [bottleneck(usable[-1], shape)]
    lines += prediction_lines(usable)
    lines += model_lines(model, extrapolation, shape)
    if usable[-1].idle_share > MUCH_IDLE:
        lines.append(
            f"Workers are idle {usable[-1].idle_share:.0%} of the time with {usable[-1].world_size}: "
            f"{_evenness(shape, usable[-1].world_size)}."
        )
    beyond = [summary.world_size for summary in summaries if not summary.fitted]
    if beyond:
        lines.append(
            f"{', '.join(map(str, beyond))} workers are more than the physical cores: shown, not fitted."
        )
    lines.append(same_bits(measurements))
    return lines


def bottleneck(summary: SizeSummary, shape: Shape) -> str:
    divisible = summary.t_iter - summary.t_rollout - _known(summary.t_coordinator)
    phases = {
        "collect": summary.t_rollout,
        "learn": max(0.0, divisible),
        "coordinator": _known(summary.t_coordinator),
    }
    name = max(phases, key=lambda phase: phases[phase])
    share = phases[name] / summary.t_iter
    return f"Bottleneck with {summary.world_size} worker(s): {name}, {share:.0%} of the time. {_remedy(name, summary, shape)}"


def _remedy(phase: str, summary: SizeSummary, shape: Shape) -> str:
    size = summary.world_size
    if phase == "collect":
        if busiest(shape.num_slices, size) * size > 1.05:
            return f"{_evenness(shape, size).capitalize()}."
        return "It divides evenly among workers: more cores help; so do larger slices (env.slice_envs), which batch inference."
    if phase == "learn":
        return "It divides among workers: more cores help; else fewer epochs (training.n_epochs) or a smaller network (training.policy)."
    return "It does not divide: a larger minibatch (training.batch_size) means fewer optimizer steps per iteration."


def _evenness(shape: Shape, workers: int) -> str:
    return (
        f"{shape.num_slices} slices and {shape.num_lanes} lanes do not divide evenly among {workers} workers; "
        f"choose env.num_envs (or env.slice_envs) so that slices are a multiple of {workers}"
        if shape.num_slices % workers
        else f"{shape.num_slices} slices divide evenly among {workers} workers, so they wait for the coordinator "
        "or for uneven episodes; a larger training.n_steps and training.batch_size make waits rarer"
    )


def prediction_lines(usable: Sequence[SizeSummary]) -> list[str]:
    """The phases of the smallest size predict the others; how well?"""
    lines = []
    for summary in usable[1:]:
        if not math.isfinite(summary.predicted_fps):
            continue
        inside = summary.fps_low <= summary.predicted_fps <= summary.fps_high
        off = summary.predicted_fps / summary.fps - 1
        verdict = "within the spread" if inside else f"outside the spread, off by {off:+.1%}"
        lines.append(
            f"Predicted for {summary.world_size} workers from {usable[0].world_size}: {summary.predicted_fps:,.0f} steps/s; "
            f"measured {summary.fps:,.0f} ({summary.fps_low:,.0f} to {summary.fps_high:,.0f}): {verdict}."
        )
    return lines


def model_lines(model: Model | None, extrapolation: Sequence[Extrapolation], shape: Shape) -> list[str]:
    if model is None or not extrapolation:
        return ["No extrapolation: the log has no t_coordinator, and there are too few sizes to fit."]
    last = extrapolation[-1]
    lines = [
        f"Serial share {model.amdahl.serial_share:.2%} ({model.source}). EXTRAPOLATION to {last.workers} cores, not measured: "
        f"{last.fps:,.0f} steps/s ({last.speedup:.1f}x) with work enough for all, {last.fps_this_shape:,.0f} at this shape."
    ]
    if last.fps_this_shape < 0.8 * last.fps:
        lines.append(
            f"At this shape {shape.num_slices} slices and {shape.num_lanes} lanes per minibatch set the limit: "
            "raise env.num_envs and training.batch_size with the cores."
        )
    return lines


def same_bits(measurements: Sequence[Measurement]) -> str:
    hashes = {item.policy_sha256 for item in measurements if item.policy_sha256}
    if len(hashes) == 1:
        return f"One policy_sha256 in all {len(measurements)} runs: every size learned the same bits."
    return f"{len(hashes)} different policy_sha256 in {len(measurements)} runs: the sizes did NOT learn the same bits."


def _known(value: float) -> float:
    return value if math.isfinite(value) else 0.0
