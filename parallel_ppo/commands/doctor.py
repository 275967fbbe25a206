"""`parallel-ppo doctor` and `quick_test.py`: try each part of the installation; --plan: show which CPU each
worker would get.
"""

import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from parallel_ppo.arguments import Parser, guarded, number_from
from parallel_ppo.child import command
from parallel_ppo.exits import InputError
from parallel_ppo.machine.placement import Pinning, Placement, plan_placement
from parallel_ppo.machine.resources import GIB, Machine, format_cpu_list, parse_cpu_list, read_machine
from parallel_ppo.printable import count
from parallel_ppo.settings.schema import MAX_PROCESSES

EXTRAS = {"gymnasium[box2d]": "Box2D", "gymnasium[mujoco]": "mujoco"} | {
    name: name
    for name in ("minigrid", "huggingface_hub", "wandb", "mlflow", "trackio", "onnxruntime", "pandas")
}
NAMED_PINNING: dict[str, Pinning] = {"auto": "auto", "none": "none"}
SHAPE = ["--num-envs", "16", "--n-steps", "16", "--batch-size", "64", "--total-timesteps", "512", "--quiet"]


def _python() -> str:
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        raise RuntimeError(f"Python {platform.python_version()}; expected 3.10 to 3.13")
    return platform.python_version()


def _torch() -> str:
    import torch

    value = torch.nn.functional.conv2d(torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3)).sum().item()
    if value != 27 * 4 * 36:
        raise RuntimeError(f"a convolution gave {value}")
    return f"{torch.__version__}, oneDNN {'on' if torch.backends.mkldnn.is_available() else 'off'}"


def imported(*names: str) -> str:
    """The packages with their versions."""
    return ", ".join(f"{name} {importlib.import_module(name).__version__}" for name in names)


def _gymnasium() -> str:
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    env.step(0)
    env.close()
    return f"{gymnasium.__version__}, CartPole-v1 steps"


def _has_procgen() -> bool:
    return importlib.util.find_spec("procgen") is not None


def _procgen() -> str:
    import numpy as np

    from parallel_ppo.envs.procgen import ProcgenSlice, problem
    from parallel_ppo.envs.versions import one_procgen, versions_of
    from parallel_ppo.settings import procgen
    from parallel_ppo.settings.schema import EnvSettings

    if not _has_procgen():
        return "not installed: pip install 'parallel_ppo[procgen]'"
    reason = problem()
    if reason is not None:
        raise RuntimeError(reason)
    env = ProcgenSlice(settings=EnvSettings(id="coinrun"), seed=0, first_env=0, num_envs=8)
    env.reset()
    began = time.perf_counter()
    for _ in range(100):
        env.step(np.zeros(8, np.float32))
    rate = 800 / (time.perf_counter() - began)
    env.close()
    build = one_procgen(versions_of(procgen.LIBRARIES))["procgen"]
    return f"build {build}, coinrun, {rate:,.0f} steps/s on one core"


def _shared_memory() -> str:
    descriptor = os.memfd_create("quick_test")
    os.ftruncate(descriptor, 1 << 20)
    os.close(descriptor)
    os.close(os.pidfd_open(os.getpid()))
    return "memfd and pidfd work"


