"""Events of the PCIe links of NICs: the speed or the width changed.

A NIC keeps its link at full speed while it is idle, other than a GPU (gpu_events.py).
"""

from __future__ import annotations

from probes.base.unknown import Unknown
from probes.facts.pci.link_speed import generation
from probes.live.model import explanations
from probes.live.model.sample import EventKind, LiveEvent, LiveSample, PortSample
from probes.live.model.settled import Settled
from probes.queries.finding import Severity

_SAMPLES = 2  # a link that trains shows other values for a moment
Link = tuple[float, int]  # GT/s of a lane, lanes


def link_name(gtps: float, width: int) -> str:
    """Return "Gen5 x16"; with GT/s for a speed of no generation."""
    number = generation(gtps)
    return f"Gen{number} x{width}" if number else f"{gtps:g} GT/s x{width}"


class NicLinkEvents:
    """Compare the PCIe link of each NIC with the samples before."""

    def __init__(self) -> None:
        self._links: dict[str, Settled[Link]] = {}

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return the links that changed, once for all ports of a device; nothing while a link is unknown."""
        events: list[LiveEvent] = []
        for device, port in {port.device: port for port in sample.ports}.items():
            link = _link(port)
            if link is None:
                continue
            changed = self._links.setdefault(device, Settled(_SAMPLES)).update(link)
            if changed is not None:
                events.append(_retrained(port, *changed, sample.taken_at))
        return events


def _link(port: PortSample) -> Link | None:
    if isinstance(port.pcie_gtps, Unknown) or isinstance(port.pcie_width, Unknown):
        return None
    return (port.pcie_gtps, port.pcie_width) if port.pcie_gtps and port.pcie_width else None


def _retrained(port: PortSample, before: Link, now: Link, at: float) -> LiveEvent:
    is_slower = now[0] < before[0] or now[1] < before[1]
    text = f"the PCIe link of {port.device} is {link_name(*now)}, was {link_name(*before)}"
    severity = Severity.WARNING if is_slower else Severity.NOTE
    kind = EventKind.LINK_RETRAINED
    return LiveEvent(at, kind, severity, port.device, text, explanations.NIC_PCIE_LINK)
