"""Faults of the way from NIC to GPU memory."""

from __future__ import annotations

from dataclasses import replace

from probes.simulation.description import NodeDescription
from probes.simulation.faults.fault import Fault


def _without_either(description: NodeDescription) -> NodeDescription:
    modules = description.modules
    return replace(
        description,
        driver=replace(description.driver, flavour="proprietary"),
        modules=replace(
            modules,
            live=tuple(name for name in modules.live if name != "nvidia_peermem"),
            on_disk=(*modules.on_disk, "nvidia_peermem"),
        ),
        gpudirect=replace(description.gpudirect, regions=0),
    )


FAULTS: tuple[Fault, ...] = (Fault("no-gdr-path", frozenset({"no-gdr-path"}), describe=_without_either),)
