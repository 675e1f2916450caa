"""Every fault by name."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from probes.simulation.faults import (
    environment,
    gpu,
    live,
    modules,
    nccl,
    nic,
    path,
    pcie,
    peermem,
    tools,
    vendor_nics,
)
from probes.simulation.faults.fault import Fault

_ALL_OVER_TCP = frozenset({"nccl-ib-disabled", "nccl-net-socket", "job-tcp"})
_OTHER_JOBS = frozenset({"two-jobs-two-users"})
# A fault -> the faults of other areas that hide it, because they remove what it changes.
_HIDDEN_BY = {
    "job-rank-staged": _ALL_OVER_TCP
    | _OTHER_JOBS
    | {"job-log-differs", "nic-without-driver", "pid-namespace-hides-users"},
    "job-tcp": _OTHER_JOBS | {"job-log-differs", "job-log-gdr-disabled"},
    "job-log-differs": _OTHER_JOBS | {"pid-namespace-hides-users"},
    "job-log-gdr-disabled": frozenset({"job-log-differs"}),
    "job-log-other-setting": _OTHER_JOBS,
    "pcie-link-degraded-width": _ALL_OVER_TCP | {"pid-namespace-hides-users"},
    "gpu-without-driver": frozenset({"no-gdr-path"}),
    "driver-library-missing": frozenset({"k8s-operators", "k8s-waiting-for-mofed"}),
    "fabric-manager-down": frozenset({"driver-library-missing", "nvidia-uvm-not-loaded"}),
    "pid-namespace-hides-users": frozenset({"gpu-without-driver"}),
    "pcie-link-degraded-gpu-speed": frozenset({"gpu-without-driver-nouveau"}),
    "dmabuf-nic-driver-lacks-support": frozenset({"nic-without-driver"}),
    "pcie-devctl-ten-bit-tags-differ": frozenset({"nic-without-driver"}),
}

# Add a new file of faults here.
AREAS: tuple[ModuleType, ...] = (
    *(modules, peermem, path, pcie, nic, gpu, environment, nccl, tools, live, vendor_nics),
)
FAULTS: dict[str, Fault] = {
    fault.name: replace(fault, excludes=fault.excludes | _HIDDEN_BY.get(fault.name, frozenset()))
    for area in AREAS
    for fault in area.FAULTS
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
