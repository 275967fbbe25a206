#!/usr/bin/env python
"""Test what `make test` leaves out: the wheel, its types and its source archive, the notebook, the
examples, each extra, and every command that README and docs print.

Everything happens under build/extras: the wheel is installed in an empty virtual environment, and each
other part has one of its own that sees the first. What has passed is not run again for the same tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from run_docs import run_docs  # noqa: E402

from parallel_ppo.arguments import Parser, run  # noqa: E402
from parallel_ppo.exits import InputError  # noqa: E402

BUILD = ROOT / "build" / "extras"
BUDGET = ["--env", "CartPole-v1", "--total-timesteps", "100000", "--quiet"]
EXTRAS = {
    "box2d": "import gymnasium; gymnasium.make('LunarLander-v3').reset()",
    "mujoco": "import gymnasium; gymnasium.make('HalfCheetah-v5').reset()",
    "minigrid": "import gymnasium, minigrid; gymnasium.make('MiniGrid-Empty-5x5-v0').reset()",
    "pandas": "import parallel_ppo, pathlib; print(parallel_ppo.Run(pathlib.Path(RUN)).frame().shape)",
    "hub": "tests/sharing",
    "wandb": "tests/records/test_tracker_services.py",
    "mlflow": "tests/records/test_tracker_services.py",
    "trackio": "tests/records/test_tracker_services.py",
    "onnx": "tests/sharing",
}  # a program, or the tests of the project that are run
THREAD = "import runpy, threading\nthreading.Thread(target=runpy.run_path, args=('script.py',)).start()\n"
SNIPPET = "import gymnasium\nobservation, _ = gymnasium.make('CartPole-v1').reset(seed=0)\n"


def main() -> int:
    parser = Parser(
        description=str(__doc__), examples=("tools/test_extras.py", "tools/test_extras.py wheel onnx")
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--again", action="store_true", help="also what has passed for this tree")
    arguments = parser.parse_args()
    chosen = arguments.parts or list(PARTS)
    for part in chosen:
        if part not in PARTS:
            raise InputError(f"{part}: expected one of {', '.join(PARTS)}")
    if not list((ROOT / "dist").glob("*.whl")):
        raise InputError("dist/: holds no wheel; `make dist` makes one")
    passed = Passed({} if arguments.again else None)
    failed = [part for part in chosen if not passes(part, passed)]
    total = sum(passed.seconds.get(part, 0.0) for part in chosen)
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed", flush=True)
    print(f"{total / 60:.0f} minutes" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def passes(part: str, passed: Passed) -> bool:
    if part in passed.seconds:
        print(f"{part}: has passed for this tree ({passed.seconds[part]:.0f} s)", flush=True)
        return True
    start = time.monotonic()
    try:
        told = PARTS[part](part)
    except subprocess.CalledProcessError as error:
        lines = ((error.stderr or "") + (error.stdout or "")).strip().splitlines()[-15:]
        print(f"{part}: FAILED: {' '.join(map(str, error.cmd))[:300]}\n  " + "\n  ".join(lines), flush=True)
        return False
    except AssertionError as error:
        print(f"{part}: FAILED: {error}", flush=True)
        return False
    passed.add(part, time.monotonic() - start)
    print(f"{part}: {told} ({passed.seconds[part]:.0f} s)", flush=True)
    return True


class Passed:
    """The parts that passed for the tree as it is, and the seconds that they took."""

    def __init__(self, seconds: dict[str, float] | None) -> None:
        self.path, self.tree = BUILD / "passed.json", state_of_tree()
        known = json.loads(self.path.read_text()) if self.path.is_file() else {}
        self.seconds = (
            (known.get("seconds", {}) if known.get("tree") == self.tree else {})
            if seconds is None
            else seconds
        )

    def add(self, part: str, seconds: float) -> None:
        self.seconds[part] = seconds
        self.path.write_text(json.dumps({"tree": self.tree, "seconds": self.seconds}))


def state_of_tree() -> str:
    """The commit, and what was changed since."""
    commit = call("git", "rev-parse", "HEAD", cwd=ROOT).strip()
    changed = call("git", "diff", "HEAD", cwd=ROOT) + call("git", "status", "--porcelain", cwd=ROOT)
    return commit + (f"+{hashlib.sha256(changed.encode()).hexdigest()}" if changed else "")


def call(*words: object, cwd: Path) -> str:
    """Outside the checkout: what is imported is what was installed."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = [str(word) for word in words]
    return subprocess.run(line, cwd=cwd, env=clean, check=True, capture_output=True, text=True).stdout


