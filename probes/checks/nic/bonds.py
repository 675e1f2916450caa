"""Checks of bonds under RDMA devices (mlx5 LAG): lost ports, and jobs that use one port of several."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction
from probes.base.unknown import Reason, Unknown, known
from probes.checks.nccl.network import used_devices
from probes.facts.rdma.bonds import Bond, BondMember
from probes.facts.rdma.devices import RdmaDevice
from probes.nccl.settings import parse_number
from probes.queries.evidence_list import RDMA_DEVICES, first_n, join_limited
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, need, passed
from probes.queries.jobs import RESTARTS, jobs_of
from probes.queries.ports import NO_PORTS
from probes.snapshot.examination import Examination

AREA = Area("nic")
QUEUE_PAIRS = "NCCL_IB_QPS_PER_CONNECTION"
_NO_BOND = Evidence("/sys/class/net/*/bonding", "no RDMA device spans a bond")


def is_bond(device: RdmaDevice) -> bool:
    """Say whether an RDMA device spans a bond, by its ports or, where those are not visible, by its name."""
    netdevs = [known(port.netdev, "") for port in device.ports]
    is_named = "_bond_" in device.name or any(name.startswith("bond") for name in netdevs)
    return is_named or any(port.bond is not None for port in device.ports)


def _devices(examination: Examination) -> tuple[RdmaDevice, ...]:
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown) and rdma.reason is Reason.NOT_THERE:
        return ()
    return need(rdma, RDMA_DEVICES).devices


def _members_file(bond: Bond) -> str:
    return f"/sys/class/net/{bond.netdev}/bonding/slaves"


def lost_members(device: RdmaDevice) -> list[BondMember]:
    """Return the ports of a device's bonds that are known to be down."""
    bonds = [port.bond for port in device.ports if port.bond is not None]
    return [member for bond in bonds for member in bond.members if member not in bond.up]


@AREA.check(
    "roce-bond-port-down",
    Severity.WARNING,
    "A port of a bonded NIC is down",
    "Linux, Documentation/networking/bonding.rst",
    ok="Every port of the bonded NICs is up",
    impact="The RDMA device stays ACTIVE, at a lower rate. A job runs at the pace of its slowest NIC.",
    data_path=True,
)
def roce_bond_port_down(examination: Examination) -> Outcome:
    """Find bonds with a port whose netdev is not up; the RDMA port does not show it."""
    devices = _devices(examination)
    broken = {device.name: lost for device in devices if (lost := lost_members(device))}
    if broken:
        members = [member for lost in broken.values() for member in lost]
        names = ", ".join(
            f"{join_limited(one.netdev for one in lost)} of {name}" for name, lost in broken.items()
        )
        return found(
            f"{names}: the port has no link. The bond carries everything over its other port.",
            *first_n(
                Evidence(f"/sys/class/net/{member.netdev}/operstate", known(member.state, "unknown"))
                for member in members
            ),
            fix=Plan(
                "Bring the port up",
                (
                    *(
                        Step(f"Show the link of {member.netdev}", ("ethtool", member.netdev), False)
                        for member in members[:4]
                    ),
                    instruction(
                        "Set the netdev up if it is disabled. Else check cable, optics and the switch port, "
                        "and on the switch the LACP state of this port.",
                        False,
                    ),
                ),
            ),
            devices=tuple(broken),
        )
    bonds = [port.bond for device in devices for port in device.ports if port.bond is not None]
    return passed(
        *first_n(Evidence(_members_file(bond), f"{len(bond.up)} of {len(bond.members)} up") for bond in bonds)
        or (_NO_BOND,)
    )


@AREA.check(
    "single-rail-or-half-rate-bond",
    Severity.NOTE,
    "A job may use one port of a bonded NIC",
    "NVIDIA NCCL environment variables, NCCL_IB_QPS_PER_CONNECTION; NVIDIA/nccl pull request 2150",
    ok="No RDMA device is a bond, or jobs use all ports of the bonds",
    impact="A queue pair uses one port of the bond. With one queue pair per connection, an NCCL connection "
    "gets half the bond's rate.",
)
def single_rail_or_half_rate_bond(examination: Examination) -> Outcome:
    """Find bonds, unless every job, or /etc/nccl.conf, sets two or more queue pairs per connection."""
    devices = _devices(examination)
    bonds = [device for device in devices if is_bond(device)]
    if not bonds:
        each_one = (Evidence("/sys/class/infiniband", device.name) for device in devices)
        return passed(*first_n(each_one) or (NO_PORTS,))
    jobs = jobs_of(examination)
    settings = [each for each in jobs.settings if each.process is not None] or list(jobs.settings)
    names = {device.name for device in bonds}
    used = [each for each in settings if each.process is None or used_devices(examination, each) & names]
    single = [each for each in used if (parse_number(each.get(QUEUE_PAIRS) or "") or 1) < 2]
    if used and not single:
        return passed(*first_n(dict.fromkeys(each.evidence(QUEUE_PAIRS) for each in used)))
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
        fix=Plan(
            "Let NCCL use both ports",
            (instruction(f"Set {QUEUE_PAIRS}=2 (or 4) in the job, and measure", False),),
            disturbs=RESTARTS,
            note="With NCCL_IB_SPLIT_DATA_ON_QPS=1 each message uses all queue pairs. With 0, the default "
            "since NCCL 2.20, they take turns. Test a bond with ib_write_bw -q 2 or more.",
        ),
        devices=tuple(device.name for device in bonds),
    )
