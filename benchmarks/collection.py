"""Collection alone, in all 16 games: our pool against processes that only do the same steps and inferences.

Both sides have the same number of processes on the same CPUs and the same batches, and take turns. The bare
side replays the actions that ours chose an iteration before, from the same seeds: both step through the same
states.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil

from benchmarks.works import Work
from parallel_ppo.envs.procgen import SPEC
from parallel_ppo.machine.placement import Placement, plan_placement, set_thread_variables
from parallel_ppo.machine.resources import Machine
from parallel_ppo.settings.env_names import PROCGEN_GAMES
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.planning import resolve_kernels


def measure_collection(work: Work, *, repeats: int, machine: Machine) -> dict[str, Any]:
    set_thread_variables()
    placement = plan_placement(machine, num_workers=None, pinning="auto", max_useful=work.num_envs // 8)
    games = {}
    for game in PROCGEN_GAMES:
        games[game] = _measure_game(work, game, repeats, placement)
        middle = sorted(run["bare"] / run["ours"] for run in games[game])[repeats // 2]
        print(
            f"{game:<12} {games[game][-1]['ours']:8.0f} steps/s, {middle - 1:+.1%} on bare steps and "
            "inferences",
            flush=True,
        )
    return {"games": games, "num_workers": placement.num_workers}


def settings_for(game: str, work: Work) -> Settings:
    flags = {"env.id": game, "env.num_envs": work.num_envs, "training.n_steps": work.num_steps,
             "training.policy": work.policy,
             "training.batch_size": work.num_envs * work.num_steps}  # fmt: skip
    return resolve_kernels(load_settings(file=None, flags=flags), SPEC)


def _measure_game(work: Work, game: str, repeats: int, placement: Placement) -> list[dict[str, float]]:
    from parallel_ppo.policies.parameters import bind, initialise, num_flat
    from parallel_ppo.policies.policy import Policy
    from parallel_ppo.workers.fork_server import ForkServer
    from parallel_ppo.workers.memory import Memory, settle
    from parallel_ppo.workers.process_pool import ProcessPool
    from parallel_ppo.workers.tasks import Collect

    settings = settings_for(game, work)
    fork_server = ForkServer(settings, SPEC)
    bare = [BareProcess(game, work, placement, index) for index in range(placement.num_workers)]
    pool = None
    try:
        policy = Policy(settings, SPEC)
        memory = Memory(settings, SPEC, num_flat(policy))
        settle(memory, lock=settings.hardware.lock_memory, huge_pages=settings.hardware.huge_pages)
        bind(policy, memory.tensor("parameters"))
        initialise(policy, memory.tensor("parameters"), seed=1)
        cpus, slices = list(placement.worker_cpus), range(settings.shape.num_slices)
        pool = ProcessPool(settings, memory, fork_server, cpus, slices, first_iteration=0, on_fault=print)
        iteration = iter(range(1 << 30))

        def ours() -> None:
            number = next(iteration)
            pool.run(Collect(index, number) for index in slices)

        def theirs() -> None:
            for process in bare:
                process.go(actions)
            for process in bare:
                process.wait()

        def last_actions() -> np.ndarray:
            return memory.action.reshape(work.num_steps, work.num_envs).astype(np.int32)

        ours()
        actions = last_actions()
        ours(), theirs()  # warm-up
        runs = []
        for repeat in range(repeats):
            actions = last_actions()
            order = ["ours", "bare"] if repeat % 2 == 0 else ["bare", "ours"]
            sides = {"ours": ours, "bare": theirs}
            runs.append({side: work.steps / _seconds(sides[side]) for side in order})
        return runs
    finally:
        for process in bare:
            process.close()
        if pool is not None:
            pool.close()
        fork_server.close()


def _seconds(action: Callable[[], None]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


class BareProcess:
    """Does its slices' share of bare work whenever it is told to."""

    def __init__(self, game: str, work: Work, placement: Placement, index: int) -> None:
        command = [sys.executable, __file__, game, str(work.num_envs), str(work.num_steps),
                   str(placement.num_workers),
                   str(index), str(placement.worker_cpus[index])]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.wait()  # until it is ready

    def go(self, actions: np.ndarray) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(actions.tobytes())
        self.process.stdin.flush()

    def wait(self) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"done\n":
            raise RuntimeError("the process for bare steps died")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def bare_main() -> None:
    """For every T x E actions on standard input: T steps and T + 1 inferences of each slice, no more."""
    game = sys.argv[1]
    num_envs, num_steps, num_workers, index = map(int, sys.argv[2:6])
    set_thread_variables()
    if sys.argv[6] != "None":
        psutil.Process().cpu_affinity([int(sys.argv[6])])
    import torch

    from parallel_ppo.envs.build import make_slice
    from parallel_ppo.policies.actor import Actor
    from parallel_ppo.policies.parameters import num_flat
    from parallel_ppo.policies.policy import Policy

    torch.set_num_threads(1)
    work = Work("bare", game, "impala", num_envs, num_steps, 0, num_envs * num_steps)
    settings = settings_for(game, work)
    shape = settings.shape
    mine = range(index * shape.num_slices // num_workers, (index + 1) * shape.num_slices // num_workers)
    natives = [make_slice(settings, number).native for number in mine]  # type: ignore[attr-defined]
    flat = torch.zeros(num_flat(Policy(settings, SPEC)))
    actor = Actor(settings, SPEC, flat, torch.zeros(()), torch.ones(()))
    print("done", flush=True)
    while chosen := sys.stdin.buffer.read(num_steps * num_envs * 4):
        actions = np.frombuffer(chosen, np.int32).reshape(num_steps, shape.num_slices, shape.slice_envs)
        for number, native in zip(mine, natives, strict=True):
            actor.refresh()
            for t in range(num_steps):
                actor.infer(native.observe()[1]["rgb"])
                native.act(actions[t, number])
            actor.infer(native.observe()[1]["rgb"])
        print("done", flush=True)


if __name__ == "__main__":
    assert os.environ.get("OMP_NUM_THREADS"), "started by benchmarks/throughput.py --work W4"
    bare_main()
