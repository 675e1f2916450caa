"""What the keys have selected: a GPU or NIC with its partner, a finding; and the filter."""

from __future__ import annotations

from collections.abc import Collection

from probes.base.unknown import known
from probes.topology.paths import Path, Topology
from tui.screens.overview.readings import Readings
from widgets.node.endpoint_lines import model
from widgets.node.matrix import ends_of


class Selection:
    """The selected endpoint with its partner, the selected finding, and the word of the filter."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self.end = ""  # an endpoint's id; "": none
        self._partner = 0
        self.finding = ""
        self.is_on_findings = False  # their panel is focused
        self.marked: Collection[str] = ()  # endpoints that findings are about
        self.word = ""

    @property
    def all_ends(self) -> list[str]:
        """The ids of all GPUs and NICs."""
        topology = self._readings.topology
        return [] if topology is None else [end.id for end in (*topology.gpus, *topology.nics)]

    @property
    def key(self) -> tuple[object, ...]:
        """What is selected, to see whether something else is."""
        return self.end, self._partner, self.finding, self.is_on_findings

    def select_end(self, id: str) -> None:  # noqa: A002 - a run's own word
        """Select an endpoint with its nearest partner, or both of a cell of the matrix."""
        topology, (end, partner) = self._readings.topology, ends_of(id)
        if topology is not None and end in self.all_ends:
            self.end, partners = end, self._partners(topology, end)
            self._partner = partners.index(partner) if partner in partners else 0

    def next_partner(self, step: int) -> None:
        """Select another partner of the selected endpoint; they are in order of distance."""
        self._partner += step

    def clear(self) -> None:
        """Select nothing."""
        self.end = self.finding = ""

    def keep_existing(self) -> None:
        """Clear the selection if its endpoint is gone."""
        if self.end not in self.all_ends:
            self.end = ""

    def path(self, detours: frozenset[tuple[str, str]]) -> Path | None:
        """Return the path of the selection, else the first detour, else that of a marked GPU or NIC.

        Each GPU counts with its best NIC; without any mark it is the first GPU.
        """
        topology = self._readings.topology
        if topology is None:
            return None
        partners = self._partners(topology, self.end) if self.end else []
        if partners:
            return topology.path(self.end, partners[self._partner % len(partners)])
        pairs = [(gpu.id, nic) for gpu in topology.gpus for nic in topology.best_nics.get(gpu.id, ())[:1]]
        ends = {end.id for end in (*topology.gpus, *topology.nics) if end.id in self.marked}
        marked = [pair for pair in pairs if not ends.isdisjoint(pair)]
        first = next((pair for pair in pairs if pair in detours), next(iter((*marked, *pairs)), None))
        return None if first is None else topology.path(*first)

    def _partners(self, topology: Topology, end: str) -> list[str]:
        """Return what an endpoint can pair with, nearest first."""
        if end in topology.best_nics:
            return list(topology.best_nics[end])
        ranks = {gpu: nics.index(end) for gpu, nics in topology.best_nics.items() if end in nics}
        return sorted(ranks, key=ranks.__getitem__)

    def pair(self, detours: frozenset[tuple[str, str]]) -> tuple[str, str]:
        """Return the selected GPU's and NIC's ids, with the partner; "" for what is not selected."""
        topology, path = self._readings.topology, self.path(detours)
        if topology is None or not self.end:
            return "", ""
        ends = {self.end} if path is None else {path.a, path.b}
        gpu = next((gpu.id for gpu in topology.gpus if gpu.id in ends), "")
        return gpu, next((nic.id for nic in topology.nics if nic.id in ends), "")

    def matching(self) -> frozenset[str] | None:
        """Return the endpoints that match the filter; None without a filter.

        The word is searched in their name, model, address, network interface and role.
        """
        readings = self._readings
        if not self.word or readings.topology is None:
            return None
        ends = (*readings.topology.gpus, *readings.topology.nics)
        words = {end.id: [end.label, known(end.bdf, "")] for end in ends}
        for gpu in readings.gpus:
            words.setdefault(gpu.bdf, []).extend((gpu.name, model(gpu.name)))
        for device in readings.devices.values():
            of_device = words.setdefault(device.name, [])
            for port in device.ports:
                of_device.extend((known(port.netdev, ""), known(port.link_layer, "")))
            if device.name in readings.roles:
                of_device.append(readings.roles[device.name].role.value)
        return frozenset(end for end, texts in words.items() if self.word in " ".join(texts).lower())


def stepped(order: list[str], selected: str, step: int, wraps: bool) -> str:
    """Return the entry `step` further; from none, the first is next and the last is before."""
    before = -1 if step > 0 else len(order)
    at = (order.index(selected) if selected in order else before) + step
    return order[at % len(order) if wraps else max(0, min(len(order) - 1, at))]
