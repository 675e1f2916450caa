"""PCIe links: what both ends can do, and what they run at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from probes.checks.finding import Area, Evidence, Outcome, Severity, passed
from probes.checks.pcie_paths import DEVICES, ends, functions_of, is_grace, judged, labels, unread
from probes.examination import Examination
from probes.link_speed import capacity, generation, most_of, words
from probes.nvml import NvmlLive
from probes.pci import PciFunction, PciKind
from probes.plan import Plan, instruction
from probes.topology import port_gbps
from probes.unknown import Maybe, Reason, Unknown, known

AREA = Area("pcie")

LOAD_PERCENT = 10  # from here on a GPU's link is at its full speed
_ABI = "Linux drivers/pci/pci-sysfs.c, current_link_speed and current_link_width"
_RESEAT = Plan(
    "Find what holds the link back",
    (
        instruction("look for PCIe errors of these devices (aer_dev_correctable) and in the BMC's log"),
        instruction(
            "with the power off, seat the card, its riser and cables anew; swap them with a good one"
        ),
        instruction("in the BIOS, look for the slot's bifurcation and a limit of its link speed"),
    ),
    needs_reboot=True,
    disturbs="the node has to be taken out of service",
)


@dataclass(frozen=True)
class _Link:
    """A link, by the function at its lower end."""

    lower: PciFunction
    upper: PciFunction | None

    @property
    def source(self) -> str:
        return f"{DEVICES}/{self.lower.bdf}"

    @property
    def speed(self) -> Maybe[float]:
        """Now; either end tells it."""
        now = self.lower.link.speed_gtps
        return now if self.upper is None or not isinstance(now, Unknown) else self.upper.link.speed_gtps

    @property
    def width(self) -> Maybe[int]:
        now = self.lower.link.width
        return now if self.upper is None or not isinstance(now, Unknown) else self.upper.link.width

    @property
    def best(self) -> tuple[Maybe[float], Maybe[float]]:
        """What both ends can do."""
        return most_of(self.lower.link, None if self.upper is None else self.upper.link)


def _links(examination: Examination) -> list[_Link]:
    """Every link above a GPU or NIC; inside a switch there is none."""
    functions = functions_of(examination)
    links: dict[str, _Link] = {}
    grace = is_grace(examination)
    for end in ends(examination).values():
        if end.physical_function is not None:
            continue  # a virtual function has no link of its own
        if grace and end.kind is PciKind.GPU:
            continue  # its data goes over C2C, whatever its PCIe link runs at
        for place, bdf in enumerate(end.chain):
            lower = functions.get(bdf)
            if lower is None or (place == 0 and len(end.chain) > 1):
                continue
            upper = functions.get(end.chain[place - 1]) if place else None
            if lower.kind is PciKind.BRIDGE and place % 2 == 0:
                continue  # a downstream port: what is above it is the inside of its switch
            links[bdf] = _Link(lower, upper)
    return list(links.values())


def _untold(link: _Link, fact: Unknown) -> list[Unknown]:
    """A link that does not tell; a function on the root bus has none (integrated, or in a guest)."""
    return [] if link.upper is None else [fact]


def _name(examination: Examination, one: PciFunction) -> str:
    return labels(examination).get(one.bdf, "switch" if one.kind is PciKind.BRIDGE else one.bdf)


def _compared(
    examination: Examination,
    links: Iterable[_Link],
    file: str,
    of: Callable[[_Link], tuple[Maybe[float], Maybe[float]]],
    unit: str,
    cause: str,
    good: str,
) -> Outcome:
    """What each link runs at and what both its ends can do, as `of` tells them, in a file of sysfs."""
    bad: list[Evidence] = []
    devices: list[str] = []
    unknown: list[Unknown] = []
    told = 0
    for link in links:
        now, best = of(link)
        if isinstance(now, Unknown):
            unknown.extend(_untold(link, now))
        elif isinstance(best, Unknown):
            unknown.extend(_untold(link, best))
        elif now >= best:
            told += 1
        else:
            shown = f"{now:g} of {best:g}{unit}: {_name(examination, link.lower)}"
            bad.append(Evidence(f"{link.source}/{file}", shown))
            devices.append(link.lower.bdf)
    fine = Evidence(f"{DEVICES}/*/{file}", f"{told} links {good}")
    return judged(cause, bad, unknown, fine, _RESEAT, devices)


@AREA.check(
    "pcie-link-degraded-width",
    Severity.WARNING,
    "a PCIe link runs with fewer lanes than both ends have",
    _ABI,
)
def pcie_link_degraded_width(examination: Examination) -> Outcome:
    """Lanes in use against those that both ends have, of every link on the way to a GPU or NIC."""
    return _compared(
        examination,
        _links(examination),
        "current_link_width",
        lambda link: (link.width, link.best[1]),
        "",
        "lanes were lost when the link was trained: bandwidth falls with them, and the whole job waits for "
        "the slowest",
        "have all their lanes",
    )


@AREA.check(
    "pcie-link-degraded-speed",
    Severity.WARNING,
    "a NIC's or a switch's PCIe link runs slower than both ends can",
    _ABI,
)
def pcie_link_degraded_speed(examination: Examination) -> Outcome:
    """Speed now against what both ends can do, of every link but the GPUs', which slow down when idle."""
    return _compared(
        examination,
        [link for link in _links(examination) if link.lower.kind is not PciKind.GPU],
        "current_link_speed",
        lambda link: (link.speed, link.best[0]),
        " GT/s",
        "the link fell back to a lower speed when it was trained: its bandwidth is halved at each step",
        "run as fast as both ends can",
    )


