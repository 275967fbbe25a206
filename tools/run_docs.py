"""Runs every command that README and docs print, in a fresh clone, as `docs_commands.py` shortens them.

The first one sets the clone up from nothing. Afterwards `venv/bin` comes first on the path, as when it is
activated. The hub is one on the loopback interface.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from docs_commands import Printed, printed, reason_not_to_run, shortened

from tests.sharing.fake_hub import fake_hub

LIMIT = 1800  # seconds for one command; only the set-up takes minutes
TRAIN = (
    "python train_parallel_timed.py --env {env} --total-timesteps 1024 --quiet --seed {seed}"
    " --output-dir {run}"
)
PREPARED = [
    *(TRAIN.format(env="CartPole-v1", seed=seed, run=f"runs/{run}") for run, seed in
      {"p1": 1, "p2": 2, "w1": 1, "w2": 1, "seed1": 1, "seed2": 2, "seed3": 3}.items()),
    *(TRAIN.replace("parallel_", "").format(env="CartPole-v1", seed=seed, run=f"runs/s{seed}")
      for seed in (1, 2)),
    *(TRAIN.format(env=f"CartPole-v1 --algorithm {name}", seed=1, run=f"runs/{name}")
      for name in ("ppo", "impala", "a2c")),
    TRAIN.format(env="Pendulum-v1", seed=1, run="runs/pendulum"),
    'pip install -q "gymnasium[mujoco]" minigrid',
]  # fmt: skip  # runs and packages that the pages take for granted


def run_docs(root: Path, folder: Path, tree: str) -> str:
    """Goes on behind the commands that passed for the same tree."""
    clone, record = folder / "project", folder / "passed.json"
    known = json.loads(record.read_text()) if record.is_file() else {}
    if known.get("tree") != tree:
        shutil.rmtree(folder, ignore_errors=True)
        make_clone(root, clone)
        known = {"tree": tree, "passed": []}
    failed, skipped, passed = [], 0, set(known["passed"])
    with fake_hub() as hub:
        surroundings = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
        }
        surroundings |= {
            "PATH": f"{clone / 'venv' / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(clone / "examples"),
            "WANDB_MODE": "offline",
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": "hf_of_nobody",
            "HF_HOME": str(folder / "hf"),
            "PYTHONUNBUFFERED": "1",
        }
        for command in in_order(root):
            reason = reason_not_to_run(command.text)
            line = command.text if command.where == "prepared" else shortened(command.text)
            if reason is not None:
                skipped += 1
                print(f"  not run: {command.text} ({reason})", flush=True)
            elif line not in passed:
                if runs(command, line, clone, surroundings):
                    passed.add(line)
                    record.write_text(json.dumps({"tree": tree, "passed": sorted(passed)}))
                else:
                    failed.append(line)
    assert not failed, f"{len(failed)} of {len(failed) + len(passed)} commands failed:\n    " + "\n    ".join(
        failed
    )
    return f"{len(passed)} commands ran as printed, {skipped} are not for here"


def in_order(root: Path) -> list[Printed]:
    """The first makes the virtual environment that those which prepare need."""
    first, *others = printed(root)
    return [first, *(Printed("prepared", text) for text in PREPARED), *others]


def make_clone(root: Path, clone: Path) -> None:
    subprocess.run(["git", "clone", "-q", str(root), str(clone)], check=True)
    listing = ["git", "ls-files", "-z", "--modified", "--others", "--exclude-standard"]
    changed = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, changed.split("\0")):  # not committed yet
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        if (root / name).is_file():
            shutil.copy(root / name, clone / name)
        else:
            (clone / name).unlink(missing_ok=True)
    own = clone / "own"  # of docs/environments.md: its environment, and its settings as printed
    own.mkdir()
    shutil.copy(root / "examples" / "seek.py", own)
    page = (root / "docs" / "environments.md").read_text()
    (own / "seek.yaml").write_text(re.findall(r"```yaml\n(.*?)```", page, re.S)[0])


def runs(command: Printed, line: str, clone: Path, surroundings: dict[str, str]) -> bool:
    folder = clone / ("own" if "../" in line else command.folder)
    start = time.monotonic()
    try:
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, env=surroundings, timeout=LIMIT, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        code, told = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        code, told = -1, f"{error.stdout!r}\nstill running after {LIMIT} s"
    word = "ok" if code == 0 else f"FAILED with {code}"
    print(f"  {word} {time.monotonic() - start:5.1f} s  {command.where}: {line}", flush=True)
    if code != 0:
        print("    " + "\n    ".join(told.strip().splitlines()[-15:]), flush=True)
    return code == 0
