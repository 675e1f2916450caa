"""What the packages of an upgrade mean for GPUDirect RDMA: kernels, headers, drivers, libraries.

Names: packages.debian.org, packages.ubuntu.com, NVIDIA's Driver Installation Guide (since 590 without the
branch), DOCA-Host (mlnx-ofed-kernel on Debian, mlnx-ofa_kernel on Red Hat), SUSE's kernel-FLAVOR.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from probes.base.frozen import frozen
from probes.facts.kernel.release import is_release
from probes.setup.upgrade.transaction import ChangeKind, PackageChange

KERNEL, HEADERS = "kernel", "kernel headers"
GPU_MODULES, GPU_LIBRARIES, MANAGER = "GPU driver", "GPU driver libraries", "Fabric Manager"
NIC_MODULES, VERBS, NCCL = "NIC driver", "RDMA libraries", "NCCL"
_SUBJECTS = (
    (HEADERS, re.compile(r"linux-headers-\d.*|kernel(?:-[a-z0-9]+)*-devel")),
    (KERNEL, re.compile(
        r"linux-image-(?:unsigned-)?\d.*|kernel(?:-(?:64k|rt|uek|default|azure|64kb))?(?:-core)?"
    )),
    (GPU_MODULES, re.compile(
        r"nvidia-dkms.*|nvidia(?:-open|-tesla(?:-\d+)?)?-kernel-(?:dkms|source).*|nvidia-kernel-open-dkms"
        r"|nvidia-open-dkms|kmod-nvidia-.*|linux-(?:modules|objects)-nvidia-.*|nvidia-(?:open-)?driver-G0\d.*"
    )),
    (GPU_LIBRARIES, re.compile(
        r"libnvidia-(?:compute|ml)\S*|libcuda1|libnvidia-tesla(?:-\d+)?-(?:cuda|ml)1"
        r"|nvidia-driver-(?:cuda-)?libs|nvidia-compute-G0\d.*"
    )),
    (MANAGER, re.compile(r"nvidia-fabric-?manager(?:-\d+)?")),
    (NIC_MODULES, re.compile(
        r"(?:kmod-)?mlnx-of(?:ed|a_)-?kernel.*|doca-(?:ofed|host|roce|networking|all)|nvidia-peer-memory.*"
    )),
    (VERBS, re.compile(r"rdma-core|libibverbs1?|ibverbs-providers|librdmacm1?|libmlx5.*")),
    (NCCL, re.compile(r"libnccl2?")),
)  # fmt: skip
_NIC_FILES = re.compile(
    r"mlnx-ofed-kernel-(?:dkms|modules).*|(?:kmod-)?mlnx-ofa_kernel(?!-(?:devel|source)).*"
)
_DEBIAN_KERNEL = re.compile(r"linux-(?:image(?:-unsigned)?|headers)-(\d[\w.+~-]*)")
_NOT_KERNELS = ("-dbg", "-dbgsym", "-common", "-unsigned")
_FLAVORS = re.compile(r"kernel-(64k|rt|default|azure|64kb|uek)\b")
_SUSE = ("default", "azure", "64kb")
_DRIVER_VERSION = re.compile(r"(?:\d+:)?(\d{3}\.\d{1,4}(?:\.\d{1,4})?)(?![\d.])")
_PREBUILT = re.compile(r"linux-(?:modules|objects)-nvidia-.*")


@frozen
class Upgrade:
    """An upgrade that is planned."""

    command: str  # as the admin typed it; "" if its output was given
    changes: tuple[PackageChange, ...]

    @property
    def relevant(self) -> tuple[tuple[str, PackageChange], ...]:
        """Return the packages that concern GPUDirect RDMA with their subjects, in the order of these."""
        order = [subject for subject, _ in _SUBJECTS]
        found = [(subject, change) for change in self.changes if (subject := subject_of(change.name))]
        return tuple(sorted(found, key=lambda row: order.index(row[0])))

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the releases of the kernels that it installs, in the order of its packages."""
        return tuple(dict.fromkeys(self._releases(KERNEL)))

    def has_headers(self, release: str) -> bool:
        """Return whether it installs the headers of a kernel."""
        return release in self._releases(HEADERS)

    def has_prebuilt_driver(self, release: str) -> bool:
        """Return whether it installs GPU modules that were built for this kernel."""
        version = release.rpartition(".")[0] or release
        names = [
            change.name for change in self.changes if change.new and subject_of(change.name) == GPU_MODULES
        ]
        return any(name.endswith((f"-{release}", f"-{version}")) for name in names)

    @property
    def driver_version(self) -> str:
        """Return the version that the GPU's modules will have; "" if they stay as they are."""
        rows = [change for change in self._installed(GPU_MODULES) if not _PREBUILT.fullmatch(change.name)]
        if not rows and any(_PREBUILT.fullmatch(change.name) for change in self._installed(GPU_MODULES)):
            return self.library_version
        return _version_of(rows)

    @property
    def library_version(self) -> str:
        """Return the version that libcuda will have; "" if it stays as it is."""
        return _version_of(self._installed(GPU_LIBRARIES))

    @property
    def manager_version(self) -> str:
        """Return the version that Fabric Manager will have; "" if it stays as it is."""
        return _version_of(self._installed(MANAGER))

    @property
    def new_flavor(self) -> bool | None:
        """Return whether GPU modules that it newly installs are open ones; None: it installs no others."""
        new = [change.name for change in self._installed(GPU_MODULES) if change.kind is ChangeKind.NEW]
        kinds = {"open" in name for name in new if not _PREBUILT.fullmatch(name) or "-nvidia-" in name}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def nic_modules(self) -> tuple[PackageChange, ...]:
        """Return the packages with modules of OFED that it installs or removes."""
        return tuple(change for change in self.changes if _NIC_FILES.fullmatch(change.name))

    def removes(self, subject: str) -> bool:
        """Return whether it removes the packages of a subject that has modules, and installs no others."""
        names = _NIC_FILES.fullmatch if subject == NIC_MODULES else _of_subject(subject)
        rows = [change for change in self.changes if names(change.name)]
        return bool(rows) and all(change.kind is ChangeKind.REMOVED for change in rows)

    def _installed(self, subject: str) -> list[PackageChange]:
        return [change for change in self.changes if change.new and subject_of(change.name) == subject]

    def _releases(self, subject: str) -> list[str]:
        return [release for change in self._installed(subject) if (release := release_of(change))]


