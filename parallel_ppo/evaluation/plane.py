"""A policy and its value function over the state plane, for environments whose state is two numbers.

Computes the numbers and writes them beside the run; `reports/plane_plot.py` draws them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from parallel_ppo.envs.build import make_slice
from parallel_ppo.evaluation.loaded_policy import Subject
from parallel_ppo.exits import InputError
from parallel_ppo.policies import heads
from parallel_ppo.policies.policy import Policy, bind
from parallel_ppo.storage.files import write_atomically
from parallel_ppo.workers.playing import part_settings

MAX_STEPS = 1000


class Axis(NamedTuple):
    label: str
    low: float
    high: float


class Plane(NamedTuple):
    """How two numbers become an observation, and back."""

    horizontal: Axis
    vertical: Axis
    action: str
    choices: tuple[str, ...]  # empty for a continuous action
    observation: Callable[[np.ndarray, np.ndarray], list[np.ndarray]]
    state: Callable[[np.ndarray], tuple[float, float]]


PLANES = {
    "Pendulum-v1": Plane(
        Axis("angle from upright (radians)", -np.pi, np.pi), Axis("angular velocity (radians/s)", -8, 8),
        "torque (Nm)", (), lambda angle, speed: [np.cos(angle), np.sin(angle), speed],
        lambda row: (float(np.arctan2(row[1], row[0])), float(row[2])),
    ),
    "MountainCar-v0": Plane(
        Axis("position", -1.2, 0.6), Axis("velocity", -0.07, 0.07), "push", ("left", "none", "right"),
        lambda position, speed: [position, speed], lambda row: (float(row[0]), float(row[1])),
    ),
}  # fmt: skip


def plane_of(subject: Subject) -> Plane:
    env_id = subject.settings.env.id
    if env_id not in PLANES:
        raise InputError(f"{env_id}: has no state plane to draw; known are {', '.join(PLANES)}")
    return PLANES[env_id]


class Mind:
    """The policy as it was saved, with its frozen normaliser."""

    def __init__(self, subject: Subject) -> None:
        torch.set_num_threads(1)
        self.policy = Policy(subject.settings, subject.spec)
        bind(self.policy, torch.from_numpy(subject.filled.parameters))
        self.mean = torch.from_numpy(subject.filled.observation_mean)
        self.scale = torch.from_numpy(subject.filled.observation_scale)
        self.clip = subject.settings.training.observation_clip

    @torch.inference_mode()
    def think(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The most likely action and the value of each observation."""
        prepared = self.policy.prepare(torch.from_numpy(rows), self.mean, self.scale, self.clip)
        output = self.policy(prepared)
        return heads.mode(self.policy.spec.action, output.action).numpy(), output.value.numpy()


def compute(subject: Subject, size: int) -> dict[str, np.ndarray]:
    """The grid [size, size] (rows: the vertical axis) and one episode."""
    plane, mind = plane_of(subject), Mind(subject)
    horizontal = np.linspace(plane.horizontal.low, plane.horizontal.high, size)
    vertical = np.linspace(plane.vertical.low, plane.vertical.high, size)
    x, y = np.meshgrid(horizontal, vertical)
    rows = np.stack([part.reshape(-1) for part in plane.observation(x, y)], 1).astype(np.float32)
    action, value = mind.think(rows)
    trajectory = _episode(subject, plane, mind)
    return {
        "horizontal": horizontal,
        "vertical": vertical,
        "actions": _in_units(subject, action)[:, 0].reshape(size, size),
        "value": value.reshape(size, size),
        "trajectory": trajectory,
    }


def _in_units(subject: Subject, action: np.ndarray) -> np.ndarray:
    """What the environment receives: -1 to 1 covers the bounds, beyond them it is clipped."""
    spec = subject.spec.action
    if spec.kind != "gaussian":
        return action
    low, high = np.array(spec.low), np.array(spec.high)
    return np.clip(action * (high - low) / 2 + (high + low) / 2, low, high)


def _episode(subject: Subject, plane: Plane, mind: Mind) -> np.ndarray:
    """Rows of horizontal, vertical, action, reward; the first episode of the evaluation with this seed."""
    env = make_slice(part_settings(subject.settings, "train", 0, 1), 0)
    try:
        observation, rows = env.reset(), []
        for _ in range(MAX_STEPS):
            action, _ = mind.think(observation)
            step = env.step(action)
            state = plane.state(observation[0])
            rows.append([*state, float(_in_units(subject, action)[0, 0]), float(step.reward[0])])
            observation = step.observation
            if step.episode_start[0]:
                break
        return np.array(rows)
    finally:
        env.close()


def write(subject: Subject, path: Path, size: int) -> None:
    """As JSON: what a picture needs, readable by anyone."""
    plane, arrays = plane_of(subject), compute(subject, size)
    content = {
        "env_id": subject.settings.env.id,
        "env_steps": subject.weights.env_steps,
        "axes": [plane.horizontal._asdict(), plane.vertical._asdict()],
        "action": plane.action,
        "choices": plane.choices,
        **{name: array.tolist() for name, array in arrays.items()},
    }
    write_atomically(path, json.dumps(content).encode())
