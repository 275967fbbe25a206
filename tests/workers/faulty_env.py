"""Environments that misbehave at a chosen step of their first episode, for tests of faults."""

import os
import signal
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

IMPORTED_BY = os.getpid()


class Faulty(gymnasium.Env):
    """Counts its steps. `fault` happens at step `at`: always, or only once per file `once`."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(
        self,
        fault: str = "none",
        at: int = 5,
        once: str = "",
        pause: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.fault, self.at, self.once, self.pause = fault, at, once, pause
        self.count = 0

    def render(self) -> np.ndarray:
        return np.zeros((32, 32, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        if self.pause:
            time.sleep(self.pause)
            warnings.warn("advice of a library", stacklevel=2)
        observation, reward = np.array([self.count / 10, float(action)], np.float32), float(action)
        if self.count == self.at and self._is_due():
            if self.fault == "nan reward":
                reward = float("nan")
            elif self.fault == "nan observation":
                observation[1] = np.nan
            elif self.fault == "hang":
                time.sleep(1e6)
            elif self.fault == "raise":
                raise RuntimeError("the environment is broken")
            elif self.fault == "rude":
                raise OSError("[/data/x] not found [bold] \x1b]0;owned\x07")
        return observation, reward, self.count >= 20, False, {}

    def _is_due(self) -> bool:
        if os.getpid() != IMPORTED_BY:  # a copy of the coordinator: the trial before the start
            return False
        if not self.once:
            return True
        try:
            os.close(os.open(Path(self.once), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Helped(Faulty):
    """Starts a helper process and a daemon, which only `close` ends. `folder` gets a file for each, and
    for each `close`.
    """

    def __init__(self, folder: str, **options: Any) -> None:
        super().__init__(**options)
        self.folder = Path(folder)
        helper = subprocess.Popen(["sleep", "1000"])
        daemon = subprocess.run(
            ["sh", "-c", "setsid sleep 1000 >&- 2>&- & echo $!"], capture_output=True, text=True, check=True
        )
        self.pids = helper.pid, int(daemon.stdout)
        for pid in self.pids:
            (self.folder / f"{os.getpid()}-{pid}").touch()

    def close(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(self.pids[0], 0)
        (self.folder / f"closed-{os.getpid()}").touch()


gymnasium.register("Faulty-v0", entry_point=Faulty)
gymnasium.register("Helped-v0", entry_point=Helped)
