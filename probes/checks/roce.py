"""Checks of RoCE ports: GIDs, MTU, and what keeps the fabric from losing packets."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.port_use import Port, alike, at_most, devices_of, gpus_without_nic, names, ports_of
from probes.examination import Examination
from probes.plan import Plan, Step, instruction
from probes.rdma import Gid
from probes.unknown import Maybe, Reason, Unknown, known

AREA = Area("nic")
_FULL_MTU = 4096
_NETDEV_MTU = 9000
_INDEX = "NCCL_IB_GID_INDEX"
_NO_ROCE = Evidence("/sys/class/infiniband/*/ports/*/link_layer", "no active RoCE port here")
_GID_ABI = "Linux, Documentation/ABI/stable/sysfs-class-infiniband: gids, gid_attrs"
_MTU_REFERENCE = "Linux, include/rdma/ib_addr.h, iboe_get_mtu"


def _roce(examination: Examination) -> Maybe[tuple[Port, ...]]:
    """The active RoCE ports."""
    ports = ports_of(examination)
    if isinstance(ports, Unknown):
        return ports
    return tuple(port for port in ports if port.is_ethernet and port.is_active)


def _is_link_local(gid: Gid) -> bool:
    return gid.gid.startswith("fe80:")


def _second(gids: tuple[Gid, ...]) -> list[Gid]:
    """The RoCE v2 GIDs."""
    return [gid for gid in gids if gid.type == "RoCE v2"]


def _gid_severity(examination: Examination, ports: list[Port]) -> Severity:
    lost = {port.device.name for port in ports}
    return Severity.CRITICAL if gpus_without_nic(examination, lost) else Severity.WARNING


def _gid_unknown(ports: tuple[Port, ...]) -> Outcome | None:
    for port in ports:
        gids = port.facts.gids
        if isinstance(gids, Unknown):
            return unsure(f"needs the GIDs of {port.name}: {gids}")
        for gid in gids:
            # A GID of which the type is refused may be the one that is looked for.
            if isinstance(gid.type, Unknown):
                return unsure(f"needs the type of GID {gid.index} of {port.name}: {gid.type}")
    return None


def _address(port: Port) -> Plan:
    netdev = known(port.facts.netdev, "its netdev")
    return Plan(
        "Give the NIC an address",
        (
            instruction(f"give {netdev} an IPv4 address of its rail in netplan or NetworkManager"),
            Step("shows the GID table anew", ("show_gids",), needs_root=False),
        ),
        note="leave NCCL_IB_GID_INDEX unset: NCCL 2.21 and later find the entry themselves",
    )


@AREA.check("roce-gid-wrong", Severity.CRITICAL, "a job asks for a GID index that leads nowhere", _GID_ABI)
def asked_gid(examination: Examination) -> Outcome:
    """NCCL_IB_GID_INDEX of running jobs, against the GID tables of active RoCE ports."""
    ports = _roce(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    if not ports:
        return passed(_NO_ROCE)
    if isinstance(examination.processes, Unknown):
        return unsure(f"needs the jobs' environment: {examination.processes}")
    seen: list[Evidence] = []
    hidden: Unknown | None = None
    for process in examination.processes.processes:
        environment = process.environment
        if isinstance(environment, Unknown):
            # A process that has ended meanwhile asks for nothing.
            hidden = hidden if environment.reason is Reason.NOT_THERE else environment
            continue
        text = environment.get(_INDEX, "")
        if not text.isascii() or not text.isdecimal() or len(text) > 4:
            continue  # unset, or -1: NCCL looks for it itself
        source = f"/proc/{process.pid}/environ"
        seen.append(Evidence(source, f"{_INDEX}={text}"))
        wrong = [port for port in ports if _leads_nowhere(port, int(text))]
        # The job may leave some ports out (NCCL_IB_HCA): wrong is what is wrong on all of them.
        if len(wrong) == len(ports):
            return found(
                f"process {process.pid} uses GID {text}, which on {names(wrong)} is empty, RoCE v1 or "
                "link-local",
                seen[-1],
                *at_most(
                    Evidence(f"{port.path}/gid_attrs/types/{text}", _type_at(port, int(text)))
                    for port in wrong
                ),
                fix=Plan(
                    "Leave the choice to NCCL",
                    (
                        instruction(
                            f"unset {_INDEX} in the job (NCCL 2.21 and later), or set the index of the "
                            "routable RoCE v2 entry that show_gids lists",
                            False,
                        ),
                    ),
                    disturbs="the job: it has to be restarted",
                ),
                severity=_gid_severity(examination, wrong),
                devices=devices_of(wrong),
            )
    others = examination.processes.hidden
    if isinstance(others, Unknown):
        return unsure(f"needs the environment of every job: {others}", *at_most(seen))
    if hidden is not None or others:
        return unsure("needs root: the environment of other users' processes", *at_most(seen))
    return passed(*at_most(seen) or (Evidence("/proc/*/environ", f"no job sets {_INDEX}"),))


def _leads_nowhere(port: Port, index: int) -> bool:
    if isinstance(port.facts.gids, Unknown):
        return False
    entry = next((gid for gid in port.facts.gids if gid.index == index), None)
    return entry is None or entry.type == "IB/RoCE v1" or _is_link_local(entry)


def _type_at(port: Port, index: int) -> str:
    entry = next((gid for gid in known(port.facts.gids, ()) if gid.index == index), None)
    if entry is None:
        return "empty"
    return f"{known(entry.type, 'unknown')}, {entry.gid}"


@AREA.check(
    "roce-gid-wrong-namespace",
    Severity.CRITICAL,
    "a RoCE port has no GID at all: its netdev is in another network namespace",
    "rdma-system(8) of iproute2",
)
def no_gid(examination: Examination) -> Outcome:
    """Active RoCE ports whose whole GID table is empty."""
    ports = _roce(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    empty = [port for port in ports if port.facts.gids == ()]
    if empty:
        return found(
            f"{names(empty)}: every entry of the GID table is empty. The netdev belongs to a container, or "
            "this is a container without it",
            *at_most(Evidence(f"{port.path}/gids", "all entries are zero") for port in empty),
            fix=Plan(
                "Bring netdev and RDMA device together",
                (
                    Step("shows whether namespaces share RDMA devices", ("rdma", "system", "show"), False),
                    instruction("attach the RDMA network to the pod, or run it in the host's network", False),
                ),
            ),
            severity=_gid_severity(examination, empty),
            devices=devices_of(empty),
        )
    return _gid_unknown(ports) or passed(*at_most(_gid_count(port) for port in ports) or (_NO_ROCE,))


def _gid_count(port: Port) -> Evidence:
    return Evidence(f"{port.path}/gids", f"{len(known(port.facts.gids, ()))} entries")


@AREA.check("roce-gid-wrong-no-v2", Severity.CRITICAL, "a RoCE port has no RoCE v2 GID", _GID_ABI)
def no_v2_gid(examination: Examination) -> Outcome:
    """Active RoCE ports whose GIDs are all RoCE v1, which no router forwards."""
    ports = _roce(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    unknown = _gid_unknown(ports)
    without = [
        port
        for port in ports
        if not isinstance(port.facts.gids, Unknown)
        and port.facts.gids
        and all(gid.type == "IB/RoCE v1" for gid in port.facts.gids)
    ]
    if without:
        return found(
            f"{names(without)}: only RoCE v1, which no router forwards and NCCL does not choose",
            *at_most(
                Evidence(f"{port.path}/gid_attrs/types/{gid.index}", known(gid.type, "unknown"))
                for port in without
                for gid in known(port.facts.gids, ())[:1]
            ),
            fix=_address(without[0]),
            severity=_gid_severity(examination, without),
            devices=devices_of(without),
        )
    return unknown or passed(*at_most(_gid_count(port) for port in ports) or (_NO_ROCE,))


@AREA.check(
    "roce-gid-wrong-link-local", Severity.WARNING, "a RoCE port has no address that can be routed", _GID_ABI
)
def only_link_local(examination: Examination) -> Outcome:
    """Active RoCE ports whose RoCE v2 GIDs are all link-local."""
    ports = _roce(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    unknown = _gid_unknown(ports)
    local = [
        port
        for port in ports
        if (second := _second(known(port.facts.gids, ()))) and all(_is_link_local(gid) for gid in second)
    ]
    if local:
        return found(
            f"{names(local)}: link-local GIDs reach hosts of the same Ethernet segment only",
            *at_most(
                Evidence(f"{port.path}/gids/{gid.index}", gid.gid)
                for port in local
                for gid in _second(known(port.facts.gids, ()))[:1]
            ),
            fix=_address(local[0]),
            devices=devices_of(local),
        )
    return unknown or passed(*at_most(_gid_count(port) for port in ports) or (_NO_ROCE,))


def _mtu_evidence(port: Port) -> Evidence:
    mtu = port.health if isinstance(port.health, Unknown) else port.health.netdev_mtu_bytes
    shown = "unknown" if isinstance(mtu, Unknown) else str(mtu)
    return Evidence(f"/sys/class/net/{known(port.facts.netdev, '?')}/mtu", shown)


def _mtus(ports: tuple[Port, ...]) -> tuple[dict[str, int], Outcome | None]:
    """RDMA MTU by the port's name, and what to say where one is not known."""
    mtus: dict[str, int] = {}
    missing: Outcome | None = None
    for port in ports:
        mtu = port.health if isinstance(port.health, Unknown) else port.health.roce_mtu_bytes
        if isinstance(mtu, Unknown):
            missing = unsure(f"needs the MTU of {port.name}'s netdev: {mtu}")
        else:
            mtus[port.name] = mtu
    return mtus, missing


