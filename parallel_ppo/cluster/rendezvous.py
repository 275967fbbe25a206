"""How the nodes of a run find each other, and the check that they mean the same run.

The first node listens at `cluster.master_addr`, on that address only. Every node takes a seat, says what
it is (`Hello`) and waits for the others. All waiting happens in Python, so that a signal is heard at once
and the missing nodes can be named.
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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as distributed

from parallel_ppo.cluster.engines import find_engine
from parallel_ppo.cluster.nodes import Node, boot_id, short_host_name
from parallel_ppo.exits import ClusterError, InputError
from parallel_ppo.kernels.build import build
from parallel_ppo.kernels.choice import choose_variant
from parallel_ppo.machine.resources import Machine
from parallel_ppo.settings.learning import learning_settings
from parallel_ppo.settings.schema import ClusterSettings, Settings
from parallel_ppo.version import VERSION

POLL = 0.05
LINGER = 3.0  # the first node keeps the store open this long for others to read why nothing starts
STORE_TIMEOUT = 5.0
SECRET = "PARALLEL_PPO_CLUSTER_SECRET"
SEAL_LENGTH = 64


class Hello(NamedTuple):
    """What a node says of itself."""

    name: str
    boot_id: str
    cpus: list[int]
    address: str
    cpu_model: str
    must_match: dict[str, Any]
    rounding: dict[str, str]  # what decides the last bits of what a node computes


HELLO_TYPES = (str, str, list, str, str, dict, dict)


class Meeting(NamedTuple):
    """All nodes are here and mean the same run."""

    store: distributed.Store
    hellos: list[Hello]
    interface: str

    @property
    def names(self) -> list[str]:
        return [hello.name for hello in self.hellos]

    @property
    def rounds_alike(self) -> bool:
        return all(hello.rounding == self.hellos[0].rounding for hello in self.hellos)

    def place_on_host(self, rank: int) -> tuple[int, int]:
        """The node's index among those that share its machine and its CPUs, and their number."""
        mine = self.hellos[rank]
        sharing = [
            other
            for other, hello in enumerate(self.hellos)
            if (hello.boot_id, hello.cpus) == (mine.boot_id, mine.cpus)
        ]
        return sharing.index(rank), len(sharing)


