"""The runs of a suite: trained and evaluated as processes, several at once if one cannot use all cores."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from parallel_ppo.arguments import as_typed
from parallel_ppo.child import command
from parallel_ppo.machine.resources import Machine, read_machine
from parallel_ppo.printable import printable
from parallel_ppo.reports import trainer
from parallel_ppo.reports.command_line import progress_bar, shown
from parallel_ppo.reports.runs import METRICS, SUMMARY, load_run, read_object
from parallel_ppo.reports.suite import (
    EVALUATION,
    EVALUATION_SEED,
    MAX_EPISODE_STEPS,
    Job,
    Plan,
    evaluation_levels,
    is_evaluated,
    load_suite_runs,
    save_plan,
)
from parallel_ppo.reports.suite_report import write_suite
from parallel_ppo.reports.trainer import TrainerFailed

SAVED_AND_STOPPED = (75, 130)


@dataclass
class Active:
    """A job that is being trained, or evaluated."""

    job: Job
    directory: Path
    output: Path
    cpus: list[int]
    child: subprocess.Popen
    evaluates: bool = False


def run_all(plan: Plan, directory: Path, console: Console) -> int:
    """Run what is not finished; a failed run does not stop the others. The page is up to date after each."""
    state = _State(plan, directory, console)
    with progress_bar(console) as progress, trainer.interrupting(state.children):
        task = progress.add_task("", total=len(plan.names()))
        try:
            while state.waiting or state.active:
                state.start_what_fits()
                time.sleep(trainer.POLL_SECONDS)
                names = printable(", ".join(each.job.name for each in state.active))
                progress.update(task, description=names, completed=state.progress())
                for each in [each for each in state.active if each.child.poll() is not None]:
                    state.go_on(each)
        except KeyboardInterrupt:
            again = as_typed(f"tools/suite.py --resume {directory}")
            print("stopped; go on with:", printable(again), file=sys.stderr)
            raise
    return state.code


class _State:
    """The progress of a suite."""

    def __init__(self, plan: Plan, directory: Path, console: Console) -> None:
        self.plan, self.directory, self.console = plan, directory, console
        self.waiting = [
            job for job in plan.jobs() if job.name not in plan.finished or self._lacks_evaluation(job)
        ]
        self.active: list[Active] = []
        self.children: list[subprocess.Popen] = []
        self.free: list[list[int]] = []
        self.code = 0

    def start_what_fits(self) -> None:
        if not self.active:
            at_once = self.plan.at_once or runs_at_once(self.plan, self.directory)
            self.free = cpu_shares(read_machine(), min(at_once, len(self.waiting)))
        while self.waiting and self.free:
            job, cpus = self.waiting.pop(0), self.free.pop(0)
            target = self.directory / job.name
            output = target.with_name(f"{target.name}.log")
            is_trained = job.name in self.plan.finished
            line = (
                command("evaluate", *evaluation_arguments(self.plan, target))
                if is_trained
                else command("train", *training_arguments(self.plan, job, target))
            )
            child = trainer.start(line, output, cpus)
            self.active.append(Active(job, target, output, cpus, child, evaluates=is_trained))
            self.children.append(child)

    def _lacks_evaluation(self, job: Job) -> bool:
        """A finished run whose evaluation is missing, or has other settings than those of the suite."""
        target = self.directory / job.name
        return (
            self.plan.evaluation_episodes > 0
            and (target / METRICS).exists()
            and not is_evaluated(self.plan, load_run(target))
        )

    def go_on(self, each: Active) -> None:
        """After a process has ended: evaluate what was trained, and write down what is finished or failed."""
        self.children.remove(each.child)
        try:
            trainer.check(each.child, each.directory, each.output)
            if not each.evaluates and self.plan.evaluation_episodes:
                arguments = evaluation_arguments(self.plan, each.directory)
                each.child = trainer.start(command("evaluate", *arguments), each.output, each.cpus)
                each.evaluates = True
                self.children.append(each.child)
                return
            finished = dict.fromkeys([*self.plan.finished, each.job.name])
            self.plan = replace(self.plan, finished=list(finished))
            self.console.print(f"{shown(each.job.name)}: done")
        except TrainerFailed as error:
            if error.exit_code in SAVED_AND_STOPPED:
                raise
            self.plan = replace(self.plan, failed={**self.plan.failed, each.job.name: str(error)})
            self.code = max(self.code, abs(error.exit_code))
            print(f"error: {error}", file=sys.stderr)
        self.active.remove(each)
        self.free.append(each.cpus)
        save_plan(self.plan, self.directory)
        write_results(self.plan, self.directory)

    def progress(self) -> float:
        """In runs."""
        return len(self.plan.finished) + len(self.plan.failed) + sum(map(self._share_done, self.active))

    def _share_done(self, each: Active) -> float:
        steps, seconds = trainer.last_progress(each.directory)
        budget = self.plan.total_timesteps
        return min(1.0, steps / budget if budget else seconds / (3600 * (self.plan.duration or 1)))


def write_results(plan: Plan, directory: Path, kind: str = "png") -> list[Path]:
    return write_suite(plan, load_suite_runs(plan, directory), directory, kind=kind)


# --- cores --------------------------------------------------------------------------------------------------


def runs_at_once(plan: Plan, directory: Path) -> int:
    """As many as leave no core idle, by the workers that finished runs had; one before the first is
    finished.
    """
    used = [
        workers
        for name in plan.finished
        if isinstance(workers := (read_object(directory / name / SUMMARY, []) or {}).get("num_workers"), int)
    ]
    return max(1, len(read_machine().cpus) // max(1, *used)) if used else 1


def cpu_shares(machine: Machine, number: int) -> list[list[int]]:
    """The CPUs in equal shares of neighbours, threads of one core together."""
    cores = sorted(machine.cores, key=lambda core: (core.numa_node, core.package, core.core_id, core.cpu))
    number = max(1, min(number, len(cores)))
    bounds = [len(cores) * index // number for index in range(number + 1)]
    return [[core.cpu for core in cores[low:high]] for low, high in itertools.pairwise(bounds)]


# --- command lines ------------------------------------------------------------------------------------------


def training_arguments(plan: Plan, job: Job, target: Path) -> list[str]:
    budget = (
        ["--total-timesteps", str(plan.total_timesteps)]
        if plan.total_timesteps
        else ["--duration", str(plan.duration)]
    )
    if (target / "checkpoints" / "latest").exists():
        return ["--resume", str(target), *budget, "--quiet"]
    own = ["--env", job.game, "--seed", str(job.seed), *budget]
    return [*own, *plan.arguments, *plan.settings[job.setting], "--output-dir", str(target), "--quiet"]


def evaluation_arguments(plan: Plan, target: Path) -> list[str]:
    flags = {
        "--levels": ",".join(evaluation_levels(load_run(target))),
        "--num-episodes": plan.evaluation_episodes,
        "--seed": EVALUATION_SEED,
        "--max-steps": MAX_EPISODE_STEPS,
        "--output": target / EVALUATION,
    }
    return [str(target), *(str(word) for flag in flags.items() for word in flag), "--quiet"]
