#!/usr/bin/env python
"""Test what `make test` leaves out: the wheel, its types, the notebook, the examples, all extras, and every
command that README and docs print. `make test-extras` runs it; words choose parts: `.ci/extras.py docs`.

Everything happens under build/extras. A printed command runs as it is printed, with small budgets (`BUDGETS`,
`FLAGS`) and names of prepared runs instead of placeholders (`STAND_INS`).
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.sharing.fake_hub import fake_hub  # noqa: E402

BUILD = ROOT / "build" / "extras"
WORK = BUILD / "work"
BUDGET = ("--env", "CartPole-v1", "--total-timesteps", "100000", "--quiet")
USES = {
    "box2d": "import gymnasium; gymnasium.make('LunarLander-v3').reset()",
    "mujoco": "import gymnasium; gymnasium.make('HalfCheetah-v5').reset()",
    "minigrid": "import gymnasium, minigrid; gymnasium.make('MiniGrid-Empty-5x5-v0').reset()",
    "pandas": "import parallel_ppo, pathlib; parallel_ppo.Run(pathlib.Path('runs/parallel-1')).frame()",
}
USING_TESTS = (
    "tests/sharing",
    "tests/records/test_tracker_services.py",
    "tests/cluster/test_ray.py",
)  # of the other extras
NOTEBOOK = "import nbformat, nbclient; nbclient.NotebookClient(nbformat.read('notebook.ipynb', 4)).execute()"


def call(*words: object, cwd: Path = WORK) -> str:
    """Outside the checkout, so that what is imported is what was installed."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, env=clean, check=True, capture_output=True, text=True
    ).stdout


def environment(name: str, *packages: str) -> Path:
    """The programs of a new virtual environment."""
    programs = BUILD / name / "bin"
    if not programs.is_dir():
        call(sys.executable, "-m", "venv", BUILD / name)
        call(programs / "pip", "install", "-q", *packages)
    call(programs / "pip", "check")
    return programs


def wheel(extra: str = "") -> str:
    [path] = (ROOT / "dist").glob("*.whl")
    return f"{path}{extra}"


def snippet() -> str:
    """The program at the head of docs/python.md, with something to observe."""
    code = (ROOT / "docs" / "python.md").read_text().split("```python\n")[1].split("```")[0]
    return f"import gymnasium\nobservation, _ = gymnasium.make('CartPole-v1').reset(seed=0)\n{code}"


def hashes(run: str) -> list[str]:
    """The hash of the policy after each iteration."""
    lines = (WORK / "runs" / run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["policy_sha256"] for line in lines]


def test_wheel() -> None:
    """The command, the documented program and the checkout's script learn one policy."""
    programs = environment("wheel", wheel())
    shutil.rmtree(WORK / "runs", ignore_errors=True)
    call(programs / "parallel-ppo", "doctor")
    call(programs / "parallel-ppo", "train", *BUDGET)
    call(programs / "parallel-ppo", "evaluate", "parallel-1", "--num-episodes", 8)
    (WORK / "program.py").write_text(snippet())
    call(programs / "python", "program.py")  # stops where the return is high enough
    call(
        sys.executable, ROOT / "train_parallel_timed.py", *BUDGET, "--output-dir", WORK / "runs" / "checkout"
    )
    assert hashes("parallel-1") == hashes("checkout")
    assert hashes("parallel-2")[-1] in hashes("parallel-1")


def test_types() -> None:
    python = environment("types", wheel(), "mypy") / "python"
    (WORK / "user.py").write_text(snippet() + "reveal_type(policy)\nparallel_ppo.train(stop_when=3)\n")
    command = [python, "-m", "mypy", "--ignore-missing-imports", "user.py"]
    found = subprocess.run(command, cwd=WORK, capture_output=True, text=True).stdout
    assert "parallel_ppo.library.policy.Policy" in found, found
    assert 'Argument "stop_when"' in found and "Found 1 error" in found, found


def test_notebook() -> None:
    python = environment("notebook", wheel(), "nbclient", "nbformat", "ipykernel") / "python"
    shutil.copy(ROOT / "examples" / "notebook.ipynb", WORK)
    call(python, "-c", NOTEBOOK)


def test_extras() -> None:
    """All extras fit together and do what they are for."""
    python = environment("all", wheel("[all,ray]"), "pytest", "scipy<2") / "python"
    for use in USES.values():
        call(python, "-c", use)
    call(python, ROOT / "examples" / "three_lines.py")
    call(python, "-m", "pytest", "-q", *USING_TESTS, cwd=ROOT)


