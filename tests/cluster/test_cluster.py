"""Nodes on the loopback interface: the same bits, the same end for all; and the pure parts without any
process.
"""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from parallel_ppo.algorithms.minibatches import tree_sum
from parallel_ppo.cluster import engines, nodes, rendezvous
from parallel_ppo.cluster.nodes import Node
from parallel_ppo.envs.families import probe
from parallel_ppo.exits import InputError
from parallel_ppo.machine.resources import read_machine
from parallel_ppo.storage.run_directory import ForeignDirectory
from parallel_ppo.training import planning, session
from tests.cluster.nodes import CARTPOLE, QUIET, Nodes, free_port, learning, metrics, summary
from tests.conftest import ROOT, command, small_settings, train
from tests.machine.machines import machine

# --- who owns what ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize(("num_slices", "lane_samples"), [(8, 4), (8, 3), (7, 2), (12, 8)])
@pytest.mark.parametrize("per_slice", [None, 1])
def test_the_tree_goes_on_across_nodes(
    num_nodes: int, num_slices: int, lane_samples: int, per_slice: int | None
) -> None:
    """Over all microbatches, or over the one of each slice that teaches curiosity's predictors."""
    settings = small_settings(
        env__num_envs=num_slices * 2, env__slice_envs=2, training__batch_size=num_slices * 8,
        training__lane_samples=lane_samples
    )  # fmt: skip
    sizes = settings.sizes
    num_microbatches = sizes.num_slices * (per_slice or len(sizes.microbatch_sizes))
    microbatches = list(
        torch.randn(num_microbatches, 50) * 10 ** torch.linspace(-4, 4, num_microbatches)[:, None]
    )
    size = nodes.group_size(sizes, num_nodes, per_slice)
    owned = [nodes.own_microbatches(sizes, Node(rank, num_nodes), per_slice) for rank in range(num_nodes)]
    assert [microbatch for part in owned for microbatch in part] == list(range(num_microbatches))
    groups = [group for part in owned for group in nodes.groups(part, size)]
    across = tree_sum([tree_sum(microbatches[group.start : group.stop]) for group in groups])
    assert torch.equal(across, tree_sum(microbatches))


def test_equal_power_of_two_blocks_exchange_one_vector_each() -> None:
    sizes = small_settings(env__slice_envs=2, training__lane_samples=4).sizes
    for num_nodes in (2, 4, 8):
        size = nodes.group_size(sizes, num_nodes)
        assert all(
            len(nodes.groups(nodes.own_microbatches(sizes, Node(rank, num_nodes)), size)) == 1
            for rank in range(num_nodes)
        )


def test_nodes_on_one_machine_take_disjoint_cores() -> None:
    settings = small_settings(parallel__num_workers=2)
    plan = planning.Plan(
        "cluster",
        settings,
        probe(settings),
        machine(8, smt=True),
        None,
        None,
        False,
        False,
        Node(0, 2),
        False,
    )  # type: ignore[arg-type]
    plans = [planning.share_host(plan, index, 2) for index in range(2)]
    assert [shared.machine.num_physical_cores for shared in plans] == [
        4,
        4,
    ], "no advice to use the other's cores"
    shares = [shared.placement.worker_cpus for shared in plans]
    assert all(len(set(share)) == 2 for share in shares) and not set(shares[0]) & set(shares[1])
    crowded = planning.share_host(plan._replace(machine=machine(1)), 1, 2).placement
    assert set(crowded.worker_cpus) == {None}


# --- input --------------------------------------------------------------------------------------------------


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_JOB_ID": "20007", "MASTER_ADDR": "10.0.0.2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("environment", "settings", "node"),
    [
        (TORCHRUN, {"nnodes": 2, "master_addr": "10.0.0.1", "master_port": 1234}, Node(1, 2)),
        (SLURM, {"nnodes": 3, "master_addr": "10.0.0.2", "master_port": 10007}, Node(1, 3)),
        (
            SLURM | {"MASTER_PORT": "5"},
            {"nnodes": 3, "master_addr": "10.0.0.2", "master_port": 5},
            Node(1, 3),
        ),
        (OPEN_MPI, {"nnodes": 4}, Node(2, 4)),
        (SLURM | TORCHRUN, {"nnodes": 2, "master_addr": "10.0.0.1", "master_port": 1234}, Node(1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "3"}, {}, Node(0, 1)),
    ],
    ids=["torchrun", "SLURM", "SLURM with a port", "Open MPI", "torchrun in SLURM", "SLURM's batch script"],
)
def test_an_engine_gives_rank_size_and_address(environment: dict, settings: dict, node: Node) -> None:
    assert engines.settings_from_engine(environment) == {f"cluster.{k}": v for k, v in settings.items()}
    resolved = small_settings(cluster__nnodes=node.size)
    assert nodes.identify(resolved, None, environment) == node
    assert nodes.identify(resolved, 0, environment) == Node(0, node.size)


