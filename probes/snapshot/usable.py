"""What this session may use of the node: its container, control group, namespaces and user decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown


@frozen
class UsableHere:
    """Why this session may not use a device or a NUMA node; "" where it may."""

    devices: Mapping[str, Maybe[str]] = field(default_factory=dict)  # by endpoint: GPU BDF, NIC id
    numa_nodes: Mapping[int, Maybe[str]] = field(default_factory=dict)
    is_container: bool = False

    @property
    def not_usable(self) -> dict[str, str]:
        """The devices that this session may not use, with the reason."""
        return {end: why for end, why in self.devices.items() if not isinstance(why, Unknown) and why}

    @property
    def other_numa_nodes(self) -> dict[int, str]:
        """The NUMA nodes that this session may not use, with the reason."""
        return {
            number: why for number, why in self.numa_nodes.items() if not isinstance(why, Unknown) and why
        }
