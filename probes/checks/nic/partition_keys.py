"""Checks of the partition keys (P_Keys) of InfiniBand ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.grouping import grouped
from probes.base.plan import instruction, user_plan
from probes.base.unknown import Maybe, Unknown, first_unread, known
from probes.checks.nccl.library import versions_of
from probes.checks.nccl.network import used_devices
from probes.facts.jobs.process_files import has_initialized_nvshmem
from probes.facts.rdma.partition_keys import KeyTable, is_full, shown
from probes.nccl.settings import KEY_VARIABLES, KeyForm, parse_key_setting
from probes.queries.finding import Area, Outcome, end_with, found, need, passed, unknown
from probes.queries.jobs import JobSettings, jobs_of, maps
from probes.queries.ports import (
    UNUSABLE_KEYS,
    Port,
    devices_of,
    key_table,
    need_ports,
    other_key_index,
    port_names,
)
from probes.snapshot.examination import Examination

AREA = Area("nic", __package__)
_NO_INFINIBAND = Evidence("/sys/class/infiniband/*/ports/*/link_layer", "no active InfiniBand port here")
_INDEX0 = (
    "NCCL, Mooncake, NVSHMEM and perftest use index 0 unless another one is set, and NVSHMEM before 3.7 "
    "always does. UCX looks for a full member's key itself."
)
_NVSHMEM_CHOOSES = (3, 7)
_Tables = list[tuple[Port, KeyTable]]


def _tables(examination: Examination) -> list[tuple[Port, Maybe[KeyTable]]]:
    """Return the active InfiniBand ports with their tables, or end the check."""
    ports = need_ports(examination)
    need(first_unread(port.facts.link_layer for port in ports), "the ports' link layers")
    infiniband = [port for port in ports if port.facts.link_layer == "InfiniBand"]
    need(first_unread(port.facts.state for port in infiniband), "the port states")
    read = ((port, key_table(examination, port.device.name, port.facts.number)) for port in infiniband)
    tables = [(port, table) for port, table in read if table is not None]
    if not tables:
        end_with(passed(_NO_INFINIBAND))
    return tables


def _known(tables: Iterable[tuple[Port, Maybe[KeyTable]]]) -> _Tables:
    return [(port, table) for port, table in tables if not isinstance(table, Unknown)]


def _bad_tables(examination: Examination, is_bad: Callable[[Port, KeyTable], bool]) -> _Tables:
    """Return the ports with a bad table, which was bad at the reading before, too; without one end the check.

    A subnet manager that restarts may rewrite the tables. An empty one counts at the second reading only.
    """
    tables = _tables(examination)
    earlier = examination.earlier_partition_keys
    ports = {} if earlier is None or isinstance(earlier, Unknown) else earlier.ports
    before = {key: table for key, table in ports.items() if not isinstance(table, Unknown)}
    bad: _Tables = []
    empty: _Tables = []
    for port, table in _known(tables):
        was = before.get((port.device.name, port.facts.number))
        if is_bad(port, table) and (was is None or is_bad(port, was)):
            (bad if table.keys or was is not None else empty).append((port, table))
    for port, maybe in () if bad else tables:
        need(maybe, f"the partition keys of {port.name}")
    if empty and not bad:
        why = "the table is empty, as while the subnet manager restarts"
        end_with(unknown(f"needs a second reading of {port_names(port for port, _ in empty)}: {why}"))
    if not bad:
        end_with(passed(*first_n(_entry(*each) for each in _known(tables))))
    return bad


def _entry(port: Port, table: KeyTable, index: int = 0) -> Evidence:
    return Evidence(f"{port.path}/pkeys/{index}", shown(table.keys.get(index, 0)))


def _uses_index0(settings: JobSettings) -> bool:
    """Return whether a process is known to use index 0 of the ports' tables."""
    process = settings.process
    if process is None or not known(process.uverbs_files, ()) or not settings.is_read:
        return False
    is_set = {name for name in KEY_VARIABLES if parse_key_setting(name, settings.get(name) or "")}
    by_nccl = maps(process, "libnccl") and not is_set & {"NCCL_IB_PKEY", "NCCL_IB_PKEY_VALUE"}
    by_mooncake = maps(process, "mooncake/engine") and "MC_PKEY_INDEX" not in is_set
    nvshmem = versions_of(process, "libnvshmem_host") if has_initialized_nvshmem(process.libraries) else ()
    return by_nccl or by_mooncake or any(version < _NVSHMEM_CHOOSES for _, version in nvshmem)


