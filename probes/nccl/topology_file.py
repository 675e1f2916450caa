"""NCCL's topology files: XML that NCCL reads instead of the PCI tree in sysfs.

NCCL_TOPO_FILE (of a process, ~/.nccl.conf or /etc/nccl.conf), else
/var/run/nvidia-topologyd/virtualTopology.xml (NCCL src/graph/topo.cc, ncclTopoGetSystem; src/misc/param.cc).
A file for another machine sends every GPU to the wrong NIC.
"""

from __future__ import annotations

import posixpath

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.jobs.nccl_conf import NCCL_CONF, NcclConf, read_nccl_conf
from probes.facts.jobs.processes import ProcessFacts
from probes.host.protocol import Host
from probes.nccl.topology_xml import LIMIT_BYTES, Element, endpoint_ids, file_tree, parse_system
from probes.topology.nccl_words import FileTree

VIRTUAL = "/var/run/nvidia-topologyd/virtualTopology.xml"
VARIABLE = "NCCL_TOPO_FILE"
# Microsoft's images have a file for each size of node: Azure/azhpc-images, components/customizations/ndv*.sh.
VENDOR_FILES = ("/opt/microsoft/ndv4/topo.xml", "/opt/microsoft/ndv5/topo.xml")
_MAX_FILES = 16


@frozen
class TopologyFile:
    """One file, as one process sees it."""

    path: str  # as gdrtop read it: "/proc/41000/root/etc/topo.xml"
    pid: int | None  # the process that names it; None: the default, or named in nccl.conf
    endpoints: Maybe[tuple[str, ...]]  # bus ids of the GPUs and NICs in it; NOT_THERE: no such file
    system: Element | None = None  # what it says; None: it could not be read


@frozen
class TopologyFileFacts:
    """The files that processes and nccl.conf name, and the default one."""

    files: tuple[TopologyFile, ...]
    vendor_files: tuple[TopologyFile, ...] = ()  # of the cloud's image; read only where a variable names them


def probe(host: Host, processes: Maybe[ProcessFacts]) -> TopologyFileFacts:
    """Read the default file, what nccl.conf names, and what each process names, as that process sees it."""
    files = [_read(host, path, None) for path in (VIRTUAL, *_of_nccl_conf(host))]
    for process in () if isinstance(processes, Unknown) else processes.processes:
        named = None if isinstance(process.environment, Unknown) else process.environment.get(VARIABLE)
        if named and len(files) < _MAX_FILES:
            inside = posixpath.normpath(named)
            above = "root" if inside.startswith("/") else "cwd/"
            path = f"/proc/{process.pid}/{above}{inside}"
            files.append(_read(host, path, process.pid))
    vendor = (_read(host, path, None) for path in VENDOR_FILES)
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


def read_system(host: Host, path: str) -> Maybe[Element]:
    """Read a file of NCCL's XML; NOT_THERE: there is none, MALFORMED: it is something else."""
    text = host.read(path, LIMIT_BYTES)
    return text if isinstance(text, Unknown) else parse_system(text, path)


def _read(host: Host, path: str, pid: int | None) -> TopologyFile:
    system = read_system(host, path)
    shown = printable(path, 256)
    if isinstance(system, Unknown):
        return TopologyFile(shown, pid, system)
    return TopologyFile(shown, pid, endpoint_ids(system), system)


def file_of_new_jobs(facts: Maybe[TopologyFileFacts] | None) -> TopologyFile | None:
    """Return the file that NCCL reads by default: the one that nccl.conf names, else the one in /var/run.

    Where nccl.conf names a file, NCCL never looks at the other (src/graph/topo.cc ncclTopoGetSystem).
    """
    files = () if facts is None or isinstance(facts, Unknown) else facts.files
    for file in sorted((file for file in files if file.pid is None), key=lambda file: file.path == VIRTUAL):
        is_missing = isinstance(file.endpoints, Unknown) and file.endpoints.reason is Reason.NOT_THERE
        return None if is_missing and file.path == VIRTUAL else file
    return None


def tree_in_use(facts: Maybe[TopologyFileFacts] | None) -> FileTree | None:
    """Return the PCI tree that NCCL uses on this node instead of sysfs; None: no file gives one.

    By default; else the file of the running jobs, if all files that they name say the same.
    """
    default = file_of_new_jobs(facts)
    if default is not None:
        return None if default.system is None else file_tree(default.path, default.system)
    files = () if facts is None or isinstance(facts, Unknown) else facts.files
    of_jobs = {file.path: file.system for file in files if file.pid is not None and file.system is not None}
    if not of_jobs:
        return None
    path, system = next(iter(of_jobs.items()))
    return file_tree(path, system) if all(other == system for other in of_jobs.values()) else None
