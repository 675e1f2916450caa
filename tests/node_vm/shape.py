"""Shapes of node: which GPUs and NICs lie below which switches of which NUMA node, as QEMU devices."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A node with two NUMA nodes; each has one PCI root with the same switches below it."""

    name: str
    switches: int  # below each root
    gpus: int  # below each switch, beside one NIC
    two_level: bool = False  # one switch at the root port, the others below it
    second_numa_unknown: bool = False  # the firmware does not say where the second root is

    def gpu_count(self) -> int:
        return 2 * self.switches * self.gpus

    def nic_count(self) -> int:
        return 2 * self.switches


TWO_SOCKETS = Shape("two-sockets", switches=2, gpus=2)
TWO_LEVELS = Shape("two-levels", switches=2, gpus=4, two_level=True, second_numa_unknown=True)


def devices(shape: Shape) -> list[str]:
    """QEMU arguments for the PCI tree: NVMe drives stand for GPUs, those with Intel's id for NICs."""
    builder = _Builder()
    for root in range(2):
        numa = "" if root == 1 and shape.second_numa_unknown else f",numa_node={root}"
        bus = f"root{root}"
        # 64 bus numbers each, from 0x40 and from 0x80 on.
        builder.add(f"pxb-pcie,id={bus},bus=pcie.0,addr={4 + root},bus_nr={0x40 * (root + 1)}{numa}")
        for port in _switch_places(builder, shape, bus):
            downstream = builder.switch(port, shape.gpus + 1)
            for _ in range(shape.gpus):
                builder.endpoint(next(downstream), "gpu")
            builder.endpoint(next(downstream), "nic")
    return builder.arguments


def _switch_places(builder: "_Builder", shape: Shape, bus: str) -> Iterator[str]:
    """The ports that the switches with endpoints hang at."""
    if not shape.two_level:
        for address in range(shape.switches):
            yield builder.root_port(bus, address)
    else:
        yield from builder.switch(builder.root_port(bus, 0), shape.switches)


class _Builder:
    """Numbers what QEMU wants numbered."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self._slots = 0
        self._endpoints = {"gpu": 0, "nic": 0}

    def add(self, device: str) -> None:
        self.arguments += ["-device", device]

    def _port(self, kind: str, bus: str, address: int, more: str = "") -> str:
        self._slots += 1
        name = f"port{self._slots}"
        self.add(f"{kind},id={name},bus={bus},addr={address},chassis={self._slots},slot={self._slots}{more}")
        return name

    def root_port(self, bus: str, address: int) -> str:
        return self._port("pcie-root-port", bus, address, ",x-speed=16,x-width=16")

    def switch(self, port: str, count: int) -> Iterator[str]:
        """A switch below a port; gives its downstream ports one by one."""
        upstream = f"upstream-of-{port}"
        self.add(f"x3130-upstream,id={upstream},bus={port}")
        for address in range(count):
            yield self._port("xio3130-downstream", upstream, address)

    def endpoint(self, port: str, kind: str) -> None:
        number = self._endpoints[kind]
        self._endpoints[kind] += 1
        intel = ",use-intel-id=on" if kind == "nic" else ""
        self.add(f"nvme,serial={kind}{number},bus={port}{intel}")
