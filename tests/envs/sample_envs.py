"""Environments for the tests: small, exact, and broken in one chosen way. Importing this module registers
them.
"""

import os
import random
import signal
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Leaves(BaseException):
    """Neither an Exception nor one of Python's."""


LEAVES = {"exit": SystemExit, "interrupt": KeyboardInterrupt, "leave": Leaves}


class Broken(gymnasium.Env):
    """Has the fault `fault` from call number `after` on (0 is the first reset)."""

    def __init__(self, fault: str = "none", after: int = 0) -> None:
        self.fault, self.after, self.calls = fault, after, 0
        assert fault != "assertion"
        self.observation_space = (
            spaces.Box(0, 255, (8, 8, 3), np.uint8)
            if "image" in fault
            else spaces.Box(-1, 1, (3,), np.float32)
        )
        if fault == "observation-space":
            self.observation_space = spaces.Text(5)
        if fault == "chdir":
            os.chdir("/")
        self.action_space = spaces.Text(5) if fault == "action-space" else spaces.Discrete(2)

    def _observation(self) -> Any:
        now, self.calls = self.calls >= self.after, self.calls + 1
        if "image" in self.fault:
            return np.zeros((8, 8, 3), np.float64 if now else np.uint8)
        if now and self.fault == "raise":
            raise ValueError("the door\nis locked")
        if now and self.fault in LEAVES:
            raise LEAVES[self.fault]("the door\nis locked")
        wrong = {
            "shape": np.zeros(4, np.float32),
            "dtype": np.array(["a", "b", "c"]),
            "nan": np.array([0, np.nan, 0], np.float32),
        }
        return wrong[self.fault] if now and self.fault in wrong else np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        late = self.calls >= self.after
        wrong = {"reward-nan": float("nan"), "reward-none": None, "reward-vector": np.ones(2)}
        reward = wrong.get(self.fault, 1.0) if late else 1.0
        ended: Any = np.zeros(2, bool) if self.fault == "end-array" else False
        assert self.fault != "chdir" or os.getcwd() == "/"
        return self._observation(), reward, ended, False, {}

    def close(self) -> None:
        while self.fault == "close" and self.calls >= self.after:
            time.sleep(0.1)


class Chain(gymnasium.Env):
    """Reward 1 a step for ever; the episode ends or is cut after `length` steps. Always the same
    observation.
    """

    def __init__(self, length: int = 5, is_cut: bool = True) -> None:
        self.length, self.is_cut, self.position = length, is_cut, 0
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.position = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.position += 1
        ends = self.position >= self.length
        return np.ones(1, np.float32), 1.0, ends and not self.is_cut, ends and self.is_cut, {}


class Camera(gymnasium.Env):
    """A Dict of two images and numbers of several kinds; reproducible, with randomness inside the episode."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (12, 10, 3), np.uint8),
                "state": spaces.Dict(
                    {"speed": spaces.Box(-9, 9, (2,), np.float64), "gear": spaces.Discrete(3)}
                ),
                "touch": spaces.MultiBinary(2),
                "wide": spaces.Box(0, 255, (9, 20), np.uint8),
            }
        )
        self.action_space = spaces.MultiBinary(2)

    def _observation(self) -> dict[str, Any]:
        draws = self.np_random
        return {
            "camera": draws.integers(0, 256, (12, 10, 3), np.uint8),
            "state": {"speed": draws.normal(3, 2, 2), "gear": int(draws.integers(3))},
            "touch": draws.integers(0, 2, 2, np.int8),
            "wide": draws.integers(0, 256, (9, 20), np.uint8),
        }

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[dict, float, bool, bool, dict]:
        return self._observation(), float(action[0]), False, bool(self.np_random.random() < 0.05), {}


class Walker(gymnasium.Env):
    """A random walk that saves itself. Without the generator's state it could not continue as before."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.position = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.position = self.np_random.normal(size=2)
        return self.position.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.position += self.np_random.normal(size=2) + float(action[0])
        return (
            self.position.copy(),
            -float(np.abs(self.position).sum()),
            bool(abs(self.position[0]) > 12),
            False,
            {},
        )

    def get_state(self) -> dict[str, np.ndarray]:
        return {"position": self.position.copy()}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self.position = state["position"]


class Hoarding(Walker):
    """Its state outgrows the reserved space."""

    steps = 0

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        return super().step(action)

    def get_state(self) -> dict[str, np.ndarray]:
        return super().get_state() | {"hoard": np.zeros(200_000 * (self.steps > 20))}


class Drifting(Walker):
    """Ignores its seed, so that replaying its actions leads elsewhere."""

    get_state = set_state = property()  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return super().reset(seed=np.random.SeedSequence().entropy % 2**31)


class ReplayedWalker(Walker):
    """The same walk, restored from its reset and its actions."""

    get_state = set_state = property()  # type: ignore[assignment]


