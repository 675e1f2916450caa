"""What this machine must have for the virtual node; as a program, it installs that on Debian."""

import os
import sys

from tests.support.system_packages import install, missing_packages


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
