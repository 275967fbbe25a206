"""Writes `tests/fixtures/VERSION/`: for each feature a run that stopped half-way, written by the checkout
TREE, and in expected.json what it learns when it continues to the end.

    python tests/contract/make_fixtures.py TREE VERSION
    python tests/contract/make_fixtures.py --renew VERSION [NAME ...]    # only hashes, after a change of the arithmetic
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

HALF, WHOLE = 160, 320
SHAPE = ["--num-envs", "4", "--n-steps", "8", "--batch-size", "16", "--n-epochs", "2", "--seed", "7",
         "--set", "logging.tensorboard=false"]  # fmt: skip
WHOLE_BATCH = ["--batch-size", "32", "--n-epochs", "1"]
NORMALIZED = ["--set", "training.normalize_observations=true"]
VECTORS = ["--set", "training.hidden_sizes=[16, 16]"]
TWO_SLICES = ["--set", "env.slice_envs=2"]
CARTPOLE = ["--env", "CartPole-v1", *VECTORS]
PENDULUM = ["--env", "Pendulum-v1", *VECTORS, *NORMALIZED]
IMAGES = ["--env", "tests.contract.tiny_envs:TinyImage-v0"]
CURIOUS = ["--env", "MountainCar-v0", *VECTORS, "--set", "curiosity.warmup_steps=50",
           "--set", "curiosity.hidden_size=8", "--set", "curiosity.num_outputs=4", "--curiosity"]  # fmt: skip
STARPILOT = [
    "--env",
    "starpilot",
    "--num-levels",
    "6",
    "--policy",
    "impoola",
    "--set",
    "training.width=0.125",
]
LEVELS = ["--set", "env.level_sampler=plr"]
CASES = {
    "ppo": [*CARTPOLE, *TWO_SLICES],
    "gaussian": [*PENDULUM, "--set", "training.kernels=torch"],
    "target-kl": [*CARTPOLE, "--set", "training.target_kl=0.001"],
    "schedules": [*CARTPOLE, "--set", "training.learning_rate_schedule=linear",
                  "--set", "training.clip_range_schedule=linear",
                  "--set", "training.schedule_steps=640"],
    "rmsprop-tf": [*CARTPOLE, "--set", "training.optimizer=rmsprop_tf"],
    "own-state": ["--env", "tests.envs.sample_envs:Walker-v0", *VECTORS, *NORMALIZED],
    "masks": ["--env", "tests.envs.sample_envs:Masked-v0", *VECTORS],
    "a2c": [*CARTPOLE, *NORMALIZED, "--algorithm", "a2c", *WHOLE_BATCH],
    "a3c": [*CARTPOLE, "--algorithm", "a3c", "--set", "training.num_actors=2", *WHOLE_BATCH],
    "impala": [*CARTPOLE, "--algorithm", "impala", *WHOLE_BATCH],
    "appo": [*CARTPOLE, "--algorithm", "appo", *TWO_SLICES],
    "lag": [*CARTPOLE, *NORMALIZED, "--set", "training.lag=3", *TWO_SLICES],
    "drac": [*IMAGES, "--set", "training.augmentation=rotate"],
    "rnd": [*CURIOUS, "rnd", *TWO_SLICES],
    "icm": [*CURIOUS, "icm"],
    "ngu": [*CURIOUS, "ngu"],
    "plr-drac-lag": [*STARPILOT, *LEVELS, "--set", "training.augmentation=crop", "--set", "training.lag=1", *TWO_SLICES],
}  # fmt: skip


def train(*arguments: str) -> None:
    """In this process, with the code of TREE."""
    from parallel_ppo.commands.train import train_sequential

    assert train_sequential(["--num-threads", "1", "--quiet", *arguments]) == 0


def reduced(run: Path) -> None:
    """To what a resume needs."""
    (newest,) = (run / "checkpoints").glob(f"step_{HALF}")
    for path in [*(run / "checkpoints").iterdir(), *run.iterdir()]:
        if path == newest or path.name in ("checkpoints", "config.yaml"):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def continued(run: Path) -> dict[str, object]:
    """What the run learns with this code."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(run, Path(folder, "run"))
        train("--resume", str(copy), "--trust-checkpoint", "--total-timesteps", str(WHOLE))
        summary = json.loads((copy / "summary.json").read_text())
    return {key: summary[key] for key in ("policy_sha256", "state_sha256", "portable")}


def main() -> None:
    renews = sys.argv[1] == "--renew"
    sys.path[:0] = (
        [str(ROOT)] if renews else [sys.argv[1], str(ROOT)]
    )  # `tests` of this checkout gives what that of TREE lacks
    from parallel_ppo.machine.placement import set_thread_variables

    set_thread_variables()  # before torch is imported
    from tests.contract.machine import this_machine

    target, runs = ROOT / "tests" / "fixtures" / sys.argv[2], {}
    if renews:
        runs = json.loads((target / "expected.json").read_text())["runs"]
    if not renews:
        shutil.rmtree(target, ignore_errors=True)
    for name in sys.argv[3:] or CASES:
        run, case = target / name, CASES[name]
        if not renews:
            train(*SHAPE, *case, "--total-timesteps", str(HALF), "--output-dir", str(run))
            reduced(run)
        runs[name] = continued(run)
    expected = {"steps": WHOLE, "machine": this_machine(), "runs": runs}
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
