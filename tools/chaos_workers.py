"""Workers broken in every phase of an iteration, in every way."""

import json
import random
import statistics
from pathlib import Path
from typing import Any

from chaos_training import SMALL, STEPS_PER_ITERATION, Report, checked, is_identical, spread

from parallel_ppo.storage.json_lines import read_records

STAGES = ("gradient", "sum", "optimizer", "copy")  # of an optimizer step; what each writes is left torn
PHASES = ("spawn", "collect", "hand-over", *STAGES, "counted", "checkpoint")
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
                **{stage: draw.randrange(3) for stage in STAGES},
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
        after = [
            event["monotonic"] - entry["monotonic"]
            for event in lost
            if event["worker"] == entry["worker"] and event["monotonic"] >= entry["monotonic"]
        ]
        kind = entry["kind"] if entry["kind"] in delays else "other"
        delays.setdefault(kind, []).append(min(after, default=float("inf")))
    times = {
        record["iteration"]: record["t_iter"] for record in read_records(folder / "broken" / "metrics.jsonl")
    }
    # What happened in an iteration; a fault of a start belongs to the fault before it.
    hit: dict[int, list[str]] = {}
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
        "detection_s": spread(delays.get("other", [])), "detection_stopped_s": spread(delays["SIGSTOP"]),
        "detection_exit_s": spread(delays["exit"]),  # from the call
        "cost_of_a_kill_s": spread(costs), "iteration_s": clean, "worker_start_s": spread(starts),
        "cost_within_bound": statistics.median(costs) < clean + statistics.median(starts),
        "iterations": len(times),
    }  # fmt: skip
