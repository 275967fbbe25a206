"""What only time shows: growth over hours, a disk that fills up, and the price of being safe."""

import json
import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos_training import SMALL, STEPS_PER_ITERATION, Report, Training, checked, is_identical, tree


def soak(folder: Path, *, minutes: float, every: float = 20.0, seed: int = 5) -> Report:
    """A worker killed every few seconds, for a long time: nothing may grow."""
    draw, log = random.Random(seed), folder / "soak.log"
    length = ["--duration", str(minutes / 60), "--set", "logging.checkpoint_interval=60"]
    training = Training([*SMALL, *length, "--output-dir", str(folder / "soak")], log)
    samples, kills, next_kill = [], 0, time.monotonic() + every
    while training.process.poll() is None:
        time.sleep(5)
        pids = tree(training.process.pid)
        if time.monotonic() >= next_kill and len(pids) > 2:
            os.kill(draw.choice(pids[2:]), signal.SIGKILL)
            kills, next_kill = kills + 1, time.monotonic() + every
        else:
            samples.append({"seconds": time.monotonic() - training.started, **_sample(pids)})
    settled = [s for s in samples if s["processes"] == 4]
    early = [s for s in settled if 300 <= s["seconds"] < 300 + 60 * minutes * 0.15]
    late = [s for s in settled if s["seconds"] > 60 * minutes * 0.85]
    report: Report = {"minutes": minutes, "kills": kills, "exit_code": training.process.returncode}
    if early and late:
        for name in ("rss_coordinator_mb", "rss_fork_server_mb", "rss_all_mb", "descriptors"):
            before, after = (statistics.median(s[name] for s in part) for part in (early, late))
            report[name] = {
                "before": before,
                "after": after,
                "growth_percent": round(100 * (after / before - 1), 2),
            }
    report["zombies_seen"] = max((s["zombies"] for s in samples), default=0)
    report["zombies_at_end"] = samples[-1]["zombies"] if samples else 0
    restarts = json.loads((folder / "soak" / "summary.json").read_text())["worker_restarts"]
    return report | {"worker_restarts": restarts, "left_behind": training.left_behind()}


def _sample(tree: list[int]) -> dict[str, float]:
    sizes, descriptors, zombies = [], 0, 0
    for pid in tree:
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            zombies += pid != tree[0] and status["State"].strip().startswith("Z")
            sizes.append(int(status.get("VmRSS", "0 kB").split()[0]) / 1000)
            descriptors += len(os.listdir(f"/proc/{pid}/fd")) if pid in tree[:2] else 0
        except OSError:
            continue
    return {
        "processes": len(sizes), "rss_coordinator_mb": sizes[0] if sizes else 0,
        "rss_fork_server_mb": sizes[1] if len(sizes) > 1 else 0,
        "rss_all_mb": sum(sizes), "descriptors": descriptors, "zombies": zombies,
    }  # fmt: skip


def fill_disk_of_run(folder: Path) -> Report:
    """The disk is full from the third iteration on; the run warns, stops with code 5, and is resumed when
    there is room.
    """
    from chaos_files import can_mount, small_disk

    if not can_mount(folder):
        return {"skipped": "mounting a tmpfs needs root"}
    shape = [
        *SMALL,
        "--total-timesteps",
        str(12 * STEPS_PER_ITERATION),
        "--set",
        "logging.checkpoint_iterations=1",
    ]
    log, disk = folder / "broken.log", folder / "disk"
    checked([*shape, "--output-dir", str(folder / "reference")], folder / "reference.log")
    with small_disk(disk, 60_000):
        training = Training([*shape, "--output-dir", str(disk / "run")], log)
        while not (disk / "run" / "checkpoints" / f"step_{2 * STEPS_PER_ITERATION}").exists():
            assert training.process.poll() is None and time.monotonic() < training.started + 300, (
                log.read_text()
            )
            time.sleep(0.01)
        with open(disk / "filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                pass
        code = training.wait(300)
        lines = log.read_text()
        (disk / "filler").unlink()
        checked(["--resume", str(disk / "run")], log)
        identical = is_identical(disk / "run", folder / "reference")
    return {
        "exit_code": code, "warnings": lines.count("warning:"), "identical": identical,
        "tracebacks": log.read_text().count("Traceback"), "last_line": lines.strip().splitlines()[-1],
    }  # fmt: skip


class Stopwatch:
    """Adds up the CPU seconds spent in some methods: unlike wall time, they do not depend on who else
    uses the machine.
    """

    def __init__(self, *methods: tuple[Any, str]) -> None:
        self.seconds = {f"{owner.__name__}.{name}": 0.0 for owner, name in methods}
        for owner, name in methods:
            setattr(owner, name, self._timed(f"{owner.__name__}.{name}", getattr(owner, name)))

    def _timed(self, label: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return method(*arguments, **options)
            finally:
                self.seconds[label] += time.process_time() - began

        return timed


def measure_cost(folder: Path, *, iterations: int = 2) -> Report:
    """What safety takes of an iteration (IMPALA, 32 x 128, minibatch 1024, one epoch: the fewer, the
    larger the share), in one process on one thread, where every part can be timed.
    """
    from parallel_ppo.commands import train
    from parallel_ppo.records.metrics import JsonlLog
    from parallel_ppo.training import loop
    from parallel_ppo.training.saving import Keeper
    from parallel_ppo.training.state import TrainingState
    from parallel_ppo.workers.worker import Worker

    parts = ((TrainingState, "snapshot"), (Worker, "publish"), (Worker, "check_outputs"), (JsonlLog, "write"))
    watch = Stopwatch(*parts, (Keeper, "save"), (loop, "iterate"))
    arguments = ["--env", "coinrun", "--policy", "impala", "--num-envs", "32", "--n-steps", "128",
    "--batch-size", "1024", "--n-epochs", "1",
                 "--num-threads", "1", "--total-timesteps", str(iterations * 32 * 128),
                 "--quiet"]  # fmt: skip
    assert train.train_sequential([*arguments, "--output-dir", str(folder / "one")]) == 0
    seconds = watch.seconds
    iteration, one_save = (
        seconds.pop("parallel_ppo.training.loop.iterate") / iterations,
        seconds.pop("Keeper.save") / 2,
    )
    each = {name: value / iterations for name, value in seconds.items()}
    saving = one_save / 300  # one checkpoint every 300 s, the default
    return {
        "iteration_cpu_s": iteration, "cpu_s_per_iteration": {name: round(value, 5) for name,
        value in each.items()},
        "one_checkpoint_cpu_s": one_save, "checkpoint_share_percent": 100 * saving,
        "share_percent": 100 * (sum(each.values()) / iteration + saving),
    }  # fmt: skip