def test_slurm_names_the_address_of_its_first_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "scontrol"
    script.write_text(
        '#!/bin/sh\n[ "$2" = hostnames ] && { echo n1; echo n2; exit; }\n'
        "[ $3 = n1 ] && echo NodeName=n1 NodeAddr=10.9.0.1 OS=Linux\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    environment = {key: value for key, value in SLURM.items() if key != "MASTER_ADDR"}
    assert engines.settings_from_engine(environment)["cluster.master_addr"] == "10.9.0.1"
    script.write_text("#!/bin/sh\necho down >&2; exit 1\n")
    with pytest.raises(InputError, match="failed \\(down\\); give --master-addr"):
        engines.settings_from_engine(environment)


@pytest.mark.parametrize(
    ("flags", "rank", "environment", "line"),
    [
        ({"cluster__nnodes": 2}, None, {}, "--node-rank: is missing"),
        ({"cluster__nnodes": 2}, 2, {}, "2 is not one of the 2 nodes"),
        ({"cluster__nnodes": 5}, 0, {}, "5 nodes for 4 slices"),
        ({"cluster__nnodes": 2}, None, {"RANK": "first", "WORLD_SIZE": "2"}, "RANK='first'"),
        ({"cluster__nnodes": 4}, None, TORCHRUN, "--nnodes: 4 nodes, but torchrun started 2"),
    ],
)
def test_a_wrong_place_is_told(flags: dict, rank: int | None, environment: dict, line: str) -> None:
    with pytest.raises(InputError, match=line):
        nodes.identify(small_settings(**flags), rank, environment)


def test_workers_of_the_cluster_section_are_those_of_a_node() -> None:
    assert small_settings(cluster__num_workers=3).parallel.num_workers == 3
    with pytest.raises(InputError, match="remove one"):
        small_settings(cluster__num_workers=3, parallel__num_workers=2)


WRONG_TYPES = [1, "t", "b", [], "a", "m", {}, {}], ["n", "t", "b", {}, "a", "m", {}, {}]


@pytest.mark.parametrize(
    "data",
    [
        b'["0:a", "boot"]',
        b"7",
        b"\xff",
        b"{}",
        b"[" * 9999,
        *(json.dumps(row).encode() for row in WRONG_TYPES),
    ],
    ids=[str(k) for k in range(7)],
)
def test_a_node_of_another_version_is_refused(data: bytes) -> None:
    sealed = rendezvous._seal(b"1 " + data).encode() + data
    with pytest.raises(InputError, match="node 1 runs another version"):
        rendezvous.read_info(1, sealed)


def test_a_node_without_the_secret_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = rendezvous._seal(b"1 []").encode() + b"[]"
    monkeypatch.setenv(rendezvous.SECRET, "ours")
    monkeypatch.setattr(rendezvous.json, "loads", None)
    for message in (sealed, b"", sealed[:-1]):
        with pytest.raises(InputError, match="PARALLEL_PPO_CLUSTER_SECRET: node 1 was started with another"):
            rendezvous.read_info(1, message)


@pytest.mark.parametrize(
    ("chosen", "place"),
    [
        ("runs/cluster-7", "runs/cluster-7"),
        ("/etc", "runs"),
        ("runs/../elsewhere-1", "runs"),
        ("runs/cluster-7/../x-1", "runs"),
        (None, "runs"),
    ],
)
def test_node_0_places_logs_of_others_only_in_runs(
    chosen: str | None, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "share_host", lambda plan: plan)
    monkeypatch.setattr(session, "make_log", lambda path, name: path)
    plan: Any = SimpleNamespace(node=SimpleNamespace(leads=False, rank=1), directory=ForeignDirectory(None))
    cluster: Any = SimpleNamespace(
        decide=lambda name: chosen, place_on_host=lambda: (), names=["first", "second"]
    )
    display: Any = None
    assert session._take_place(plan, cluster, display)[1] == Path(place) / "logs" / "node-1.log"


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("theirs", "line"),
    [
        ({rendezvous.SECRET: "x"}, "PARALLEL_PPO_CLUSTER_SECRET: differs from that of node 0"),
        (OPEN_MPI | {"PMIX_NAMESPACE": "12"}, "belongs to a run by hand, this node to Open MPI job 12"),
    ],
    ids=["another secret", "another job"],
)
def test_a_stranger_at_the_port_is_refused(theirs: dict[str, str], line: str, tmp_path: Path) -> None:
    place = ["--output-dir", str(tmp_path / "run"), "--set", "cluster.join_timeout=8"]
    with Nodes(2, *CARTPOLE, "--total-timesteps", "256", *place, variables={1: theirs}) as started:
        (first, missing), (second, refused) = started.wait()
    assert (first, second) == (6, 2) and "missing: node 1" in missing
    assert line in refused and len(refused.splitlines()) == 1


