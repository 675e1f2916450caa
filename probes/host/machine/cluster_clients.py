"""What the clients of a cluster need to work: variables of the admin, and the directory that the site names.

The reader and the runner start commands with a clean environment. These clients find their cluster by a
variable, and may run what its file names: a plugin of Slurm (slurm.conf(5), PluginDir), or a program that
logs in to Kubernetes (client-go, "exec"). So root uses only files that root alone can change.
"""

from __future__ import annotations

import os

from probes.base.cluster_places import cluster_places
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.trusted_path import NotTrusted, is_root, is_trusted, require_path

_SLURM = ("sinfo", "squeue", "scontrol")
_KUBERNETES = ("kubectl", "oc")
_MOST_ANCESTORS = 16
_SLURM_USER = "slurm"  # slurmd runs as root what this user writes to slurm.conf


def client_directory(name: str) -> str:
    """Return where the site has a client; "" if it is no client, or in a usual place, or not root's alone."""
    directory = cluster_places().commands if name in (*_SLURM, *_KUBERNETES) else ""
    return "" if directory and is_root() and not is_trusted(directory) else directory


def client_environment(name: str) -> Maybe[dict[str, str]]:
    """Return the variables that a command gets besides the usual ones; unknown if root must not use them."""
    if name in _SLURM:
        return _slurm_configuration()
    return cluster_login() if name in _KUBERNETES else {}


def _slurm_configuration() -> Maybe[dict[str, str]]:
    """Return SLURM_CONF of the admin or slurmd, else that of the site."""
    path = os.environ.get("SLURM_CONF") or slurmds_configuration(os.getppid()) or cluster_places().slurm_conf
    if not path:
        return {}
    path = os.path.abspath(path)
    if is_root():
        try:  # the name stays, because the other files of Slurm are beside it
            require_path(path, also=_SLURM_USER)
        except NotTrusted as error:
            return Unknown(Reason.NEEDS_PERMISSION, "SLURM_CONF", printable(str(error.strerror), 200))
        except OSError:
            return Unknown(Reason.IO_ERROR, "SLURM_CONF", f"there is no {printable(path, 160)}")
    return {"SLURM_CONF": path}


def slurmds_configuration(process: int) -> str:
    """Return the slurm.conf of the slurmd that has started a process; "" for none, or the usual one.

    A Prolog gets SLURM_CONF, a HealthCheckProgram only SLURMD_NODENAME (SchedMD/slurm 22.05 and 23.11,
    run_script_health_check in src/slurmd/slurmd/slurmd.c).
    """
    for _ in range(_MOST_ANCESTORS if "SLURMD_NODENAME" in os.environ else 0):
        name, parent = _name_and_parent(process)
        if name == b"slurmd":
            words = _words(process, "cmdline")
            if b"-f" in words[:-1]:
                return os.fsdecode(words[words.index(b"-f") + 1])
            variables = (word.partition(b"=") for word in _words(process, "environ"))
            return next((os.fsdecode(value) for key, _, value in variables if key == b"SLURM_CONF"), "")
        process = parent
        if process <= 1:
            break
    return ""


def _name_and_parent(process: int) -> tuple[bytes, int]:
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            start, _, fields = file.read(1024).rpartition(b") ")
        return start.partition(b"(")[2], int(fields.split()[1])
    except (OSError, IndexError, ValueError):
        return b"", 0


def _words(process: int, file: str) -> list[bytes]:
    try:
        with open(f"/proc/{process}/{file}", "rb") as opened:
            return opened.read(1 << 17).split(b"\0")
    except OSError:
        return []


def cluster_login() -> Maybe[dict[str, str]]:
    """Return HOME and KUBECONFIG of the admin for kubectl; unknown if root must not use the kubeconfig."""
    home = os.environ.get("HOME", "")
    listed = os.environ.get("KUBECONFIG", "")
    paths = [os.path.abspath(path) for path in listed.split(os.pathsep) if path]
    if not paths and os.path.isabs(home):
        paths = [os.path.join(home, ".kube", "config")]
    if is_root():
        paths = [path for path in paths if os.path.exists(path)]
        try:  # a link could be turned after this, so kubectl gets what it leads to
            paths = [require_path(path) for path in paths]
        except OSError as error:
            detail = f"{printable(str(error.strerror), 160)}: run gdrtop without sudo"
            return Unknown(Reason.NEEDS_PERMISSION, "KUBECONFIG", detail)
        home = home if is_trusted(home) else ""
        # Without KUBECONFIG, kubectl would read the file in HOME, which has not been checked here.
        paths = paths or [os.devnull]
    environment = {"HOME": home, "KUBERC": "off"} if os.path.isabs(home) else {}
    return {**environment, "KUBECONFIG": os.pathsep.join(paths)} if paths else environment
