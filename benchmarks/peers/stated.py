"""What every adaptor shares: the work it is asked for, the games, and the line it prints for each iteration.

Runs in the peers' own environments, so it imports nothing of this project.
"""

import argparse
import contextlib
import io
import json
import sys
import time
from typing import Any

import gymnasium
import numpy as np

LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP, ENTROPY, VALUE, GRADIENT_NORM, ADAM_EPSILON = (
    5e-4, 0.999, 0.95, 0.2, 0.01, 0.5, 0.5, 1e-5,
)  # fmt: skip


# Of trunk and heads together: a network of another size is other work.
PARAMETERS = {
    "impala": 626_256, "nature": 608_944, "nature84": 1_687_719,
    "mlp": 9_155, "HalfCheetah-v5": 11_085, "LunarLander-v3": 9_797,
    "lstm frames:BlindCartPole-v0": 334_979, "lstm frames:Frames-v0": 2_474_407,
}  # fmt: skip


def check_network(policy: str, network: Any) -> None:
    number = sum(parameter.numel() for parameter in network.parameters())
    if number != PARAMETERS[policy]:
        sys.exit(f"the network has {number} parameters, the stated work {PARAMETERS[policy]}")


def parse(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, epilog="started by benchmarks/throughput.py, in an environment of its own"
    )
    parser.add_argument("--env", required=True, help="a Procgen game, or a Gymnasium id")
    parser.add_argument("--policy", required=True, choices=["impala", "nature", "mlp"])
    for name in ("--num-envs", "--num-steps", "--epochs", "--batch-size", "--iterations", "--cores"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--variant", default="", help="channels_last or serial, where the adaptor knows it")
    return parser.parse_args()


class Clock:
    """Prints a JSON line for each iteration: the steps it made and the time since the line before."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.last: float | None = None
        self.output = sys.stdout
        sys.stdout = sys.stderr  # whatever the peer prints goes elsewhere

    def start(self) -> None:
        self.last = time.monotonic()

    def tick(self) -> None:
        now = time.monotonic()
        if self.last is not None:
            print(json.dumps({"steps": self.steps, "seconds": now - self.last}), file=self.output, flush=True)
        self.last = now


def native_procgen(game: str, num: int, seed: int) -> Any:
    with contextlib.redirect_stderr(io.StringIO()):  # the old gym's notice
        from procgen import ProcgenGym3Env
    return ProcgenGym3Env(
        num=num, env_name=game, num_threads=0, distribution_mode="easy", num_levels=0, rand_seed=seed
    )


class ProcgenSingle(gymnasium.Env):
    """One Procgen environment for peers that step environments singly.

    Procgen resets itself in the last step of an episode.

    `channels_first` is for peers that read images so.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, game: str, seed: int, channels_first: bool) -> None:
        self.native, self.channels_first = native_procgen(game, 1, seed), channels_first
        shape = (3, 64, 64) if channels_first else (64, 64, 3)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(15)
        self.render_mode = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        return self._image(self.native.observe()[1]), {}

    def _image(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        image = observation["rgb"][0]
        return image.transpose(2, 0, 1) if self.channels_first else image

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.native.act(np.array([action], np.int32))
        reward, observation, first = self.native.observe()
        return self._image(observation), float(reward[0]), bool(first[0]), False, {}


def make_single(env: str, seed: int, channels_first: bool = False) -> gymnasium.Env:
    return gymnasium.make(env) if "-v" in env else ProcgenSingle(env, seed, channels_first)
