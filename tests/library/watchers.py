"""Callbacks that settings name."""

import time

from parallel_ppo import Progress


def stop_after_two(progress: Progress) -> bool:
    progress.metrics.clear()  # a copy: nobody else sees it
    return progress.iteration >= 2


def fail(progress: Progress) -> None:
    raise ValueError(f"at step {progress.env_steps}")


def pause(progress: Progress) -> None:
    time.sleep(0.1)


NOT_A_FUNCTION = 3
