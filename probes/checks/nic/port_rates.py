"""Checks of RDMA ports' rate, and of bonds under RDMA devices (mlx5 LAG)."""

from __future__ import annotations

from dataclasses import replace

from probes.bandwidth.model.gains import as_fast_as_its_board, gains_of_ports
from probes.base.evidence import Evidence, first_n
from probes.base.plan import Step, user_plan
from probes.base.text import join_limited
from probes.base.unknown import Unknown, known, map_known
from probes.checks.nccl.network import used_devices
from probes.facts.rdma.devices import Bond, BondMember, RdmaDevice, shows_unknown_speed
from probes.queries.finding import Area, Outcome, found, need, passed, unknown
from probes.queries.jobs import QUEUE_PAIRS, RESTARTS, jobs_of, queue_pairs_per_connection
from probes.queries.ports import NO_PORTS, Port, by_board, devices_of, need_devices, need_ports, port_names
from probes.snapshot.examination import Examination

AREA = Area("nic", __package__)
_NO_BOND = Evidence("/sys/class/net/*/bonding", "no RDMA device uses a bond")


@AREA.note("rate-shown-as-sdr")
def rate_shown_as_sdr(examination: Examination) -> Outcome:
    """Find active InfiniBand ports of ConnectX-6 or later that show SDR."""
    active = [port for port in need_ports(examination) if port.is_active and not port.is_ethernet]
    chosen = [port for port in active if _shows_sdr(port)]
    if chosen:
        return found(
            f"{port_names(chosen)}: this kernel is older than the link's speed and prints unknown speeds as "
            "SDR. The cable is fine.",
            *first_n(_rate(port) for port in chosen),
            devices=devices_of(chosen),
        )
    for port in active:
        need(port.facts.rate_text, "the port rates")
    return passed(*first_n(_rate(port) for port in active) or (NO_PORTS,))


def _shows_sdr(port: Port) -> bool:
    return shows_unknown_speed(port.facts.rate_text, port.device.hca_type)


def _with_four_lanes(port: Port) -> Port:
    rate = map_known(port.facts.rate_gbps, lambda gbps: 4 * gbps)
    return replace(port, facts=replace(port.facts, rate_gbps=rate))


def _rate(port: Port) -> Evidence:
    rate = port.facts.rate_gbps
    bond = port.facts.bond
    if bond is not None and not isinstance(rate, Unknown):
        text = f"{rate:g} Gb/sec, over {len(bond.up)} of {len(bond.members)} ports"
        return Evidence(_members_file(bond), text)
    shown = "unknown" if isinstance(rate, Unknown) else f"{rate:g} Gb/sec ({known(port.facts.rate_text, '')})"
    return Evidence(f"{port.path}/rate", shown)


