"""Break training runs on purpose, and show that nothing is lost.

Each campaign runs the real commands (small shapes, seeded faults), compares the end with an undisturbed
run bit for bit, prints a table and writes JSON.

example: python tools/chaos.py workers --scale 0.1 --folder chaos
"""

import argparse
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import parallel_ppo.venv  # noqa: E402, F401
from parallel_ppo.arguments import run  # noqa: E402
from parallel_ppo.reports.command_line import new_directory  # noqa: E402

Report = dict[str, Any]


def load(name: str) -> Any:
    """A module of campaigns: each imports what only it needs."""
    return importlib.import_module(f"chaos_{name}")


def _scaled(number: int, scale: float) -> int:
    return max(2, round(number * scale))


# name -> (what it does, campaign, what must hold)
CAMPAIGNS: dict[str, tuple[str, Callable[[Path, float], Report], Callable[[Report], bool]]] = {
    "workers": (
        "360 kills, 40 in each phase, and 20 each of SIGSTOP, SIGSEGV, exit(1), exception",
        lambda folder, scale: load("workers").break_workers(
            folder, per_phase=_scaled(40, scale), per_kind=_scaled(20, scale)
        ),
        lambda r: (
            r["identical"]
            and r["faults_fired"] == r["faults_planned"]
            and r["detection_s"]["median"] < 1
            and r["detection_stopped_s"]["median"] < 2
            and r["cost_within_bound"]
        ),
    ),
    "coordinator": (
        "50 coordinators killed at random instants, each resumed",
        lambda folder, scale: load("coordinators").kill_coordinators(folder, times=_scaled(50, scale)),
        lambda r: r["identical"] and not r["processes_left"] and not r["files_left"] and not r["tracebacks"],
    ),
    "preempt": (
        "30 SIGTERM or SIGUSR1 at random instants, each resumed",
        lambda folder, scale: load("coordinators").preempt(folder, times=_scaled(30, scale)),
        lambda r: (
            r["identical"]
            and r["gone_s"]["worst"] < 2
            and not r["processes_left"]
            and not r["files_left"]
            and not r["tracebacks"]
        ),
    ),
    "preempt-long": (
        "SIGTERM in the middle of IMPALA iterations of 20 seconds, each resumed",
        lambda folder, scale: load("coordinators").preempt_long_iteration(folder, times=_scaled(5, scale)),
        lambda r: r["identical"] and r["gone_s"]["worst"] < 2 and set(r["exit_codes"]) == {75},
    ),
    "writes": (
        "checkpoint writing cut off at every call in four ways",
        lambda folder, scale: load("files").interrupt_writing(folder, every=max(1, round(1 / scale))),
        lambda r: r["without_loadable_checkpoint"] == 0,
    ),
    "disks": (
        "checkpoints on disks of every size between one and two checkpoints",
        lambda folder, scale: load("files").fill_disks(folder, step_kilobytes=round(128 / scale)),
        lambda r: "skipped" in r or r["without_loadable_checkpoint"] == 0,
    ),
    "full-disk-run": (
        "a training whose disk fills up, is enlarged, and is resumed",
        lambda folder, scale: load("soak").fill_disk_of_run(folder),
        lambda r: "skipped" in r or (r["identical"] and r["exit_code"] == 5 and not r["tracebacks"]),
    ),
    "mutated-checkpoints": (
        "20,000 broken checkpoints in one process under a memory limit",
        lambda folder, scale: load("mutations").mutate_checkpoints(folder, number=_scaled(20_000, scale)),
        lambda r: r["failed"] == 0 and r["executions"] == 0,
    ),
    "mutated-configs": (
        "5,000 broken configuration files in one process under a memory limit",
        lambda folder, scale: load("mutations").mutate_configs(folder, number=_scaled(5000, scale)),
        lambda r: r["failed"] == 0 and r["executions"] == 0,
    ),
    "mutated-commands": (
        "a sample of broken input through the real command",
        lambda folder, scale: load("mutations").mutate_for_commands(folder, number=_scaled(60, scale)),
        lambda r: r["tracebacks"] == 0 and r["other_exit_codes"] == 0,
    ),
    "terminals": (
        "error texts and folders that look like markup, on a terminal",
        lambda folder, scale: load("surroundings").terminals(folder),
        lambda r: (
            r["exit_code"] == 0
            and r["error_shown_as_it_is"]
            and r["folder_shown"]
            and not r["escaped"]
            and not r["tracebacks"]
        ),
    ),
    "homes": (
        "runs that are continued in another home, with and without a key file, and without any home",
        lambda folder, scale: load("surroundings").homes(folder),
        lambda r: r["as_promised"] == r["starts"] and r["identical"] and not r["tracebacks"],
    ),
    "kernel-caches": (
        "kernel libraries that are damaged or foreign, caches that are full, closed or open to all",
        lambda folder, scale: load("surroundings").kernel_caches(folder),
        lambda r: r["as_promised"] == r["starts"],
    ),
    "helpers": (
        "10 coordinators killed whose environments have helper processes and daemons",
        lambda folder, scale: load("surroundings").helpers(folder, times=_scaled(10, scale)),
        lambda r: r["in_the_trial"] and not r["processes_left"] and not r["tracebacks"],
    ),
    "limits": (
        "tight limits on file sizes and address space",
        lambda folder, scale: load("surroundings").limits(folder),
        lambda r: r["tracebacks_or_others"] == 0,
    ),
    "links": (
        "downloaded runs full of links to a file of the user's",
        lambda folder, scale: load("surroundings").links(folder),
        lambda r: r["victim_untouched"] and not r["tracebacks"],
    ),
    "soak": (
        "30 minutes with a worker killed every 20 seconds",
        lambda folder, scale: load("soak").soak(folder, minutes=31 * scale),
        lambda r: r["exit_code"] == 0 and r["zombies_at_end"] == 0,
    ),
    "cost": (
        "what all this costs when nothing happens",
        lambda folder, scale: load("soak").measure_cost(folder),
        lambda r: r["share_percent"] < 1,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    names = "\n".join(f"  {name:20} {text}" for name, (text, _, _) in CAMPAIGNS.items())
    parser.add_argument(
        "campaigns",
        nargs="+",
        choices=[*CAMPAIGNS, "all"],
        metavar="CAMPAIGN",
        help=f"all, or any of: {', '.join(CAMPAIGNS)}",
    )
    parser.epilog = f"campaigns:\n{names}"
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full numbers (default: 1)")
    parser.add_argument(
        "--folder",
        type=Path,
        help="a new folder to keep runs, logs and chaos.json in (default: a temporary one)",
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start with it ignored
    chosen = list(CAMPAIGNS) if "all" in arguments.campaigns else arguments.campaigns
    folder = new_directory(arguments.folder or Path(tempfile.mkdtemp(prefix="chaos-")))
    results = {}
    for name in chosen:
        results[name] = run_campaign(name, folder, arguments.scale)
        (folder / "chaos.json").write_text(json.dumps(results, indent=1))
    if arguments.folder is None:
        shutil.rmtree(folder)
    return 0 if all(result["ok"] for result in results.values()) else 1


def run_campaign(name: str, folder: Path, scale: float) -> Report:
    """In a process of its own: memory limits and counters of one campaign do not touch the next."""
    text, campaign, holds = CAMPAIGNS[name]
    place, result = folder / name, folder / f"{name}.json"
    place.mkdir()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            report = campaign(place, scale)
            result.write_text(json.dumps(report | {"ok": bool(holds(report))}))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.waitpid(pid, 0)
    report = json.loads(result.read_text()) if result.exists() else {"ok": False, "error": "ended early"}
    report["seconds"] = round(time.monotonic() - began, 1)
    print(f"{'ok' if report['ok'] else 'FAILED':7} {name}: {text}")
    for key, value in report.items():
        if key != "ok":
            print(f"        {key:32} {value if not isinstance(value, float) else round(value, 4)}")
    sys.stdout.flush()
    return report


if __name__ == "__main__":
    run(main)
