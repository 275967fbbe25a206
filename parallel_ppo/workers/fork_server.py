"""The fork server: a small process that imports everything once and forks workers on request, in
milliseconds.

`ForkServer` is the coordinator's handle. The child side (`main`) never touches a tensor, so it is safe to
fork. Lives are tied: when its socket closes, because the coordinator has ended in whatever way, it kills
everything that ever descended from it (workers, the helper processes of environments, daemons of those)
and leaves. It reads settings of any size from a file in memory; the later messages are small: JSON in packets,
with descriptors.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from parallel_ppo.child import with_fixed_hash_seed
from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.lazy_compiler import import_without_compiler
from parallel_ppo.machine.descendants import (
    COORDINATOR_SIGNALS,
    adopt_orphans,
    become_keeper,
    die_with_parent,
    ignore_signals,
    kill_descendants,
    kill_session,
    tie_to_parent,
)
from parallel_ppo.settings.kinds import is_own
from parallel_ppo.settings.schema import Settings

PACKET = 1 << 17
SPAWN_TIMEOUT = 60.0  # after the first answer; importing everything may take longer on a busy machine
FIRST_TIMEOUT = 300.0
CLOSE_TIMEOUT = 5.0
POLL = 0.2


class Child(NamedTuple):
    pid: int
    pidfd: int
    socket: socket.socket


class ForkServerLost(Exception):
    """The fork server died or does not answer, and why."""


def is_stopped(pid: int) -> bool:
    """True if a signal or a debugger stopped it."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:
            start = os.read(descriptor, 128)  # its number, its name in brackets, its state
        finally:
            os.close(descriptor)
        return start.rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


class ForkServer:
    """Starts in the background: the coordinator can import torch while the fork server does."""

    def __init__(self, settings: Settings, spec: EnvSpec) -> None:
        self.settings, self.spec = settings, spec
        hello = {"path": sys.path, "settings": settings.model_dump(), "spec": spec.as_json()}
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Not `-m`: that would search the current directory first, and find whatever is called like
        # one of our imports.
        path = [str(Path(__file__).resolve().parents[2]), *sys.path]
        program = (
            f"import sys; sys.path[:] = {path!r}; from parallel_ppo.workers.fork_server import main; main()"
        )
        with theirs, open(os.memfd_create("settings"), "wb") as file:
            file.write(json.dumps(hello).encode())
            file.flush()
            passed = [theirs.fileno(), file.fileno()]
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, *map(str, passed), str(os.getpid())],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
                env=with_fixed_hash_seed(),
                start_new_session=True,  # what a terminal sends is for the coordinator
            )
        self.exit_status: dict[int, int] = {}
        self.has_answered = False
        self.check: Callable[[], None] = lambda: None  # called while waiting; leaves by an exception

    def spawn(self, worker: int, cpu: int | None, memory: tuple[int, ...]) -> Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            request = json.dumps({"worker": worker, "cpu": cpu}).encode()
            try:
                socket.send_fds(self.socket, [request], [theirs.fileno(), *memory])
            except OSError:
                ours.close()
                raise ForkServerLost(self._how_it_ended()) from None
        try:
            return self._spawned(worker, ours)
        except BaseException:
            ours.close()
            raise

    def _spawned(self, worker: int, ours: socket.socket) -> Child:
        deadline = time.monotonic() + (SPAWN_TIMEOUT if self.has_answered else FIRST_TIMEOUT)
        stopped_polls = 0
        while time.monotonic() < deadline:
            message, descriptors = self._receive(POLL)
            if message is not None and message.get("worker") == worker:
                self.has_answered = True
                if "error" in message:
                    raise ForkServerLost(f"the process that starts workers failed ({message['error']})")
                return Child(message["pid"], descriptors[0], ours)
            self.check()
            stopped_polls = stopped_polls + 1 if is_stopped(self.process.pid) else 0
            if stopped_polls * POLL >= 1:
                raise ForkServerLost("the process that starts workers was stopped by a signal")
        raise ForkServerLost("the process that starts workers does not answer")

    def _receive(self, timeout: float) -> tuple[dict[str, Any] | None, list[int]]:
        if not select.select([self.socket], [], [], timeout)[0]:
            return None, []
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, PACKET, 4)
        except OSError:
            raise ForkServerLost(self._how_it_ended()) from None
        if not data:
            raise ForkServerLost(self._how_it_ended())
        message = json.loads(data)
        if "exited" in message:
            self.exit_status[message["exited"]] = message["status"]
        return message, descriptors

    def _how_it_ended(self) -> str:
        try:
            return f"the process that starts workers ended ({self.process.wait(timeout=1)})"
        except subprocess.TimeoutExpired:
            return "the process that starts workers hung up"

    def status_of(self, pid: int, timeout: float = 0.5) -> int | None:
        """How a dead worker ended (as `os.waitstatus_to_exitcode`); None if the fork server is gone too."""
        deadline = time.monotonic() + timeout
        try:
            while pid not in self.exit_status and (remaining := deadline - time.monotonic()) > 0:
                self._receive(remaining)
        except ForkServerLost:
            return None
        return self.exit_status.pop(pid, None)

    def again(self) -> "ForkServer":
        """A new one in place of this one."""
        self.close()
        successor = ForkServer(self.settings, self.spec)
        successor.check = self.check
        return successor

    def close(self) -> None:
        """May be called twice. Afterwards neither it nor anything that descended from it is there."""
        self.socket.close()
        if self.has_answered:  # else it may be busy importing, and has no descendants
            self.process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(CLOSE_TIMEOUT)
        if self.process.poll() is None or self.process.returncode < 0:
            self.process.kill()
            kill_session(self.process.pid)
            self.process.wait()


