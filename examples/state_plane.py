"""What a policy of Pendulum-v1 or MountainCar-v0 does in every state, its value, and an episode.

python examples/state_plane.py runs/parallel-1      writes plane.png into the run directory
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401

# isort: split
import gymnasium
import numpy as np

from parallel_ppo.arguments import guarded
from parallel_ppo.evaluation.loaded_policy import load_policy
from parallel_ppo.evaluation.policy_files import make_actor
from parallel_ppo.exits import InputError
from parallel_ppo.reports import theme

# Both axes with their bounds, what an action is, the observation of a state and the state of an observation.
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


def main(arguments) -> int:
    loaded = load_policy(Path(arguments[0]), deterministic=True)
    env_id = loaded.settings.env.id
    if env_id not in PLANES:
        raise InputError(f"{env_id}: has no state plane to draw; known are {', '.join(PLANES)}")
    (x_name, *x_ends), (y_name, *y_ends), action_name, observation_of, state_of = PLANES[env_id]
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

    with theme.drawing(theme.LIGHT):
        figure = theme.new_figure(11, 4.6)
        grids = (
            (action, "coolwarm", action_name),
            (value.reshape(x.shape), "viridis", "value (as in training)"),
        )
        for axes, (grid, colors, name) in zip(figure.subplots(1, 2), grids, strict=True):
            figure.colorbar(axes.pcolormesh(x, y, grid, cmap=colors), ax=axes, label=name)
            axes.plot(
                *zip(*path, strict=True), "w.", markersize=5, markeredgecolor="black", markeredgewidth=0.4
            )
            axes.set(xlabel=x_name, ylabel=y_name)
        steps = loaded.weights.env_steps
        figure.suptitle(f"{env_id} after {steps:,} steps; dots: an episode of {len(path) - 1} steps")
    print(theme.save(figure, Path(arguments[0]) / "plane.png"))
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python examples/state_plane.py RUN_DIR")
    sys.exit(guarded(main, sys.argv[1:]))
