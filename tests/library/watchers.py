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


def use_everything(progress: Progress) -> None:
    if progress.iteration == 1:
        left, right = progress.policy.distribution([0.0, 0.0, 0.0, 0.0]).probs.tolist()
        report = progress.evaluate(num_episodes=2, max_steps=20)
        evaluated = report["levels"]["train"]["return"]["mean"]["value"]
        progress.log(left=left, right=1 - left, evaluated=evaluated)
        assert progress.save().name == "step_256" and abs(left + right - 1) < 1e-6


NOT_A_FUNCTION = 3
