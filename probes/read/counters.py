"""Counters of ports as rdma statistic, ethtool -S and perfquery print them.

One reading does not show what happens now, so counters that are not 0 are notes, with what a rise would mean.
Sources: iproute2 rdma/stat.c; ethtool.c do_gnicstats; rdma-core infiniband-diags/perfquery.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from probes.base.text import join_limited, plural
from probes.facts.rdma.port_health import PORT_COUNTERS, Harm
from probes.nccl.log.facts import Place
from probes.read.findings import statement
from probes.read.reading import Parsed, Section, Statement

STATISTIC_SIGN = r"\s*link [\w.-]+/\d+ (?!state|subnet|lqpn)\w+ \d+(?: |\s*$)"
ETHTOOL_SIGN = r"\s*NIC statistics:\s*$"
PERFQUERY_SIGN = r"#\s*Port (?:extended )?counters: Lid \d"
_RISES = {counter.name: counter.rise for counter in PORT_COUNTERS if counter.rise is not None}
_LINK = re.compile(r"\s*link ([\w.-]{1,64}/\d{1,3}) (.*)")
_PAIR = re.compile(r"(\w{2,64}) (\d{1,20})(?= |$)")
_STATISTIC = re.compile(r"\s*([\w.\[\]-]{1,64}):\s*(\d{1,20})\s*$")
_OF_PERFQUERY = re.compile(r"(\w{3,40}):\.*(\d{1,20})\s*$")
_PERFQUERY = {
    "SymbolErrorCounter": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery",
    "LinkDownedCounter": "link_downed",
    "PortRcvErrors": "port_rcv_errors",
    "PortXmitDiscards": "port_xmit_discards",
    "LocalLinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
}
_MOST_PORTS = 512


def read_statistic(section: Section) -> Parsed:
    """Read rdma statistic."""
    ports: dict[str, dict[str, int]] = {}
    name = ""
    read = 0
    for line in section.lines:
        match = _LINK.match(line)
        if match is not None:
            name = match[1]
        if name and len(ports) < _MOST_PORTS:
            rest = line if match is None else match[2]
            ports.setdefault(name, {}).update((pair[1], int(pair[2])) for pair in _PAIR.finditer(rest))
            read += bool(line.strip())
    return _parsed(ports, read, section.place)


def read_ethtool(section: Section) -> Parsed:
    """Read ethtool -S."""
    match = re.search(r"\s(?:-S|--statistics)\s+([\w.@-]{1,20})", section.command)
    name = match[1] if match else "the interface"
    rows = [match for line in section.lines if (match := _STATISTIC.match(line))]
    return _parsed({name: {row[1]: int(row[2]) for row in rows}}, 1 + len(rows), section.place)


def read_perfquery(section: Section) -> Parsed:
    """Read perfquery."""
    ports: dict[str, dict[str, int]] = {}
    name = ""
    read = 0
    for line in section.lines:
        if match := re.match(r"#\s*Port (?:extended )?counters: (Lid \d{1,5} port \d{1,3})", line):
            name = match[1]
        elif name and (match := _OF_PERFQUERY.match(line.strip())):
            ports.setdefault(name, {})[_PERFQUERY.get(match[1], match[1])] = int(match[2])
        else:
            continue
        read += 1
    return _parsed(ports, read, section.place)


def _parsed(ports: Mapping[str, Mapping[str, int]], read: int, place: Place) -> Parsed:
    statements = tuple(_risen(ports, place))
    known = sum(name in _RISES for values in ports.values() for name in values)
    if not known:
        return Parsed(read)
    if statements:
        return Parsed(read, statements, shows="Some error counters are not 0. One reading shows no rise.")
    return Parsed(read, shows=f"All {plural(known, 'counter')} of errors and congestion are 0.")


def _risen(ports: Mapping[str, Mapping[str, int]], place: Place) -> Iterator[Statement]:
    for port, values in ports.items():
        # Ticks without credits are normal on a busy port.
        found = {
            name: value
            for name, value in values.items()
            if value and name in _RISES and (_RISES[name].harm is not Harm.CONGESTION or "cnp" in name)
        }
        if found:
            meanings = (f"{name} {value} ({_RISES[name].sentence})" for name, value in found.items())
            yield statement(
                "port-counters-not-zero",
                place,
                counters=plural(len(found), "counter"),
                port=port,
                verb="is" if len(found) == 1 else "are",
                meanings=join_limited(meanings),
            )
