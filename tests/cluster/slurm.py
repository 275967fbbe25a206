"""A real SLURM of one controller and two nodes of two CPUs, in network namespaces on this machine."""

import getpass
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tools.network import Network, why_not

PROGRAMS = "slurmctld", "slurmd", "sbatch", "munged"
ENDING_SECONDS = 5.0  # that the script of a requeued job may take to end
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost=head({addresses[0]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=3,bf_interval=3
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=30
KillWait=20
MinJobAge=3600
NodeName=node1 NodeAddr={addresses[1]} CPUs=2 CoresPerSocket=2 RealMemory=4000 State=UNKNOWN
NodeName=node2 NodeAddr={addresses[2]} CPUs=2 CoresPerSocket=2 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def why_no_slurm() -> str | None:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"no {', '.join(missing)} here (Debian: slurmctld slurmd slurm-client munge)"
    if getpass.getuser() != "root":
        return "SLURM's daemons need root here"
    return why_not()


class Slurm:
    def __init__(self, folder: Path) -> None:
        self.folder, self.network = folder, Network(3)
        self.names = ["head", "node1", "node2"]
        self.daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Slurm":
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        addresses = self.network.addresses
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(folder=self.folder, addresses=addresses))
        hosts = [f"{address} {name}\n" for address, name in zip(addresses, self.names, strict=True)]
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(hosts))
        subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "/run/munge"], check=True)
        self.munged = subprocess.Popen(  # ends at once where one runs already
            ["munged", "--foreground"],
            user="munge",
            group="munge",
            extra_groups=[],
            stderr=subprocess.DEVNULL,
        )
        self.network.__enter__()
        self._start("head", "slurmctld", "-D")
        self._start("node1", "slurmd", "-D", "-N", "node1")
        self._start("node2", "slurmd", "-D", "-N", "node2")
        self.wait(lambda: "2" in self.run("sinfo", "-h", "-t", "idle", "-o", "%D", check=False), "no nodes")
        return self

    def _on(self, host: str, command: tuple[str, ...]) -> list[str]:
        """Its own network, host name and /etc/hosts."""
        enter = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'
        namespace = f"/run/netns/{self.network.hosts[self.names.index(host)]}"
        return ["nsenter", f"--net={namespace}", "unshare", "-m", "-u", "bash", "-c", enter, "_", host,
                str(self.folder / "hosts"), *command]  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def _start(self, host: str, *command: str) -> None:
        with open(self.folder / f"{host}.err", "wb") as errors:
            daemon = subprocess.Popen(
                self._on(host, command), env=self.environment, stdout=subprocess.DEVNULL, stderr=errors
            )
        self.daemons.append(daemon)

    def run(self, *command: str, check: bool = True, text: str | None = None) -> str:
        """A command on the head node."""
        result = subprocess.run(
            self._on("head", command), env=self.environment, cwd=self.folder, capture_output=True, text=True,
            input=text, timeout=60,
        )  # fmt: skip
        assert result.returncode == 0 or not check, f"{command}: {result.stderr}"
        return result.stdout

    def submit(self, script: str) -> str:
        return self.run("sbatch", "--parsable", text=script).strip()

    def kill_on(self, host: str, program: str) -> None:
        found = self._pids(self.network.hosts[self.names.index(host)])
        for pid in found:
            if program in Path(f"/proc/{pid}/cmdline").read_text():
                subprocess.run(["kill", "-9", pid], capture_output=True)

    def _pids(self, namespace: str) -> list[str]:
        found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
        return found.stdout.split()

    def state(self, job: str) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.run("scontrol", "show", "job", job, "-o").split()
                    if "=" in word)  # fmt: skip

    def await_state(self, job: str, *states: str, seconds: float = 240) -> dict[str, str]:
        """A requeued job waits two minutes unless it is asked to start earlier: here after a few seconds, because the exit
        code of a script that still ends would count for the job's next start.
        """
        pending_since: float | None = None

        def has_come() -> bool:
            nonlocal pending_since
            state, now = self.state(job)["JobState"], time.monotonic()
            if state != "PENDING":
                pending_since = None
            elif pending_since is None:
                pending_since = now
            elif now - pending_since > ENDING_SECONDS:
                self.run("scontrol", "update", f"jobid={job}", "starttime=now", check=False)
            return state in states

        self.wait(has_come, f"job {job} is not {states}", seconds)
        return self.state(job)

    def wait(self, condition, problem: str, seconds: float = 240) -> None:
        until = time.monotonic() + seconds
        while not condition():
            logs = "".join(path.read_text() for path in self.folder.glob("*-*.log"))
            assert time.monotonic() < until, f"{problem} after {seconds:g} s\n{logs[-3000:]}"
            time.sleep(0.5)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self.network.hosts:
            subprocess.run(["kill", "-9", *self._pids(host)], capture_output=True)
        for daemon in self.daemons:
            daemon.wait()
        self.network.__exit__(kind, error, trace)
        self.munged.terminate()
        self.munged.wait()
