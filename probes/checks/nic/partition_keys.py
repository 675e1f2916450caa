"""Checks of the partition keys (P_Keys) of InfiniBand ports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.grouping import grouped
from probes.base.plan import Plan, Step, instruction, user_plan
from probes.base.unknown import Unknown, first_unread, known
from probes.checks.nccl.network import used_devices
from probes.facts.jobs.process_files import has_initialized_nvshmem
from probes.facts.rdma.partition_keys import KeyTable, is_full, shown
from probes.nccl.settings import parse_key_setting
from probes.queries.finding import Area, Outcome, end_with, found, need, passed, unknown
from probes.queries.jobs import JobSettings, jobs_of, maps
from probes.queries.ports import UNUSABLE_KEYS, Port, devices_of, key_table, need_ports, port_names
from probes.snapshot.examination import Examination

AREA = Area("nic")
_SOURCE = (
    "Linux, Documentation/ABI/stable/sysfs-class-infiniband: pkeys; NVIDIA/nccl issue 1323; openucx/ucx "
    "src/uct/ib/base/ib_iface.c"
)
_NO_INFINIBAND = Evidence("/sys/class/infiniband/*/ports/*/link_layer", "no active InfiniBand port here")
_DEFAULT_INDEX = (
    "NCCL, Mooncake, NVSHMEM and perftest use index 0 unless another one is set, and NVSHMEM before 3.7 "
    "always does. UCX looks for a full member's key itself."
)
_TIMEOUTS = "Connections over these ports time out (completion error 12), or hang. No message names the key."
_Tables = list[tuple[Port, KeyTable]]


def _tables(examination: Examination) -> _Tables:
    """Return the active InfiniBand ports with their tables, or end the check."""
    ports = need_ports(examination)
    need(first_unread(port.facts.link_layer for port in ports), "the ports' link layers")
    infiniband = [port for port in ports if port.facts.link_layer == "InfiniBand"]
    need(first_unread(port.facts.state for port in infiniband), "the port states")
    tables = []
    for port in infiniband:
        if port.is_active:
            table = key_table(examination, port.device.name, port.facts.number)
            if table is not None:  # else the port became active since
                tables.append((port, need(table, f"the partition keys of {port.name}")))
    if not tables:
        end_with(passed(_NO_INFINIBAND))
    return tables


def _lasting(examination: Examination, tables: _Tables, is_bad: Callable[[KeyTable], bool]) -> _Tables:
    """Return the ports with such tables, also at the reading before: a subnet manager may rewrite them.

    An empty table of an active port is likely being rewritten, so it counts at the second reading only.
    """
    earlier = examination.earlier_partition_keys
    lasting = []
    for port, table in tables:
        if not is_bad(table):
            continue
        before = None if earlier is None or isinstance(earlier, Unknown) else earlier.ports.get(_key(port))
        if before is None and not table.keys:
            end_with(
                unknown(
                    f"needs a second reading: the table of {port.name} is empty, as while the "
                    "subnet manager restarts"
                )
            )
        if before is None or isinstance(before, Unknown) or is_bad(before):
            lasting.append((port, table))
    return lasting


def _key(port: Port) -> tuple[str, int]:
    return port.device.name, port.facts.number


def _entry(port: Port, table: KeyTable, index: int = 0) -> Evidence:
    return Evidence(f"{port.path}/pkeys/{index}", shown(table.keys.get(index, 0)))


def _evidence(bad: _Tables) -> tuple[Evidence, ...]:
    """Return entry 0 of each port, and of the first port the entry that jobs can use."""
    port, table = bad[0]
    usable = () if table.first_full is None else (_entry(port, table, table.first_full),)
    return *first_n(_entry(*each) for each in bad), *usable


def _where_usable(bad: _Tables) -> str:
    """Say at which index the ports have a full member's key."""
    indices = {table.first_full for _, table in bad}
    if indices == {None}:
        return "No other entry has a full member's key."
    first = min(index for index in indices if index is not None)
    here = "The first key of a full member is at index"
    return (
        f"{here} {first}." if len(indices) == 1 else f"{here} {first} on some of them, elsewhere on others."
    )


