"""A GPU or a NIC in one line, with its live figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from enum import IntEnum
from functools import lru_cache

from probes.base.frozen import frozen
from probes.base.unknown import Reason, Unknown, known
from probes.facts.gpu.gpus import NOT_LISTED, Gpu, GpuFacts
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts
from probes.facts.rdma.devices import ACTIVE, RdmaDevice, RdmaFacts, RdmaPort
from probes.host.nvml import NvmlLive
from probes.snapshot.nic_roles import NicRole, Role
from probes.snapshot.rates import PortRate
from probes.topology.endpoints import Endpoint
from probes.topology.paths import Topology
from widgets.base.figures import UNKNOWN_MARK, in_gbps, percent, share, short, used_of
from widgets.base.lines import Line, Run, Tone
from widgets.node.highlights import Highlights


@frozen
class LiveFigures:
    """The moving figures of a drawing; empty before the first reading."""

    gpus: dict[str, NvmlLive] = field(default_factory=dict)  # by BDF
    ports: dict[tuple[str, int], PortRate] = field(default_factory=dict)
    states: dict[tuple[str, int], str] = field(default_factory=dict)  # newer than the node's


NO_FIGURES = LiveFigures()
NOTHING = Run("")


class Detail(IntEnum):
    """How much a line shows; each level adds to the one before."""

    SHORT = 0  # utilization, PCIe rates; port rate, RDMA rates
    USUAL = 1  # share of the line rate, role
    UNITS = 2  # units and what the arrows mean; GPU memory, temperature
    FULL = 3  # power, NVLinks, addresses, netdevs


_ROLE_WORDS = {Role.STORAGE: "storage", Role.MANAGEMENT: "mgmt", Role.OTHER: "other"}


@lru_cache(256)
def model(name: str) -> str:
    """Return the short name of a GPU: "H100" for "NVIDIA H100 80GB HBM3"."""
    inside = re.search(r"\[(.+?)\]", name)
    words = (inside.group(1) if inside else name).replace("NVIDIA", "").replace("Corporation", "").split()
    words = [word for word in words if word not in ("Tesla", "GeForce", "RTX", "Quadro", "Graphics")] or words
    return words[0].split("-")[0] if words else "GPU"


def common_model(node: Node) -> str:
    """Return the model of all GPUs, "H100"; "" if they differ or there are none."""
    gpus = node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ()
    models = {model(gpu.name) for gpu in gpus}
    return models.pop() if len(models) == 1 else ""


def gpu_trouble(gpu: Gpu) -> str:
    """Return in a few words why a GPU has no live figures; "" if it has."""
    if isinstance(gpu.driver, Unknown):
        return "no driver"
    if gpu.driver != "nvidia":
        return gpu.driver
    if not isinstance(gpu.nvml, Unknown):
        return ""
    if "fallen off the bus" in gpu.nvml.detail:
        return "fell off the bus"
    if gpu.nvml.reason is Reason.DRIVER_ERROR and gpu.nvml.source != "NVML":
        return "does not respond"
    return "not in nvidia-smi" if gpu.nvml.detail == NOT_LISTED else "no driver figures"


def silent_gpus(gpus: Iterable[Gpu], live: LiveFigures) -> frozenset[str]:
    """Return the GPUs that have stopped responding since they were probed: only the others have figures."""
    with_figures = {bdf for bdf, now in live.gpus.items() if _has_figures(now)}
    silent = (gpu.bdf for gpu in gpus if gpu.bdf not in with_figures and not gpu_trouble(gpu))
    return frozenset(silent) if with_figures else frozenset()


def _has_figures(now: NvmlLive) -> bool:
    figures = (now.utilization_percent, now.memory_used_bytes, now.temperature_celsius, now.power_watts)
    return not all(isinstance(figure, Unknown) for figure in figures)


def gpu_line(
    gpu: Gpu,
    label: str,
    live: LiveFigures,
    tone: Tone,
    detail: Detail,
    with_model: bool = True,
    word: Run = NOTHING,
) -> Line:
    """Return "GPU0 H100  92% ↑328 ↓320 39/80G 51°C"; arrows are PCIe traffic from and to the GPU in Gb/s.

    `word`: what is wrong, " throttled"; where room is short it replaces memory and temperature.
    """
    trouble, now = gpu_trouble(gpu), live.gpus.get(gpu.bdf)
    figures = more = addresses = ""
    if now is not None:
        sent, received = in_gbps(now.pcie_tx_bytes_per_second), in_gbps(now.pcie_rx_bytes_per_second)
        pcie, unit = (" PCIe", " Gb/s") if detail >= Detail.UNITS else ("", "")
        figures = (
            f" {percent(now.utilization_percent):>4}{pcie} ↑{short(sent):>3} ↓{short(received):>3}{unit}"
        )
        if detail >= Detail.FULL or (detail >= Detail.UNITS and not word.text):
            total = gpu.memory_total_bytes
            cells = len(used_of(total, total))
            more = f" {used_of(now.memory_used_bytes, total):>{cells}}"
            more += f" {known(now.temperature_celsius, UNKNOWN_MARK):>2}°C"
        if detail >= Detail.FULL:
            more += f" {short(now.power_watts):>3} W"
    if detail >= Detail.FULL:
        links = known(gpu.nvlinks, 0)
        addresses = f"  {gpu.bdf}{f' NV{links}' if links else ''}"
    addresses += " C2C" if known(gpu.c2c_links, 0) else ""
    return _line(
        gpu.bdf,
        (label, tone),
        (f" {model(gpu.name)}" if with_model else "", Tone.PLAIN),
        (f" {trouble}" if trouble else "", Tone.WARNING),
        (figures, Tone.PLAIN),
        (word.text if now is not None else "", word.tone),
        (more, Tone.PLAIN),
        (addresses, Tone.DIM),
    )


def _line(end: str, *parts: tuple[str, Tone]) -> Line:
    """Return a line of an endpoint in few runs; a click on any figure is one on the endpoint."""
    texts: list[tuple[str, Tone]] = []
    for text, tone in parts:
        if texts and texts[-1][1] is tone:
            texts[-1] = texts[-1][0] + text, tone
        elif text:
            texts.append((text, tone))
    return tuple([Run(text, tone, end) for text, tone in texts])


def port_state(device: RdmaDevice, port: RdmaPort, live: LiveFigures) -> str:
    """Return the state of a port as last read: "ACTIVE", "DOWN", …, or `?`."""
    return live.states.get((device.name, port.number)) or known(port.state, UNKNOWN_MARK)


def port_speed(port: RdmaPort, wide: bool) -> str:
    """Return "400G"; `wide`: "NDR 400" on InfiniBand."""
    rate = short(port.rate_gbps)
    if wide and known(port.link_layer, "") == "InfiniBand" and not isinstance(port.rate_text, Unknown):
        return f"{port.rate_text.split()[-1] if port.rate_text else ''} {rate}".strip()
    return f"{rate}G"


def nic_line(
    device: RdmaDevice,
    port: RdmaPort | None,
    label: str,
    live: LiveFigures,
    tone: Tone,
    detail: Detail,
    role: NicRole | None = None,
    word: Run = NOTHING,
) -> Line:
    """Return "mlx5_0 400G ↑372  93% ↓371  93%"; arrows are RDMA traffic sent and received in Gb/s.

    `word`: what is wrong, " slow"; where room is short it replaces the shares of the line rate.
    """
    if port is None:
        return _line(device.name, (label, tone), (" no port", Tone.WARNING))
    figures, trouble, words = "", NOTHING, ""
    state = port_state(device, port, live)
    if state == ACTIVE:
        figures = f" {port_speed(port, detail >= Detail.FULL)}"
        rate = live.ports.get((device.name, port.number))
        if rate is not None:
            rdma, unit = (" RDMA", " Gb/s") if detail >= Detail.UNITS else ("", "")
            sent, received = f"↑{short(rate.sent_gbps):>3}", f"↓{short(rate.received_gbps):>3}"
            if detail >= Detail.FULL or (detail >= Detail.USUAL and not word.text):
                sent += f" {share(rate.sent_gbps, port.rate_gbps):>4}"
                received += f" {share(rate.received_gbps, port.rate_gbps):>4}"
            figures += f"{rdma} {sent} {received}{unit}"
        trouble = word
    elif state == UNKNOWN_MARK:
        trouble = Run(" state ?", Tone.WARNING)
    else:
        # The physical state is read with the whole node only: next to a newer state it would be stale.
        physical = known(port.physical_state, "") if state == known(port.state, "") else ""
        trouble = Run(f" {state}{f' ({physical})' if physical else ''}", Tone.BAD)
    if detail >= Detail.USUAL and role is not None:
        kind = role.role.value if detail >= Detail.FULL else _ROLE_WORDS.get(role.role, "")
        words = f" {kind}" if kind else ""
    if detail >= Detail.FULL:
        netdev = known(port.netdev, "")
        words += f"  {known(device.bdf, '')}{f' {netdev}' if netdev else ''}"
    return _line(
        device.name, (label, tone), (figures, Tone.PLAIN), (trouble.text, trouble.tone), (words, Tone.DIM)
    )


class EndpointLines(Mapping[str, list[Line]]):
    """The lines of each endpoint by its id: one, or one a port for a NIC with several ports.

    They are made when they are asked for: of 512 endpoints, few are visible.
    """

    def __init__(
        self, node: Node, topology: Topology, live: LiveFigures, highlights: Highlights, detail: Detail
    ) -> None:
        gpus = node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ()
        rdma = node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ()
        self._gpus = {gpu.bdf: gpu for gpu in gpus}
        self._silent = silent_gpus(gpus, live)
        self._devices = {device.name: device for device in rdma}
        self._names = node.pci.names if isinstance(node.pci, PciFacts) else {}
        self._with_model = detail >= Detail.UNITS or not common_model(node)
        self.topology, self.highlights = topology, highlights
        self._live, self._detail = live, detail
        self._gpu_ends = {end.id: end for end in topology.gpus}
        self._nic_ends = {end.id: end for end in topology.nics}
        self._gpu_cells = max((len(end.label) for end in topology.gpus), default=0)
        self._nic_cells = max((len(end.label) for end in topology.nics), default=0)
        self._made: dict[str, list[Line]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter({**self._gpu_ends, **self._nic_ends})

    def __len__(self) -> int:
        return len(self._gpu_ends) + len(self._nic_ends)

    def __getitem__(self, end: str) -> list[Line]:
        made = self._made.get(end)
        if made is None:
            gpu = self._gpu_ends.get(end)
            made = [self._of_gpu(gpu)] if gpu is not None else self._of_nic(self._nic_ends[end])
            mark = self.highlights.mark(end)
            if mark is None and end in self._silent:
                mark = Run("✗", Tone.BAD)
            if mark is not None:
                made[0] = _marked(made[0], mark._replace(id=end))
            self._made[end] = made
        return made

    def count(self, end: str) -> int:
        """Return how many lines an endpoint has, without making them."""
        device = self._devices.get(end)
        return 1 if device is None or end in self._gpu_ends else max(1, len(device.ports))

    def _of_gpu(self, end: Endpoint) -> Line:
        tone, label = self.highlights.tone(end.id, Tone.GPU), f"{end.label:<{self._gpu_cells}}"
        gpu = self._gpus.get(end.id)
        if gpu is None:
            return _line(end.id, (label, tone), (" GPU", Tone.PLAIN))
        word = self.highlights.word(end.id)
        if end.id in self._silent:
            return _line(end.id, (label, tone), (" does not respond", Tone.BAD))
        return gpu_line(gpu, label, self._live, tone, self._detail, self._with_model, word)

    def _of_nic(self, end: Endpoint) -> list[Line]:
        tone, device = self.highlights.tone(end.id, Tone.NIC), self._devices.get(end.id)
        if device is None:
            # No driver is loaded that claims it.
            text = f" {self._names[end.id]}" if self._names.get(end.id) else ""
            no_device = (" no RDMA device", Tone.WARNING)
            return [_line(end.id, (end.label, tone), (text, Tone.PLAIN), no_device)]
        role, word = self.highlights.roles.get(end.id), self.highlights.word(end.id)
        lines = []
        for port in device.ports or (None,):
            label = f"{end.label:<{self._nic_cells}}"
            if port is not None and len(device.ports) > 1:
                label = f"{end.label}/{port.number}"
            lines.append(nic_line(device, port, label, self._live, tone, self._detail, role, word))
        return lines


def _marked(line: Line, mark: Run) -> Line:
    """Return the line with a mark in place of the space behind its name, so that nothing moves."""
    name, *rest = line
    if rest and rest[0].text.startswith(" "):
        rest[0] = rest[0]._replace(text=rest[0].text[1:])
    return (name, mark, *rest)
