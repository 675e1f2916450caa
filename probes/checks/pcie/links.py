"""PCIe links: what both ends support, and what they run at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from probes.bandwidth.model.gains import gains_of_links
from probes.base.evidence import LIKE_THESE, Evidence, Severity, first_distinct
from probes.base.frozen import frozen
from probes.base.plan import Plan
from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known
from probes.facts.kernel.log import LogKind
from probes.facts.pci.functions import (
    DEVICES,
    PciFunction,
    PciKind,
    PciLink,
    capacity,
    generation,
    most_of,
    now_of,
    words,
)
from probes.host.nvml import NvmlLive
from probes.plans.common import reboot_plan
from probes.queries.finding import Area, Outcome, found, passed
from probes.queries.kernel_log import with_messages
from probes.queries.pcie_paths import (
    OUT_OF_SERVICE,
    Tally,
    functions_of,
    gpus_and_nics,
    is_gb10,
    is_grace,
    near_paths,
    need_read,
    unknown_devices,
)
from probes.snapshot.examination import Examination
from probes.topology.endpoints import port_gbps

AREA = Area("pcie", __package__, requires=(unknown_devices,))

LOAD_PERCENT = 10  # a GPU with this load runs its link at full speed
_SPARK_LANES = 4
_SPEED, _WIDTH = 0, 1  # places of both in what a link runs at
_RESEAT = reboot_plan(
    "Find what limits the link",
    "Look for PCIe errors of these devices (aer_dev_correctable) and in the BMC's log.",
    "With the power off, reseat the card, its riser and cables. Swap them with good ones.",
    "In the BIOS, check the slot's bifurcation and its link speed limit.",
    disturbs=OUT_OF_SERVICE,
)


def _better_slot(step: str) -> Plan:
    return reboot_plan("Use a better slot", step, disturbs=OUT_OF_SERVICE)


@frozen
class _Link:
    """A link, by the function at its lower end."""

    lower: PciFunction
    upper: PciFunction | None

    @property
    def source(self) -> str:
        return f"{DEVICES}/{self.lower.bdf}"

    @property
    def ends(self) -> tuple[PciLink, PciLink | None]:
        return self.lower.link, None if self.upper is None else self.upper.link

    @property
    def now(self) -> tuple[Maybe[float], Maybe[float]]:
        """The current speed and width; either end shows them."""
        return now_of(*self.ends, idles=False)

    @property
    def best(self) -> tuple[Maybe[float], Maybe[float]]:
        """The speed and width that both ends support."""
        return most_of(*self.ends)


def _links(examination: Examination) -> list[_Link]:
    """Return every link above a GPU or NIC; there is none inside a switch."""
    functions = functions_of(examination)
    links: dict[str, _Link] = {}
    grace = is_grace(examination)
    direct = {end.id: end.data_direct for end in examination.topology.nics if end.data_direct}
    by_pcie = {path.a for path in near_paths(examination) if path.b in direct}
    dma = [functions[bdf] for bdf in direct.values()]
    for function in (*gpus_and_nics(examination).values(), *dma):
        if function.physical_function is not None:
            continue  # a virtual function has no link of its own
        if grace and function.kind is PciKind.GPU and function.bdf not in by_pcie:
            continue  # its data uses C2C, so its PCIe link does not matter
        for place, bdf in enumerate(function.chain):
            lower = functions.get(bdf)
            if lower is None or (place == 0 and len(function.chain) > 1):
                continue
            upper = functions.get(function.chain[place - 1]) if place else None
            if lower.kind is PciKind.BRIDGE and place % 2 == 0:
                continue  # a downstream port: above it is the inside of its switch
            links[bdf] = _Link(lower, upper)
    return list(links.values())


def _with_gains(
    examination: Examination, outcome: Outcome, links: Iterable[_Link], best: Callable[[_Link], Maybe[float]]
) -> Outcome:
    """Add what the links that were found bring at their best; of a link whose best is unknown, nothing."""
    found_links = {link.lower.bdf: best(link) for link in links if link.lower.bdf in outcome.devices}
    gbps = {bdf: value for bdf, value in found_links.items() if not isinstance(value, Unknown)}
    return replace(outcome, gains=gains_of_links(examination, gbps)) if gbps else outcome


def _capacity(link: _Link) -> Maybe[float]:
    return capacity(*link.ends)


def _own_capacity(link: _Link) -> Maybe[float]:
    """Return what the link carries in a slot that supports all that the card does."""
    return capacity(link.lower.link, None)


def _unknown_of(link: _Link, fact: Unknown) -> list[Unknown]:
    """Return an unknown fact; none for a function on the root bus, which has no link."""
    return [] if link.upper is None else [fact]


def _name(examination: Examination, function: PciFunction) -> str:
    other = "switch" if function.kind is PciKind.BRIDGE else function.bdf
    return examination.topology.labels.get(function.bdf, other)


def _compared(examination: Examination, links: Sequence[_Link], place: int, cause: str, good: str) -> Outcome:
    """Compare the speed or the width of each link with what both ends support."""
    file, unit = ("current_link_speed", " GT/s") if place == _SPEED else ("current_link_width", "")
    tally = Tally()
    fine = 0
    for link in links:
        now, best = link.now[place], link.best[place]
        if isinstance(now, Unknown):
            tally.unknowns.extend(_unknown_of(link, now))
        elif isinstance(best, Unknown):
            tally.unknowns.extend(_unknown_of(link, best))
        elif now >= best:
            fine += 1
        else:
            shown = f"{now:g} of {best:g}{unit}: {_name(examination, link.lower)}"
            tally.fault(Evidence(f"{link.source}/{file}", shown), link.lower.bdf)
    evidence = Evidence(f"{DEVICES}/*/{file}", f"{plural(fine, 'link')} {good}")
    outcome = tally.outcome(cause, evidence, _RESEAT)
    outcome = _with_gains(examination, outcome, links, _capacity)
    return with_messages(examination, outcome, LogKind.PCIE_BANDWIDTH, LogKind.AER)


@AREA.warning("pcie-link-degraded-width", data_path=True, part_of=("spark-pcie-lanes",))
def pcie_link_degraded_width(examination: Examination) -> Outcome:
    """Compare lanes in use with those that both ends have, of every link on the path to a GPU or NIC."""
    return _compared(
        examination,
        _links(examination),
        _WIDTH,
        "The link lost lanes during training. Common reasons are a loose card, riser or cable.",
        "with all lanes",
    )


@AREA.warning("pcie-link-degraded-speed", data_path=True)
def pcie_link_degraded_speed(examination: Examination) -> Outcome:
    """Compare the speed with what both ends support; not of GPUs, whose links slow down when idle."""
    return _compared(
        examination,
        [link for link in _links(examination) if link.lower.kind is not PciKind.GPU],
        _SPEED,
        "The link fell back to a lower speed during training. Common reasons are a weak signal, riser or "
        "retimer.",
        "at the full speed of both ends",
    )


@AREA.warning("pcie-link-degraded-gpu-speed", data_path=True)
def pcie_link_degraded_gpu_speed(examination: Examination) -> Outcome:
    """Check the link of each busy GPU; an idle GPU at 2.5 GT/s is no fault."""
    live = examination.reading.gpus
    tally = Tally()
    idle = judged = 0
    links = [link for link in _links(examination) if link.lower.kind is PciKind.GPU]
    for link in links:
        now, best = link.now[_SPEED], link.best[_SPEED]
        reading = live if isinstance(live, Unknown) else live.get(link.lower.bdf)
        if isinstance(best, Unknown):
            tally.unknowns.extend(_unknown_of(link, best))
            continue
        number = generation(best)
        if number is None:
            continue
        judged += 1
        running = _generation_now(reading, now)
        if isinstance(running, Unknown):
            tally.unknowns.append(running)
        elif running < number:
            load = _load(reading)
            if isinstance(load, Unknown):
                name = _name(examination, link.lower)
                detail = f"the link of {name} is slow, but the GPU may be idle: load unknown ({load})"
                tally.unknowns.append(Unknown(load.reason, f"{link.source}/current_link_speed", detail))
            elif load < LOAD_PERCENT:
                idle += 1
            else:
                source = f"nvidia-smi -q -i {link.lower.bdf} -d UTILIZATION"
                text = f"{_name(examination, link.lower)}: Gen{running} of Gen{number} at {load} % load"
                tally.fault(Evidence(source, text), link.lower.bdf)
    good = f"{plural(judged - idle, 'GPU')} at full speed"
    if idle:
        good += f", {idle} idle at a lower speed to save power (judged under load only)"
    return tally.outcome(
        "A busy GPU raises its link to full speed; this one did not.",
        Evidence(f"{DEVICES}/*/current_link_speed", good),
        _RESEAT,
    )


def _load(reading: NvmlLive | Unknown | None) -> Maybe[int]:
    if reading is None:
        return Unknown(Reason.NOT_THERE, "NVML", "no reading of this GPU")
    return reading if isinstance(reading, Unknown) else reading.utilization_percent


def _generation_now(reading: NvmlLive | Unknown | None, speed: Maybe[float]) -> Maybe[int]:
    """Return NVML's generation, read at the same moment as the load; else the one from sysfs."""
    if isinstance(reading, NvmlLive) and not isinstance(reading.link_generation, Unknown):
        return reading.link_generation
    if isinstance(speed, Unknown):
        return speed
    return generation(speed) or Unknown(Reason.MALFORMED, "current_link_speed", f"{speed:g} GT/s")


