"""Do two versions of the project learn the same bits? Runs each case on both and compares `policy_sha256`.

The other version is a commit (taken from this repository's history) or a folder with a checkout. The
first case that differs does not end the run: all of them are listed. Exit code 1 when any differs.
"""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import parallel_ppo.venv  # noqa: E402, F401
from parallel_ppo.arguments import Parser, guarded  # noqa: E402

EXAMPLE = "tools/same_bits.py --before bfd3413"
SHAPE = ["--num-envs", "16", "--n-steps", "16", "--batch-size", "64", "--n-epochs", "2", "--seed", "7"]
STEPS = ["--total-timesteps", "1024"]
OLD_MLP = ["--set", "training.kernels=torch", "--set", "env.slice_envs=8"]  # what was the default for MLPs
NATIVE_MLP = ["--set", "training.kernels=native", "--set", "env.slice_envs=4"]  # what is, since e5f5f31
NORMALISED = ["--set", "training.normalize_observations=true"]
COINRUN = ["--env", "coinrun", *SHAPE, *STEPS]
CASES = {
    "coinrun IMPALA native": [*COINRUN, "--policy", "impala", "--set", "training.kernels=native"],
    "coinrun IMPALA torch": [*COINRUN, "--policy", "impala", "--set", "training.kernels=torch"],
    "coinrun Nature native": [*COINRUN, "--policy", "nature", "--set", "training.kernels=native"],
    "coinrun Nature torch": [*COINRUN, "--policy", "nature", "--set", "training.kernels=torch"],
    "CartPole": ["--env", "CartPole-v1", *OLD_MLP, "--total-timesteps", "5120", "--seed", "3"],
    "Pendulum normalised": ["--env", "Pendulum-v1", *OLD_MLP, *NORMALISED, *SHAPE, *STEPS],
    "Dict with an image": [
        "--env",
        "tests.envs.sample_envs:Camera-v0",
        "--policy",
        "impala",
        *NORMALISED,
        *SHAPE,
        *STEPS,
    ],
    "LunarLander": ["--env", "LunarLander-v3", *OLD_MLP, *SHAPE, *STEPS],
    "CartPole native": ["--env", "CartPole-v1", *NATIVE_MLP, "--total-timesteps", "5120", "--seed", "3"],
    "Pendulum native": ["--env", "Pendulum-v1", *NATIVE_MLP, *NORMALISED, *SHAPE, *STEPS],
    "LunarLander native": ["--env", "LunarLander-v3", *NATIVE_MLP, *SHAPE, *STEPS],
}
TWO_NODES = "two nodes"
RESUMES = {
    "resume of the other's checkpoint": CASES["coinrun Nature native"],
    "resume of the other's MLP, by its defaults": ["--env", "CartPole-v1", *SHAPE],
}
NAMES = (*CASES, TWO_NODES, *RESUMES)


def run(tree: Path, script: str, *arguments: str) -> None:
    """Of the tree's own code: a script's folder comes first on its path."""
    result = subprocess.run([sys.executable, script, *arguments], cwd=tree, capture_output=True, text=True)
    if result.returncode:
        lines = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()
        raise RuntimeError(lines[-1])


def policy_hash(directory: Path) -> str:
    return json.loads((directory / "summary.json").read_text())["policy_sha256"]


def plain(tree: Path, folder: Path, name: str) -> str:
    run(
        tree,
        "train_parallel_timed.py",
        *CASES[name],
        "--num-workers",
        "2",
        "--quiet",
        "--output-dir",
        str(folder),
    )
    return policy_hash(folder)


def two_nodes(tree: Path, folder: Path) -> str:
    chosen = [*CASES["CartPole"], "--num-envs", "16", "--num-workers", "1", "--quiet"]
    run(tree, "tools/cluster_local.py", "--nodes", "2", "--", *chosen, "--output-dir", str(folder))
    return policy_hash(folder)


def half(tree: Path, folder: Path, name: str) -> None:
    chosen = [*RESUMES[name], "--total-timesteps", "512", "--num-workers", "2", "--quiet"]
    run(tree, "train_parallel_timed.py", *chosen, "--output-dir", str(folder))


def rest(tree: Path, folder: Path) -> str:
    run(tree, "train_parallel_timed.py", "--resume", str(folder), *STEPS, "--num-workers", "1", "--quiet")
    return policy_hash(folder)


def compare(before: Path, scratch: Path, name: str) -> tuple[str, str]:
    found = []
    for label, tree in (("before", before), ("now", ROOT)):
        folder = scratch / f"{label}-{name.replace(' ', '-')}"
        if name == TWO_NODES:
            found.append(two_nodes(tree, folder))
        elif name in RESUMES:
            half(before, folder, name)
            found.append(rest(tree, folder))
        else:
            found.append(plain(tree, folder, name))
    return found[0], found[1]


@contextlib.contextmanager
def checkout(before: str) -> Iterator[Path]:
    if Path(before, "train_parallel_timed.py").exists():
        yield Path(before).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", before], cwd=ROOT, capture_output=True)
        if archive.returncode:
            print(
                f"error: --before {before}: expected a commit of this repository or a folder with a checkout",
                file=sys.stderr,
            )
            raise SystemExit(2)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        cache = ROOT / "parallel_ppo" / "kernels" / "cache"  # keyed by content; saves compiling twice
        if cache.is_dir():
            shutil.copytree(cache, Path(folder) / "parallel_ppo" / "kernels" / "cache", dirs_exist_ok=True)
        yield Path(folder)


def main() -> int:
    parser = Parser(description=str(__doc__), examples=[EXAMPLE], quiet=False)
    parser.add_argument("--before", required=True, metavar="COMMIT_OR_FOLDER", help="the other version")
    parser.add_argument("--only", metavar="WORD", default="", help="only cases whose name has this word")
    arguments = parser.parse_args()
    names = [name for name in NAMES if arguments.only.lower() in name.lower()]
    if not names:
        parser.error(f"--only {arguments.only}: no such case; there are {', '.join(NAMES)}")
    different = 0
    with checkout(arguments.before) as before, tempfile.TemporaryDirectory() as scratch:
        for name in names:
            try:
                was, now = compare(before, Path(scratch), name)
                verdict = "same" if was == now else f"DIFFERENT (now {now[:16]})"
            except RuntimeError as error:
                was, verdict = "", f"FAILED: {error}"
            different += verdict != "same"
            print(f"{name:34} {was[:16]:16} {verdict}", flush=True)
    print(f"{len(names) - different} of {len(names)} the same")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(guarded(main))
