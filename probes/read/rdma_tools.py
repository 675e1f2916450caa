"""What rdma(8), ibv_devices, ethtool and tools of fabrics print besides ports: queue pairs, counters.

Sources: iproute2 rdma/{sys,res,res-qp,stat}.c; rdma-core libibverbs/examples/device_list.c,
infiniband-diags/{perfquery,ibqueryerrors}.c; ethtool.c do_gnicstats; ibdiagnet's summary as in public posts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from probes.base.text import join_limited, plural, printable
from probes.facts.rdma.port_health import PORT_COUNTERS, Harm
from probes.messages.message import Weight
from probes.nccl.log.facts import Place
from probes.read.findings import statement
from probes.read.reading import Parsed, Section, Statement

SYSTEM_SIGN = r"\s*netns (?:shared|exclusive)\b"
RESOURCES_SIGN = (
    r"\s*(?:link [\w.-]+/\d+ lqpn \d|dev [\w.-]+ (?:mrn|cqn|pdn|ctxn) \d"
    r"|\d+: [\w.-]+: (?:pd|qp|cq|cm_id|mr|ctx) \d)"
)
DEVICES_SIGN = r"\s*device\s+node GUID\s*$"
SETTINGS_SIGN = r"\s*Settings for [\w.@-]{1,20}:\s*$"
DRIVER_SIGN = (
    r"driver: (?:mlx\w+|bnxt\w*|ice|i40e|irdma|ena|efa|ionic|mana|cxgb4|qede|nfp"
    r"|ixgbe\w*|igb|tg3|virtio_net)\s*$"
)

_QUEUE = re.compile(r"\s*link ([\w.-]{1,64})/\d{1,3} lqpn (\d{1,9}).{0,200}?\bstate (\w{2,8})\b(.{0,400})")
_OWNER = re.compile(r"\bcomm \[?([\w.:/-]{1,40})\]?")
_NO_LINK = "The cable, the transceiver or the switch port, or the interface is down"
_BROKEN = ("ERR", "SQE", "SQD")


def read_system(section: Section) -> Parsed:
    """Read rdma system."""
    line = " ".join(section.lines[:1])
    if "exclusive" in line:
        shows = "Each RDMA device is in one network namespace (exclusive): a pod sees only its own."
    else:
        shows = "All network namespaces share the RDMA devices."
    return Parsed(1, shows=shows)


def read_resources(section: Section) -> Parsed:
    """Read rdma resource, also show qp."""
    states: Counter[str] = Counter()
    broken: dict[str, list[str]] = {}
    first: Place | None = None
    for number, line in enumerate(section.lines):
        match = _QUEUE.match(line)
        if match is None:
            continue
        states[match[3]] += 1
        if match[3] in _BROKEN:
            first = first or section.at(number)
            owner = _OWNER.search(match[4])
            broken.setdefault(match[3], []).append(
                f"{match[1]} QP {match[2]}{f' of {owner[1]}' if owner else ''}"
            )
    shows = ""
    if states:
        total = sum(states.values())
        each = join_limited(f"{count} {state}" for state, count in states.most_common())
        shows = f"{plural(total, 'queue pair')}: {each}."
    statements = tuple(
        statement(
            "queue-pair-broken",
            first,
            pairs=plural(len(names), "queue pair"),
            state=state,
            names=join_limited(names),
        )
        for state, names in broken.items()
    )
    return Parsed(section.filled, statements, shows=shows)


def read_devices(section: Section) -> Parsed:
    """Read ibv_devices."""
    names = [
        match[1]
        for line in section.lines
        if (match := re.match(r"\s*([\w.-]{2,64})\s+[0-9a-f]{16}\s*$", line))
    ]
    if names:
        return Parsed(1 + len(names), shows=f"{plural(len(names), 'RDMA device')}: {join_limited(names)}.")
    return Parsed(1, (statement("no-verbs-device", section.place),))


def read_settings(section: Section) -> Parsed:
    """Read ethtool DEVICE."""
    statements = []
    shown = []
    name, speed = "", ""
    for number, line in enumerate(section.lines):
        text = line.strip()
        if match := re.match(r"Settings for ([\w.@-]{1,20}):", text):
            name, speed = match[1], ""
        elif match := re.match(r"Speed: (\d{1,7})Mb/s", text):
            speed = f" of {int(match[1]) / 1000:g} Gb/s"
        elif match := re.match(r"Link detected: (yes|no)\b", text):
            has_link = match[1] == "yes"
            shown.append(f"{name} has {f'a link{speed}' if has_link else 'no link'}.")
            if not has_link:
                said = re.search(r"\((.{3,80})\)", text)
                why = said[1] if said else _NO_LINK
                statements.append(statement("netdev-without-link", section.at(number), netdev=name, why=why))
    return Parsed(section.filled, tuple(statements), shows=" ".join(shown[:8]))


def read_driver(section: Section) -> Parsed:
    """Read ethtool -i."""
    values: dict[str, str] = {}
    for line in section.lines:
        key, _, value = line.strip().partition(":")
        values.setdefault(key, value.strip()[:80])
    read = sum(":" in line for line in section.lines)
    firmware = f", firmware {values['firmware-version']}" if values.get("firmware-version") else ""
    where = f" at {values['bus-info']}" if values.get("bus-info") else ""
    driver = f"{values.get('driver', '')} {values.get('version', '')}"
    return Parsed(read, shows=f"Driver {driver.strip()}{firmware}{where}.")


UCX_SIGN = (
    r"#\s+(?:Memory domain|Component|Transport|Device|Library (?:version|path)|API headers version"
    r"|Git branch|Configured with|Connection manager): "
)
_UCX = re.compile(r"#\s+(Memory domain|Transport|Configured with|memory types): (.{1,600})")
_UCX_RDMA = re.compile(r"(?:rc|ud|dc|srd|gga)(?:_|$)")


def read_ucx_info(section: Section) -> Parsed:
    """Read ucx_info -d, also what grep left of it, and ucx_info -v."""
    transports: dict[str, None] = {}
    host_only: dict[str, None] = {}
    domain = options = ""
    for line in section.lines:
        if match := _UCX.match(line):
            key, value = match[1], match[2].strip()
            if key == "Transport":
                transports[printable(value, 40)] = None
            elif key == "Memory domain":
                domain = printable(value, 40)
            elif key == "Configured with":
                options = value
            elif re.match(r"(?:ib/)?(?:mlx|bnxt|rdma|roce|ib)", domain) and not re.search("cuda|rocm", value):
                host_only[domain] = None
    has_rdma = any(map(_UCX_RDMA.match, transports))
    has_gpu = any(name.startswith(("cuda", "rocm")) for name in transports)
    rows = []
    # Where cma is listed, nothing before it was cut.
    if "--without-verbs" in options or ({"self", "cma"} <= transports.keys() and not has_rdma):
        rows.append("ucx-without-rdma")
    if "--without-cuda" in options or (has_rdma and {"self", "cma"} <= transports.keys() and not has_gpu):
        rows.append("ucx-without-gpus")
    elif has_gpu and host_only:
        rows.append("ucx-nics-host-memory")
    statements = tuple(statement(row, section.place, nics=join_limited(host_only)) for row in rows)
    return Parsed(section.filled, statements, shows=f"UCX: {join_limited(transports)}." if transports else "")


ROCM_SIGN = r"=+ (?:ROCm System Management Interface|\w[\w ]{1,30} between two GPUs|Numa Nodes) =+\s*$"


def read_rocm_smi(section: Section) -> Parsed:
    """Read rocm-smi --showtopo: the kinds of link between GPUs."""
    rows = [line.split()[1:] for line in section.lines if re.match(r"\s*GPU\d{1,3}\s", line)]
    links = Counter(cell for row in rows for cell in row if cell in ("XGMI", "PCIE"))
    each = join_limited(f"{count // 2} {link}" for link, count in links.most_common())
    return Parsed(section.filled, shows=f"Links between pairs of GPUs: {each}." if each else "")


# One reading of counters does not show what happens now, so those that are not 0 are notes, with what a rise
# would mean.

STATISTIC_SIGN = r"\s*link [\w.-]+/\d+ (?!state|subnet|lqpn)\w+ \d+(?: |\s*$)"
ETHTOOL_SIGN = r"\s*NIC statistics:\s*$"
PERFQUERY_SIGN = r"#\s*Port (?:extended )?counters: Lid \d"
QUERY_ERRORS_SIGN = (
    r"\s*(?:Errors for (?:0x[0-9a-f]+ )?\"|GUID 0x[0-9a-f]+ port (?:\d+|ALL): ?\["
    r"|## Summary: \d+ nodes checked)"
)
_NODE = re.compile(r"\s*Errors for (?:0x[0-9a-f]{1,16} )?\"(.{1,80})\"")
_NODE_PORT = re.compile(r"\s*GUID (0x[0-9a-f]{1,16}) port (\d{1,3}|ALL):(.{0,2000})")
_EQUAL = re.compile(r"\[(\w{3,40}) == (\d{1,20})")
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
    "PortXmitWait": "port_xmit_wait",
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


def read_query_errors(section: Section) -> Parsed:
    """Read ibqueryerrors, which shows only ports with counters that are not 0."""
    ports: dict[str, dict[str, int]] = {}
    sums: dict[str, dict[str, int]] = {}  # over all ports of a node
    node, summary = "", ""
    read = 0
    for line in section.lines:
        if match := _NODE.match(line):
            node = printable(match[1], 80)
        elif (match := _NODE_PORT.match(line)) and len(ports) + len(sums) < _MOST_PORTS:
            counters = {_PERFQUERY.get(name, name): int(value) for name, value in _EQUAL.findall(match[3])}
            rows = sums if match[2] == "ALL" else ports
            rows[f"{node or match[1]} port {match[2]}"] = counters
        elif re.match(r"## .{0,200}\d (?:nodes|ports) checked", line):
            summary = f"{summary} {printable(line.lstrip('# '), 120)}."
        else:
            continue
        read += 1
    parsed = _parsed(ports or sums, read, section.place)
    return replace(parsed, shows=f"ibqueryerrors: {' '.join(summary.split())}" if summary else parsed.shows)


FILES_SIGN = r"\S{0,200}/(?:hw_)?counters/\w+: ?\d"
_FILE = re.compile(r"\S{0,200}?([\w.-]{1,64})/ports/(\d{1,3})/(?:hw_)?counters/(\w{2,64}): ?(\d{1,20})")


def read_files(section: Section) -> Parsed:
    """Read counters of sysfs, as grep prints them with their paths."""
    ports: dict[str, dict[str, int]] = {}
    found = [match for line in section.lines if (match := _FILE.match(line))]
    for match in found:
        if len(ports) < _MOST_PORTS:
            ports.setdefault(f"{match[1]}/{match[2]}", {})[match[3]] = int(match[4])
    return _parsed(ports, len(found), section.place)


SUMMARY_SIGN = r"-I- Stage\s+Warnings\s+Errors\b"
_STAGE = re.compile(r"-I- (\w[\w /.()-]{1,60}?)\s{1,60}(\d{1,9})\s{1,30}(\d{1,9})(?:\s|$)")


def read_summary(section: Section) -> Parsed:
    """Read the summary of ibdiagnet: how many warnings and errors each of its stages has."""
    stages = [match for line in section.lines if (match := _STAGE.match(line))]
    with_errors = [f"{match[1]} {match[3]}" for match in stages if int(match[3])]
    with_warnings = [f"{match[1]} {match[2]}" for match in stages if int(match[2]) and not int(match[3])]
    statements = tuple(
        statement("ibdiagnet-summary", section.place, weight=weight, what=what, stages=join_limited(names, 8))
        for names, what, weight in (
            (with_errors, "errors", Weight.WARNING),
            (with_warnings, "warnings", Weight.NOTE),
        )
        if names
    )
    shows = "" if statements else f"ibdiagnet: no warning and no error in {plural(len(stages), 'stage')}."
    return Parsed(1 + len(stages), statements, shows=shows)


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
