"""A Slurm cluster on this machine, whose prolog and health check run gdrtop on simulated nodes.

As a program, it installs Slurm on Debian: python -m tests.tui.commands.slurm.cluster
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.support.process_families import ROOT, wait_for
from tests.support.system_packages import SYSTEM_PATH, free_port, install, missing_packages

PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
NODES = {"whole": "[0-7]", "half": "[4-7]"}  # and the device files of their GPUs
_SLURM_CONF = """\
ClusterName=gdrtop
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=nohold_on_prolog_fail
GresTypes=gpu
MpiDefault=none
ReturnToService=2
Prolog={directory}/prolog
HealthCheckProgram={directory}/health-check
HealthCheckInterval=4
HealthCheckNodeState=ANY
NodeName=spare NodeHostname=localhost NodeAddr=127.0.0.1 Port={spare}
PartitionName=gpu Nodes={nodes} Default=YES
"""
_NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=1 Gres=gpu:{gpus}\n"
# sinfo and scontrol are the real ones, and so is slurmd's environment; all else is of a simulated node.
_GDRTOP = """\
#!{python}
import os, signal, sys, syslog
sys.path.insert(0, {root!r})
directory, name = {directory!r}, os.environ["SLURMD_NODENAME"]
facts = open(f"{{directory}}/{{name}}.facts").read()
if facts == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
log = open(f"{{directory}}/syslog", "a", buffering=1)
syslog.syslog = lambda priority, line: print(line, file=log)
from probes.base.origin import (Origin, Source)
from probes.base.unknown import Unknown
from probes.host.machine.local import LocalHost
from probes.simulation.host import SimulatedHost
import tui.actions.audit_log, tui.files.job_file, tui.runtime.lock, tui.runtime.open_host
here, simulated = LocalHost("/"), SimulatedHost.run
SimulatedHost.run = lambda host, argv, seconds=2.0: (
    here.run(argv, seconds) if argv[0] in ("sinfo", "scontrol", "squeue") else simulated(host, argv, seconds)
)
SimulatedHost.environment = lambda host, name: here.environment(name)
tui.actions.audit_log.ROOTS_LOG = f"{{directory}}/actions.jsonl"
tui.files.job_file.ROOTS_DIRECTORY = tui.runtime.lock.ROOTS_DIRECTORY = f"{{directory}}/run"
def open_host(options):
    host = SimulatedHost(facts)
    for file in ("slurm.conf", "gres.conf"):
        host.tree.add(f"{{directory}}/{{file}}", open(f"{{directory}}/{{file}}").read())
    host.origin = Origin(Source.LIVE)
    return host