def source_digest() -> str:
    """Of the package's files: a version number does not change with every edit."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".c", ".h")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def introduce(settings: Settings, node: Node, machine: Machine, address: str) -> Hello:
    must_match = {
        "cluster.nnodes": node.size,
        "cluster.allow_different_nodes": settings.cluster.allow_different_nodes,
        **learning_settings(settings),
    }
    must_match |= {"version": VERSION, "source code": source_digest(), "torch": torch.__version__}
    name = f"{node.rank}:{short_host_name()}"
    rounding = {"NumPy": np.__version__, "the instruction set": torch.backends.cpu.get_cpu_capability()}
    if settings.training.kernels == "native":
        library = build(choose_variant()).read_bytes()
        rounding["the kernel library"] = hashlib.sha256(library).hexdigest()[:16]
    cpus, model = list(machine.cpus), machine.cpu_model
    return Hello(name, boot_id(), cpus, address, model, _plain(must_match), rounding)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """As it looks after a journey through JSON, so that equal things compare equal."""
    return json.loads(json.dumps(values))


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


def choose_interface(cluster: ClusterSettings, master: str) -> tuple[str, str]:
    """(interface, its address). Unless told otherwise: the one whose route leads to node 0, which is the
    default route's where no other fits.
    """
    import psutil  # only here, because every start imports this module

    named = cluster.interface or os.environ.get("GLOO_SOCKET_IFNAME")
    family = socket.AF_INET6 if ":" in master else socket.AF_INET
    addresses = {
        (name, entry.address.partition("%")[0])
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == family
    }
    if named is not None:
        fitting = sorted(address for name, address in addresses if name == named)
        if not fitting:
            known = ", ".join(sorted({name for name, _ in addresses}))
            raise InputError(
                f"cluster.interface: {named!r} has no address of this kind here; there are {known}"
            )
        return named, fitting[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting a datagram socket sends nothing
        try:
            probe.connect((master, cluster.master_port))
        except OSError as error:
            raise ClusterError(
                f"there is no route to node 0 at {master} ({error.strerror}); check cluster.master_addr and"
                " the network"
            ) from None
        local = probe.getsockname()[0]
    name = next((name for name, address in addresses if address == local), None)
    if name is None and local.startswith("127."):
        name = "lo"
    if name is None:
        raise InputError(f"cluster.interface: none has the address {local}; name one")
    return name, local


def _listen(cluster: ClusterSettings, master: str) -> int:
    """A listening socket on the private address alone, as a descriptor."""
    family = socket.AF_INET6 if ":" in master else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((master, cluster.master_port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"cluster.master_port: {cluster.master_port} is in use at {master}; end what uses it or give"
                " all nodes another --master-port"
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise InputError(
                f"cluster.master_addr: {master} is not an address of this machine, but this is node 0; give"
                " the address of node 0"
            ) from None
        raise InputError(
            f"cluster.master_port: {cluster.master_port} cannot be opened at {master} ({error.strerror})"
        ) from None
    listener.listen(1024)
    return listener.detach()


# --- meeting ------------------------------------------------------------------------------------------------


def meet(settings: Settings, node: Node, machine: Machine) -> Meeting:
    cluster = settings.cluster
    deadline = time.monotonic() + cluster.join_timeout
    master = resolve(cluster)
    interface, address = choose_interface(cluster, master)
    hello = introduce(settings, node, machine, address)
    store = _open_store(cluster, node, master, deadline)
    try:
        _check_run(store, node, cluster, master, deadline)
        _take_seat(store, node, hello)
        hellos = _await_all(store, node, cluster, master, deadline)
    except (RuntimeError, ValueError) as error:  # what torch raises for a store that went away
        raise ClusterError(
            f"node 0 at {master}:{cluster.master_port} left before all nodes were there"
            f" ({_first_line(error)})"
        ) from None
    finally:
        _linger(store, node)
    return Meeting(store, hellos, interface)


def _open_store(cluster: ClusterSettings, node: Node, master: str, deadline: float) -> distributed.Store:
    """torchrun's agent may already keep a store; its restarts are told apart by their number."""
    environment = os.environ
    kept_by_agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    listens = node.leads and not kept_by_agent
    descriptor = _listen(cluster, master) if listens else None
    if not listens:
        _await_listener(master, cluster.master_port, deadline, cluster.join_timeout)
    opened: list[distributed.Store | Exception] = []

    def open_it() -> None:
        timeout = datetime.timedelta(seconds=max(1.0, min(STORE_TIMEOUT, deadline - time.monotonic())))
        try:
            opened.append(distributed.TCPStore(master, cluster.master_port, node.size, listens, timeout,
                                               wait_for_workers=False,
                                               master_listen_fd=descriptor))  # fmt: skip
        except (RuntimeError, ValueError) as error:
            opened.append(error)

    opening = threading.Thread(target=open_it, daemon=True)  # whatever else listens there may never answer
    opening.start()
    opening.join(min(2 * STORE_TIMEOUT, max(1.0, deadline - time.monotonic())))
    store = opened[0] if opened else TimeoutError("no answer")
    if isinstance(store, Exception):
        raise ClusterError(
            f"what listens at {master}:{cluster.master_port} is not node 0 of this run"
            f" ({_first_line(store)}); check --master-addr and --master-port"
        )
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0") if kept_by_agent else "0"
    return distributed.PrefixStore(f"parallel_ppo/{attempt}", store)


def _await_listener(master: str, port: int, deadline: float, timeout: float) -> None:
    problem = "no answer"
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            socket.create_connection((master, port), timeout=min(1.0, remaining)).close()
            return
        except OSError as error:
            problem = error.strerror or "no answer"
            time.sleep(min(POLL, remaining))
    raise ClusterError(
        f"node 0 cannot be reached at {master}:{port} within {timeout:g} s ({problem}); check --master-addr,"
        " --master-port and that node 0 was started"
    )


def _check_run(
    store: distributed.Store, node: Node, cluster: ClusterSettings, master: str, deadline: float
) -> None:
    """Two runs may meet at one port: node 0 names its run, and the others compare before they say anything."""
    engine = find_engine(os.environ)
    mine = f"{engine.name} job {engine.run_id}" if engine is not None and engine.run_id else "a run by hand"
    mine += f" {_seal(mine.encode())}"
    if node.leads:
        store.set("run", mine)
    while not store.check(["run"]):
        if time.monotonic() > deadline:
            raise ClusterError(f"node 0 at {master}:{cluster.master_port} does not name its run")
        time.sleep(POLL)
    theirs = store.get("run").decode(errors="replace")
    if theirs == mine:
        return
    name, own_name = theirs.rpartition(" ")[0][:100], mine.rpartition(" ")[0]
    if name != own_name:
        raise InputError(
            f"cluster.master_port: node 0 at {master}:{cluster.master_port} belongs to {name}, this node to"
            f" {own_name}; give each run its own --master-port"
        )
    raise InputError(
        f"{SECRET}: differs from that of node 0 at {master}:{cluster.master_port}; set the same on all nodes"
    )


def _seal(data: bytes) -> str:
    """Shows who knows the secret of the run; without a secret, only that nothing was garbled."""
    return hmac.new(os.environ.get(SECRET, "").encode(), data, hashlib.sha256).hexdigest()


