"""Checks of RoCE ports' GIDs."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.port_use import Port, devices_of, gpus_without_nic, names, ports_of
from probes.checks.wording import at_most
from probes.examination import Examination
from probes.plan import Plan, Step, instruction
from probes.rdma import Gid
from probes.unknown import Maybe, Reason, Unknown, known

AREA = Area("nic")
_INDEX = "NCCL_IB_GID_INDEX"
NO_ROCE = Evidence("/sys/class/infiniband/*/ports/*/link_layer", "no active RoCE port here")
_GID_ABI = "Linux, Documentation/ABI/stable/sysfs-class-infiniband: gids, gid_attrs"


def roce_ports(examination: Examination) -> Maybe[tuple[Port, ...]]:
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
    ports = roce_ports(examination)
    if isinstance(ports, Unknown):
        return unsure(f"needs the RDMA devices: {ports}")
    if not ports:
        return passed(NO_ROCE)
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
    ports = roce_ports(examination)
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
    return _gid_unknown(ports) or passed(*at_most(_gid_count(port) for port in ports) or (NO_ROCE,))


def _gid_count(port: Port) -> Evidence:
    return Evidence(f"{port.path}/gids", f"{len(known(port.facts.gids, ()))} entries")


@AREA.check("roce-gid-wrong-no-v2", Severity.CRITICAL, "a RoCE port has no RoCE v2 GID", _GID_ABI)
def no_v2_gid(examination: Examination) -> Outcome:
    """Active RoCE ports whose GIDs are all RoCE v1, which no router forwards."""
    ports = roce_ports(examination)
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
    return unknown or passed(*at_most(_gid_count(port) for port in ports) or (NO_ROCE,))


@AREA.check(
    "roce-gid-wrong-link-local", Severity.WARNING, "a RoCE port has no address that can be routed", _GID_ABI
)
def only_link_local(examination: Examination) -> Outcome:
    """Active RoCE ports whose RoCE v2 GIDs are all link-local."""
    ports = roce_ports(examination)
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
    return unknown or passed(*at_most(_gid_count(port) for port in ports) or (NO_ROCE,))