# --- virtual environments -----------------------------------------------------------------------------------


def installed() -> tuple[Path, Path]:
    """The wheel in an environment that was empty, made once for a tree; and a folder to work in."""
    home, work, stamp = BUILD / "wheel" / "venv", BUILD / "wheel" / "work", BUILD / "wheel" / "tree"
    if not stamp.is_file() or stamp.read_text() != state_of_tree():
        shutil.rmtree(BUILD / "wheel", ignore_errors=True)
        work.mkdir(parents=True)
        call(sys.executable, "-m", "venv", home, cwd=work)
        call(home / "bin" / "pip", "install", "-q", wheel(), cwd=work)
        stamp.write_text(state_of_tree())
    return home / "bin", work


def environment(name: str, *packages: str) -> tuple[Path, Path]:
    """A new environment that sees the wheel's, with more packages; what they change, it has for itself."""
    beneath = next((installed()[0].parent / "lib").glob("python*/site-packages"))
    home, work = BUILD / name / "venv", BUILD / name / "work"
    shutil.rmtree(BUILD / name, ignore_errors=True)
    work.mkdir(parents=True)
    call(sys.executable, "-m", "venv", "--without-pip", home, cwd=work)
    site = next((home / "lib").glob("python*/site-packages"))
    (site / "wheel.pth").write_text(f"{beneath}\n")
    python = home / "bin" / "python"
    if packages:
        call(python, "-m", "pip", "install", "-q", *packages, cwd=work)
    call(python, "-m", "pip", "check", cwd=work)
    version = call(python, "-c", "import numpy; print(numpy.__version__)", cwd=work)
    assert version.startswith("1."), f"{name} brought numpy {version}"
    return home / "bin", work


def wheel(extra: str = "") -> str:
    [path] = (ROOT / "dist").glob("*.whl")
    return f"{path}[{extra}]" if extra else str(path)


def sha256(run: Path) -> str:
    return json.loads((run / "summary.json").read_text())["policy_sha256"]


def passed_through(run: Path) -> set[str]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return {json.loads(line)["policy_sha256"] for line in lines}


def snippet() -> str:
    """The program at the head of docs/python.md, with something to observe."""
    page = (ROOT / "docs" / "python.md").read_text()
    return SNIPPET + page.split("```python\n")[1].split("```")[0]


# --- the parts ----------------------------------------------------------------------------------------------


def test_wheel(name: str) -> str:
    """The snippet stops where the return is high enough; with a goal out of reach it does what the command
    does.
    """
    programs, work = installed()
    shutil.rmtree(work / "runs", ignore_errors=True)
    command, python = programs / "parallel-ppo", programs / "python"
    call(command, "doctor", cwd=work)
    call(command, "train", *BUDGET, cwd=work)
    call(command, "evaluate", "parallel-1", "--num-episodes", 8, cwd=work)
    (work / "stops.py").write_text(snippet())
    (work / "script.py").write_text(snippet().replace("490", "501"))
    (work / "thread.py").write_text(THREAD)
    for program in ("stops.py", "script.py", "thread.py"):
        call(python, program, cwd=work)
    script = ROOT / "train_parallel_timed.py"
    call(sys.executable, script, *BUDGET, "--output-dir", work / "runs" / "checkout", cwd=work)
    names = {"command": "parallel-1", "script": "parallel-3", "thread": "parallel-4", "checkout": "checkout"}
    hashes = {name: sha256(work / "runs" / run) for name, run in names.items()}
    assert len(set(hashes.values())) == 1, f"not one policy: {hashes}"
    assert sha256(work / "runs" / "parallel-2") in passed_through(work / "runs" / "parallel-1")
    return f"the command, Python, a thread and the checkout's script learned {hashes['checkout'][:12]}..."


def test_sdist(name: str) -> str:
    folder = BUILD / "archive"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    call(sys.executable, "-c", make, cwd=ROOT)
    [archive] = folder.glob("*.tar.gz")
    programs, work = environment(name, "--force-reinstall", "--no-deps", str(archive))
    place = call(programs / "python", "-c", "import parallel_ppo; print(parallel_ppo.__file__)", cwd=work)
    assert str(BUILD / name) in place, f"{place} is not what was installed from the archive"
    call(programs / "parallel-ppo", "train", *BUDGET, "--total-timesteps", "2000", cwd=work)
    return f"{archive.name} builds, and trains"


