"""How the nodes of a run find each other and check that they belong to the same run.

Node 0 listens at `cluster.master_addr`, on that address only. Every node writes its `NodeInfo` into node 0's
store and waits for the others. All waiting happens in Python, so that a signal takes effect at once.
"""

import contextlib
import datetime
import errno
import hashlib
import hmac
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
import torch.distributed as distributed
from pydantic import TypeAdapter

from parallel_ppo.cluster.engines import find_engine
from parallel_ppo.cluster.nodes import Node, boot_id, short_host_name
from parallel_ppo.envs.versions import one_procgen, python_versions, versions_of
from parallel_ppo.exits import ClusterError, InputError
from parallel_ppo.kernels.build import build
from parallel_ppo.kernels.choice import choose_variant
from parallel_ppo.machine.resources import Machine
from parallel_ppo.settings.env_families import family_of
from parallel_ppo.settings.learning import learning_settings
from parallel_ppo.settings.schema import ClusterSettings, Settings
from parallel_ppo.version import VERSION, source_digest

POLL = 0.05
LINGER = 3.0  # seconds that node 0 keeps its store open for others to read why nothing starts
STORE_TIMEOUT = 5.0
SECRET = "PARALLEL_PPO_CLUSTER_SECRET"
SEAL_LENGTH = 64


class NodeInfo(NamedTuple):
    """A node's description of itself."""

    name: str
    token: str  # random: no two processes write the same
    boot_id: str
    cpus: list[int]
    address: str
    cpu_model: str
    must_match: dict[str, Any]
    bits: dict[str, str]  # versions and the like that may change the node's results


NODE_INFO = TypeAdapter(NodeInfo)


class Meeting(NamedTuple):
    """All nodes are here and belong to the same run."""

    store: distributed.Store
    nodes: list[NodeInfo]
    interface: str

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.nodes]

    @property
    def same_bits(self) -> bool:
        return all(_difference(self.nodes[0], node, "bits") is None for node in self.nodes)

    def place_on_host(self, rank: int) -> tuple[int, int]:
        """The node's index among those that share its machine and its CPUs, and their number."""
        own = self.nodes[rank]
        sharing = [
            other
            for other, node in enumerate(self.nodes)
            if (node.boot_id, node.cpus) == (own.boot_id, own.cpus)
        ]
        return sharing.index(rank), len(sharing)


def describe_node(
    settings: Settings, node: Node, machine: Machine, address: str, *, portable: bool
) -> NodeInfo:
    must_match = {
        "cluster.nnodes": node.size,
        "cluster.allow_different_nodes": settings.cluster.allow_different_nodes,
        **learning_settings(settings),
        "version": VERSION,
        "source code": source_digest(),
        "torch": torch.__version__,
    }
    bits = {"portable": str(portable).lower(), **python_versions(settings)}
    bits |= one_procgen(versions_of(family_of(settings.env.id).LIBRARIES))
    if not portable:
        bits |= {"NumPy": np.__version__, "the instruction set": torch.backends.cpu.get_cpu_capability()}
    if not portable and settings.training.kernels == "native":
        library = build(choose_variant()).read_bytes()
        bits["the kernel library"] = hashlib.sha256(library).hexdigest()[:16]
    name, token = f"{node.rank}:{short_host_name()}", secrets.token_hex(8)
    return NodeInfo(name, token, boot_id(), list(machine.cpus), address, machine.cpu_model, must_match, bits)


# --- addresses ----------------------------------------------------------------------------------------------