def _train(folder: Path, *arguments: str) -> dict:
    line = command("train", *SHAPE, *arguments, "--output-dir", str(folder))
    result = subprocess.run(line, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError((result.stderr or result.stdout).strip().splitlines()[-1])
    return json.loads((folder / "summary.json").read_text())


def _training() -> str:
    with tempfile.TemporaryDirectory() as temporary:
        arguments = ["--env", "coinrun", "--policy", "nature"]
        if not _has_procgen():
            arguments = ["--env", "CartPole-v1"]
        parallel = _train(Path(temporary, "parallel"), "--num-workers", "2", *arguments)
        sequential = _train(Path(temporary, "sequential"), "--sequential", "--num-threads", "1", *arguments)
    if parallel["policy_sha256"] != sequential["policy_sha256"]:
        raise RuntimeError("2 workers and 1 thread learned different parameters")
    return f"2 workers and 1 process learn the same bits ({parallel['policy_sha256'][:12]}...)"


def _kernels() -> str:
    from parallel_ppo.kernels.build import build
    from parallel_ppo.kernels.choice import choose_variant

    variant = choose_variant()
    return f"{variant}, compiled in {build(variant).parent}"


def _key() -> str:
    from parallel_ppo.storage.user_key import signature

    return "checkpoints are signed" if signature(b"doctor") else "no key yet; the first run makes one"


def _extras() -> str:
    found = [name for name, module in EXTRAS.items() if importlib.util.find_spec(module)]
    return ", ".join(found) or "none"


PARTS: dict[str, Callable[[], str]] = {
    "Python": _python,
    "machine": lambda: read_machine().summary(),
    "numpy": lambda: imported("numpy"),
    "torch": _torch,
    "Gymnasium": _gymnasium,
    "Procgen": _procgen,
    "kernels": _kernels,
    "key": _key,
    "extras": _extras,
    "shared memory": _shared_memory,
    "reports": lambda: imported("tensorboard", "matplotlib"),
    "training": _training,
}


def main(argv: Sequence[str] | None = None) -> int:
    return guarded(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    examples = ("quick_test.py", "quick_test.py --plan --num-workers 4 --pinning 0,2")
    parser = Parser(description="Check the installation part by part.", examples=examples)
    add = parser.add_argument
    add("--plan", action="store_true", help="show which CPU each worker of a run would get, and why")
    number = number_from(1, MAX_PROCESSES)
    add("--num-workers", type=number, metavar="N", help="with --plan: instead of the plan's own number")
    add("--pinning", default="auto", help="with --plan: auto (default), none, or CPUs such as 0-3,8")
    arguments = parser.parse_args(argv)
    if arguments.plan:
        return show_plan(arguments.num_workers, arguments.pinning)
    for flag, given in (("--num-workers", arguments.num_workers), ("--pinning", arguments.pinning != "auto")):
        if given:
            raise InputError(f"{flag}: has no effect without --plan; add --plan")
    return check_parts(arguments.quiet)


def check_parts(quiet: bool) -> int:
    failures = 0
    for name, part in PARTS.items():
        began = time.perf_counter()
        try:
            mark, found = "✓", part()
        except Exception as error:
            mark, found = "✗", f"{type(error).__name__}: {' '.join(str(error).split())}"
            failures += 1
        if mark == "✗" or not quiet:
            print(f"{mark} {name:<14} {found}  ({time.perf_counter() - began:.1f} s)", flush=True)
    if failures:
        print(f"{failures} of {len(PARTS)} parts failed; install again (./setup.sh in a checkout)")
    elif not quiet:
        print("everything works")
    return 1 if failures else 0


# --- the plan -----------------------------------------------------------------------------------------------


def show_plan(num_workers: int | None, pinning: str) -> int:
    machine = read_machine()
    try:
        wanted = NAMED_PINNING.get(pinning) or parse_cpu_list(pinning)
        placement = plan_placement(machine, num_workers=num_workers, pinning=wanted)
    except ValueError as error:
        raise InputError(f"--pinning {pinning}, --num-workers {num_workers or 'auto'}: {error}") from None
    print(f"{machine.cpu_model}: {machine.summary()}")
    descriptors = machine.max_descriptors or "unlimited"
    print(f"{machine.memory_bytes / GIB:.1f} GiB of memory available, {descriptors} file descriptors")
    for line in (*plan_lines(machine, placement), *placement.reasons):
        print(line)
    return 0


def plan_lines(machine: Machine, placement: Placement) -> list[str]:
    """One line for the workers on each kind of core."""
    cores = {core.cpu: core for core in machine.cores}
    groups: dict[str, list[int]] = defaultdict(list)
    for cpu in placement.worker_cpus:
        if cpu is None:
            workers = count(placement.num_workers, "worker")
            return [f"{workers} on CPUs {format_cpu_list(machine.cpus)}, not pinned"]
        core = cores[cpu]
        kind = "physical cores" if core.is_performance else "efficiency cores"
        kind = "SMT siblings" if core.smt_thread else kind
        groups[f"{kind} of NUMA node {core.numa_node}"].append(cpu)
    return [
        f"{count(len(cpus), 'worker')} on CPUs {format_cpu_list(cpus)}: {kind}"
        for kind, cpus in groups.items()
    ]