class Peculiar(gymnasium.Env):
    """Its episodes depend on more than seed and actions; `habit` names the cause."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, habit: str = "none") -> None:
        self.habit, self.episodes, self.fixed = habit, 0, np.random.default_rng(1)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.episodes, self.steps = self.episodes + 1, 0
        if self.habit == "seeds the global generator":
            np.random.seed(seed)  # noqa: NPY002
        if self.habit == "seeds and draws at the start":
            np.random.seed(seed)  # noqa: NPY002
            self.start = np.random.random()  # noqa: NPY002
        if self.habit == "starts elsewhere now and then":
            self.steps = int(random.random() < 1e-9)
        if self.habit == "kills itself":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.habit == "hangs":
            time.sleep(60)
        return self._observation(), {}

    def _observation(self) -> np.ndarray:
        number = self.np_random.random()
        if self.habit in ("draws globally", "seeds the global generator"):
            number = np.random.random()  # noqa: NPY002
        elif self.habit == "ignores its seed":
            number = self.fixed.random()
        elif self.habit == "differs when reused":
            number += self.episodes > 1
        return np.array([number, self.steps], np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        reward, length = float(action), 7
        if self.habit == "draws its rewards":
            reward = random.random()
        elif self.habit == "ends when it likes":
            length = random.randint(2, 6)
        elif self.habit == "sticks now and then":
            reward += np.random.random() < 1e-9  # noqa: NPY002
        elif self.habit == "teaches a curriculum":
            reward += self.episodes
        return self._observation(), reward, self.steps >= length, False, {}


class Masked(gymnasium.Env):
    """Forbids different choices after each step and raises if one is taken. `says` is the form of the mask."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, says: str = "array", saves: bool = False, render_mode: str | None = None) -> None:
        self.says, self.render_mode = says, render_mode
        self.sizes = [3, 5] if says == "tuple" else [6]
        self.action_space = (
            spaces.MultiDiscrete(self.sizes) if says == "tuple" else spaces.Discrete(6, start=2)
        )
        self.observation_space = spaces.Box(0, 1, (3,), np.float32)
        if saves:
            self.get_state = lambda: {"allowed": self.allowed, "steps": self.steps}
            self.set_state = self._set_state

    def render(self) -> np.ndarray:
        return np.full((32, 32, 3), 20 * self.steps, np.uint8)

    def _set_state(self, state: dict[str, np.ndarray]) -> None:
        self.allowed, self.steps = state["allowed"], int(state["steps"])

    def _look(self) -> tuple[np.ndarray, dict[str, Any]]:
        draws = self.np_random
        self.allowed = (draws.random(sum(self.sizes)) < 0.4).astype(np.int8)
        first = 0
        for size in self.sizes:
            self.allowed[first + draws.integers(size)] = 1
            first += size
        observation = draws.random(3, np.float32)
        if self.says == "nothing" or (self.says == "once" and self.steps):
            return observation, {}
        if self.says == "none allowed":
            return observation, {"action_mask": 0 * self.allowed}
        if self.says == "too short":
            return observation, {"action_mask": self.allowed[1:]}
        split = np.split(self.allowed, np.cumsum(self.sizes)[:-1])
        return observation, {"action_mask": tuple(split) if self.says == "tuple" else self.allowed}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self._look()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        first, self.steps = 0, self.steps + 1
        for size, choice in zip(
            self.sizes, np.atleast_1d(action) - (0 if self.says == "tuple" else 2), strict=True
        ):
            if not self.allowed[first + choice] and self.says != "nothing":
                raise ValueError(f"{choice} is forbidden")
            first += size
        observation, info = self._look()
        ends = self.steps >= 9
        return observation, float(np.sum(action)), ends, False, {} if ends else info


class OtherState(ReplayedWalker):
    """`get_state` and `set_state` of another meaning: numbers for a display, and one thing that can be
    set.
    """

    def __init__(self, meaning: str = "none") -> None:
        super().__init__()
        self.meaning = meaning

    def get_state(self) -> Any:
        return (
            self.position
            if self.meaning == "array"
            else {"position": self.position, "text": "x"}
            if self.meaning == "text"
            else {"speed": 1.0}
        )

    def set_state(self, first: Any, second: Any = None) -> None:
        if self.meaning == "raises":
            raise RuntimeError("only before the first reset")


class Unordered(gymnasium.Env):
    """Its rewards depend on the order of a set of strings, and with it on Python's hash seed."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
        self.names = list({f"object {number}" for number in range(50)})
        self.now = 0

    def _observation(self) -> Any:
        return np.array([int(self.names[self.now % 50][7:]) / 50, self.now / 50], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        self.now = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.now += 1
        return self._observation(), float(action) * self._observation()[0], self.now >= 20, False, {}


class Wide(Chain):
    """With more dimensions of action than a packet of 128 KB can describe."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-0.123456789, 0.123456789, (6000,), np.float32)


for name, limit in (
    ("Broken", None),
    ("Chain", None),
    ("Camera", 50),
    ("Walker", 40),
    ("Hoarding", 40),
    ("Drifting", 40),
    ("ReplayedWalker", 40),
    ("Peculiar", None),
    ("OtherState", 40),
    ("Masked", None),
    ("Unordered", None),
    ("Wide", None),
):
    if f"{name}-v0" not in gymnasium.registry:
        gymnasium.register(f"{name}-v0", entry_point=globals()[name], max_episode_steps=limit)
