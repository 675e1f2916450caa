"""All faults by name, and the names of nodes with faults."""

from __future__ import annotations

from dataclasses import replace

from probes.simulation.faults import environment, gpu, modules, nccl, nic, path, pcie, peermem, tools
from probes.simulation.faults.fault import Fault

# Faults of one area that hide one of another: what the second looks at is gone.
_HIDDEN_BY = {
    "pid-namespace-hides-users": frozenset({"gpu-without-driver"}),
    "pcie-link-degraded-gpu-speed": frozenset({"gpu-without-driver-nouveau"}),
    "dmabuf-nic-driver-lacks-support": frozenset({"nic-without-driver"}),
    "pcie-devctl-ten-bit-tags-differ": frozenset({"nic-without-driver"}),
}

FAULTS: dict[str, Fault] = {
    fault.name: replace(fault, excludes=fault.excludes | _HIDDEN_BY.get(fault.name, frozenset()))
    for of_area in (modules, peermem, path, pcie, nic, gpu, environment, nccl, tools)
    for fault in of_area.FAULTS
}


class NoSuchFault(KeyError):
    """A name that is none of ours."""


def split_name(name: str) -> tuple[str, tuple[Fault, ...]]:
    """The node and its faults, of "hgx-h100+acs-on,port-down"; NoSuchFault for a fault that is none."""
    node, _, wanted = name.partition("+")
    names = [one for one in wanted.split(",") if one]
    for one in names:
        if one not in FAULTS:
            raise NoSuchFault(one)
    return node, tuple(FAULTS[one] for one in names)
