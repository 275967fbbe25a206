#!/usr/bin/env python
"""Test what `make test` leaves out: the wheel, the notebook, the examples, and each extra, in virtual
environments under build/.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from parallel_ppo.arguments import Parser, run  # noqa: E402
from parallel_ppo.exits import InputError  # noqa: E402

BUILD = ROOT / "build" / "extras"
SHORT = ["--env", "CartPole-v1", "--total-timesteps", "20000", "--quiet"]
EXTRAS = {
    "box2d": "import gymnasium; gymnasium.make('LunarLander-v3').reset()",
    "mujoco": "import gymnasium; gymnasium.make('HalfCheetah-v5').reset()",
    "minigrid": "import gymnasium, minigrid; gymnasium.make('MiniGrid-Empty-5x5-v0').reset()",
    "hub": "tests/sharing",
    "wandb": "tests/records/test_tracker_services.py",
    "mlflow": "tests/records/test_tracker_services.py",
    "trackio": "tests/records/test_tracker_services.py",
    "onnx": "tests/sharing",
}  # what is imported, or which tests of the project are run


def main() -> int:
    parser = Parser(
        description=str(__doc__), examples=("tools/test_extras.py", "tools/test_extras.py wheel onnx")
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    chosen = parser.parse_args().parts or list(PARTS)
    for part in chosen:
        if part not in PARTS:
            raise InputError(f"{part}: expected one of {', '.join(PARTS)}")
    failed = []
    for part in chosen:
        try:
            print(f"{part}: {PARTS[part](part)}", flush=True)
        except subprocess.CalledProcessError as error:
            told = ((error.stderr or "") + (error.stdout or "")).strip().splitlines()[-15:]
            print(
                f"{part}: FAILED: {' '.join(map(str, error.cmd))[:200]}\n  " + "\n  ".join(told), flush=True
            )
            failed.append(part)
    print(f"{len(failed)} of {len(chosen)} parts failed" if failed else "everything works")
    return 1 if failed else 0


def call(*words: object, cwd: Path) -> str:
    """Outside the checkout: what is imported is what was installed."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = [str(word) for word in words]
    return subprocess.run(line, cwd=cwd, env=clean, check=True, capture_output=True, text=True).stdout


def environment(name: str, *packages: str) -> tuple[Path, Path]:
    """A new virtual environment with the wheel, and an empty folder to work in."""
    home, work = BUILD / name / "venv", BUILD / name / "work"
    shutil.rmtree(BUILD / name, ignore_errors=True)
    work.mkdir(parents=True)
    call(sys.executable, "-m", "venv", home, cwd=work)
    call(home / "bin" / "pip", "install", "-q", *packages, cwd=work)
    return home / "bin", work


def wheel(extra: str = "") -> str:
    [path] = (ROOT / "dist").glob("*.whl")
    return f"{path}[{extra}]" if extra else str(path)


def sha256(run: Path) -> str:
    return json.loads((run / "summary.json").read_text())["policy_sha256"]


# --- the parts ----------------------------------------------------------------------------------------------


def test_wheel(name: str) -> str:
    programs, work = environment(name, wheel())
    command = programs / "parallel-ppo"
    call(command, "doctor", cwd=work)
    call(command, "train", *SHORT, cwd=work)
    call(command, "evaluate", "runs/parallel-1", "--num-episodes", 8, cwd=work)
    script = work / "script.py"
    script.write_text(
        "import parallel_ppo\nparallel_ppo.train('CartPole-v1', total_timesteps=20000,"
        " output_dir='runs/python', quiet=True)\n"
    )
    call(programs / "python", script, cwd=work)
    call(
        sys.executable,
        ROOT / "train_parallel_timed.py",
        *SHORT,
        "--output-dir",
        work / "runs" / "script",
        cwd=work,
    )
    hashes = {sha256(work / "runs" / run) for run in ("parallel-1", "python", "script")}
    assert len(hashes) == 1, hashes
    return f"the command, Python and the checkout's script learned {hashes.pop()[:12]}..."


def test_notebook(name: str) -> str:
    programs, work = environment(name, wheel(), "nbclient", "nbformat", "ipykernel")
    shutil.copy(ROOT / "examples" / "notebook.ipynb", work)
    execute = (
        "import nbformat, nbclient; nbclient.NotebookClient(nbformat.read('notebook.ipynb', 4),"
        " timeout=900).execute()"
    )
    call(programs / "python", "-c", execute, cwd=work)
    call(programs / "parallel-ppo", "train", "--env", "CartPole-v1", "--total-timesteps", 100_000, "--quiet",
         "--output-dir", "command", cwd=work)  # fmt: skip
    rows = {
        json.loads(line)["policy_sha256"]
        for line in (work / "command" / "metrics.jsonl").read_text().splitlines()
    }
    assert sha256(work / "runs" / "parallel-1") in rows
    return "every cell ran, and its policy is one that the command passes through"


def test_examples(name: str) -> str:
    programs, work = environment(name, wheel())
    call(programs / "python", ROOT / "examples" / "three_lines.py", cwd=work)
    return "three_lines.py ran"


def test_extra(name: str) -> str:
    subject = EXTRAS[name]
    if not subject.startswith("tests"):
        programs, work = environment(name, wheel(name))
        call(programs / "python", "-c", subject, cwd=work)
        return "its environment was made"
    programs, _ = environment(name, wheel(name), "pytest", "scipy")
    told = call(programs / "python", "-m", "pytest", "-q", subject, cwd=ROOT)
    return told.strip().splitlines()[-1]


PARTS: dict[str, Callable[[str], str]] = {
    "wheel": test_wheel, "notebook": test_notebook, "examples": test_examples, **dict.fromkeys(EXTRAS,
    test_extra),
}  # fmt: skip


if __name__ == "__main__":
    run(main)