tui.runtime.open_host.open_host = open_host
from tui.cli import main
sys.exit(main(sys.argv[1:]))
"""
# It checks a node only while its test wants that.
_HEALTH_CHECK = """\
#!/bin/sh
[ ! -e {directory}/$SLURMD_NODENAME.checked ] || {directory}/bin/gdrtop health-check
"""


class Cluster:
    """One controller, and a slurmd for each node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {"PATH": SYSTEM_PATH, "SLURM_CONF": f"{directory}/slurm.conf", "LC_ALL": "C.UTF-8"}
        self.daemons: dict[str, psutil.Popen] = {}

    def start(self, prolog: str) -> None:
        """Start it with a prolog of `gdrtop manifest`; AssertionError: a daemon ends."""
        directory = self.directory
        for name in ("state", "dev", "bin", *(f"spool-{node}" for node in NODES)):
            (directory / name).mkdir()
        for number in range(8):
            (directory / f"dev/nvidia{number}").symlink_to("/dev/null")
        self._add_program("bin/gdrtop", _GDRTOP, python=sys.executable, root=str(ROOT))
        self._add_program("health-check", _HEALTH_CHECK)
        assert "\nPATH=/usr/sbin" in prolog
        prolog = prolog.replace("\nPATH=", "\nPATH={directory}/bin:").replace("=--log-only", "=")
        (directory / "prolog").write_text(prolog.replace("{directory}", str(directory)))
        (directory / "prolog").chmod(0o755)
        conf = _SLURM_CONF.format(
            directory=directory, port=free_port(), spare=free_port(), nodes=",".join(NODES)
        )
        gres = ""
        for name, files in NODES.items():
            self.simulate(name, "hgx-h100")
            gres += f"NodeName={name} Name=gpu File={directory}/dev/nvidia{files}\n"
            gpus = int(files[3]) - int(files[1]) + 1
            conf += _NODE.format(name=name, port=free_port(), gpus=gpus)
        (directory / "slurm.conf").write_text(conf)
        (directory / "gres.conf").write_text(gres)
        key = directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        own = [f"--{what}-file={directory}/munge.{what}" for what in ("key", "pid", "log", "seed")]
        self._start("munged", "-F", "-f", f"--socket={directory}/munge.socket", *own)
        wait_for((directory / "munge.socket").exists)
        self._start("slurmctld", "-D", "-c")
        for name in NODES:
            self._start("slurmd", "-D", "-N", name)
        wait_for(lambda: self._is_dead() or all(self.node(name).startswith("idle|") for name in NODES))
        printed = "".join(file.read_text() for file in directory.glob("*.out"))
        assert not self._is_dead(), printed

    def _is_dead(self) -> bool:
        return any(daemon.poll() is not None for daemon in self.daemons.values())

    def _add_program(self, name: str, text: str, **more: str) -> None:
        path = self.directory / name
        path.write_text(text.format(directory=str(self.directory), **more))
        path.chmod(0o755)

    def _start(self, program: str, *options: str) -> None:
        path = shutil.which(program, path=SYSTEM_PATH)
        assert path
        name = f"{program} {options[-1]}"
        with (self.directory / f"{name.replace('/', '-')}.out").open("w") as output:
            self.daemons[name] = psutil.Popen(
                [path, *options], env=self.environment, stdout=output, stderr=output
            )

    def simulate(self, node: str, facts: str) -> None:
        """Let a node be this simulated one; "killed": gdrtop is killed at its start."""
        (self.directory / f"{node}.facts").write_text(facts)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm, or the nodes' gdrtop."""
        words = [f"{self.directory}/bin/gdrtop", *command[1:]] if command[0] == "gdrtop" else command
        environment = {**self.environment, **variables}
        return subprocess.run(
            words, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )

    def node(self, name: str) -> str:
        """State and reason of a node, as sinfo prints them: "drained|gdrtop: …"."""
        return self.run("sinfo", "-h", "-n", name, "-o", "%T|%E").stdout.partition("\n")[0]

    def submit(self, node: str, gpus: int) -> Path:
        """Submit a job; return the file that it makes."""
        done = self.directory / f"{node}-{gpus}.done"
        done.unlink(missing_ok=True)
        asked = ("-w", node, f"--gres=gpu:{gpus}", "-o", "/dev/null", "-D", str(self.directory))
        ended = self.run("sbatch", *asked, "--wrap", f"touch {done}")
        assert ended.returncode == 0, ended.stderr
        return done

    def close(self) -> None:
        """End what it has started, jobs too."""
        self.run("scancel", "--user=root")
        for daemon in reversed(self.daemons.values()):
            for process in [*daemon.children(recursive=True), daemon]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            daemon.wait()


@contextlib.contextmanager
def cluster(directory: Path, prolog: str) -> Iterator[Cluster]:
    """A cluster that has started."""
    found = Cluster(directory)
    try:
        found.start(prolog)
        yield found
    finally:
        found.close()


def complaint() -> str:
    """Why no cluster can be started here, or ""."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    packages = missing_packages(PROGRAMS)
    return f"not installed: {', '.join(packages)}" if packages else ""


if __name__ == "__main__":
    install(missing_packages(PROGRAMS))
