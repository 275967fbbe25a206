"""Faults in what surrounds a run: terminals, homes, kernel caches, helper processes, limits of the shell,
links in downloaded folders.

Every campaign starts the real commands and looks for what must not be: a traceback, a changed file, a
process that stayed.
"""

import os
import pty
import random
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chaos_files import can_mount, small_disk
from chaos_training import ROOT, Training, is_identical

Report = dict[str, Any]
CARTPOLE = ["--env", "CartPole-v1", "--num-envs", "4", "--n-steps", "8", "--batch-size", "32",
"--num-workers", "2",
            "--set", "hardware.pinning=none"]  # fmt: skip
ENVIRONMENTS = '''
import os, subprocess
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

IMPORTED_BY = os.getpid()


def in_worker():
    """Not where the environment is looked at before the start."""
    with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:
        return b"fork_server" in file.read()


class Rude(CartPoleEnv):
    """Raises once, with text that a terminal could obey."""

    def step(self, action):
        if not in_worker():
            return super().step(action)
        try:
            os.close(os.open(os.environ["CHAOS_ONCE"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().step(action)
        raise OSError("[/data/x] not found [bold] \\x1b]0;owned\\x07")


class Helped(CartPoleEnv):
    """Starts a helper and a daemon, and forgets both: in workers, and in the trial before the start."""

    def __init__(self):
        super().__init__()
        if in_worker() or os.getpid() != IMPORTED_BY:
            subprocess.Popen(["sleep", "1000"])
            subprocess.run(["sh", "-c", "setsid sleep 1000 > /dev/null 2>&1 &"], check=True)


gymnasium.register("Rude-v0", Rude, max_episode_steps=100)
gymnasium.register("Helped-v0", Helped, max_episode_steps=100)
'''


def with_environments(folder: Path, env: str) -> tuple[list[str], dict[str, str]]:
    (folder / "chaos_environments.py").write_text(ENVIRONMENTS)
    variables = {
        "PYTHONPATH": str(folder),
        "CHAOS_ONCE": str(folder / "once"),
    }
    return ["--env", f"chaos_environments:{env}", *CARTPOLE[2:]], variables


def run(arguments: list[str], script: str = "train_parallel_timed.py", limit: Callable[[],
    None] | None = None,
        **variables: str) -> tuple[int, str]:  # fmt: skip
    """Exit code and everything that was said."""
    done = subprocess.run([sys.executable, str(ROOT / script), *arguments], env=os.environ | variables,
        preexec_fn=limit,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          timeout=900)  # fmt: skip
    return done.returncode, done.stdout


def terminals(folder: Path) -> Report:
    """On a terminal: an error text, a path and a folder that look like markup and escape sequences."""
    arguments, variables = with_environments(folder, "Rude-v0")
    place = folder / "runs" / "[test]"
    arguments += ["--total-timesteps", "320", "--output-dir", str(place)]
    leader, follower = pty.openpty()
    process = subprocess.Popen([sys.executable, str(ROOT / "train_parallel_timed.py"), *arguments],
        stdout=follower, stderr=follower,
                               env=os.environ | variables | {"TERM": "xterm", "COLUMNS": "300"})  # fmt: skip
    os.close(follower)
    seen = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:  # the other side is closed
            break
        seen += data
        if not data:
            break
    code, text = process.wait(60), seen.decode(errors="replace")
    return {"exit_code": code,
    "error_shown_as_it_is": "[/data/x] not found [bold] \\x1b]0;owned\\x07" in text,
            "folder_shown": "[test]" in text, "escaped": "\x1b]0;" in text,
            "tracebacks": text.count("Traceback")}  # fmt: skip


def homes(folder: Path) -> Report:
    """A run that is continued in another home, with and without a key of its own; and one that has no
    home at all.
    """
    half, whole = (["--total-timesteps", str(steps)] for steps in (160, 320))
    key = {"PARALLEL_PPO_KEY_FILE": str(folder / "mounted" / "key")}
    first, second, nowhere = (
        {"XDG_CONFIG_HOME": str(folder / name)} for name in ("first", "second", "first/parallel_ppo/key/x")
    )
    place = {name: str(folder / name) for name in ("alone", "keyed", "homeless", "reference")}
    starts = [
        (run([*CARTPOLE, *half, "--output-dir", place["alone"]], **first), 0, "new key"),
        (run(["--resume", place["alone"], *whole], **second), 2, "PARALLEL_PPO_KEY_FILE"),
        (run([*CARTPOLE, *half, "--output-dir", place["keyed"]], **first, **key), 0, "done"),
        (run(["--resume", place["keyed"], *whole], **second, **key), 0, "done"),
        (run([*CARTPOLE, *half, "--output-dir", place["homeless"]], **nowhere), 0, "not signed"),
        (run([*CARTPOLE, *whole, "--output-dir", place["reference"]], **first), 0, "done"),
    ]
    as_promised = [code == wanted and words in text for (code, text), wanted, words in starts]
    return {"starts": len(starts), "as_promised": sum(as_promised),
    "tracebacks": sum(text.count("Traceback") for (_, text), _, _ in starts),
            "identical": is_identical(Path(place["keyed"]), Path(place["reference"]))}  # fmt: skip


