"""Shared by the tests: small settings, an in-process trainer without files, and the real commands."""

import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from parallel_ppo.machine.placement import set_thread_variables

set_thread_variables()  # before torch is imported

import pytest  # noqa: E402
import torch  # noqa: E402

from parallel_ppo.commands.train import train_sequential  # noqa: E402
from parallel_ppo.settings.layers import load_settings  # noqa: E402
from parallel_ppo.settings.schema import Settings  # noqa: E402

torch.set_num_threads(1)
for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    if (
        signal.getsignal(_number) is signal.SIG_IGN
    ):  # a background job's child would ignore what the tests send
        signal.signal(_number, signal.SIG_DFL)
ROOT = Path(__file__).resolve().parent.parent
TESTS = f"{ROOT / 'tests'}/"
SMALL = {"env.num_envs": 16, "training.n_steps": 16, "training.batch_size": 64}


def small_settings(env: str = "CartPole-v1", policy: str = "mlp", **flags: Any) -> Settings:
    """16 envs x 16 steps, minibatch 64; `training__gamma=0.9` sets training.gamma."""
    values = SMALL | {"env.id": env, "training.policy": policy, "training.seed": 7}
    values |= {key.replace("__", "."): value for key, value in flags.items()}
    return load_settings(file=None, flags=values)


class Outcome:
    """A finished command and the run directory it wrote."""

    def __init__(self, result: subprocess.CompletedProcess[str], directory: Path | None) -> None:
        self.code, self.out, self.err, self.directory = (
            result.returncode,
            result.stdout,
            result.stderr,
            directory,
        )

    @property
    def summary(self) -> dict[str, Any]:
        assert self.directory is not None
        return json.loads((self.directory / "summary.json").read_text())

    @property
    def metrics(self) -> list[dict[str, Any]]:
        assert self.directory is not None
        return [json.loads(line) for line in (self.directory / "metrics.jsonl").read_text().splitlines()]

    @property
    def learning(self) -> list[dict[str, Any]]:
        from parallel_ppo.records.metrics import NOT_LEARNING

        return [
            {key: value for key, value in record.items() if key not in NOT_LEARNING}
            for record in self.metrics
        ]


def command(
    script: str,
    *arguments: str,
    directory: Path | None = None,
    cwd: Path = ROOT,
    env: dict[str, str] | None = None,
) -> Outcome:
    """Runs a script of the project as a user would."""
    output = ["--output-dir", str(directory)] if directory is not None and "--resume" not in arguments else []
    result = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments, *output],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | (env or {}),
    )
    return Outcome(result, directory)


def train(directory: Path, *arguments: str, script: str = "train_parallel_timed.py") -> Outcome:
    """A training that must succeed."""
    outcome = command(script, "--quiet", *arguments, directory=directory)
    assert outcome.code == 0, outcome.err
    return outcome


def train_here(directory: Path, *arguments: str) -> Outcome:
    """The sequential trainer in this process: it does not import torch once more. For what others are
    compared with; the scripts have tests of their own.
    """
    line = ["--quiet", *arguments, "--num-threads", "1", "--output-dir", str(directory)]
    assert train_sequential(line) == 0
    return Outcome(subprocess.CompletedProcess([], 0, "", ""), directory)


# Functions that train or start a process.
STARTS = {
    *("train", "train_here", "train_parallel", "train_sequential", "command", "Popen", "Training", "Nodes"),
    *("ProcessPool", "ForkServer", "killed_and_resumed", "fork"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow what trains, itself or by a fixture or a helper, so that `make test-fast` leaves it out."""
    known: dict[Any, bool] = {}
    for item in items:
        fixtures = getattr(item, "_fixtureinfo", None)
        definitions = fixtures.name2fixturedefs.values() if fixtures is not None else ()
        functions = [getattr(item, "function", None), *(each[-1].func for each in definitions)]
        if any(starts(function, known) for function in functions):
            item.add_marker(pytest.mark.slow)


def starts(function: Any, known: dict[Any, bool]) -> bool:
    """Whether a function or class of the tests, or one that it names, is or calls one of STARTS."""
    function = inspect.unwrap(function) if callable(function) else function
    if isinstance(function, type):
        return any(starts(method, known) for method in vars(function).values())
    if not inspect.isfunction(function) or not function.__code__.co_filename.startswith(TESTS):
        return False
    if function not in known:
        known[function] = False  # until it is known, for those that call themselves
        names = names_in(function.__code__)
        helpers = (function.__globals__.get(name) for name in names)
        known[function] = bool(STARTS & names) or any(starts(helper, known) for helper in helpers)
    return known[function]


def names_in(code: CodeType) -> set[str]:
    """Its globals and attributes, those of inner functions included."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


@pytest.fixture(autouse=True)
def _own_key(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests never touch the user's own signing key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))
    yield


@pytest.fixture(scope="session")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One real run of 20 iterations with evaluations, for tests of what reads runs: copy it, then edit the
    copy. Its folder is in the environment as well, for processes that a test starts.
    """
    directory = tmp_path_factory.mktemp("real") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(directory.parent / "config"))
        train_here(
            directory, "--env", "CartPole-v1", "--num-envs", "16", "--n-steps", "32", "--seed", "1",
            "--total-timesteps", str(20 * 16 * 32), "--set", "training.batch_size=128",
            "--set", "evaluation.interval=5", "--set", "evaluation.num_episodes=4",
        )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARALLEL_PPO_REAL_RUN", str(directory))
        yield directory
