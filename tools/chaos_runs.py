"""Faults against whole training runs: workers broken in every phase, coordinators killed, preemptions, a
long soak.

Every campaign compares its end with an undisturbed run of the same length: the policy and every learning
column, bit for bit.
"""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import fault_injector  # noqa: E402

from benchmarks.processes import held_in_memory  # noqa: E402
from parallel_ppo.records.metrics import NOT_LEARNING, read_records  # noqa: E402
from parallel_ppo.workers import observer  # noqa: E402

STEPS_PER_ITERATION = 16 * 16
SMALL = ["--env", "coinrun", "--policy", "nature", "--num-envs", "16", "--n-steps", "16", "--batch-size",
"64",
         "--n-epochs", "1", "--num-workers", "2", "--set", "hardware.pinning=none"]  # fmt: skip
HEADER = "  -> "  # of a run, in its first lines
TOKEN = "PARALLEL_PPO_CHAOS_TOKEN"
Report = dict[str, Any]


class Training:
    """One start of the real command, recognisable by a token in its environment and its children's."""

    def __init__(
        self,
        arguments: list[str],
        log: Path,
        plan: Path | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        self.token = f"{os.getpid()}-{time.monotonic_ns()}"
        self.temporary = log.with_suffix(".tmpdir")
        self.temporary.mkdir(exist_ok=True)
        environment = os.environ | {TOKEN: self.token, "TMPDIR": str(self.temporary)} | (variables or {})
        if plan is not None:
            environment |= {observer.VARIABLE: fault_injector.__file__, fault_injector.PLAN: str(plan)}
        self.log, self.held = log, set[str]()
        self.started = time.monotonic()
        with open(log, "a") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "train_parallel_timed.py"), *arguments],
                stdout=file, stderr=file, env=environment, start_new_session=True,
            )  # fmt: skip

    def wait(self, timeout: float) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"no end after {timeout:.0f} s; see {self.log}") from None

    def pids(self) -> list[int]:
        """Of everything that carries the token, zombies included while their parent lives."""
        wanted, found = f"{TOKEN}={self.token}".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def look(self) -> None:
        """Remembers what its processes hold in /dev/shm: on a shared machine, other programs come and go
        there too.
        """
        self.held |= set[str]().union(*map(held_in_memory, self.pids()))

    def left_behind(self, patience: float = 2.0) -> tuple[int, int]:
        """(processes, files) that are still there after `patience` seconds."""
        deadline = time.monotonic() + patience
        while (alive := self.pids()) and time.monotonic() < deadline:
            time.sleep(0.05)
        new = [name for name in self.held if Path(name).exists()]
        return len(alive), len(new) + len(list(self.temporary.iterdir()))


def checked(arguments: list[str], log: Path, timeout: float = 3600, plan: Path | None = None) -> None:
    code = Training(arguments, log, plan).wait(timeout)
    assert code == 0, f"exit code {code}; see {log}"


def learning_columns(run: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in record.items() if key not in NOT_LEARNING}
        for record in read_records(run / "metrics.jsonl")
    ]


def is_identical(run: Path, reference: Path) -> bool:
    """The same iterations in the same order, none missing and none twice, with the same numbers in every
    learning column.
    """
    ours, theirs = learning_columns(run), learning_columns(reference)
    episodes = [list(read_records(place / "episodes.jsonl")) for place in (run, reference)]
    hashes = [json.loads((place / "summary.json").read_text())["policy_sha256"] for place in (run, reference)]
    return len(ours) > 0 and ours == theirs and episodes[0] == episodes[1] and hashes[0] == hashes[1]


# --- workers ------------------------------------------------------------------------------------------------

PHASES = ("spawn", "collect", "hand-over", "gradient", "counted", "checkpoint")
KINDS = ("SIGSTOP", "SIGSEGV", "exit", "exception")