def _fix(bad: _Tables) -> Plan:
    indices = {table.first_full for _, table in bad}
    steps: list[Step | str] = []
    if len(indices) == 1 and (index := bad[0][1].first_full) is not None:
        steps.append(
            instruction(
                f"Let jobs use the key: set NCCL_IB_PKEY={index} and MC_PKEY_INDEX={index}, and give perftest"
                f" --pkey_index={index}",
                needs_root=False,
            )
        )
    steps.append(
        "Or ask who runs the subnet manager for full membership at index 0"
        if steps
        else "Ask who runs the subnet manager for full membership in a partition"
    )
    return user_plan("Use a partition in which the port is a full member", *steps)


def _uses_index0(settings: JobSettings) -> bool:
    """Return whether a process is known to use index 0 of the ports' tables."""
    process = settings.process
    if process is None or not known(process.uverbs_files, ()) or not settings.is_read:
        return False

    def sets(name: str) -> bool:
        return bool(parse_key_setting(name, settings.get(name) or ""))

    by_nccl = maps(process, "libnccl") and not sets("NCCL_IB_PKEY") and not sets("NCCL_IB_PKEY_VALUE")
    by_mooncake = maps(process, "mooncake/engine") and not sets("MC_PKEY_INDEX")
    return by_nccl or by_mooncake or has_initialized_nvshmem(process.libraries)


def _are_in_use(examination: Examination, bad: _Tables) -> bool:
    """Return whether a job uses index 0 on one of these ports."""
    names = set(devices_of(port for port, _ in bad))
    settings = (each for _, each in jobs_of(examination).of_processes)
    return any(_uses_index0(each) and names & used_devices(examination, each) for each in settings)


def _are_replaced(examination: Examination, bad: _Tables) -> bool:
    """Return whether nccl.conf lets the next jobs use a full member's key of each of these ports."""
    conf = next((each for each in jobs_of(examination).settings if each.process is None), None)
    index = None if conf is None else parse_key_setting("NCCL_IB_PKEY", conf.get("NCCL_IB_PKEY") or "")
    return index is not None and all(is_full(table.keys.get(index, 0)) for _, table in bad)


def _are_near_gpus(examination: Examination, ports: Collection[Port]) -> bool:
    return bool(set(examination.topology.nics_near_gpus).intersection(devices_of(ports)))


@AREA.critical(
    "pkey-index0-unusable",
    "An InfiniBand port has no partition key at index 0",
    _SOURCE,
    ok="Every InfiniBand port has a partition key at index 0",
    impact=_TIMEOUTS,
    data_path=True,
)
def pkey_index0_unusable(examination: Examination) -> Outcome:
    """Find tables whose entry 0 is unused; a note if nccl.conf names another index and no job uses 0."""
    tables = _tables(examination)
    bad = _lasting(examination, tables, lambda table: 0 not in table.keys)
    if not bad:
        return passed(*first_n(_entry(*each) for each in tables))
    ports = [port for port, _ in bad]
    severity = None if _are_near_gpus(examination, ports) else Severity.WARNING
    if _are_in_use(examination, bad):
        severity = None
    elif _are_replaced(examination, bad):
        severity = Severity.NOTE
    return found(
        f"{port_names(ports)}: entry 0 of the P_Key table is 0x0000, which is no key. {_where_usable(bad)} "
        f"{_DEFAULT_INDEX}",
        *_evidence(bad),
        fix=_fix(bad),
        severity=severity,
        devices=devices_of(ports),
        data_path=None if severity is not Severity.NOTE else False,
    )