def _raise_mtu(ports: list[Port]) -> Plan:
    steps = []
    for port in ports[:8]:
        mtu = port.health if isinstance(port.health, Unknown) else port.health.netdev_mtu_bytes
        if isinstance(port.facts.netdev, Unknown) or isinstance(mtu, Unknown):
            continue
        command = ("ip", "link", "set", "dev", port.facts.netdev, "mtu")
        steps.append(
            Step(
                f"gives {port.facts.netdev} room for 4096 bytes and headers",
                (*command, str(_NETDEV_MTU)),
                undo=(*command, str(mtu)),
            )
        )
    return Plan(
        "Raise the MTU",
        tuple(steps),
        disturbs="a short loss of the link on each of these ports",
        note="the switches and all other hosts must allow it first; set it in netplan or NetworkManager too",
    )


@AREA.check("mtu-mismatch", Severity.WARNING, "equal RoCE ports have different MTUs", _MTU_REFERENCE)
def mtu_differs(examination: Examination) -> Outcome:
    """RDMA MTUs of active RoCE ports of one board."""
    ports = _roce(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    mtus, missing = _mtus(ports)
    smaller: list[Port] = []
    shown: list[Port] = []
    for board in alike(ports).values():
        sizes = [mtus[port.name] for port in board if port.name in mtus]
        if len(set(sizes)) > 1:
            shown += board
            smaller += [port for port in board if mtus.get(port.name, max(sizes)) < max(sizes)]
    if smaller:
        return found(
            f"{names(smaller)}: a smaller MTU than others of the same board. Where two ends differ, small "
            "messages pass and large ones fail or slow down",
            *at_most(_mtu_evidence(port) for port in shown),
            fix=_raise_mtu(smaller),
            devices=devices_of(smaller),
        )
    return missing or passed(*at_most(_mtu_evidence(port) for port in ports) or (_NO_ROCE,))


@AREA.check(
    "mtu-mismatch-small",
    Severity.WARNING,
    "a RoCE port carries less than 4096 bytes a packet",
    _MTU_REFERENCE,
)
def mtu_small(examination: Examination) -> Outcome:
    """RDMA MTUs of active RoCE ports, which follow from the netdev's."""
    ports = _roce(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    mtus, missing = _mtus(ports)
    small = [port for port in ports if mtus.get(port.name, _FULL_MTU) < _FULL_MTU]
    if small:
        return found(
            f"{names(small)}: RDMA takes the next power of two below the netdev's MTU, here "
            f"{min(mtus[port.name] for port in small)} bytes instead of 4096",
            *at_most(_mtu_evidence(port) for port in small),
            fix=_raise_mtu(small),
            devices=devices_of(small),
        )
    return missing or passed(*at_most(_mtu_evidence(port) for port in ports) or (_NO_ROCE,))


@AREA.check(
    "roce-lossless-off",
    Severity.WARNING,
    "a RoCE port does not slow down when the fabric is congested",
    "NVIDIA MLNX_OFED manual, Explicit Congestion Notification, "
    "https://docs.nvidia.com/networking/display/mlnxofedv24100700/explicit+congestion+notification+(ecn)",
)
def ecn_off(examination: Examination) -> Outcome:
    """Priorities of active RoCE ports that react to congestion (OFED's ecn/roce_rp)."""
    ports = _roce(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    if not ports:
        return passed(_NO_ROCE)
    off: list[Port] = []
    missing: Outcome | None = None
    for port in ports:
        ecn = port.health if isinstance(port.health, Unknown) else port.health.ecn_priorities
        if isinstance(ecn, Unknown):
            # The kernel's own driver keeps them in debugfs (cc_params), which is root's.
            missing = unsure("needs OFED's driver: the kernel's own shows ECN to root alone, in debugfs")
        elif not ecn:
            off.append(port)
    if off:
        return found(
            f"{names(off)}: ECN is off for every priority. With many hosts packets get lost, and RoCE slows "
            "to a crawl",
            *at_most(_ecn(port, "0 for every priority") for port in off),
            fix=Plan(
                "Turn ECN on for the priority of RDMA",
                (
                    instruction(
                        "write 1 to ecn/roce_rp/enable and ecn/roce_np/enable of the site's RoCE priority, "
                        "and set PFC and trust by mlnx_qos as the switches have them"
                    ),
                ),
                disturbs="the whole fabric where the settings differ from the switches': do it in a window",
            ),
            devices=devices_of(off),
        )
    return missing or passed(*at_most(_ecn(port, "1 for some priority") for port in ports))


def _ecn(port: Port, value: str) -> Evidence:
    return Evidence(f"/sys/class/net/{known(port.facts.netdev, '?')}/ecn/roce_rp/enable", value)
