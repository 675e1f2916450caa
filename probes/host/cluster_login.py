"""The login of kubectl and oc: the kubeconfig of the admin who started gdrtop.

A kubeconfig can name a program that kubectl runs to log in (client-go, "exec"). As root, kubectl therefore
gets only files that root alone can change, like the commands that gdrtop runs.
"""

from __future__ import annotations

import os
import stat

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown

CLUSTER_CLIENTS = ("kubectl", "oc")
_SOURCE = "KUBECONFIG"


def cluster_login() -> Maybe[dict[str, str]]:
    """Return HOME and KUBECONFIG for kubectl; unknown if root must not use the kubeconfig."""
    home = os.environ.get("HOME", "")
    listed = os.environ.get("KUBECONFIG", "")
    paths = [os.path.abspath(path) for path in listed.split(os.pathsep) if path]
    if not paths and os.path.isabs(home):
        paths = [os.path.join(home, ".kube", "config")]
    if os.geteuid() == 0:
        paths = [path for path in paths if os.path.exists(path)]
        unsafe = next(filter(_others_can_change, paths), None)
        if unsafe is not None:
            detail = f"others can change {printable(unsafe, 160)}: run gdrtop without sudo"
            return Unknown(Reason.NEEDS_PERMISSION, _SOURCE, detail)
        home = "" if _others_can_change(home) else home
        # Without KUBECONFIG, kubectl would read the file in HOME, which has not been checked here.
        paths = paths or [os.devnull]
    environment = {"HOME": home} if os.path.isabs(home) else {}
    return {**environment, "KUBECONFIG": os.pathsep.join(paths)} if paths else environment


def _others_can_change(path: str) -> bool:
    """Return whether a user other than root can change a file, by itself or by a directory above it."""
    real = os.path.realpath(path)
    while True:
        try:
            found = os.stat(real)
        except OSError:
            return True
        is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_uid != 0 or (found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky):
            return True
        if real == "/":
            return False
        real = os.path.dirname(real)
