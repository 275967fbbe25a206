"""Relative paths of environments start at the command's folder, or at the one their module changed to."""

from pathlib import Path

import pytest

from parallel_ppo.commands import evaluate, play, train
from parallel_ppo.library.policy import load

MODULE = """
import os
import gymnasium
import numpy as np

{at_import}


class Reader(gymnasium.Env):
    metadata = {{"render_modes": ["rgb_array"]}}
    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = "rgb_array"

    def __init__(self, render_mode=None):
        self.read()

    def read(self):
        with open("data/levels.txt") as file:
            self.level = file.read()

    def observe(self):
        self.read()
        return self.np_random.random(3, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {{}}

    def step(self, action):
        self.steps += 1
        return self.observe(), 1.0, self.steps == 8, False, {{}}

    def render(self):
        self.read()
        return np.zeros((16, 16, 3), np.uint8)


gymnasium.register("{module}-v0", entry_point=Reader)
"""
SMALL = ["--num-envs", "4", "--n-steps", "16", "--batch-size", "16", "--total-timesteps", "64"]


@pytest.fixture(params=["where it was started", "where its module went"])
def env(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its name; the working folder is `tmp_path/started`."""
    started, home = tmp_path / "started", tmp_path / "home"
    started.mkdir()
    home.mkdir()
    moves = request.param == "where its module went"
    data = (home if moves else started) / "data"
    data.mkdir()
    (data / "levels.txt").write_text("one")
    module = f"reader_{abs(hash(tmp_path))}"  # modules are imported once in a process
    at_import = "os.chdir(os.path.dirname(__file__))" if moves else ""
    (home / f"{module}.py").write_text(MODULE.format(at_import=at_import, module=module))
    monkeypatch.chdir(started)
    monkeypatch.syspath_prepend(str(home))
    return f"{module}:{module}-v0"


def test_without_workers(env: str, tmp_path: Path) -> None:
    assert train.train_sequential(["--env", env, "--output-dir", "run", *SMALL]) == 0
    assert load("run").observation_space.shape == (3,)
    assert Path.cwd() == tmp_path / "started"
    assert play.play_episodes(["run", "--output", "film.gif"]) == 0
    assert (tmp_path / "started" / "film.gif").exists()


@pytest.mark.multiprocess
def test_with_workers(env: str, tmp_path: Path) -> None:
    assert train.train_parallel(["--env", env, "--output-dir", "run", "--num-workers", "1", *SMALL]) == 0
    assert evaluate.evaluate(["run", "--num-episodes", "2", "--num-workers", "1", "--quiet"]) == 0
    assert (tmp_path / "started" / "run" / "evaluation.json").exists()