# --- printed commands ---------------------------------------------------------------------------------------

SCRIPT = r"(?:PROJECT/|\.\./)?(?:\w+/)*\w+\.py"
COMMAND = re.compile(
    rf"(?:[A-Z_]+=\S+ )*(?:(?:python|make|parallel-ppo|torchrun|pip|hf|pytest|source) |\./setup\.sh|{SCRIPT} )"
)
BUDGETS = {
    "--duration": "5s", "--total-timesteps": "256", "--num-episodes": "2", "--rounds": "1", "--repeats": "1",
    "--iterations": "1", "--nnodes": "1",
}  # fmt: skip  # replaced wherever they are printed
SMALL = {"--num-envs": "8", "--n-steps": "16", "--batch-size": "64"}
TRAIN = {"--total-timesteps": "256"}
FLAGS = {
    "train": TRAIN,
    "train_parallel_timed.py": TRAIN,
    "train_timed.py": TRAIN,
    "train_ppo_sequential.py": TRAIN,
    "train_ppo_distributed.py": TRAIN | SMALL,
    "evaluate.py": {"--num-episodes": "2", "--max-steps": "50"},
    "play.py": {"--max-steps": "20"},
    "push": {"--skip-play": ""},
    "tune": {"--seconds": "5"},
    "tools/suite.py": {"--total-timesteps": "256", "--eval-episodes": "2", "--seeds": "1"},
    "benchmarks/throughput.py": {
        "--work": "W3",
        "--against": "sequential",
        "--rounds": "1",
        "--iterations": "1",
    },
    "benchmarks/scaling.py": {
        "--repeats": "1",
        "--total-iters": "3",
        "--num-envs": "8",
        "--rollout-steps": "16",
    },
    "benchmarks/kernels.py": {"--rounds": "1"},
    "tools/same_bits.py": {"--only": "CartPole"},
    "tools/launch/ssh.py": {"--dry-run": ""},
}  # added to a script or a word after `parallel-ppo`
STAND_INS = (
    (r"--sequential DIR", "--sequential runs/s1"),
    (r"--parallel DIR", "--parallel runs/p1"),
    (r"(--output-dir|--checkpoint) RUN\b", r"\1 runs/named"),
    (r"(state_plane\.py) RUN\b", r"\1 runs/pendulum"),
    (r"(play\.py|evaluate\.py) (?:RUN )?(?=--(?:render|levels))", r"\1 runs/few-levels "),
    (r"\bRUN\b", "runs/p1"),
    (r"\bSEED\b", "1"),
    (r"--env ENV\b", "--env CartPole-v1"),
    (r"config/NAME\.yaml", "config/cartpole.yaml"),
    (r"my_module:MyTrunk", "small_resnet:SmallResNet"),
    (r"\bPROJECT/", "../"),
    (r"10\.0\.0\.\d\b", "127.0.0.1"),
    (r"--nnodes=[\d:]+", "--nnodes=1"),
    (r"--rdzv-backend=c10d .* --local-addr=\S+", "--standalone"),
)
NOT_RUN = (
    r"make (test|check|release-check)",  # run by themselves
    r"make (setup|tensorboard)",  # done before; never ends
    r"^hf auth login",  # asks for a token
    r"--requeue",  # asks SLURM
    r"^pip install \.",  # replaces the checkout's own installation
    r"TCPStore",  # runs until it is killed
    r"RAY_ADDRESS",  # needs a Ray cluster
)
PREPARE = "python train_parallel_timed.py --total-timesteps 1024 --quiet --output-dir runs"
PREPARED = (
    *(f"{PREPARE}/{name} --env CartPole-v1 --seed {name[-1]}" for name in ("p1", "p2", "w1", "w2", "seed1", "seed2", "seed3")),
    *(f"{PREPARE}/s{seed} --env CartPole-v1 --seed {seed}".replace("parallel_", "") for seed in (1, 2)),
    *(f"{PREPARE}/{name} --env CartPole-v1 --algorithm {name}" for name in ("ppo", "impala", "a2c")),
    f"{PREPARE}/pendulum --env Pendulum-v1",
)  # fmt: skip  # runs that the pages take for granted