@AREA.check(
    "pcie-link-degraded-gpu-speed",
    Severity.WARNING,
    "a GPU's PCIe link stays slow under load",
    "NVIDIA System Management Interface, nvidia-smi -q, GPU Link Info: the generation falls "
    "when the GPU is idle",
)
def pcie_link_degraded_gpu_speed(examination: Examination) -> Outcome:
    """The link of each GPU that works now; an idle one at 2.5 GT/s is no fault."""
    live = examination.reading.gpus
    bad: list[Evidence] = []
    devices: list[str] = []
    unknown: list[Unknown] = []
    idle = seen = 0
    links = [link for link in _links(examination) if link.lower.kind is PciKind.GPU]
    for link in links:
        now, best = link.speed, link.best[0]
        reading = live if isinstance(live, Unknown) else live.get(link.lower.bdf)
        if isinstance(best, Unknown):
            unknown.extend(_untold(link, best))
            continue
        number = generation(best)
        if number is None:
            continue
        seen += 1
        running = _generation_now(reading, now)
        if isinstance(running, Unknown):
            unknown.append(running)
        elif running < number:
            load = _load(reading)
            if isinstance(load, Unknown):
                told = (
                    f"{_name(examination, link.lower)} is slow, and whether it is idle is not known: {load}"
                )
                unknown.append(Unknown(load.reason, f"{link.source}/current_link_speed", told))
            elif load < LOAD_PERCENT:
                idle += 1
            else:
                bad.append(
                    Evidence(
                        f"nvidia-smi -q -i {link.lower.bdf} -d UTILIZATION",
                        f"{_name(examination, link.lower)}: Gen{running} of Gen{number} at {load} % load",
                    )
                )
                devices.append(link.lower.bdf)
    good = f"{seen - idle} GPUs at full speed"
    if idle:
        good += f", {idle} idle at a lower one, which is how they save power: judged under load only"
    return judged(
        "a GPU that works brings its link up to full speed; this one did not",
        bad,
        unknown,
        Evidence(f"{DEVICES}/*/current_link_speed", good),
        _RESEAT,
        devices,
    )