def resolve(cluster: ClusterSettings) -> str:
    try:
        found = socket.getaddrinfo(cluster.master_addr, cluster.master_port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        detail = getattr(error, "strerror", None) or error
        raise InputError(
            f"cluster.master_addr: {cluster.master_addr!r} cannot be resolved ({detail}); give the address of"
            " node 0"
        ) from None
    return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def choose_interface(cluster: ClusterSettings, master: str) -> tuple[str, str]:
    """(interface, its address). By default the interface of the route to node 0."""
    named = cluster.interface or os.environ.get("GLOO_SOCKET_IFNAME")
    addresses = sorted(
        (name, entry.address.partition("%")[0])
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == _family(master)
    )
    wanted = None if named else _local_address(cluster, master)
    for name, address in addresses:
        if name == named or address == wanted:
            return name, address
    known = ", ".join(dict.fromkeys(name for name, _ in addresses))
    raise InputError(
        f"cluster.interface: {named!r} has no address of this kind here; there are {known}"
        if named
        else f"cluster.interface: none has the address {wanted}; name one of {known}"
    )


def _local_address(cluster: ClusterSettings, master: str) -> str:
    with socket.socket(_family(master), socket.SOCK_DGRAM) as probe:  # to connect it sends nothing
        try:
            probe.connect((master, cluster.master_port))
        except OSError as error:
            raise ClusterError(
                f"there is no route to node 0 at {master} ({error.strerror}); check cluster.master_addr and"
                " the network"
            ) from None
        return probe.getsockname()[0]


def _listen(cluster: ClusterSettings, master: str) -> int:
    """A listening socket on the private address alone, as a descriptor."""
    listener = socket.socket(_family(master), socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port = f"cluster.master_port: {cluster.master_port}"
    try:
        listener.bind((master, cluster.master_port))
    except OSError as error:
        listener.close()
        problems = {
            errno.EADDRINUSE: f"{port} is in use at {master}; end the process that uses it or give all nodes"
            " another --master-port",
            errno.EADDRNOTAVAIL: f"cluster.master_addr: {master} is not an address of this machine, but this"
            " is node 0; give the address of node 0",
        }
        default = f"{port} cannot be opened at {master} ({error.strerror})"
        raise InputError(problems.get(error.errno or 0, default)) from None
    listener.listen(1024)
    return listener.detach()


# --- meeting ------------------------------------------------------------------------------------------------


def meet(settings: Settings, node: Node, machine: Machine, *, portable: bool) -> Meeting:
    rendezvous = Rendezvous(settings.cluster, node)
    interface, address = choose_interface(settings.cluster, rendezvous.master)
    info = describe_node(settings, node, machine, address, portable=portable)
    rendezvous.open_store()
    try:
        rendezvous.check_run()
        rendezvous.register(info)
        return Meeting(rendezvous.store, rendezvous.await_all(), interface)
    except (RuntimeError, ValueError) as error:  # torch raises these if the store's process ends
        raise ClusterError(
            f"node 0 at {rendezvous.place} left before all nodes were there ({_first_line(error)})"
        ) from None
    finally:
        rendezvous.linger()


class Rendezvous:
    store: distributed.Store

    def __init__(self, cluster: ClusterSettings, node: Node) -> None:
        self.cluster, self.node, self.master = cluster, node, resolve(cluster)
        self.place = f"{self.master}:{cluster.master_port}"
        self.deadline = time.monotonic() + cluster.join_timeout

    def wait(self, condition: Callable[[], bool], problem: Callable[[], str]) -> None:
        while not condition():
            if time.monotonic() > self.deadline:
                raise ClusterError(problem())
            time.sleep(POLL)

    def open_store(self) -> None:
        """torchrun's agent may already keep a store; its restarts have different numbers."""
        environment, port = os.environ, self.cluster.master_port
        kept_by_agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        listens = self.node.leads and not kept_by_agent
        descriptor = _listen(self.cluster, self.master) if listens else None
        if not listens:
            self.wait(
                self._is_open,
                lambda: (
                    f"node 0 cannot be reached at {self.place} within {self.cluster.join_timeout:g} s; check"
                    " --master-addr, --master-port and that node 0 was started"
                ),
            )
        opened: list[distributed.Store | Exception] = []

        def open_it() -> None:
            try:
                opened.append(
                    distributed.TCPStore(
                        self.master, port, self.node.size, listens, datetime.timedelta(seconds=STORE_TIMEOUT),
                        wait_for_workers=False, master_listen_fd=descriptor,
                    )
                )  # fmt: skip
            except (RuntimeError, ValueError) as error:
                opened.append(error)

        opening = threading.Thread(target=open_it, daemon=True)  # another program there may never answer
        opening.start()
        opening.join(min(2 * STORE_TIMEOUT, max(1.0, self.deadline - time.monotonic())))
        store = opened[0] if opened else TimeoutError("no answer")
        if isinstance(store, Exception):
            raise ClusterError(
                f"the program that listens at {self.place} is not node 0 of this run ({_first_line(store)});"
                " check --master-addr and --master-port"
            )
        attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0") if kept_by_agent else "0"
        self.store = distributed.PrefixStore(f"parallel_ppo/{attempt}", store)

    def _is_open(self) -> bool:
        with socket.socket(_family(self.master), socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((self.master, self.cluster.master_port)) == 0

    def check_run(self) -> None:
        """Two runs may use one port: node 0 names its run, and the others compare before they register."""
        engine = find_engine(os.environ)
        run = (
            f"{engine.name} job {engine.run_id}" if engine is not None and engine.run_id else "a run by hand"
        )
        sealed = f"{run} {_seal(run.encode())}"
        if self.node.leads:
            self.store.set("run", sealed)
        self.wait(lambda: self.store.check(["run"]), lambda: f"node 0 at {self.place} does not name its run")
        theirs = self.store.get("run").decode(errors="replace")
        other_run = theirs.rpartition(" ")[0][:100]
        if other_run != run:
            raise InputError(
                f"cluster.master_port: node 0 at {self.place} belongs to {other_run}, this node to {run}; give"
                " each run its own --master-port"
            )
        if not hmac.compare_digest(theirs.encode(), sealed.encode()):
            raise InputError(
                f"{SECRET}: differs from that of node 0 at {self.place}; set the same on all nodes"
            )

    def register(self, info: NodeInfo) -> None:
        rank, data = self.node.rank, json.dumps(info)
        message = _seal(f"{rank} {data}".encode()) + data
        found = self.store.compare_set(f"node/{rank}", "", message)
        if found != message.encode():
            raise InputError(
                f"--node-rank: {rank} is taken by {read_info(rank, found).name}; give each node its own rank,"
                " and each run its own --master-port"
            )

    def await_all(self) -> list[NodeInfo]:
        """Raises a difference between two nodes as soon as both are known."""
        found: dict[int, NodeInfo] = {}

        def have_come() -> bool:
            for rank in range(self.node.size):
                if rank not in found and self.store.check([f"node/{rank}"]):
                    found[rank] = read_info(rank, self.store.get(f"node/{rank}"))
            check_same(found)
            return len(found) == self.node.size

        def missing() -> str:
            ranks = ", ".join(str(rank) for rank in range(self.node.size) if rank not in found)
            line = (
                f"{len(found)} of {self.node.size} nodes came within {self.cluster.join_timeout:g} s; missing:"
                f" node {ranks}"
            )
            if self.master.startswith("127."):
                line += "; cluster.master_addr is a loopback address, which other machines cannot reach"
            return line

        self.wait(have_come, missing)
        return [found[rank] for rank in range(self.node.size)]

    def linger(self) -> None:
        """The store ends with node 0, which stays until the others have read the result, or a few seconds."""
        with contextlib.suppress(RuntimeError, ValueError):
            self.store.set(f"done/{self.node.rank}", "1")
            until = time.monotonic() + LINGER
            while self.node.leads and time.monotonic() < until:
                registered = [rank for rank in range(self.node.size) if self.store.check([f"node/{rank}"])]
                if all(self.store.check([f"done/{rank}"]) for rank in registered):
                    return
                time.sleep(POLL)


def _seal(data: bytes) -> str:
    """Proves knowledge of the secret; without a secret it only finds garbled data."""
    return hmac.new(os.environ.get(SECRET, "").encode(), data, hashlib.sha256).hexdigest()


def read_info(rank: int, message: bytes) -> NodeInfo:
    """Authenticates before it parses. Another version may send other fields."""
    seal, data = message[:SEAL_LENGTH], message[SEAL_LENGTH:]
    if not hmac.compare_digest(seal, _seal(f"{rank} ".encode() + data).encode()):
        raise InputError(f"{SECRET}: node {rank} was started with another one; set the same on all nodes")
    try:
        return NODE_INFO.validate_json(data)
    except ValueError:
        raise InputError(
            f"node {rank} runs another version of parallel_ppo than this node ({VERSION}); start all nodes"
            " with the same code"
        ) from None


def check_same(infos: dict[int, NodeInfo]) -> None:
    """Every node compares the same infos, so every node ends with the same line."""
    if 0 not in infos:
        return
    first = infos[0]
    for _, other in sorted(infos.items()):
        problem = _difference(first, other, "must_match")
        if problem is not None:
            raise InputError(f"{problem}; start all nodes with the same code and settings")
        problem = _difference(first, other, "bits")
        if problem is not None and not first.must_match.get("cluster.allow_different_nodes"):
            raise InputError(
                f"{problem}, so their results may differ; make them alike, or use --allow-different-nodes: the"
                " learned parameters then depend on the nodes (bit_exact: false)"
            )


def _difference(first: NodeInfo, other: NodeInfo, field: str) -> str | None:
    """A library that only one node has is ignored: the run does not need it."""
    wanted, found = getattr(first, field), getattr(other, field)
    for key in wanted:
        if key in found and wanted[key] != found[key]:
            return f"node {other.name} has {key} = {found[key]!r}, but node {first.name} has {wanted[key]!r}"
    return None


def connect(meeting: Meeting, node: Node, cluster: ClusterSettings) -> None:
    """The process group, over the chosen interface only."""
    os.environ["GLOO_SOCKET_IFNAME"] = meeting.interface
    try:
        distributed.init_process_group(
            cluster.distributed_backend, store=distributed.PrefixStore("gloo", meeting.store), rank=node.rank,
            world_size=node.size, timeout=datetime.timedelta(seconds=cluster.timeout),
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        addresses = ", ".join(f"{other.name} at {other.address}" for other in meeting.nodes)
        raise ClusterError(
            f"the nodes ({addresses}) could not connect over {meeting.interface} ({_first_line(error)});"
            " check cluster.interface and firewalls"
        ) from None


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__