@AREA.warning("spark-pcie-lanes", data_path=True)
def spark_pcie_lanes(examination: Examination) -> Outcome:
    """Compare the lanes of each NIC of a GB10 node with four, whatever both ends support."""
    if not is_gb10(examination):
        return passed(Evidence("nvidia-smi -L", "no GB10 GPU"))
    tally = Tally()
    for link in _links(examination):
        lanes = link.now[_WIDTH]
        if link.lower.kind is not PciKind.NIC:
            continue
        if isinstance(lanes, Unknown):
            tally.unknowns.extend(_unknown_of(link, lanes))
        elif lanes < _SPARK_LANES:
            text = f"{_name(examination, link.lower)}: x{lanes:g} instead of x{_SPARK_LANES}"
            tally.fault(Evidence(f"{link.source}/current_link_width", text), link.lower.bdf)
    return tally.outcome(
        "A BIOS from before April 2026 gives one of the two PCIe links of the ConnectX-7 only two lanes.",
        Evidence(f"{DEVICES}/*/current_link_width", f"x{_SPARK_LANES} on every NIC"),
    )


@AREA.note("pcie-link-limited-by-slot", part_of=("spark-pcie-lanes",))
def pcie_link_limited_by_slot(examination: Examination) -> Outcome:
    """Compare the speed and width that a card supports with those of the port above it."""
    tally = Tally()
    links = [link for link in _links(examination) if link.lower.kind is not PciKind.BRIDGE and link.upper]
    for link in links:
        own = (link.lower.link.max_speed_gtps, link.lower.link.max_width)
        both = link.best
        facts = [fact for fact in (*own, *both) if isinstance(fact, Unknown)]
        if facts:
            tally.unknowns.extend(_unknown_of(link, facts[0]))
            continue
        if own != both:
            assert link.upper is not None
            text = f"{_name(examination, link.lower)} supports {words(*own)}, its slot {words(*both)}"
            tally.fault(Evidence(f"{DEVICES}/{link.upper.bdf}/max_link_speed", text), link.lower.bdf)
    good = f"{plural(len(links), 'card')} in slots that match their speed and width"
    outcome = tally.outcome(
        "The slot, riser or switch port above the card has fewer lanes or a lower speed.",
        Evidence(f"{DEVICES}/*/max_link_speed", good),
        _better_slot("Move the card to a slot that supports its full link, or raise the limit in the BIOS."),
    )
    outcome = _with_gains(examination, outcome, links, _own_capacity)
    return with_messages(examination, outcome, LogKind.PCIE_BANDWIDTH)