def kernel_caches(folder: Path) -> Report:
    """Libraries that are damaged or foreign, and caches that are full, closed, or open to everyone."""
    cache, outcomes = folder / "cache", dict[str, str]()
    arguments = ["--env", "coinrun", "--policy", "nature", "--print-config"]

    def start(name: str, place: Path) -> None:
        code, text = run(arguments, PARALLEL_PPO_KERNEL_CACHE=str(place))
        kernels = (
            "native"
            if "kernels: native" in text
            else "torch"
            if "torch computes the network" in text
            else "nothing"
        )
        outcomes[name] = f"{kernels}{'' if code == 0 and 'Traceback' not in text else f', exit {code}'}"

    start("empty cache", cache)
    (library,) = cache.glob("*.so")
    whole = library.read_bytes()
    for name, data in (
        ("empty", b""),
        ("cut", whole[:5000]),
        ("of another system", b"\x7fELF" + bytes(1000)),
    ):
        library.write_bytes(data)
        start(name, cache)
    library.chmod(0o777)
    start("writable by others", cache)
    (folder / "file").touch()
    start("a file for a folder", folder / "file")
    if can_mount(folder):
        with ExitStack() as stack:
            stack.enter_context(small_disk(folder / "disk", 64))
            start("full disk", folder / "disk" / "cache")
            stack.enter_context(small_disk(folder / "noexec", 4096, "noexec"))
            start("noexec", folder / "noexec" / "cache")
    wanted = {
        name: "torch" if name in ("a file for a folder", "full disk", "noexec") else "native"
        for name in outcomes
    }
    return {
        "starts": len(outcomes),
        "outcomes": outcomes,
        "as_promised": sum(outcomes[name] == wanted[name] for name in outcomes),
    }


def helpers(folder: Path, *, times: int, seed: int = 9) -> Report:
    """Coordinators killed while environments have helpers and daemons: every other one in the trial
    before the start.
    """
    arguments, variables = with_environments(folder, "Helped-v0")
    draw, left, most, early = random.Random(seed), 0, 0, 0
    for number in range(times):
        place = folder / f"run-{number}"
        training = Training([*arguments, "--total-timesteps", str(10**9), "--output-dir", str(place)],
                            folder / "log", variables=variables)  # fmt: skip
        in_trial, metrics = number % 2 == 0, place / "metrics.jsonl"
        while training.process.poll() is None and not (
            len(training.pids()) > 3 if in_trial else metrics.exists()
        ):
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.05 if in_trial else 2))
        alive, is_early = len(training.pids()), not place.exists()
        training.process.kill()
        most, early = max(most, alive), early + (is_early and alive > 3)
        training.wait(60)
        left += training.left_behind()[0]
    return {
        "kills": times,
        "in_the_trial": early,
        "most_processes": most,
        "processes_left": left,
        "tracebacks": (folder / "log").read_text().count("Traceback"),
    }


def limits(folder: Path) -> Report:
    """Every limit on file sizes and address space ends in a run or in one line."""
    codes: dict[str, int] = {}
    broken = 0
    sizes = [(resource.RLIMIT_FSIZE, kilobytes) for kilobytes in (1, 64, 512, 8192)]
    sizes += [(resource.RLIMIT_AS, megabytes * 1024) for megabytes in (256, 512, 768, 1024, 1536, 4096)]
    for number, (limit, kilobytes) in enumerate(sizes):
        code, text = run([*CARTPOLE, "--total-timesteps", "64", "--quiet", "--output-dir",
            str(folder / str(number))],
                         limit=lambda limit=limit, most=kilobytes * 1024: resource.setrlimit(limit, (most,
                             most)))  # type: ignore[misc]  # fmt: skip
        codes[str(code)] = codes.get(str(code), 0) + 1
        broken += "Traceback" in text or code not in (0, 2) or (code == 2 and text.count("\n") != 1)
    return {"starts": len(sizes), "exit_codes": codes, "tracebacks_or_others": broken}


def links(folder: Path) -> Report:
    """A downloaded run whose folder is full of links to a file of the user's."""
    victim, run_folder = folder / "victim", folder / "run"
    victim.write_bytes(b"precious")
    run([*CARTPOLE, "--total-timesteps", "64", "--output-dir", str(run_folder)])
    names = ("config.yaml", "run.json", "summary.json", "metrics.jsonl", "episodes.jsonl", "evaluation.json",
        "play.gif", "faults.jsonl",
             "trace-1.json", ".lock", "checkpoints/latest", "logs/node-1.log")  # fmt: skip
    codes, copy = [], folder / "copy"
    for name in names:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run_folder, copy, symlinks=True)
        for link in (copy / name, *(copy / f".{other}.tmp" for other in names if "/" not in other)):
            link.unlink(missing_ok=True)
            link.symlink_to(victim)
        codes.append(run(["--resume", str(copy), "--total-timesteps", "96", "--trace", "--quiet"]))
    shutil.copytree(run_folder, folder / "all", symlinks=True)
    for name in ("evaluation.json", ".evaluation.json.tmp", "play.gif", ".play.tmp.gif"):
        (folder / "all" / name).symlink_to(victim)
    episodes = ["--checkpoint", str(folder / "all"), "--num-episodes", "1"]
    codes += [
        run(episodes, "evaluate.py"),
        run([*episodes, "--output", str(folder / "all" / "play.gif")], "play.py"),
    ]
    return {"starts": len(codes), "exit_codes": dict(Counter(str(code) for code, _ in codes)),
            "victim_untouched": victim.read_bytes() == b"precious",
            "tracebacks": sum("Traceback" in text for _, text in codes)}  # fmt: skip
