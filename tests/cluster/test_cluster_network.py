"""Real hosts (network namespaces): the same bits as one machine, and what happens when a host or a cable
fails.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.nodes import CARTPOLE, PROCGEN, QUIET, Nodes, learning, metrics, summary
from tests.conftest import train
from tools.network import Network, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.slow,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]
TIMEOUT = 6.0
NOTICED = TIMEOUT + 5.0
PORT = 29500
GAMES = {"cartpole": (CARTPOLE, 128), "procgen": (PROCGEN, 64)}  # arguments, steps of an iteration
FAULTS = ["killed", *(pytest.param(fault, marks=pytest.mark.full) for fault in ("stopped", "cut", "dropped"))]


def one_node(directory: Path, game: str, iterations: int) -> Path:
    arguments, steps = GAMES[game]
    outcome = train(directory, *arguments, *QUIET, "--total-timesteps", str(steps * iterations))
    assert outcome.code == 0, outcome.err
    return directory


@pytest.mark.parametrize(
    "game", ["cartpole", pytest.param("procgen", marks=[pytest.mark.procgen, pytest.mark.full])]
)
def test_two_and_four_hosts_learn_the_same_bits_as_one(game: str, tmp_path: Path) -> None:
    alone = one_node(tmp_path / "alone", game, 4)
    arguments, steps = GAMES[game]
    with Network(4) as network:
        for count in (2, 4):
            directory = tmp_path / str(count)
            budget = ["--total-timesteps", str(steps * 4), "--output-dir", str(directory)]
            with Nodes(
                count, *arguments, *budget, address=network.addresses[0], port=PORT,
                namespaces=network.hosts[:count]
            ) as nodes:  # fmt: skip
                assert nodes.wait() == [(0, "")] * count
            assert summary(directory)["policy_sha256"] == summary(alone)["policy_sha256"]
            assert learning(directory) == learning(alone)


def break_and_restart(directory: Path, game: str, fault: str, iterations: int, victim: int) -> None:
    """Trains on two hosts, breaks one in the middle, sees the other end in time, and starts both again."""
    arguments, steps = GAMES[game]
    budget = ["--total-timesteps", str(steps * iterations), "--output-dir", str(directory), "--continue",
    "--timeout", str(TIMEOUT),
              "--set", "logging.checkpoint_iterations=2"]  # fmt: skip
    with Network(2) as network:
        place = {"address": network.addresses[0], "port": PORT, "namespaces": network.hosts}
        with Nodes(2, *arguments, *budget, **place) as nodes:  # type: ignore[arg-type]
            nodes.await_iterations(directory, 3)
            process = nodes.processes[victim]
            if fault in ("cut", "dropped"):
                (network.cut if fault == "cut" else network.drop)(victim)
            else:
                process.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
            began = time.monotonic()
            both = fault in ("cut", "dropped")
            results = nodes.wait(timeout=NOTICED, but=None if both else victim)
            took = time.monotonic() - began
        for code, line in results:
            assert code == 6 and len(line.splitlines()) == 1 and "nothing new was saved" in line, (code, line)
        network.mend(victim)
        print(f"{game} {fault} node {victim}: noticed after {took:.1f} s")
        with Nodes(2, *arguments, *budget, **place) as nodes:  # type: ignore[arg-type]
            assert nodes.wait() == [(0, "")] * 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_host_ends_all_in_time_and_the_restart_is_exact(fault: str, tmp_path: Path) -> None:
    """CLUSTER_GAME, CLUSTER_ROUNDS: other games, more rounds. Each round breaks another host."""
    game, rounds = os.environ.get("CLUSTER_GAME", "cartpole"), int(os.environ.get("CLUSTER_ROUNDS", "1"))
    iterations = 40
    alone = one_node(tmp_path / "alone", game, iterations)
    for number in range(rounds):
        directory = tmp_path / f"broken{number}"
        break_and_restart(directory, game, fault, iterations, victim=(number + 1) % 2)
        assert summary(directory)["policy_sha256"] == summary(alone)["policy_sha256"]
        assert learning(directory) == learning(alone)


def test_a_cut_of_five_seconds_is_survived(tmp_path: Path) -> None:
    arguments, steps = GAMES["cartpole"]
    directory, budget = tmp_path / "run", ["--total-timesteps", str(steps * 300), "--timeout", "60"]
    with Network(2) as network:
        place = {"address": network.addresses[0], "port": PORT, "namespaces": network.hosts}
        with Nodes(2, *arguments, *budget, "--output-dir", str(directory), **place) as nodes:  # type: ignore[arg-type]
            nodes.await_iterations(directory, 3)
            network.drop(1)
            time.sleep(5)
            assert len(metrics(directory)) < 300
            network.mend(1)
            assert nodes.wait() == [(0, "")] * 2
    assert (
        summary(directory)["policy_sha256"]
        == summary(one_node(tmp_path / "alone", "cartpole", 300))["policy_sha256"]
    )


@pytest.mark.full
def test_after_a_cut_of_a_minute_only_the_restarted_side_goes_on(tmp_path: Path) -> None:
    arguments, steps = GAMES["cartpole"]
    directory, budget = (
        tmp_path / "run",
        ["--total-timesteps", str(steps * 300), "--timeout", "20", "--continue"],
    )
    budget += ["--output-dir", str(directory), "--set", "logging.checkpoint_iterations=2"]
    with Network(2) as network:
        place = {"address": network.addresses[0], "port": PORT, "namespaces": network.hosts}
        with Nodes(2, *arguments, *budget, **place) as nodes:  # type: ignore[arg-type]
            nodes.await_iterations(directory, 3)
            network.drop(1)
            began = time.monotonic()
            assert [code for code, _ in nodes.wait(timeout=50)] == [6, 6]
            recorded = len(metrics(directory))
            time.sleep(max(0.0, began + 60 - time.monotonic()))
            network.mend(1)
            time.sleep(2)
            assert len(metrics(directory)) == recorded < 300  # no side goes on by itself
        with Nodes(1, *arguments, *budget, namespaces=network.hosts[1:]) as nodes:
            assert nodes.wait() == [(0, "")]
    assert (
        summary(directory)["policy_sha256"]
        == summary(one_node(tmp_path / "alone", "cartpole", 300))["policy_sha256"]
    )
