"""The actions of a policy of Pendulum-v1 or MountainCar-v0 in every state, its values, and an episode.

python examples/state_plane.py runs/parallel-1      writes plane.png into the run directory
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401

# isort: split
import gymnasium
import numpy as np
from matplotlib.figure import Figure

from parallel_ppo.arguments import guarded
from parallel_ppo.evaluation.loaded_policy import load_policy
from parallel_ppo.evaluation.policy_files import make_actor
from parallel_ppo.exits import InputError

# Both axes with their bounds, the action's name, the observation of a state and the state of an observation.
PLANES = {
    "Pendulum-v1": (
        ("angle from upright (radians)", -np.pi, np.pi), ("angular velocity (radians/s)", -8, 8),
        "torque (Nm)",
        lambda x, y: (np.cos(x), np.sin(x), y), lambda row: (np.arctan2(row[1], row[0]), row[2]),
    ),
    "MountainCar-v0": (
        ("position", -1.2, 0.6), ("velocity", -0.07, 0.07), "push (-1 left, 1 right)",
        lambda x, y: (x, y), lambda row: (row[0], row[1]),
    ),
}  # fmt: skip


def sample(run):
    """The policy on a grid over the plane, and an episode's path through it."""
    loaded = load_policy(Path(run), deterministic=True)
    env_id = loaded.settings.env.id
    if env_id not in PLANES:
        raise InputError(f"{env_id}: has no state plane to draw; known are {', '.join(PLANES)}")
    (_, *x_ends), (_, *y_ends), _, observation_of, state_of = PLANES[env_id]
    actor, env = make_actor(loaded.settings, loaded.spec, loaded.filled), gymnasium.make(env_id)

    def act(rows):
        """The most likely actions as the environment takes them, and the values."""
        rows = np.asarray(rows, np.float32)
        action = actor.most_likely(rows)
        if isinstance(env.action_space, gymnasium.spaces.Box):
            action = np.clip(action, -1, 1) * env.action_space.high
        return action, actor.value(rows)

    x, y = np.meshgrid(np.linspace(*x_ends, 121), np.linspace(*y_ends, 121))
    action, value = act(np.stack([part.ravel() for part in observation_of(x, y)], 1))
    action = action.reshape(x.shape) - (env_id == "MountainCar-v0")
    row, _ = env.reset(seed=0)
    path, is_over = [state_of(row)], False
    while not is_over:
        chosen = act(row[None])[0].reshape(env.action_space.shape)
        row, _, terminated, truncated, _ = env.step(chosen if chosen.ndim else int(chosen))
        path.append(state_of(row))
        is_over = terminated or truncated
    return loaded, x, y, action, value.reshape(x.shape), path


def main(arguments) -> int:
    loaded, x, y, action, value, path = sample(arguments[0])
    env_id, steps = loaded.settings.env.id, loaded.weights.env_steps
    (x_name, *_), (y_name, *_), action_name, *_ = PLANES[env_id]
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    grids = ((action, "coolwarm", action_name), (value, "viridis", "value (as in training)"))
    for axes, (grid, colors, name) in zip(figure.subplots(1, 2), grids, strict=True):
        figure.colorbar(axes.pcolormesh(x, y, grid, cmap=colors), ax=axes, label=name)
        axes.plot(*zip(*path, strict=True), "w.", markersize=5, markeredgecolor="black", markeredgewidth=0.4)
        axes.set(xlabel=x_name, ylabel=y_name)
    figure.suptitle(f"{env_id} after {steps:,} steps; dots: an episode of {len(path) - 1} steps")
    picture = Path(arguments[0]) / "plane.png"
    figure.savefig(picture, dpi=150)
    print(picture)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python examples/state_plane.py RUN_DIR")
    sys.exit(guarded(main, sys.argv[1:]))
