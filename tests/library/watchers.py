"""Callbacks that settings name."""

from parallel_ppo import Progress


def stop_after_two(progress: Progress) -> bool:
    progress.metrics.clear()  # a copy: nobody else sees it
    return progress.iteration >= 2


def fail(progress: Progress) -> None:
    raise ValueError(f"at step {progress.env_steps}")


NOT_A_FUNCTION = 3
