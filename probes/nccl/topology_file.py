"""NCCL's topology files: XML that NCCL reads instead of the PCI tree in sysfs.

NCCL_TOPO_FILE (of a process, ~/.nccl.conf or /etc/nccl.conf), else
/var/run/nvidia-topologyd/virtualTopology.xml (NCCL src/graph/topo.cc, ncclTopoGetSystem; src/misc/param.cc).
A file for another machine sends every GPU to the wrong NIC.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.jobs.nccl_conf import NCCL_CONF, NcclConf, read_nccl_conf
from probes.facts.jobs.processes import ProcessFacts
from probes.host.protocol import Host

VIRTUAL = "/var/run/nvidia-topologyd/virtualTopology.xml"
VARIABLE = "NCCL_TOPO_FILE"
# Microsoft's images have a file for each size of node: Azure/azhpc-images, components/customizations/ndv*.sh.
VENDOR_FILES = ("/opt/microsoft/ndv4/topo.xml", "/opt/microsoft/ndv5/topo.xml")
_LIMIT_BYTES = 1 << 20
_MAX_FILES = 16
_MAX_FUNCTIONS = 512
_ELEMENT = re.compile(r"<pci\s([^<>]{1,1024})>")
_BUS = re.compile(r'\bbusid="([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"')
_CLASS = re.compile(r'\bclass="0x(02|03)')


@dataclass(frozen=True)
class TopologyFile:
    """One file, as one process sees it."""

    path: str  # as gdrtop read it: "/proc/41000/root/etc/topo.xml"
    pid: int | None  # the process that names it; None: the default, or named in nccl.conf
    endpoints: Maybe[tuple[str, ...]]  # bus ids of the GPUs and NICs in it; NOT_THERE: no such file


@dataclass(frozen=True)
class TopologyFileFacts:
    """The files that processes and nccl.conf name, and the default one."""

    files: tuple[TopologyFile, ...]
    vendor_files: tuple[TopologyFile, ...] = ()  # of the cloud's image; read only where a variable names them


def probe(host: Host, processes: Maybe[ProcessFacts]) -> TopologyFileFacts:
    """Read the default file, what nccl.conf names, and what each process names, as that process sees it."""
    files = [TopologyFile(path, None, _endpoints(host, path)) for path in (VIRTUAL, *_of_nccl_conf(host))]
    for process in () if isinstance(processes, Unknown) else processes.processes:
        named = None if isinstance(process.environment, Unknown) else process.environment.get(VARIABLE)
        if named and len(files) < _MAX_FILES:
            inside = posixpath.normpath(named)
            above = "root" if inside.startswith("/") else "cwd/"
            path = f"/proc/{process.pid}/{above}{inside}"
            files.append(TopologyFile(printable(path, 256), process.pid, _endpoints(host, path)))
    vendor = (TopologyFile(path, None, _endpoints(host, path)) for path in VENDOR_FILES)
    there = (file for file in vendor if not isinstance(file.endpoints, Unknown))
    return TopologyFileFacts(tuple(files), tuple(there))


def _of_nccl_conf(host: Host) -> tuple[str, ...]:
    """Return the file that new jobs of this user get; the user's own nccl.conf comes before the node's."""
    home = known(host.environment("HOME"), "")
    for path in (f"{home}/.nccl.conf" if home.startswith("/") else "", NCCL_CONF):
        conf = read_nccl_conf(host, path) if path else None
        if isinstance(conf, NcclConf) and conf.values.get(VARIABLE, "").startswith("/"):
            return (posixpath.normpath(conf.values[VARIABLE]),)
    return ()


def _endpoints(host: Host, path: str) -> Maybe[tuple[str, ...]]:
    # A container may put a device there, and opening some devices has effects. Devices have no size.
    size = host.size(path)
    if isinstance(size, Unknown):
        return size
    text = host.read(path, _LIMIT_BYTES) if size else ""
    if isinstance(text, Unknown):
        return text
    if "<system" not in text:
        return Unknown(Reason.MALFORMED, printable(path, 256), "no <system> element: not NCCL's XML")
    return parse_topology(text)


def parse_topology(text: str) -> tuple[str, ...]:
    """Return the bus ids of display and network functions; bridges may be invented."""
    found: list[str] = []
    for match in _ELEMENT.finditer(text):
        bus = _BUS.search(match[1])
        if bus and _CLASS.search(match[1]) and len(found) < _MAX_FUNCTIONS:
            found.append(bus[1].lower())
    return tuple(found)
