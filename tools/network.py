"""Hosts in network namespaces, joined by a bridge in another namespace; nothing outside is changed."""

import os
import shutil
import subprocess
from types import TracebackType


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=True)


def why_not() -> str | None:
    """None if network namespaces can be made, else the reason."""
    for tool in ("ip", "bridge", "tc"):
        if shutil.which(tool) is None:
            return f"no `{tool}` (iproute2) on this machine"
    name = f"probe{os.getpid()}"
    result = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if result.returncode:
        return f"network namespaces are not permitted here ({result.stderr.strip()})"
    link = subprocess.run(
        ["ip", "-n", name, "link", "add", "bridge0", "type", "bridge"], capture_output=True, text=True
    )
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return f"bridges cannot be made here ({link.stderr.strip()})" if link.returncode else None


class Network:
    """`hosts[i]` is a namespace with the address `addresses[i]`. With `rate`, each host sends at most that
    many Mbit/s.
    """

    def __init__(self, num_hosts: int, rate: float | None = None) -> None:
        self.rate = rate
        self.hub = f"hub{os.getpid()}"
        self.hosts = [f"host{os.getpid()}n{index}" for index in range(num_hosts)]
        self.addresses = [f"10.77.0.{index + 1}" for index in range(num_hosts)]

    def __enter__(self) -> "Network":
        run("ip", "netns", "add", self.hub)
        run("ip", "-n", self.hub, "link", "add", "bridge0", "type", "bridge")
        run("ip", "-n", self.hub, "link", "set", "bridge0", "up")
        for index, (host, address) in enumerate(zip(self.hosts, self.addresses, strict=True)):
            port = f"port{index}"
            run("ip", "netns", "add", host)
            pair = f"link add {port} netns {self.hub} type veth peer name eth0 netns {host}"
            run("ip", *pair.split())
            run("ip", "-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", host, "link", "set", device, "up")
            run("ip", "-n", self.hub, "link", "set", port, "master", "bridge0")
            run("ip", "-n", self.hub, "link", "set", port, "up")
            if self.rate is not None:
                limit = (
                    f"tc -n {host} qdisc add dev eth0 root tbf rate {self.rate}mbit burst 256kb latency 1s"
                )
                run(*limit.split())
        return self

    def cut(self, index: int) -> None:
        """The cable is pulled: the host sees its link go down."""
        run("ip", "-n", self.hub, "link", "set", f"port{index}", "down")

    def drop(self, index: int) -> None:
        """The switch forwards nothing from or to this host any more; its link stays up."""
        run("ip", "netns", "exec", self.hub, "bridge", "link", "set", "dev", f"port{index}", "state", "0")

    def mend(self, index: int) -> None:
        run("ip", "-n", self.hub, "link", "set", f"port{index}", "up")
        run("ip", "netns", "exec", self.hub, "bridge", "link", "set", "dev", f"port{index}", "state", "3")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in (*self.hosts, self.hub):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