def test_the_interface_leads_to_the_first_node() -> None:
    cluster = small_settings().cluster
    assert rendezvous.choose_interface(cluster, "127.0.0.1") == ("lo", "127.0.0.1")
    with pytest.raises(InputError, match="'eth9' has no address"):
        rendezvous.choose_interface(cluster.model_copy(update={"interface": "eth9"}), "127.0.0.1")
    with pytest.raises(InputError, match="cannot be resolved"):
        rendezvous.resolve(cluster.model_copy(update={"master_addr": "no.such.host.invalid"}))


# --- runs ---------------------------------------------------------------------------------------------------


@pytest.mark.multiprocess
@pytest.mark.slow
def test_any_number_of_nodes_learns_the_same_bits(tmp_path: Path) -> None:
    """Three nodes hold unequal blocks: their microbatches are exchanged in groups."""
    budget = [*CARTPOLE, "--total-timesteps", "512"]
    alone = train(tmp_path / "alone", *budget, *QUIET)
    for count in (2, 3):
        directory = tmp_path / str(count)
        with Nodes(count, *budget, "--output-dir", str(directory)) as started:
            assert started.wait() == [(0, "")] * count
        assert summary(directory)["policy_sha256"] == alone.summary["policy_sha256"], f"{count} nodes"
        assert learning(directory) == alone.learning
        record = metrics(directory)[-1]
        assert record["world_size"] == count and len(record["nodes"]) == count
        assert record["t_sync"] == pytest.approx(record["t_sync_wait"] + record["t_sync_transfer"])
        assert record["slowest_node"] in [node["name"] for node in record["nodes"]]
        assert (directory / "logs" / "node-1.log").read_text().count("iteration") == 4


@pytest.mark.multiprocess
@pytest.mark.slow
def test_one_stopped_node_stops_all_and_another_number_of_nodes_continues(tmp_path: Path) -> None:
    directory, budget = tmp_path / "run", [*CARTPOLE, "--total-timesteps", "6400"]
    whole = train(tmp_path / "whole", *budget, *QUIET)
    with Nodes(2, *budget, "--output-dir", str(directory)) as started:
        started.await_iterations(directory, 3)
        started.processes[1].send_signal(signal.SIGTERM)
        assert [code for code, _ in started.wait()] == [75, 75]
    stopped = summary(directory)
    assert stopped["stop_reason"].startswith("SIGTERM on node 1:") and stopped["env_steps"] < 6400
    assert (directory / "checkpoints" / f"step_{stopped['env_steps']}").is_dir()
    with Nodes(4, "--resume", str(directory)) as started:
        assert started.wait() == [(0, "")] * 4
    assert summary(directory)["policy_sha256"] == whole.summary["policy_sha256"]
    assert learning(directory) == whole.learning


@pytest.mark.multiprocess
@pytest.mark.slow
def test_the_state_comes_from_the_node_with_the_newest_checkpoint(tmp_path: Path) -> None:
    """Without a shared file system: after a restart another node leads, and the one that led is node 1."""
    budget, half = ["--total-timesteps", "2560"], ["--total-timesteps", "1280"]
    whole = train(tmp_path / "whole", *CARTPOLE, *budget, *QUIET)
    one, other = ([*CARTPOLE, "--continue", "--output-dir", str(tmp_path / name)] for name in ("a", "b"))
    with Nodes(2, *half, extra={0: one, 1: other}) as started:
        assert started.wait() == [(0, "")] * 2
    assert summary(tmp_path / "a")["env_steps"] == 1280
    with Nodes(3, *budget, extra={0: other, 1: one, 2: other}) as started:
        assert [code for code, _ in started.wait()] == [0, 0, 0]
    assert summary(tmp_path / "b")["policy_sha256"] == whole.summary["policy_sha256"]
    assert len(metrics(tmp_path / "b")) == 10  # of the second half