def _load(reading: NvmlLive | Unknown | None) -> Maybe[int]:
    if reading is None:
        return Unknown(Reason.NOT_THERE, "NVML", "no reading of this GPU")
    return reading if isinstance(reading, Unknown) else reading.utilisation_percent


def _generation_now(reading: NvmlLive | Unknown | None, speed: Maybe[float]) -> Maybe[int]:
    """NVML's, of the same moment as the load; else sysfs's."""
    if isinstance(reading, NvmlLive) and not isinstance(reading.link_generation, Unknown):
        return reading.link_generation
    if isinstance(speed, Unknown):
        return speed
    return generation(speed) or Unknown(Reason.MALFORMED, "current_link_speed", f"{speed:g} GT/s")


@AREA.check(
    "pcie-link-limited-by-slot",
    Severity.NOTE,
    "a GPU or NIC sits in a slot with fewer lanes or a lower speed than its own",
    _ABI.replace("current", "max"),
)
def pcie_link_limited_by_slot(examination: Examination) -> Outcome:
    """What a card can do against what the port above it can."""
    bad: list[Evidence] = []
    devices: list[str] = []
    unknown: list[Unknown] = []
    links = [link for link in _links(examination) if link.lower.kind is not PciKind.BRIDGE and link.upper]
    for link in links:
        own = (link.lower.link.max_speed_gtps, link.lower.link.max_width)
        both = link.best
        facts = [fact for fact in (*own, *both) if isinstance(fact, Unknown)]
        if facts:
            unknown.extend(_untold(link, facts[0]))
            continue
        if own != both:
            assert link.upper is not None
            bad.append(
                Evidence(
                    f"{DEVICES}/{link.upper.bdf}/max_link_speed",
                    f"{_name(examination, link.lower)} can do {words(*own)}, its slot {words(*both)}",
                )
            )
            devices.append(link.lower.bdf)
    return judged(
        "the card could do more than the slot, riser or switch port above it",
        bad,
        unknown,
        Evidence(f"{DEVICES}/*/max_link_speed", f"{len(links)} cards have a slot that can do what they can"),
        Plan(
            "Use a better slot",
            (instruction("move the card to a slot that can do as much, or look for a limit in the BIOS"),),
            needs_reboot=True,
            disturbs="the node has to be taken out of service",
        ),
        devices,
    )


@AREA.check(
    "pcie-link-below-port-rate",
    Severity.WARNING,
    "a NIC's PCIe link cannot carry the rate of its port",
    "PCI Express Base Specification, link data rates; Linux "
    "Documentation/ABI/stable/sysfs-class-infiniband, rate",
)
def pcie_link_below_port_rate(examination: Examination) -> Outcome:
    """What a NIC's link carries at its best against the rate of its fastest port."""
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown):
        if rdma.reason is Reason.NOT_THERE:
            return passed(Evidence("/sys/class/infiniband", "no RDMA device here"))
        return unread([rdma])
    bad: list[Evidence] = []
    devices: list[str] = []
    links = {link.lower.bdf: link for link in _links(examination)}
    for device in rdma.devices:
        link = links.get(known(device.bdf, ""))
        if link is None:
            continue
        upper = None if link.upper is None else link.upper.link
        carries, rate = capacity(link.lower.link, upper), port_gbps(device)
        if not isinstance(carries, Unknown) and 0 < carries < rate:
            bad.append(
                Evidence(
                    f"{link.source}/max_link_width",
                    f"{device.name}: {words(*link.best)} carries {carries:.0f} Gb/s, the port {rate:g}",
                )
            )
            devices.extend((device.name, link.lower.bdf))
    return judged(
        "even at its best the link is the narrower part: the port never reaches its rate",
        bad,
        [],
        Evidence("/sys/class/infiniband/*/ports/*/rate", "no port is faster than its NIC's PCIe link"),
        Plan(
            "Use a better slot",
            (instruction("move the NIC to a slot with more lanes or a higher speed"),),
            needs_reboot=True,
            disturbs="the node has to be taken out of service",
        ),
        devices,
    )