# --- the child side -----------------------------------------------------------------------------------------


def main() -> None:
    descriptor, file_descriptor, parent = map(int, sys.argv[1:])
    channel = socket.socket(fileno=descriptor)
    tie_to_parent(parent)
    for number in COORDINATOR_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    with open(file_descriptor, "rb") as file:
        file.seek(0)
        hello = json.load(file)
    sys.path[:] = hello["path"]
    settings, spec = Settings.model_validate(hello["settings"]), EnvSpec.from_json(hello["spec"])
    _import_everything(settings)
    become_keeper()  # a closed socket reports the parent's death
    with contextlib.suppress(OSError):  # the coordinator is gone
        _serve(channel, settings, spec)
    kill_descendants()
    os._exit(0)


def _import_everything(settings: Settings) -> None:
    """Once for all workers. Loading an environment's library and pictures is native code, so it runs
    while torch is imported.
    """
    from parallel_ppo.envs.families import warm_up

    loading = threading.Thread(target=warm_up, args=(settings,))
    loading.start()
    if not is_own(settings.training.policy):
        import_without_compiler()
    import parallel_ppo.workers.process

    if settings.curiosity.is_curious:
        import parallel_ppo.features.curiosity.state  # noqa: F401
    loading.join()  # no thread may run when workers are forked


def _serve(channel: socket.socket, settings: Settings, spec: EnvSpec) -> None:
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    workers: set[int] = set()
    while True:
        ready = select.select([channel.fileno(), wake_read], [], [])[0]
        if wake_read in ready:
            os.read(wake_read, 4096)
        for pid, status in _reap():
            if pid in workers:
                workers.remove(pid)
                kill_descendants(keep=frozenset(workers))  # what a worker leaves behind
                channel.send(json.dumps({"exited": pid, "status": status}).encode())
        if channel.fileno() in ready:
            data, descriptors, _, _ = socket.recv_fds(channel, PACKET, 4)
            if not data:
                return
            workers |= _fork(channel, json.loads(data), descriptors, settings, spec)


def _reap() -> Iterator[tuple[int, int]]:
    """Children that have ended, and how."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended[0], os.waitstatus_to_exitcode(ended[1])


def _fork(
    channel: socket.socket, request: dict[str, Any], descriptors: list[int], settings: Settings, spec: EnvSpec
) -> set[int]:
    """The new worker's pid; empty if the fork failed."""
    fork_server = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:  # no memory, or too many processes
        answer = {"worker": request["worker"], "error": f"fork: {error.strerror}"}
        channel.send(json.dumps(answer).encode())
        for descriptor in descriptors:
            os.close(descriptor)
        return set()
    if pid == 0:
        tie_to_parent(fork_server)
        adopt_orphans()
        ignore_signals()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        channel.close()
        from parallel_ppo.workers.process import serve, watch_parent

        watch_parent(fork_server)

        serve(
            descriptors[0],
            tuple(descriptors[1:]),
            settings,
            spec,
            request["worker"],
            request["cpu"],
        )
        os._exit(0)
    for descriptor in descriptors:
        os.close(descriptor)
    pidfd = os.pidfd_open(pid)
    socket.send_fds(channel, [json.dumps({"worker": request["worker"], "pid": pid}).encode()], [pidfd])
    os.close(pidfd)
    return {pid}
