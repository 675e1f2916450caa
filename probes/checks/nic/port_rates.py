"""Checks of RDMA ports' rate."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction
from probes.base.unknown import Unknown, known
from probes.checks.nic.bonds import lost_members
from probes.plans.common import REBOOT_ENDS_JOBS
from probes.queries.evidence_list import first_n
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, need, passed
from probes.queries.ports import NO_PORTS, Port, by_board, devices_of, need_ports, port_names
from probes.snapshot.examination import Examination

AREA = Area("nic")


@AREA.check(
    "rate-shown-as-sdr",
    Severity.NOTE,
    "The kernel reports a link's speed wrongly, as SDR",
    "Linux, drivers/infiniband/core/sysfs.c, rate_show",
    ok="The kernel knows the speed of every link",
    impact="The link is not slow, but tools show 10 Gb/s, and NCCL may rely on that figure.",
)
def rate_shown_as_sdr(examination: Examination) -> Outcome:
    """Find active InfiniBand ports of ConnectX-6 or later that show SDR."""
    ports = need_ports(examination)
    active = [port for port in ports if port.is_active and not port.is_ethernet]
    chosen = [port for port in active if _shows_sdr(port)]
    if chosen:
        return found(
            f"{port_names(chosen)}: this kernel is older than the link's speed and prints unknown speeds as "
            "SDR. The cable is fine.",
            *first_n(_rate(port) for port in chosen),
            fix=Plan(
                "Use a kernel or OFED that supports the speed",
                (instruction("Install a newer kernel or OFED/DOCA. mlxlink -d BDF shows the true speed."),),
                needs_reboot=True,
                disturbs=REBOOT_ENDS_JOBS,
            ),
            devices=devices_of(chosen),
        )
    for port in active:
        need(port.facts.rate_text, "the port rates")
    return passed(*first_n(_rate(port) for port in active) or (NO_PORTS,))


# ConnectX-6 and later, BlueField-2 and -3: the number of hca_type (pci.ids, "MT28908 …" is device 0x101b).
_SINCE_CONNECTX6 = range(4123, 4200)
_BLUEFIELDS = range(41682, 41700)


def _shows_sdr(port: Port) -> bool:
    number = known(port.device.hca_type, "").removeprefix("MT")
    modern = number.isascii() and number.isdecimal() and len(number) < 6
    return (
        modern
        and (int(number) in _SINCE_CONNECTX6 or int(number) in _BLUEFIELDS)
        and known(port.facts.rate_text, "") == "4X SDR"
    )


def _is_one_lane(port: Port) -> bool:
    return port.facts.link_layer == "InfiniBand" and known(port.facts.rate_text, "").startswith("1X ")


def _causes(slow: list[Port]) -> tuple[str, ...]:
    """Return the findings that say why these ports are slow."""
    if all(map(_is_one_lane, slow)):
        return ("single-rail-or-half-rate-one-lane",)
    return ("roce-bond-port-down",) if all(lost_members(port.device) for port in slow) else ()


def _lost_rate(slow: list[Port], best: float) -> str:
    lost = best - min(known(port.facts.rate_gbps, best) for port in slow)
    return f"The slowest port loses {lost:g} of {best:g} Gb/s. A job runs at the pace of its slowest port."


def _rate(port: Port) -> Evidence:
    rate = port.facts.rate_gbps
    bond = port.facts.bond
    if bond is not None and not isinstance(rate, Unknown):
        text = f"{rate:g} Gb/sec, over {len(bond.up)} of {len(bond.members)} ports"
        return Evidence(f"/sys/class/net/{bond.netdev}/bonding/slaves", text)
    shown = "unknown" if isinstance(rate, Unknown) else f"{rate:g} Gb/sec ({known(port.facts.rate_text, '')})"
    return Evidence(f"{port.path}/rate", shown)


@AREA.check(
    "single-rail-or-half-rate",
    Severity.WARNING,
    "A port is slower than other ports of the same NIC model",
    "NVIDIA MFT manual, mlxlink, https://docs.nvidia.com/networking/display/mftv4320/mlxlink-utility",
    ok="Ports of the same NIC model run at the same rate",
    impact="A job runs at the pace of its slowest port.",
    data_path=True,
)
def single_rail_or_half_rate(examination: Examination) -> Outcome:
    """Find active ports whose rate is below the fastest of the same board and link layer."""
    ports = need_ports(examination)
    # A speed that the kernel does not know says nothing.
    active = [port for port in ports if port.is_active and not (_shows_sdr(port) and not port.is_ethernet)]
    slow: list[Port] = []
    best = 0.0
    for board in by_board(active).values():
        for layer in {known(port.facts.link_layer, "") for port in board}:
            equals = [port for port in board if port.facts.link_layer == layer]
            fastest = max((known(port.facts.rate_gbps, 0.0) for port in equals), default=0.0)
            slower = [port for port in equals if 0.0 < known(port.facts.rate_gbps, fastest) < fastest]
            slow += slower
            best = max(best, fastest) if slower else best
    if slow:
        return found(
            f"{port_names(slow)}: another port of this NIC model runs at {best:g} Gb/s.",
            *first_n(_rate(port) for port in slow),
            fix=Plan(
                "Find what limits the link",
                (
                    *(
                        Step(
                            f"Show the speeds of both ends of {port.name}", ("mlxlink", "-d", port.device.bdf)
                        )
                        for port in slow[:4]
                        if not isinstance(port.device.bdf, Unknown)
                    ),
                    instruction(
                        "Compare cable, optics and the speed of the switch port with the others", False
                    ),
                ),
            ),
            devices=devices_of(slow),
            impact=_lost_rate(slow, best),
            part_of=_causes(slow),
        )
    for port in active:
        need(port.facts.rate_gbps, "the port rates")
    return passed(*first_n(_rate(port) for port in active) or (NO_PORTS,))


@AREA.check(
    "single-rail-or-half-rate-one-lane",
    Severity.WARNING,
    "An InfiniBand link runs on one lane of four",
    "NVIDIA MFT manual, mlxlink, https://docs.nvidia.com/networking/display/mftv4320/mlxlink-utility",
    ok="No InfiniBand link runs on one lane",
    impact="The port has a quarter of its rate, and a job runs at the pace of its slowest port.",
    data_path=True,
)
def single_rail_or_half_rate_one_lane(examination: Examination) -> Outcome:
    """Find active InfiniBand ports of width 1X; 2X is how split cables run."""
    ports = need_ports(examination)
    active = [port for port in ports if port.is_active and port.facts.link_layer == "InfiniBand"]
    narrow = [port for port in active if _is_one_lane(port)]
    if narrow:
        return found(
            f"{port_names(narrow)}: three of the four lanes are down. The cable, a connector or the optics "
            "are bad.",
            *first_n(_rate(port) for port in narrow),
            fix=Plan(
                "Repair the link",
                (
                    *(
                        Step(f"Show the lanes of {port.name}", ("mlxlink", "-d", port.device.bdf, "-m", "-c"))
                        for port in narrow[:4]
                        if not isinstance(port.device.bdf, Unknown)
                    ),
                    instruction("Clean, reseat or replace cable and optics", False),
                ),
                disturbs="jobs that use this port while the cable is out",
            ),
            devices=devices_of(narrow),
        )
    for port in active:
        need(port.facts.rate_text, "the port rates")
    return passed(*first_n(_rate(port) for port in active) or (NO_PORTS,))