@AREA.warning(
    "pkey-index0-limited",
    "An InfiniBand port is only a limited member of its partition",
    _SOURCE,
    ok="Every InfiniBand port is a full member of the partition at index 0",
    impact="Two limited members cannot communicate, so connections between such ports time out. Those with a "
    "full member work.",
    data_path=True,
)
def pkey_index0_limited(examination: Examination) -> Outcome:
    """Find limited keys at index 0: critical if a job uses that index and needs another one.

    A storage client is often a limited member, whose servers are full members: a note.
    """
    tables = _tables(examination)
    bad = _lasting(examination, tables, lambda table: 0 in table.keys and not is_full(table.keys[0]))
    if not bad:
        return passed(*first_n(_entry(*each) for each in tables))
    ports = [port for port, _ in bad]
    severity = None if _are_near_gpus(examination, ports) else Severity.NOTE
    has_full = any(table.first_full is not None for _, table in bad)
    is_unassigned = not has_full and any(port.is_virtual for port in ports)
    if (has_full and _are_in_use(examination, bad)) or (severity is None and is_unassigned):
        severity = Severity.CRITICAL
    elif _are_replaced(examination, bad):
        severity = Severity.NOTE
    host = " The host likely assigned no partition to the virtual function." if is_unassigned else ""
    return found(
        f"{port_names(ports)}: the key at index 0 is a limited member's (bit 15 is 0). "
        f"{_where_usable(bad)}{host} {_DEFAULT_INDEX}",
        *_evidence(bad),
        fix=_fix(bad),
        severity=severity,
        devices=devices_of(ports),
        data_path=None if severity is not Severity.NOTE else False,
    )


@AREA.warning(
    "pkey-differs",
    "InfiniBand ports of one network have different partition keys",
    _SOURCE,
    ok="The InfiniBand ports of each network have the same partition keys",
    impact="NCCL_IB_PKEY is one index for all NICs, so it selects different partitions. Ports in different "
    "partitions cannot communicate.",
    part_of=UNUSABLE_KEYS,
)
def pkey_differs(examination: Examination) -> Outcome:
    """Compare ports of one board and subnet near GPUs; a note if they have the same full key at index 0.

    Of each two tables, the entries are compared that both were read for.
    """
    tables = _tables(examination)
    near = examination.topology.nics_near_gpus
    groups = grouped(
        ((known(port.device.board_id, ""), _subnet(port)), (port, table))
        for port, table in tables
        if port.device.name in near
    )
    odd: _Tables = []
    evidence: list[Evidence] = []
    is_one_key = True
    for members in groups.values():
        usual = _usual(members)
        different = _lasting(
            examination,
            members,
            lambda table, usual=usual: _first_difference(table, usual[1]) is not None,  # type: ignore[misc]
        )
        odd += different
        for port, table in different:
            index = _first_difference(table, usual[1])
            assert index is not None
            evidence += (_entry(port, table, index), _entry(*usual, index))
            is_one_key &= table.is_usable and table.keys.get(0) == usual[1].keys.get(0)
    if not odd:
        return passed(*first_n(_entry(*each) for each in tables))
    ports = [port for port, _ in odd]
    return found(
        f"{port_names(ports)}: the entries differ from those of the other ports, or are at other indices.",
        *first_n(dict.fromkeys(evidence)),
        fix=user_plan(
            "Give the ports the same keys at the same indices",
            "Ask who runs the subnet manager to add all ports to the same partitions",
            instruction(
                "Until then, let jobs name the key instead of its index: UCX_IB_PKEY, and with NCCL 2.31 "
                "or newer NCCL_IB_PKEY_VALUE",
                needs_root=False,
            ),
        ),
        severity=Severity.NOTE if is_one_key and not _are_indexed(examination) else None,
        devices=devices_of(ports),
    )


def _subnet(port: Port) -> str:
    return next((gid.gid[:19] for gid in known(port.facts.gids, ()) if gid.index == 0), "")


def _usual(members: Sequence[tuple[Port, KeyTable]]) -> tuple[Port, KeyTable]:
    """Return the port whose keys most ports have."""
    return max(members, key=lambda one: sum(_first_difference(one[1], other) is None for _, other in members))


def _first_difference(one: KeyTable, other: KeyTable) -> int | None:
    both = sorted(one.read & other.read)
    return next((index for index in both if one.keys.get(index) != other.keys.get(index)), None)


def _are_indexed(examination: Examination) -> bool:
    """Return whether a job names another index than 0."""
    names = ("NCCL_IB_PKEY", "MC_PKEY_INDEX")
    values = ((name, each.get(name)) for each in jobs_of(examination).settings for name in names)
    return any(parse_key_setting(name, value) for name, value in values if value)
