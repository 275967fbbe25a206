"""Workers broken in every phase of an iteration, in every way: the run learns the same."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.faults.training import SMALL, STEPS_PER_ITERATION, checked, is_identical

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
    largest = {"collect": 16, "hand-over": 2, **dict.fromkeys(STAGES, 3)}
    entries: list[dict[str, Any]] = []
    for number, (phase, kind) in enumerate(wanted):
        entry = {"id": number, "worker": draw.randrange(2), "phase": phase, "kind": kind, "after": None}
        if phase == "spawn":
            first = draw.choice([e for e in entries if e["phase"] != "spawn" and "taken" not in e])
            first["taken"] = True
            entry |= {"after": first["id"], "worker": first["worker"], "iteration": -1}
            entry["step"] = draw.randrange(2)
        else:
            entry |= {"iteration": 1 + number * 3 // 2, "step": draw.randrange(largest.get(phase, 1))}
        entries.append(entry)
    return entries


@pytest.mark.procgen
@pytest.mark.parametrize(
    ("per_phase", "per_kind"), [(1, 1), pytest.param(40, 20, marks=pytest.mark.full)], ids=["few", "many"]
)
def test_workers_broken_in_every_phase_change_nothing(per_phase: int, per_kind: int, tmp_path: Path) -> None:
    entries = make_plan(per_phase, per_kind, seed=1)
    iterations = max(entry["iteration"] for entry in entries) + 6
    length = ["--total-timesteps", str(iterations * STEPS_PER_ITERATION)]
    arguments = [*SMALL, *length, "--set", "logging.checkpoint_iterations=1", "--output-dir"]
    plan = tmp_path / "plan" / "plan.json"
    plan.parent.mkdir()
    plan.write_text(json.dumps(entries))
    checked([*arguments, str(tmp_path / "reference")], tmp_path / "reference.log", 7200)
    checked([*arguments, str(tmp_path / "broken")], tmp_path / "broken.log", 7200, plan)
    assert len(list(plan.parent.glob("fired-*"))) == len(entries)
    assert is_identical(tmp_path / "broken", tmp_path / "reference")
