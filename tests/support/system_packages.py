"""What tests need of the system: Debian's packages, a free port."""

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# A program, and the Debian package that has it.
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "depmod": "kmod",
    "cpio": "cpio",
    "mke2fs": "e2fsprogs",
    "busybox": "busybox-static",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing_packages(programs: Mapping[str, str] = PROGRAMS) -> list[str]:
    """Debian packages to install, sorted; empty when all is there."""
    absent = {package for program, package in programs.items() if not shutil.which(program, path=SYSTEM_PATH)}
    return sorted(absent)


def install(packages: Sequence[str]) -> None:
    """Install Debian packages, if this is root on Debian; CalledProcessError: apt-get fails."""
    if packages and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", *packages]
        for each in (["apt-get", "update", "-qq"], command):
            subprocess.run(each, env=quiet, stdout=subprocess.DEVNULL, check=True)
