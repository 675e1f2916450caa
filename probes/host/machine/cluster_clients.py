"""What the clients of a cluster need to work: variables of the admin, and the directory that the site names.

The reader and the runner start commands with a clean environment. These clients find their cluster by a
variable, and may run what its file names: a plugin of Slurm (slurm.conf(5), PluginDir), or a program that
logs in to Kubernetes (client-go, "exec"). So root uses only files that root alone can change.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Collection

from probes.base.cluster_places import cluster_places
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown

_SLURM = ("sinfo", "squeue", "scontrol")
_KUBERNETES = ("kubectl", "oc")
_SLURM_USER = "slurm"  # slurmd runs as root what this user writes to slurm.conf


def client_directory(name: str) -> str:
    """Return where the site has a client; "" if it is no client, or in a usual place, or not root's alone."""
    directory = cluster_places().commands if name in (*_SLURM, *_KUBERNETES) else ""
    is_unsafe = bool(directory) and os.geteuid() == 0 and others_can_change(directory)
    return "" if is_unsafe else directory


def client_environment(name: str) -> Maybe[dict[str, str]]:
    """Return the variables that a command gets besides the usual ones; unknown if root must not use them."""
    if name in _SLURM:
        return _slurm_configuration()
    return cluster_login() if name in _KUBERNETES else {}


def _slurm_configuration() -> Maybe[dict[str, str]]:
    """Return SLURM_CONF of slurmd or the admin, else that of the site."""
    path = os.environ.get("SLURM_CONF") or cluster_places().slurm_conf
    if not path:
        return {}
    path = os.path.abspath(path)
    if os.geteuid() == 0:
        if not os.path.exists(path):
            return Unknown(Reason.IO_ERROR, "SLURM_CONF", f"there is no {printable(path, 160)}")
        if others_can_change(path, (_SLURM_USER,)):
            whose = f"root uses only files of root and of the user {_SLURM_USER}"
            detail = f"other users can change {printable(path, 160)}: {whose}"
            return Unknown(Reason.NEEDS_PERMISSION, "SLURM_CONF", detail)
    return {"SLURM_CONF": path}


def cluster_login() -> Maybe[dict[str, str]]:
    """Return HOME and KUBECONFIG of the admin for kubectl; unknown if root must not use the kubeconfig."""
    home = os.environ.get("HOME", "")
    listed = os.environ.get("KUBECONFIG", "")
    paths = [os.path.abspath(path) for path in listed.split(os.pathsep) if path]
    if not paths and os.path.isabs(home):
        paths = [os.path.join(home, ".kube", "config")]
    if os.geteuid() == 0:
        paths = [path for path in paths if os.path.exists(path)]
        unsafe = next(filter(others_can_change, paths), None)
        if unsafe is not None:
            detail = f"other users can change {printable(unsafe, 160)}: run gdrtop without sudo"
            return Unknown(Reason.NEEDS_PERMISSION, "KUBECONFIG", detail)
        home = "" if others_can_change(home) else home
        # Without KUBECONFIG, kubectl would read the file in HOME, which has not been checked here.
        paths = paths or [os.devnull]
    environment = {"HOME": home} if os.path.isabs(home) else {}
    return {**environment, "KUBECONFIG": os.pathsep.join(paths)} if paths else environment


def others_can_change(path: str, users: Collection[str] = ()) -> bool:
    """Return whether a user other than root and `users` can change a file, or a directory above it."""
    real = os.path.realpath(path)
    while True:
        try:
            found = os.stat(real)
        except OSError:
            return True
        is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky:
            return True
        if found.st_uid != 0 and not (users and _user_name(found.st_uid) in users):
            return True
        if real == "/":
            return False
        real = os.path.dirname(real)


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return ""
