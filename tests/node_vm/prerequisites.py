"""What this machine must have for the virtual node; as a program, it installs that on Debian."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

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


def complaint() -> str | None:
    """What is missing here and how to get it; None: nothing."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return f"the virtual node is an x86-64 Linux one; this is {sys.platform} on {os.uname().machine}"
    packages = missing_packages()
    if packages:
        install = f"apt-get install --no-install-recommends {' '.join(packages)}"
        return f"not installed: {', '.join(packages)}; on Debian: {install}"
    if os.geteuid() != 0:
        return "the virtual node's disk is made by mmdebstrap and chroot, which need root: sudo make test-vm"
    return None


def main() -> int:
    install(missing_packages())
    told = complaint()
    if told is not None:
        print(f"test-vm: {told}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
