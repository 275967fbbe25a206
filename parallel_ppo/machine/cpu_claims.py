"""Claims of CPUs, so that several runs on one machine do not pin their workers to the same ones.

A claim is a name among Linux's abstract sockets: taking it is atomic, and the kernel frees it when the process ends.
"""

import errno
import socket
from collections.abc import Iterable
from dataclasses import replace

from parallel_ppo.machine.placement import Placement, preferred_order
from parallel_ppo.machine.resources import Machine

NAME = "\0parallel_ppo worker on CPU {}"


class CpuClaims:
    """The CPUs to which this run may pin workers, until `close`."""

    def __init__(self) -> None:
        self.sockets: dict[int, socket.socket] = {}

    def take(self, cpus: Iterable[int], number: int) -> list[int]:
        """The first `number` of these CPUs that no other run has claimed, or fewer."""
        for cpu in cpus:
            if len(self.sockets) == number:
                break
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.sockets[cpu] = claim
            try:
                claim.bind(NAME.format(cpu))
            except OSError as error:
                # Other errors are of sandboxes without such names, where every CPU counts as free.
                if error.errno == errno.EADDRINUSE:
                    self.sockets.pop(cpu).close()
        return list(self.sockets)

    def close(self) -> None:
        """May be called twice."""
        while self.sockets:
            self.sockets.popitem()[1].close()


def beside_other_runs(placement: Placement, machine: Machine, claims: CpuClaims) -> Placement:
    """The same number of workers on CPUs that no other run has; nothing is pinned if there are too few."""
    pinned = [cpu for cpu in placement.worker_cpus if cpu is not None]
    wanted = list(dict.fromkeys(pinned))
    others = [core.cpu for core in preferred_order(machine) if core.cpu not in wanted]
    taken = claims.take([*wanted, *others], len(wanted))
    if taken == wanted:
        return placement
    if len(taken) == len(wanted):
        place = dict(zip(wanted, taken, strict=True))
        return replace(placement, worker_cpus=tuple(place[cpu] for cpu in pinned))
    claims.close()
    why = "Nothing is pinned: other runs on this machine have claimed CPUs."
    return Placement((None,) * placement.num_workers, (placement.reasons[0], why))
