"""Directory trees of Debian's own packages, for tests/probes/setup/test_real_trees.py.

    python -m tests.probes.setup.debian_tree /srv/debian12

makes one with the driver that Debian's DKMS package builds: as root, with mmdebstrap, in 7 minutes of CPU
time and 1.5 GB. With GDRTOP_TREES=/srv/debian12, the test then compares what gdrtop reads in it with what
Debian's programs print.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SECONDS = 240
_MERGED = ("bin", "sbin", "lib", "lib64")  # links into /usr
_DIRECTORIES = ("boot/grub", "etc/default", "tmp", "var/tmp", "proc", "dev", "sys")
# What the scripts of these packages run.
_PROGRAMS = (
    *(
        "base-files",
        "coreutils",
        "dash",
        "debianutils",
        "findutils",
        "gettext-base",
        "grep",
        "gzip",
        "hostname",
    ),
    *("libc-bin", "mawk", "sed", "util-linux"),
)
_SUITE = "bookworm"
_COMPONENTS = "main,contrib,non-free,non-free-firmware"
_WITH_DRIVER = (
    *("linux-image-amd64", "linux-headers-amd64", "rdma-core", "ibverbs-providers", "initramfs-tools"),
    *("dkms", "nvidia-open-kernel-dkms", "firmware-nvidia-gsp", "libcuda1", "libnvidia-ml1", "nvidia-smi"),
    *("grub-pc", "kmod", "udev", "systemd-sysv"),
)


def run(*argv: str, cwd: Path | None = None) -> str:
    """Return what a program prints; OSError: it failed."""
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=cwd, timeout=SECONDS)
    if ended.returncode:
        raise OSError(f"{argv[0]}: {ended.stderr.strip()[-200:]}")
    return ended.stdout


def newest_kernel() -> str:
    """Return the package of Debian's kernel, such as linux-image-6.1.0-50-amd64."""
    needs = run("apt-cache", "depends", "--important", "linux-image-amd64").split()
    return next(word for word in needs if word.startswith("linux-image-") and word != "linux-image-amd64")


def unpack(root: Path, archives: Path, packages: Sequence[str]) -> None:
    """Unpack packages and all that they need, without running their scripts; OSError: they cannot be had."""
    (archives / "partial").mkdir(parents=True)
    (archives / "status").touch()  # nothing is installed yet
    options = (f"Dir::State::status={archives}/status", f"Dir::Cache::archives={archives}")
    more = ("APT::Install-Recommends=false", "APT::Sandbox::User=root", "Debug::NoLocking=true")
    settings = [word for option in (*options, *more) for word in ("-o", option)]
    run("apt-get", *settings, "--download-only", "-qq", "--yes", "install", *packages, *_PROGRAMS)
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in archives.glob("*.deb"):
        tar = subprocess.run(
            ("dpkg-deb", "--fsys-tarfile", package), capture_output=True, check=True, timeout=SECONDS
        )
        unpacking = ("tar", "--extract", "--keep-directory-symlink", "--directory", root)
        subprocess.run(unpacking, input=tar.stdout, check=True, timeout=SECONDS)
    (root / "usr/bin/awk").symlink_to("mawk")  # an alternative
    for path in _DIRECTORIES:
        (root / path).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(archives)
    if os.geteuid() == 0:  # else nothing runs in it
        os.mknod(root / "dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))


def main(argv: Sequence[str]) -> int:
    """Make the tree with the driver, and print how to use it."""
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 3
    packages = f"--include={','.join(_WITH_DRIVER)}"
    # The packages of the driver need each other in one version, which security updates break.
    wanted = ("Created-By: Packages", f"Codename: {_SUITE}", "Label: Debian", "Component: main")
    mirror, *_ = run("apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted).split()
    without = ("--variant=minbase", '--aptopt=APT::Install-Recommends "false"')
    command = ("mmdebstrap", *without, f"--components={_COMPONENTS}", packages, _SUITE, argv[0], mirror)
    if subprocess.run(command).returncode:
        return 1
    print(f"GDRTOP_TREES={argv[0]} .venv/bin/python -m pytest -m '' tests/probes/setup/test_real_trees.py")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