def _take_seat(store: distributed.Store, node: Node, hello: Hello) -> None:
    ticket = f"{hello.name} {secrets.token_hex(8)}"
    holder = store.compare_set(f"seat/{node.rank}", "", ticket).decode()
    if holder != ticket:
        raise InputError(
            f"--node-rank: {node.rank} is taken by {holder.split()[0]}; give each node its own rank, and each"
            " run its own --master-port"
        )
    data = json.dumps(hello)
    store.set(f"hello/{node.rank}", _seal(f"{node.rank} {data}".encode()) + data)


def _await_all(
    store: distributed.Store, node: Node, cluster: ClusterSettings, master: str, deadline: float
) -> list[Hello]:
    """Everyone's hello. A difference ends it as soon as both sides of it are known."""
    hellos: dict[int, Hello] = {}
    while len(hellos) < node.size:
        for rank in range(node.size):
            if rank not in hellos and store.check([f"hello/{rank}"]):
                hellos[rank] = _read_hello(rank, store.get(f"hello/{rank}"))
        check_same(hellos)
        if len(hellos) < node.size:
            if time.monotonic() > deadline:
                missing = ", ".join(str(rank) for rank in range(node.size) if rank not in hellos)
                hint = (
                    "; cluster.master_addr is a loopback address here, which other machines cannot reach"
                    if master.startswith("127.")
                    else ""
                )
                raise ClusterError(
                    f"{len(hellos)} of {node.size} nodes came within {cluster.join_timeout:g} s; missing:"
                    f" node {missing}{hint}"
                )
            time.sleep(POLL)
    return [hellos[rank] for rank in range(node.size)]


def _read_hello(rank: int, message: bytes) -> Hello:
    """Checks who wrote it before anything is parsed. Another version may say more or less of itself."""
    seal, data = message[:SEAL_LENGTH], message[SEAL_LENGTH:]
    if not hmac.compare_digest(seal, _seal(f"{rank} ".encode() + data).encode()):
        raise InputError(f"{SECRET}: node {rank} was started with another one; set the same on all nodes")
    try:
        hello = Hello(*json.loads(data))
        is_hello = all(isinstance(value, kind) for value, kind in zip(hello, HELLO_TYPES, strict=True))
    except (TypeError, ValueError, RecursionError):
        is_hello = False
    if not is_hello:
        raise InputError(
            f"node {rank} runs another version of parallel_ppo than this node ({VERSION}); start all nodes"
            " with the same code"
        )
    return hello


def check_same(hellos: dict[int, Hello]) -> None:
    """Every node sees the same hellos, so every node ends with the same line."""
    if 0 not in hellos:
        return
    first = hellos[0]
    for rank in sorted(hellos):
        other = hellos[rank]
        problem = _difference(first, other, first.must_match, other.must_match)
        if problem is not None:
            raise InputError(f"{problem}; start all nodes with the same code and settings")
        problem = _difference(first, other, first.rounding, other.rounding)
        if problem is not None and not first.must_match.get("cluster.allow_different_nodes"):
            raise InputError(
                f"{problem}, so they round differently; make them alike, or use --allow-different-nodes: what"
                " is learned then depends on the nodes (bit_exact: false)"
            )


def _difference(first: Hello, other: Hello, wanted: dict[str, Any], found: dict[str, Any]) -> str | None:
    for key in dict.fromkeys((*wanted, *found)):
        if wanted.get(key) != found.get(key):
            return (
                f"node {other.name} has {key} = {found.get(key)!r}, but node {first.name} has"
                f" {wanted.get(key)!r}"
            )
    return None


def _linger(store: distributed.Store, node: Node) -> None:
    """The store lives in the first node: it stays until the others have read the verdict, or a while."""
    with contextlib.suppress(RuntimeError, ValueError):
        store.set(f"done/{node.rank}", "1")
        until = time.monotonic() + LINGER
        while node.leads and time.monotonic() < until:
            seated = [rank for rank in range(node.size) if store.check([f"seat/{rank}"])]
            if all(store.check([f"done/{rank}"]) for rank in seated):
                return
            time.sleep(POLL)


def connect(meeting: Meeting, node: Node, cluster: ClusterSettings) -> None:
    """The process group, over the chosen interface only."""
    os.environ["GLOO_SOCKET_IFNAME"] = meeting.interface
    try:
        distributed.init_process_group(
            cluster.distributed_backend, store=distributed.PrefixStore("gloo", meeting.store), rank=node.rank,
            world_size=node.size,
            timeout=datetime.timedelta(seconds=cluster.timeout),
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        addresses = ", ".join(f"{hello.name} at {hello.address}" for hello in meeting.hellos)
        raise ClusterError(
            f"the nodes ({addresses}) could not connect over {meeting.interface} ({_first_line(error)});"
            " check cluster.interface and firewalls"
        ) from None


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__
