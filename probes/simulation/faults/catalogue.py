"""Every fault by name."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from probes.base.data_files import read_toml
from probes.simulation.faults import environment, gpu, inference, live, modules, nccl, nic, path, pcie
from probes.simulation.faults.fault import Fault

# A fault -> the faults of other areas that it hides.
HIDES: dict[str, tuple[str, ...]] = {
    hider: tuple(hidden) for hider, hidden in read_toml(__package__, "hides.toml").items()
}
# Add a new file of faults here.
AREAS: tuple[ModuleType, ...] = (modules, path, pcie, nic, gpu, environment, nccl, live, inference)
_ALL: tuple[Fault, ...] = tuple(fault for area in AREAS for fault in area.FAULTS)
# Nothing else can be wrong with what is not there.
HIDES |= {new.name: tuple(fault.name for fault in _ALL if fault is not new) for new in modules.NEW_NODES}
# Engines run instead of the training job.
_OF_JOB = {
    *HIDES["two-jobs-two-users"],
    *HIDES["kv-over-rdma"],
    *(fault.name for fault in (*live.FAULTS, *inference.FAULTS)),
}
HIDES |= {engine.name: tuple(_OF_JOB - {engine.name}) for engine in inference.FAULTS}
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