def make_plan(per_phase: int, per_kind: int, seed: int) -> list[dict[str, Any]]:
    """`per_phase` kills in each phase and `per_kind` of every other fault, on two of three iterations."""
    draw = random.Random(seed)
    wanted = [(phase, "SIGKILL") for phase in PHASES for _ in range(per_phase)]
    for offset, kind in enumerate(KINDS, 1):
        fitting = PHASES if kind.startswith("SIG") else PHASES[:-1]  # a waiting worker can only be signalled
        wanted += [(fitting[(index + offset) % len(fitting)], kind) for index in range(per_kind)]
    draw.shuffle(wanted)
    wanted.sort(key=lambda pair: pair[0] == "spawn")  # primary faults first; a start follows another fault
    entries: list[dict[str, Any]] = []
    for number, (phase, kind) in enumerate(wanted):
        entry = {"id": number, "worker": draw.randrange(2), "phase": phase, "kind": kind, "after": None}
        if phase == "spawn":
            first = draw.choice([e for e in entries if e["phase"] != "spawn" and "taken" not in e])
            first["taken"] = True
            entry |= {
                "after": first["id"],
                "worker": first["worker"],
                "iteration": -1,
                "step": draw.randrange(2),
            }
        else:
            step = {
                "collect": draw.randrange(16),
                "hand-over": draw.randrange(2),
                "gradient": draw.randrange(3),
            }
            entry |= {"iteration": 1 + number * 3 // 2, "step": step.get(phase, 0)}
        entries.append(entry)
    return entries


def break_workers(folder: Path, *, per_phase: int, per_kind: int, seed: int = 1) -> Report:
    entries = make_plan(per_phase, per_kind, seed)
    iterations = max(entry["iteration"] for entry in entries) + 6
    length = ["--total-timesteps", str(iterations * STEPS_PER_ITERATION)]
    every = ["--set", "logging.checkpoint_iterations=1"]
    plan = folder / "plan" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text(json.dumps(entries))
    checked(
        [*SMALL, *length, *every, "--output-dir", str(folder / "reference")], folder / "reference.log", 7200
    )
    checked(
        [*SMALL, *length, *every, "--output-dir", str(folder / "broken")], folder / "broken.log", 7200, plan
    )
    return measure_workers(folder, entries)


def measure_workers(folder: Path, entries: list[dict[str, Any]]) -> Report:
    fired = {}
    for entry in entries:
        marker = folder / "plan" / f"fired-{entry['id']}"
        if marker.exists():
            fired[entry["id"]] = entry | json.loads(marker.read_text())
    events = list(read_records(folder / "broken" / "faults.jsonl"))
    lost = [event for event in events if event["event"] == "lost"]
    starts = [event["seconds"] for event in events if event["event"] == "replaced"]
    delays: dict[str, list[float]] = {"SIGSTOP": [], "exit": []}
    for entry in fired.values():
        after = [event["monotonic"] - entry["monotonic"] for event in lost
                 if event["worker"] == entry["worker"] and event["monotonic"] >= entry["monotonic"]]  # fmt: skip
        kind = entry["kind"] if entry["kind"] in delays else "other"
        delays.setdefault(kind, []).append(min(after, default=float("inf")))
    times = {
        record["iteration"]: record["t_iter"] for record in read_records(folder / "broken" / "metrics.jsonl")
    }
    hit: dict[
        int, list[str]
    ] = {}  # what happened in an iteration; a fault of a start belongs to the fault before it
    for entry in fired.values():
        cause = entry if entry["after"] is None else fired.get(entry["after"], entry)
        hit.setdefault(cause["iteration"] + 1, []).append(entry["kind"])
    clean = statistics.median(t for number, t in times.items() if number not in hit and number > 1)
    costs = [
        times[number] - clean for number, kinds in hit.items() if kinds == ["SIGKILL"] and number in times
    ]
    by_phase = {
        phase: sum(e["phase"] == phase and e["kind"] == "SIGKILL" for e in fired.values()) for phase in PHASES
    }
    by_kind = {
        kind: sum(e["kind"] == kind for e in fired.values())
        for kind in (*KINDS, "SIGKILL")
        if kind != "SIGKILL"
    }
    return {
        "faults_planned": len(entries), "faults_fired": len(fired), "kills_by_phase": by_phase,
        "others_by_kind": by_kind,
        "identical": is_identical(folder / "broken", folder / "reference"),
        "detection_s": _spread(delays.get("other", [])), "detection_stopped_s": _spread(delays["SIGSTOP"]),
        "detection_exit_s": _spread(delays["exit"]),  # from the call
        "cost_of_a_kill_s": _spread(costs), "iteration_s": clean, "worker_start_s": _spread(starts),
        "cost_within_bound": statistics.median(costs) < clean + statistics.median(starts),
        "iterations": len(times),
    }  # fmt: skip


def _spread(values: list[float]) -> dict[str, float]:
    return (
        {
            "median": round(statistics.median(values), 4),
            "worst": round(max(values), 4),
            "number": len(values),
        }
        if values
        else {"number": 0}
    )


# --- coordinators -------------------------------------------------------------------------------------------


def interrupt_repeatedly(
    folder: Path, *, times: int, seed: int, send: Callable[[int], signal.Signals]
) -> Report:
    """Starts, signals at a random instant, looks at what is left, resumes; then runs to the end and compares.

    Every fifth signal comes somewhere in the start, the others after at least one iteration of this start.
    """
    draw, run = random.Random(seed), folder / "broken"
    every = ["--set", "logging.checkpoint_iterations=2"]
    far, log = ["--total-timesteps", str(10**9)], folder / "broken.log"
    processes = files = starts_again = 0
    codes: dict[str, int] = {}
    gone: list[float] = []
    for number in range(times):
        is_there = (run / "config.yaml").exists()
        where = ["--resume", str(run)] if is_there else [*SMALL, *every, "--output-dir", str(run)]
        starts_again += not is_there
        before_start = _num_lines(log)
        training = Training([*where, *far], log)
        if number % 5 == 0:
            time.sleep(draw.uniform(0.05, 6.0))
        else:
            _wait_for_iteration(training, run, log, before_start)
            time.sleep(draw.uniform(0.0, 4.0))
        training.look()
        before = time.monotonic()
        os.kill(training.process.pid, send(number))
        code = training.wait(60)
        gone.append(time.monotonic() - before)
        codes[str(code)] = codes.get(str(code), 0) + 1
        left = training.left_behind()
        processes, files = processes + left[0], files + left[1]
    reached = max([record["iteration"] for record in read_records(run / "metrics.jsonl")], default=0)
    length = ["--total-timesteps", str((reached + 3) * STEPS_PER_ITERATION)]
    checked(
        (
            ["--resume", str(run), *length]
            if (run / "config.yaml").exists()
            else [*SMALL, *length, "--output-dir", str(run)]
        ),
        log,
    )
    checked([*SMALL, *length, "--output-dir", str(folder / "reference")], folder / "reference.log")
    text = log.read_text()
    return {
        "signals": times, "exit_codes": codes, "fresh_starts": starts_again, "iterations": reached + 3,
        "processes_left": processes, "files_left": files, "gone_s": _spread(gone),
        "identical": is_identical(run, folder / "reference"), "tracebacks": text.count("Traceback"),
    }  # fmt: skip


def _num_lines(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def _wait_for_iteration(training: Training, run: Path, log: Path, before: int) -> None:
    """Until this start has recorded an iteration: its header stands in the log, and the metrics grow
    after that.
    """
    _wait_until(training, lambda: HEADER in "".join(log.read_text().splitlines()[before:]))
    metrics = run / "metrics.jsonl"
    size = metrics.stat().st_size
    _wait_until(training, lambda: metrics.stat().st_size > size)


def _wait_until(training: Training, condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if training.process.poll() is not None or time.monotonic() > deadline:
            training.process.kill()
            raise AssertionError(f"see {training.log}")
        time.sleep(0.02)


def kill_coordinators(folder: Path, *, times: int, seed: int = 2) -> Report:
    return interrupt_repeatedly(folder, times=times, seed=seed, send=lambda number: signal.SIGKILL)


def preempt(folder: Path, *, times: int, seed: int = 3) -> Report:
    """SIGTERM and SIGUSR1 in turn."""
    kinds = (signal.SIGTERM, signal.SIGUSR1)
    return interrupt_repeatedly(folder, times=times, seed=seed, send=lambda number: kinds[number % 2])


def preempt_long_iteration(folder: Path, *, times: int, seed: int = 4) -> Report:
    """SIGTERM in the middle of iterations that take many seconds; the state is saved as of the
    iteration's start.
    """
    draw, run = random.Random(seed), folder / "long"
    shape = ["--env", "coinrun", "--policy", "impala", "--num-envs", "32", "--n-steps", "128", "--batch-size",
    "1024",
             "--n-epochs", "12", "--num-workers", "2"]  # fmt: skip
    far = ["--total-timesteps", str(10**9)]
    gone, codes = [], []
    for _ in range(times):
        where = ["--resume", str(run)] if run.exists() else [*shape, "--output-dir", str(run)]
        training = Training([*where, *far], folder / "long.log")
        _wait_until(training, lambda: HEADER in training.log.read_text().rpartition("\x1c")[2])  # noqa: B023
        time.sleep(draw.uniform(3, 18))
        with open(folder / "long.log", "a") as file:
            file.write("\x1c")
        before = time.monotonic()
        training.process.terminate()
        codes.append(training.wait(60))
        gone.append(time.monotonic() - before)
    reached = max([record["iteration"] for record in read_records(run / "metrics.jsonl")], default=0)
    length = ["--total-timesteps", str((reached + 1) * 32 * 128)]
    checked(["--resume", str(run), *length], folder / "long.log")
    checked([*shape, *length, "--output-dir", str(folder / "reference")], folder / "reference.log")
    seconds = [record["t_iter"] for record in read_records(folder / "reference" / "metrics.jsonl")]
    return {"signals": times, "exit_codes": codes, "gone_s": _spread(gone), "iteration_s": _spread(seconds),
            "identical": is_identical(run, folder / "reference")}  # fmt: skip


# --- soak ---------------------------------------------------------------------------------------------------


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
        for name in ("rss_coordinator_mb", "rss_nursery_mb", "rss_all_mb", "descriptors"):
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


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def tree(pid: int) -> list[int]:
    """Coordinator, fork_server, workers."""
    fork_server = children(pid)[:1]
    return [pid, *fork_server, *(children(fork_server[0]) if fork_server else [])]


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
        "rss_nursery_mb": sizes[1] if len(sizes) > 1 else 0,
        "rss_all_mb": sum(sizes), "descriptors": descriptors, "zombies": zombies,
    }  # fmt: skip


# --- a full disk, and the price -----------------------------------------------------------------------------


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

    def __init__(self, *methods: tuple[type, str]) -> None:
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
    from parallel_ppo.training.checkpoint import Keeper
    from parallel_ppo.training.coordinator import Coordinator
    from parallel_ppo.training.state import TrainingState
    from parallel_ppo.workers.worker import Worker

    parts = ((TrainingState, "snapshot"), (Worker, "publish"), (Worker, "check_outputs"), (JsonlLog, "write"))
    watch = Stopwatch(*parts, (Keeper, "save"), (Coordinator, "iterate"))
    arguments = ["--env", "coinrun", "--policy", "impala", "--num-envs", "32", "--n-steps", "128",
    "--batch-size", "1024", "--n-epochs", "1",
                 "--num-threads", "1", "--total-timesteps", str(iterations * 32 * 128),
                 "--quiet"]  # fmt: skip
    assert train.train_sequential([*arguments, "--output-dir", str(folder / "one")]) == 0
    seconds = watch.seconds
    iteration, one_save = seconds.pop("Coordinator.iterate") / iterations, seconds.pop("Keeper.save") / 2
    each = {name: value / iterations for name, value in seconds.items()}
    saving = one_save / 300  # one checkpoint every 300 s, the default
    return {
        "iteration_cpu_s": iteration, "cpu_s_per_iteration": {name: round(value, 5) for name,
        value in each.items()},
        "one_checkpoint_cpu_s": one_save, "checkpoint_share_percent": 100 * saving,
        "share_percent": 100 * (sum(each.values()) / iteration + saving),
    }  # fmt: skip