def printed(page: Path) -> Iterator[str]:
    """Lines of shell blocks, and commands with arguments in the running text."""
    text = re.sub(r"```(?:python|yaml|json|text).*?```", "", page.read_text(), flags=re.S)
    text = re.sub(r"```\w*\n#!.*?```", "", text, flags=re.S).replace("\\\n", " ")
    for line in text.splitlines():
        for words in [re.sub(r"(^|\s+)# .*$", "", line).strip(), *re.findall(r"`([^`]+)`", line)]:
            if COMMAND.match(words) and "..." not in words and "`" not in words:
                yield f"python {words}" if re.match(SCRIPT, words) else words


def shortened(text: str) -> str:
    for pattern, stand_in in STAND_INS:
        text = re.sub(pattern, stand_in, text)
    if text.startswith("make "):
        return re.sub(r"(make train[\w-]*)", r"\1 DURATION=5s", re.sub(r" DURATION=\S+", "", text))
    text, separator, rest = text.partition(" -- ")
    for flag, value in BUDGETS.items():
        text = re.sub(rf"{flag} [^ -]\S*", f"{flag} {value}", text)
    if "--resume" in text:  # more than what the run has spent
        return text.replace("--duration 5s", "--duration 12s") + separator + rest
    flags = dict(next((FLAGS[word] for word in text.split() if word in FLAGS), {}))
    if flags == TRAIN and re.search("coinrun|starpilot|--num-levels", text):
        flags |= SMALL | ({"--total-timesteps": "2048"} if "--num-levels" in text else {})
    if "--duration" in text:
        flags.pop("--total-timesteps", None)
    if "suite.py" in text:
        separator, rest = " -- ", _with_flags(rest, SMALL)
    return _with_flags(text, flags) + separator + rest


def _with_flags(text: str, flags: dict[str, str]) -> str:
    for flag, value in flags.items():
        text, count = re.subn(rf"{flag} \S+", f"{flag} {value}", text)
        text = text if count else f"{text} {flag} {value}".strip()
    return text


def make_clone(clone: Path) -> None:
    shutil.rmtree(clone, ignore_errors=True)
    call("git", "clone", "-q", ROOT, clone)
    (clone / "hosts.txt").write_text("127.0.0.1\n")
    own = clone / "own"  # as docs/environments.md describes it
    own.mkdir()
    shutil.copy(ROOT / "examples" / "seek.py", own)
    settings = (ROOT / "docs" / "environments.md").read_text().split("```yaml\n")[1].split("```")[0]
    (own / "seek.yaml").write_text(settings)


def test_docs() -> None:
    """In a fresh clone, which the first command sets up. The hub is one on the loopback interface."""
    clone = BUILD / "project"
    make_clone(clone)
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    first, *others = dict.fromkeys(shortened(text) for page in pages for text in printed(page))
    failed = []
    with fake_hub() as hub:
        variables = os.environ | {
            "PATH": f"{clone / 'venv' / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(clone / "examples"),
            "WANDB_MODE": "offline", "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "hf_none", "HF_HOME": str(BUILD / "hf"),
        }  # fmt: skip
        for line in (first, *PREPARED, *others):
            if any(re.search(pattern, line) for pattern in NOT_RUN):
                continue
            folder = clone / "own" if "../" in line else clone
            done = subprocess.run(["bash", "-c", line], cwd=folder, env=variables, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True)  # fmt: skip
            print(
                f"  {'ok' if done.returncode == 0 else f'FAILED with {done.returncode}'}: {line}", flush=True
            )
            if done.returncode:
                failed.append(line)
                print(done.stdout[-500:] + done.stderr[-1500:], flush=True)
    assert not failed, f"{len(failed)} commands failed: " + "; ".join(failed)


PARTS: dict[str, Callable[[], None]] = {
    "wheel": test_wheel,
    "types": test_types,
    "notebook": test_notebook,
    "extras": test_extras,
    "docs": test_docs,
}


def main(chosen: list[str]) -> int:
    if not set(chosen) <= PARTS.keys():
        sys.exit(f"error: expected parts of {', '.join(PARTS)}")
    WORK.mkdir(parents=True, exist_ok=True)
    failed = 0
    for part in chosen or PARTS:
        try:
            PARTS[part]()
            print(f"{part}: passed", flush=True)
        except (subprocess.CalledProcessError, AssertionError) as error:
            failed += 1
            output = (getattr(error, "stderr", "") or "") + (getattr(error, "stdout", "") or "")
            print(f"{part}: FAILED: {error}\n{output[-2000:]}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