def test_types(name: str) -> str:
    programs, work = environment(name, "mypy")
    (work / "user.py").write_text(snippet() + "reveal_type(policy)\nparallel_ppo.train(stop_when=3)\n")
    checked = subprocess.run(
        [programs / "python", "-m", "mypy", "--ignore-missing-imports", "user.py"],
        cwd=work,
        capture_output=True,
        text=True,
    )
    assert "parallel_ppo.library.policy.Policy" in checked.stdout, checked.stdout
    assert 'Argument "stop_when"' in checked.stdout and "Found 1 error" in checked.stdout, checked.stdout
    return "mypy sees the package's types in a user's program"


def test_notebook(name: str) -> str:
    programs, work = environment(name, "nbclient", "nbformat", "ipykernel")
    shutil.copy(ROOT / "examples" / "notebook.ipynb", work)
    execute = (
        "import nbformat, nbclient\nbook = nbformat.read('notebook.ipynb', 4)\n"
        "nbclient.NotebookClient(book, timeout=900).execute()\n"
        "print([output.get('data') for output in book.cells[1].outputs])"
    )
    shown = call(programs / "python", "-c", execute, cwd=work)
    assert "%" in shown and "step " in shown, f"the first cell showed {shown}"
    _, beside = installed()
    learned = passed_through(beside / "runs" / "parallel-1")
    assert sha256(work / "runs" / "parallel-1") in learned, "the command never has the notebook's policy"
    return "every cell ran, the display moved, and the command has its policy too"


def test_examples(name: str) -> str:
    programs, work = environment(name)
    call(programs / "python", ROOT / "examples" / "three_lines.py", cwd=work)
    small = [
        "--env",
        "coinrun",
        "--policy",
        "small_resnet:SmallResNet",
        "--num-envs",
        8,
        "--n-steps",
        32,
        "--batch-size",
        64,
        "--quiet",
    ]
    train = [programs / "python", "-m", "parallel_ppo", "train", *small]
    shutil.copy(ROOT / "examples" / "small_resnet.py", work)
    for workers in (1, 2):
        call(
            *train,
            "--total-timesteps",
            1024,
            "--num-workers",
            workers,
            "--output-dir",
            f"runs/{workers}",
            cwd=work,
        )
    call(*train, "--total-timesteps", 512, "--num-workers", 2, "--output-dir", "runs/resumed", cwd=work)
    call(
        *train[:4],
        "--resume",
        "runs/resumed",
        "--total-timesteps",
        1024,
        "--num-workers",
        1,
        "--quiet",
        cwd=work,
    )
    hashes = {run: sha256(work / "runs" / run) for run in ("1", "2", "resumed")}
    assert len(set(hashes.values())) == 1, f"not one policy: {hashes}"
    return f"three_lines.py ran; small_resnet.py with 1, 2 workers and resumed: {hashes['1'][:12]}..."


def test_extra(name: str) -> str:
    subject = EXTRAS[name]
    _, beside = installed()
    if not subject.startswith("tests"):
        programs, work = environment(name, wheel(name))
        call(
            programs / "python",
            "-c",
            subject.replace("RUN", repr(str(beside / "runs" / "parallel-1"))),
            cwd=work,
        )
        return "does what it is for"
    programs, work = environment(name, wheel(name), "pytest", "scipy<2")
    told = call(programs / "python", "-m", "pytest", "-q", subject, cwd=ROOT)
    if name == "onnx":
        call(
            programs / "python",
            "-m",
            "parallel_ppo",
            "export",
            beside / "runs" / "parallel-1",
            "--output",
            "policy.onnx",
            cwd=work,
        )
    return told.strip().splitlines()[-1]


def test_all(name: str) -> str:
    programs, work = environment(name)
    listed = call(
        programs / "python",
        "-m",
        "pip",
        "install",
        "-q",
        "--dry-run",
        "--report",
        "-",
        wheel("all"),
        cwd=work,
    )
    added = {item["metadata"]["name"]: item["metadata"]["version"] for item in json.loads(listed)["install"]}
    assert "numpy" not in added, f"numpy would become {added['numpy']}"
    return f"all extras fit together: {len(added)} packages"


def test_docs(name: str) -> str:
    return run_docs(ROOT, BUILD / name, state_of_tree())


PARTS: dict[str, Callable[[str], str]] = {
    "wheel": test_wheel, "sdist": test_sdist, "types": test_types, "notebook": test_notebook,
    "examples": test_examples, **dict.fromkeys(EXTRAS, test_extra), "all": test_all, "docs": test_docs,
}  # fmt: skip


if __name__ == "__main__":
    run(main)
