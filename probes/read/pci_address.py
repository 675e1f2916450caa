"""PCI functions of which a text names little more than the address."""

from __future__ import annotations

from typing import Any

from probes.facts.pci.functions import DEVICES
from probes.read.pasted_host import PLACEHOLDER


def gpu_answers(bdf: str, device: str = "") -> dict[tuple[str, ...], Any]:
    """Return the answers of a host about a GPU with the NVIDIA driver; the bridges above it are not known."""
    path = f"/sys/devices/pci{PLACEHOLDER}00/{bdf}"
    event = f"DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:{device}\n"
    return {
        ("link", f"{DEVICES}/{bdf}"): f"../../..{path.removeprefix('/sys')}",
        ("file", f"{path}/uevent"): event.encode(),
    }