@AREA.warning("pcie-link-below-port-rate", data_path=True)
def pcie_link_below_port_rate(examination: Examination) -> Outcome:
    """Compare the capacity of a NIC's link with the rate of its fastest port."""
    if is_there(examination.node.rdma) is False:
        return passed(Evidence("/sys/class/infiniband", "no RDMA device"))
    rdma = need_read(examination.node.rdma)
    tally = Tally()
    links = {link.lower.bdf: link for link in _links(examination)}
    ends = examination.topology.nic_ends
    for device in rdma.devices:
        link = links.get(ends.get(device.name, known(device.bdf, "")))
        if link is None:
            continue
        carries, rate = _capacity(link), port_gbps(device)
        if not isinstance(carries, Unknown) and 0 < carries < rate:
            text = f"{device.name}: {words(*link.best)} supports {carries:.0f} Gb/s, the port {rate:g}"
            tally.fault(Evidence(f"{link.source}/max_link_width", text), device.name, link.lower.bdf)
    if tally.faults and is_gb10(examination):
        return found(
            "By design. DGX Spark attaches its ConnectX-7 via two Gen5 x4 links, and each function uses one.",
            *first_distinct(tally.faults, LIKE_THESE),
            severity=Severity.NOTE,
            devices=tuple(tally.devices),
            impact="A port reaches its rate only if traffic uses a function on each link.",
            data_path=False,
        )
    outcome = tally.outcome(
        "Even at full speed, the NIC's slot supports a lower rate than the port.",
        Evidence("/sys/class/infiniband/*/ports/*/rate", "no port is faster than its NIC's PCIe link"),
        _better_slot("Move the NIC to a slot with more lanes or a higher speed."),
    )
    return _with_gains(examination, outcome, links.values(), _own_capacity)