@AREA.warning(
    "single-rail-or-half-rate",
    data_path=True,
    part_of=("single-rail-or-half-rate-one-lane", "roce-bond-port-down"),
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
        lost = best - min(known(port.facts.rate_gbps, best) for port in slow)
        return found(
            f"{port_names(slow)}: another port of this NIC model runs at {best:g} Gb/s.",
            *first_n(_rate(port) for port in slow),
            fix=user_plan(
                "Find what limits the link",
                *(
                    Step(f"Show the speeds of both ends of {port.name}", ("mlxlink", "-d", port.device.bdf))
                    for port in slow[:4]
                    if not isinstance(port.device.bdf, Unknown)
                ),
                "Compare cable, optics and switch port speed with the other ports",
            ),
            devices=devices_of(slow),
            impact=f"The slowest port loses {lost:g} of {best:g} Gb/s. A job runs at the pace of its slowest "
            "port.",
            gains=gains_of_ports(examination, (as_fast_as_its_board(port, active) for port in slow)),
        )
    for port in active:
        need(port.facts.rate_gbps, "the port rates")
    return passed(*first_n(_rate(port) for port in active) or (NO_PORTS,))


@AREA.warning("single-rail-or-half-rate-one-lane", data_path=True)
def single_rail_or_half_rate_one_lane(examination: Examination) -> Outcome:
    """Find active InfiniBand ports of width 1X; 2X is how split cables run."""
    ports = need_ports(examination)
    active = [port for port in ports if port.is_active and port.facts.link_layer == "InfiniBand"]
    narrow = [port for port in active if known(port.facts.rate_text, "").startswith("1X ")]
    if narrow:
        return found(
            f"{port_names(narrow)}: three of the four lanes are down. The cable, a connector or the optics "
            "are bad.",
            *first_n(_rate(port) for port in narrow),
            fix=user_plan(
                "Repair the link",
                *(
                    Step(f"Show the lanes of {port.name}", ("mlxlink", "-d", port.device.bdf, "-m", "-c"))
                    for port in narrow[:4]
                    if not isinstance(port.device.bdf, Unknown)
                ),
                "Clean, reseat or replace the cable and optics",
                disturbs="jobs that use this port while the cable is out",
            ),
            devices=devices_of(narrow),
            gains=gains_of_ports(examination, map(_with_four_lanes, narrow)),
        )
    for port in active:
        need(port.facts.rate_text, "the port rates")
    return passed(*first_n(_rate(port) for port in active) or (NO_PORTS,))


def is_bond(device: RdmaDevice) -> bool:
    """Say whether an RDMA device spans a bond, by its ports or, where those are not visible, by its name."""
    netdevs = [known(port.netdev, "") for port in device.ports]
    is_named = "_bond_" in device.name or any(name.startswith("bond") for name in netdevs)
    return is_named or any(port.bond is not None for port in device.ports)


def _members_file(bond: Bond) -> str:
    return f"/sys/class/net/{bond.netdev}/bonding/slaves"


def lost_members(device: RdmaDevice) -> list[BondMember]:
    """Return the ports of a device's bonds that are known to be down."""
    bonds = [port.bond for port in device.ports if port.bond is not None]
    return [member for bond in bonds for member in bond.members if member not in bond.up]


@AREA.warning("roce-bond-port-down", data_path=True)
def roce_bond_port_down(examination: Examination) -> Outcome:
    """Find bonds with a port whose netdev is not up; the RDMA port does not show it."""
    devices = need_devices(examination)
    broken = {device.name: lost for device in devices if (lost := lost_members(device))}
    if broken:
        members = [member for lost in broken.values() for member in lost]
        netdevs = {name: join_limited(member.netdev for member in lost) for name, lost in broken.items()}
        names = ", ".join(f"{shown} of {name}" for name, shown in netdevs.items())
        return found(
            f"{names}: the port has no link. The bond sends all traffic over its other port.",
            *first_n(
                Evidence(f"/sys/class/net/{member.netdev}/operstate", known(member.state, "unknown"))
                for member in members
            ),
            fix=user_plan(
                "Bring the port up",
                *(
                    Step(f"Show the link of {member.netdev}", ("ethtool", member.netdev), False)
                    for member in members[:4]
                ),
                "Set the netdev up if it is disabled. Otherwise check cable, optics and the switch port, "
                "including its LACP state.",
            ),
            devices=tuple(broken),
        )
    bonds = [port.bond for device in devices for port in device.ports if port.bond is not None]
    up = first_n(Evidence(_members_file(bond), f"{len(bond.up)} of {len(bond.members)} up") for bond in bonds)
    return passed(*up or (_NO_BOND,))


@AREA.note("single-rail-or-half-rate-bond")
def single_rail_or_half_rate_bond(examination: Examination) -> Outcome:
    """Find bonds, unless every job, or /etc/nccl.conf, sets two or more queue pairs per connection."""
    devices = need_devices(examination)
    bonds = [device for device in devices if is_bond(device)]
    if not bonds:
        each_one = (Evidence("/sys/class/infiniband", device.name) for device in devices)
        return passed(*first_n(each_one) or (NO_PORTS,))
    jobs = jobs_of(examination)
    of_jobs = [setting for setting in jobs.settings if setting.process is not None]
    settings = [setting for setting in of_jobs or jobs.settings if setting.is_read]
    names = {device.name for device in bonds}
    used = [
        setting
        for setting in settings
        if setting.process is None or used_devices(examination, setting) & names
    ]
    single = [setting for setting in used if queue_pairs_per_connection(setting) < 2]
    if jobs.not_known and not single:
        return unknown(jobs.not_known)
    if used and not single:
        return passed(*first_n(dict.fromkeys(setting.evidence(QUEUE_PAIRS) for setting in used)))
    shown = [port.bond for device in bonds for port in device.ports if port.bond is not None]
    return found(
        f"{join_limited(device.name for device in bonds)}: the RDMA device spans bonded ports, and "
        f"{QUEUE_PAIRS} is 1 or not set.",
        *first_n(
            Evidence(
                _members_file(bond),
                f"{', '.join(member.netdev for member in bond.members)} ({known(bond.mode, 'mode unknown')})",
            )
            for bond in shown
        )
        or first_n(Evidence(f"/sys/class/infiniband/{device.name}", "a bond") for device in bonds),
        fix=user_plan(
            "Let NCCL use both ports",
            f"Set {QUEUE_PAIRS}=2 (or 4) in the job, then measure",
            disturbs=RESTARTS,
            note="With NCCL_IB_SPLIT_DATA_ON_QPS=1 each message uses all queue pairs. With 0, the default "
            "since NCCL 2.20, they take turns. Test a bond with ib_write_bw -q 2 or more.",
        ),
        devices=tuple(device.name for device in bonds),
    )
