"""The PCI tree that a topology file gives NCCL in place of the one in sysfs."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.frozen import frozen
from probes.topology.nccl_words import Seat


@frozen
class FileTree:
    """The places of PCI functions by a topology file."""

    path: str  # of the file
    seats: Mapping[str, Seat]  # by bus ID in lower case; GPUs, NICs and switches

    def seat(self, found: Seat) -> Seat:
        """Return where NCCL sees a function with this file; `found` is its place by sysfs.

        NCCL keeps the parents that the file gives an element. It asks sysfs about a function that the file
        does not name, and joins the file's tree at the first switch that the file names (src/graph/xml.cc
        ncclTopoGetXmlFromSys).
        """
        if found.bus_id in self.seats:
            return self.seats[found.bus_id]
        for place, switch in enumerate(found.switches):
            if switch in self.seats:
                above = self.seats[switch]
                return Seat(found.bus_id, (*found.switches[: place + 1], *above.switches), above.cpu)
        return found