LEARNERS = {
    "ppo": CARTPOLE,
    "lag": [*CARTPOLE, "--set", "training.lag=1"],
    "impala": [*CARTPOLE[:8], "--algorithm", "impala", "--seed", "7"],  # without minibatches
    "rnd": [*CARTPOLE, "--curiosity", "rnd"],
}


@pytest.mark.multiprocess
@pytest.mark.full
@pytest.mark.parametrize("learner", LEARNERS)
def test_four_then_two_then_three_nodes_learn_as_one(learner: str, tmp_path: Path) -> None:
    """Each host has its own file system, and at each start another host leads."""
    game = LEARNERS[learner]
    whole = train(tmp_path / "whole", *game, "--total-timesteps", "1536", *QUIET)
    for steps, hosts in (("512", "abcd"), ("1024", "ba"), ("1536", "cba")):
        places = {rank: ["--output-dir", str(tmp_path / host)] for rank, host in enumerate(hosts)}
        with Nodes(len(hosts), *game, "--continue", "--total-timesteps", steps, extra=places) as started:
            assert [code for code, _ in started.wait()] == [0] * len(hosts)
        assert summary(tmp_path / hosts[0])["world_size"] == len(hosts)
    assert summary(tmp_path / "c")["env_steps"] == 1536
    assert summary(tmp_path / "c")["policy_sha256"] == whole.summary["policy_sha256"]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_gloo_may_add_the_gradients_itself(tmp_path: Path) -> None:
    """One optimizer step: the same gradient but for the order of additions, and the same bits when it is
    done again.
    """
    budget = [*CARTPOLE, "--total-timesteps", "128", "--batch-size", "128"]
    alone = train(tmp_path / "alone", *budget, *QUIET)
    for name in ("first", "second"):
        plain = [*budget, "--set", "cluster.reduction=gloo", "--output-dir", str(tmp_path / name)]
        with Nodes(3, *plain) as started:
            assert started.wait() == [(0, "")] * 3
    first, second = (summary(tmp_path / name)["policy_sha256"] for name in ("first", "second"))
    assert first == second
    assert not summary(tmp_path / "first")["bit_exact"] and alone.summary["bit_exact"]
    ours, theirs = alone.learning[-1], learning(tmp_path / "first")[-1]
    assert theirs["grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-5)
    assert theirs["loss"] == ours["loss"]
    assert metrics(tmp_path / "first")[-1]["nodes"][0]["bytes_sent"] > 0


@pytest.mark.multiprocess
@pytest.mark.slow
def test_another_reduction_on_one_node_is_named_on_all(tmp_path: Path) -> None:
    extra = {1: ["--set", "cluster.reduction=gloo"]}
    with Nodes(2, *CARTPOLE, "--output-dir", str(tmp_path / "run"), extra=extra) as started:
        for code, errors in started.wait():
            assert code == 2 and "cluster.reduction" in errors


# --- starts that fail ---------------------------------------------------------------------------------------


@pytest.mark.multiprocess
@pytest.mark.slow
def test_another_configuration_on_one_node_is_named_on_all(tmp_path: Path) -> None:
    extra = {1: ["--set", "training.gamma=0.5"]}
    with Nodes(2, *CARTPOLE, "--output-dir", str(tmp_path / "run"), extra=extra) as started:
        results = started.wait()
    assert [code for code, _ in results] == [2, 2] and results[0] == results[1]
    assert "node 1:" in results[0][1] and "training.gamma = 0.5" in results[0][1]
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.multiprocess
@pytest.mark.slow
def test_nodes_that_round_differently_are_refused_unless_allowed(tmp_path: Path) -> None:
    budget = [*CARTPOLE, "--total-timesteps", "384", "--output-dir", str(tmp_path / "run")]
    other = {1: {"ATEN_CPU_CAPABILITY": "default"}}
    with Nodes(2, *budget, variables=other) as started:
        results = started.wait()
    assert [code for code, _ in results] == [2, 2] and results[0] == results[1]
    assert "the instruction set" in results[0][1] and "--allow-different-nodes" in results[0][1]
    with Nodes(2, *budget, "--allow-different-nodes", variables=other) as started:
        assert started.wait() == [(0, "")] * 2
    assert summary(tmp_path / "run")["bit_exact"] is False
    assert len(metrics(tmp_path / "run")) == 3


@pytest.mark.parametrize("key", ["NumPy", "the kernel library", "the instruction set"])
def test_what_decides_the_last_bits_must_match(key: str) -> None:
    settings = small_settings("coinrun", "impala", training__kernels="native")
    info = rendezvous.describe_node(settings, Node(0, 2), read_machine(), "127.0.0.1", portable=False)
    other = info._replace(name="1:there", bits=info.bits | {key: "another"})
    with pytest.raises(InputError, match=f"node 1:there has {key} = 'another'.*--allow-different-nodes"):
        rendezvous.check_same({0: info, 1: other})
    allowed = info.must_match | {"cluster.allow_different_nodes": True}
    rendezvous.check_same({0: info._replace(must_match=allowed), 1: other._replace(must_match=allowed)})
    assert not rendezvous.Meeting(None, [info, other], "lo").same_bits  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("game", "policy", "library"), [("CartPole-v1", "mlp", "gymnasium"), ("coinrun", "impala", "procgen")]
)
def test_versions_of_the_environments_must_match(game: str, policy: str, library: str) -> None:
    """Even of a portable run. A library that only one node has is not needed."""
    settings = small_settings(game, policy)
    info = rendezvous.describe_node(settings, Node(0, 2), read_machine(), "127.0.0.1", portable=True)
    assert set(info.bits) & {"gymnasium", "procgen"} == {library}
    without = info._replace(bits={key: info.bits[key] for key in ("portable", library)})
    rendezvous.check_same({0: without, 1: without._replace(bits=without.bits | {"mujoco": "3"})})
    other = info._replace(name="1:there", bits=info.bits | {library: "0.1"})
    with pytest.raises(
        InputError, match=f"node 1:there has {library} = '0.1', but .*--allow-different-nodes"
    ):
        rendezvous.check_same({0: info, 1: other})


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_port_in_use_is_told_on_all(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with Nodes(
            2, *CARTPOLE, "--join-timeout", "5", "--output-dir", str(tmp_path / "run"), port=port
        ) as started:
            (first, line), (second, other_line) = started.wait()
    assert first == 2 and f"{port} is in use" in line
    assert second == 6 and "is not node 0 of this run" in other_line and len(other_line.splitlines()) == 1


@pytest.mark.multiprocess
@pytest.mark.slow
def test_nodes_that_do_not_come_are_named() -> None:
    with Nodes(3, *CARTPOLE, "--join-timeout", "4", ranks=[0, 2]) as started:
        for code, line in started.wait():
            assert code == 6 and "2 of 3 nodes came within 4 s; missing: node 1" in line


@pytest.mark.multiprocess
@pytest.mark.slow
def test_an_unreachable_first_node_is_told() -> None:
    place = ["--nnodes", "2", "--node-rank", "1", "--master-port", str(free_port()), "--join-timeout", "2"]
    outcome = command("train_ppo_distributed.py", *CARTPOLE, *QUIET, *place)
    assert outcome.code == 6 and "node 0 cannot be reached at 127.0.0.1" in outcome.err
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.multiprocess
@pytest.mark.slow
def test_torchrun_starts_it(tmp_path: Path) -> None:
    budget = [*CARTPOLE, "--total-timesteps", "256"]
    alone = train(tmp_path / "alone", *budget, *QUIET)
    arguments = [
        "--standalone",
        "--nproc-per-node",
        "2",
        str(ROOT / "train_ppo_distributed.py"),
        *budget,
        *QUIET,
    ]
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments, "--output-dir", str(tmp_path / "run")],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert summary(tmp_path / "run")["policy_sha256"] == alone.summary["policy_sha256"]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_the_report_of_torchrun_holds_our_line(tmp_path: Path) -> None:
    """It comes last, below a traceback of torchrun's own: the line must not be buried above it."""
    bad = [
        str(ROOT / "train_ppo_distributed.py"),
        "--env",
        "NoSuch-v0",
        "--output-dir",
        str(tmp_path / "run"),
    ]
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", *bad],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    ours, _, report = result.stderr.partition("FAILED")
    assert result.returncode == 1 and "Root Cause" in report
    assert "error: --env: no environment is called" in ours
    assert "error: --env: no environment is called" in report, result.stderr
    assert not (tmp_path / "run").exists()