def _report(
    examination: Examination, bad: _Tables, cause: str, severity: Severity, in_use: Severity
) -> Outcome:
    """Report ports without a full member's key at index 0.

    `severity`: while no job uses that index, and nccl.conf sets none that works; `in_use`: while one does.
    """
    ports = [port for port, _ in bad]
    names = devices_of(ports)
    jobs = jobs_of(examination)
    conf = next((each.get("NCCL_IB_PKEY") for each in jobs.settings if each.process is None), None)
    index = parse_key_setting("NCCL_IB_PKEY", conf or "")
    by_default = (used_devices(examination, each) for _, each in jobs.of_processes if _uses_index0(each))
    if any(used.intersection(names) for used in by_default):
        severity = in_use
    elif index is not None and all(is_full(table.keys.get(index, 0)) for _, table in bad):
        severity = Severity.NOTE
    full = sorted({table.first_full for _, table in bad if table.first_full is not None})
    usable = f"The first key of a full member is at index {' or '.join(map(str, full))}."
    number = other_key_index(examination, (*names, *examination.topology.nics_near_gpus))
    settings = f"NCCL_IB_PKEY={number} and MC_PKEY_INDEX={number}, and give perftest --pkey_index={number}"
    use_it = () if number is None else (instruction(f"Let jobs use it: set {settings}", needs_root=False),)
    return found(
        f"{port_names(ports)}: {cause} {usable if full else 'No other entry is of a full member.'} {_INDEX0}",
        *first_n(_entry(*each) for each in bad),
        *(_entry(port, table, table.first_full) for port, table in bad[:1] if table.first_full is not None),
        fix=user_plan(
            "Use a partition in which the port is a full member",
            *use_it,
            f"{'Or ask' if use_it else 'Ask'} who runs the subnet manager for full membership at index 0",
        ),
        severity=severity,
        devices=names,
        data_path=severity is not Severity.NOTE,
    )


def _is_near_gpu(examination: Examination, bad: _Tables) -> bool:
    return any(port.device.name in examination.topology.nics_near_gpus for port, _ in bad)


@AREA.critical("pkey-index0-unusable", data_path=True)
def pkey_index0_unusable(examination: Examination) -> Outcome:
    """Find tables whose entry 0 is unused."""
    bad = _bad_tables(examination, lambda _, table: 0 not in table.keys)
    severity = Severity.CRITICAL if _is_near_gpu(examination, bad) else Severity.WARNING
    cause = "entry 0 of the P_Key table is 0x0000, which is no key."
    return _report(examination, bad, cause, severity, Severity.CRITICAL)


@AREA.warning("pkey-index0-limited", data_path=True)
def pkey_index0_limited(examination: Examination) -> Outcome:
    """Find limited keys at index 0: critical if a job uses that index although another one is full.

    A storage client is often a limited member, whose servers are full members: a note.
    """
    bad = _bad_tables(examination, lambda _, table: 0 in table.keys and not table.is_usable)
    has_full = any(table.first_full is not None for _, table in bad)
    cause = "the key at index 0 is a limited member's (bit 15 is 0)."
    severity = Severity.WARNING if _is_near_gpu(examination, bad) else Severity.NOTE
    if not has_full and any(port.is_virtual for port, _ in bad):
        cause += " The host likely assigned no partition to the virtual function."
        severity = Severity.CRITICAL if severity is Severity.WARNING else severity
    return _report(examination, bad, cause, severity, Severity.CRITICAL if has_full else severity)


@AREA.warning("pkey-differs", part_of=UNUSABLE_KEYS)
def pkey_differs(examination: Examination) -> Outcome:
    """Compare ports of one board and subnet near GPUs; a note if they have the same full key at index 0.

    Of each two tables, the entries are compared that both were read for.
    """
    near = examination.topology.nics_near_gpus
    members = [each for each in _known(_tables(examination)) if each[0].device.name in near]
    networks = grouped((_network(port), (port, table)) for port, table in members)
    usual = {network: _usual(tables) for network, tables in networks.items()}

    def difference(port: Port, table: KeyTable) -> int | None:
        is_compared = port.device.name in near and _network(port) in usual
        return _first_difference(table, usual[_network(port)][1]) if is_compared else None

    odd = _bad_tables(examination, lambda port, table: difference(port, table) is not None)
    evidence: list[Evidence] = []
    for port, table in odd:
        index = difference(port, table) or 0
        evidence += (_entry(port, table, index), _entry(*usual[_network(port)], index))
    keys = {table.keys.get(0, 0) for _, table in (*odd, *usual.values())}
    is_one_key = len(keys) == 1 and all(map(is_full, keys))
    ports = [port for port, _ in odd]
    return found(
        f"{port_names(ports)}: the entries differ from those of the other ports, or are at other indices.",
        *first_n(dict.fromkeys(evidence)),
        severity=Severity.NOTE if is_one_key and not _are_indexed(examination) else None,
        devices=devices_of(ports),
    )


def _network(port: Port) -> tuple[str, str]:
    """Return the board and the subnet prefix of a port."""
    prefix = next((gid.gid[:19] for gid in known(port.facts.gids, ()) if gid.index == 0), "")
    return known(port.device.board_id, ""), prefix


def _usual(members: Sequence[tuple[Port, KeyTable]]) -> tuple[Port, KeyTable]:
    """Return the first port with the keys that most ports have."""
    counts = Counter(table.text for _, table in members)
    return max(members, key=lambda member: counts[member[1].text])


def _first_difference(table: KeyTable, usual: KeyTable) -> int | None:
    both = sorted(table.read & usual.read)
    return next((index for index in both if table.keys.get(index) != usual.keys.get(index)), None)


def _are_indexed(examination: Examination) -> bool:
    """Return whether a job names another index than 0."""
    by_index = [name for name, form in KEY_VARIABLES.items() if form is KeyForm.INDEX]
    settings = jobs_of(examination).settings
    return any(parse_key_setting(name, each.get(name) or "") for each in settings for name in by_index)