def subject_of(name: str) -> str:
    """Return what a package belongs to: "kernel", "GPU driver"; "": nothing that GPUDirect RDMA uses."""
    return next((subject for subject, pattern in _SUBJECTS if pattern.fullmatch(name)), "")


def release_of(change: PackageChange) -> str:
    """Return the release, as `uname -r` prints it, of a kernel or its headers; "" if it has none.

    Debian's packages have it in their names. Red Hat's is VERSION-RELEASE.ARCH with "+64k" or "+rt" for
    those kernels; SUSE's is the version without the last number, the rebuild, and the flavor.
    """
    match = _DEBIAN_KERNEL.fullmatch(change.name)
    if match is not None:
        return "" if match[1].endswith(_NOT_KERNELS) else _checked(match[1])
    version = change.new.partition(":")[2] or change.new
    flavor = (_FLAVORS.match(change.name) or [""])[0].removeprefix("kernel-")
    if flavor in _SUSE:
        return _checked(f"{version.rpartition('.')[0]}-{flavor}")
    suffix = f"+{flavor}" if flavor in ("64k", "rt") else ""
    return _checked(f"{version}.{change.architecture}{suffix}") if change.architecture != "noarch" else ""


def _checked(release: str) -> str:
    return release if is_release(release) else ""


def _of_subject(subject: str) -> Callable[[str], bool]:
    return lambda name: subject_of(name) == subject


def _version_of(rows: Sequence[PackageChange]) -> str:
    matches = (_DRIVER_VERSION.match(change.new) for change in rows)
    return next((match[1] for match in matches if match), "")
