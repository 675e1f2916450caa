"""Every fault by name."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from probes.simulation.faults import environment, gpu, live, modules, nccl, nic, path, pcie
from probes.simulation.faults.fault import Fault

_HIDDEN_OVER_TCP = (
    *("job-log-gdr-disabled", "job-log-other-nics", "job-rank-staged", "pcie-link-degraded-width"),
)
_HIDDEN_BY_LIBRARIES = (  # all ranks get the same ones
    *("nccl-net-plugin-mixed", "nccl-net-plugin-trouble", "nccl-twice-in-process", "nccl-versions-differ"),
    *("nvshmem-ibgda-driver-options", "old-userspace-abi"),
)
# A fault -> the faults of other areas that it hides, because it removes what they change.
HIDES: dict[str, tuple[str, ...]] = {
    "dmabuf-needs-open-module": ("gsp-firmware-missing",),
    "driver-library-missing": (
        *("bar1-too-small", "fabric-manager-down", "gpu-missing-from-nvml", "libcuda-link-missing"),
        *("mig-with-gdr", "nvlink-down", "persistence-off", "persistence-off-daemon-runs"),
    ),
    "gpu-without-driver": ("pid-namespace-hides-users",),
    "gpu-without-driver-nouveau": ("pcie-link-degraded-gpu-speed",),
    "gpu-without-driver-passed-through": ("nic-ats-on-bare-metal",),
    "job-log-differs": ("job-log-gdr-disabled", "job-rank-staged", "job-tcp"),
    "job-log-gdr-disabled": ("job-tcp",),
    "job-tcp": (
        *("memlock-container-runtime", "memlock-or-ipc-lock", "nccl-net-plugin-mixed"),
        *("nccl-net-plugin-not-found", "rdma-cgroup-limit", *_HIDDEN_OVER_TCP),
    ),
    "k8s-operators": ("dkms-build-failed", "driver-library-missing", "inbox-core-beside-ofed"),
    "k8s-waiting-for-mofed": ("dkms-build-failed", "driver-library-missing"),
    "memory-peers-missing-old-nccl": ("gsp-firmware-missing",),
    "nccl-ib-disabled": _HIDDEN_OVER_TCP,
    "nccl-net-socket": _HIDDEN_OVER_TCP,
    "nic-flapping": ("port-disabled",),
    "nic-passed-through": ("nic-ats-on-bare-metal", "pcie-aspm-on"),
    "nic-without-driver": (
        *("dmabuf-nic-driver-lacks-support", "job-rank-staged", "pcie-devctl-ten-bit-tags-differ"),
    ),
    "no-gdr-path": ("gpu-without-driver", "gsp-firmware-missing", "job-log-gdr-disabled"),
    "nvidia-uvm-not-loaded": ("fabric-manager-down",),
    "pid-namespace-hides-users": ("job-log-differs", "job-rank-staged", "pcie-link-degraded-width"),
    "rank-behind": _HIDDEN_BY_LIBRARIES,
    "rank-stopped": _HIDDEN_BY_LIBRARIES,
    "two-jobs-two-users": (
        *("job-log-differs", "job-log-errors", "job-log-gdr-disabled", "job-log-other-nics"),
        *("job-log-other-setting", "job-log-plugin-missing", "job-rank-staged", "job-tcp"),
        *("nccl-ib-disabled", "nccl-net-socket", "pid-namespace-hides-users"),
    ),
    # The kernel refuses nvidia_peermem for these reasons before it looks at parameters.
    **dict.fromkeys(
        (
            *("driver-half-updated", "kernel-forbids-modules-disabled", "kernel-forbids-modules-lockdown"),
            *("module-blacklisted-cmdline", "module-wrong-vermagic", "peermem-built-without-symbols"),
            *("peermem-not-on-disk-other-kernel", "peermem-symbol-version-mismatch"),
            *("peermem-symbol-version-mismatch-nvidia", "peermem-unknown-symbol-inbox-core"),
            *("secure-boot-key-rejected", "secure-boot-unsigned"),
        ),
        ("peermem-parameter-invalid",),
    ),
    "vm-pair-unproven": ("acs-on", "peer-mmio-not-remapped"),  # the hypervisor controls ACS
}

# Add a new file of faults here.
AREAS: tuple[ModuleType, ...] = (modules, path, pcie, nic, gpu, environment, nccl, live)
_ALL: tuple[Fault, ...] = tuple(fault for area in AREAS for fault in area.FAULTS)
# Nothing else can be wrong with what is not there.
HIDES |= {new.name: tuple(fault.name for fault in _ALL if fault is not new) for new in modules.NEW_NODES}
FAULTS: dict[str, Fault] = {
    fault.name: replace(
        fault, excludes=fault.excludes | {hider for hider, hidden in HIDES.items() if fault.name in hidden}
    )
    for fault in _ALL
}


class NoSuchFault(KeyError):
    """No fault has this name, or this node cannot have the fault."""


def faults_of(wanted: str) -> tuple[Fault, ...]:
    """Return the faults of "acs-on,port-down".

    Raises:
        NoSuchFault: a fault is unknown.
    """
    names = [fault for fault in wanted.split(",") if fault]
    for fault in names:
        if fault not in FAULTS:
            raise NoSuchFault(fault)
    return tuple(FAULTS[fault] for fault in names)
