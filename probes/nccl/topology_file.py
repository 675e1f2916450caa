"""NCCL's topology files, read and written: XML that NCCL reads instead of the PCI tree in sysfs.

NCCL_TOPO_FILE (of a process, ~/.nccl.conf or /etc/nccl.conf), else
/var/run/nvidia-topologyd/virtualTopology.xml (NCCL src/graph/topo.cc, ncclTopoGetSystem; src/misc/param.cc).
A file for another machine sends every GPU to the wrong NIC.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.jobs.nccl_conf import NCCL_CONF, NcclConf, read_nccl_conf
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.pci.functions import PciFacts, PciFunction, most_of
from probes.facts.system.numa import NumaFacts, parse_list
from probes.facts.system.platform import PlatformFacts
from probes.host.protocol import Host
from probes.topology.graph import chain_of, merged_bdf
from probes.topology.nccl_paths import UNKNOWN_NUMA, FileTree, Seat, flattened, upstream_ports
from probes.topology.paths import Topology

# NVIDIA/nccl src/graph/xml.cc and xml.h: version 1, names and values of at most 254 characters, at most 16
# attributes and 128 children of an element (32 in older releases); other elements are ignored. The last part
# says where a file places GPUs, NICs and switches, and the words that follow.

VERSION = "1"
LIMIT_BYTES = 1 << 20
# Which elements NCCL reads inside which (ncclTopoXmlLoad…).
_CHILDREN: Mapping[str, tuple[str, ...]] = {
    "": ("system",),
    "system": ("cpu",),
    "cpu": ("pci", "nic"),
    "pci": ("pci", "gpu", "nic", "pcilink"),
    "gpu": ("nvlink", "c2c"),
    "nic": ("net",),
}
_MAX_VALUE = 254
_MAX_ATTRIBUTES = 16
_MAX_CHILDREN = 128
_MAX_DEPTH = 32
_MAX_ELEMENTS = 4096


@frozen
class Element:
    """One element of the file."""

    name: str
    attributes: Mapping[str, str]  # in the order of the file; printable
    children: tuple[Element, ...] = ()

    def get(self, attribute: str) -> str:
        """Return an attribute's value; "" if it is missing."""
        return self.attributes.get(attribute, "")

    def named(self, name: str) -> Iterator[Element]:
        """Yield the children of this name."""
        return (child for child in self.children if child.name == name)

    def walk(self) -> Iterator[Element]:
        """Yield this element and everything inside it, in the order of the file."""
        yield self
        for child in self.children:
            yield from child.walk()


class _Refused(Exception):
    """The file is not NCCL's XML, or larger than any machine; the text says why."""


@dataclass
class _Open:
    name: str
    attributes: dict[str, str]
    children: list[Element]


class _Builder:
    """Builds the elements while expat reads; nothing outside the file is ever opened."""

    def __init__(self) -> None:
        self.root = _Open("", {}, [])
        self._open = [self.root]
        self._ignored = 0  # depth inside an element that NCCL ignores
        self._count = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        above = self._open[-1]
        self._count += 1
        if len(self._open) + self._ignored > _MAX_DEPTH:
            raise _Refused(f"more than {_MAX_DEPTH} levels")
        if self._count > _MAX_ELEMENTS:
            raise _Refused(f"more than {_MAX_ELEMENTS} elements")
        if self._ignored or name not in _CHILDREN.get(above.name, ()):
            self._ignored += 1
            return
        if len(above.children) >= _MAX_CHILDREN:
            raise _Refused(f"more than {_MAX_CHILDREN} elements inside one <{above.name}>")
        if len(attributes) > _MAX_ATTRIBUTES:
            raise _Refused(f"more than {_MAX_ATTRIBUTES} attributes")
        if any(len(text) > _MAX_VALUE for pair in attributes.items() for text in pair):
            raise _Refused(f"a name or value of more than {_MAX_VALUE} characters")
        shown = {printable(key): printable(value) for key, value in attributes.items()}
        if name == "system" and shown.get("version") != VERSION:
            raise _Refused(f"version {shown.get('version', 'missing')}; NCCL reads version {VERSION}")
        self._open.append(_Open(name, shown, []))

    def end(self, _name: str) -> None:
        if self._ignored:
            self._ignored -= 1
            return
        closed = self._open.pop()
        self._open[-1].children.append(Element(closed.name, closed.attributes, tuple(closed.children)))

    def refuse_declarations(self, *_: object) -> None:
        raise _Refused("it has a document type declaration, which NCCL's files never have")


def parse_system(text: str, source: str) -> Maybe[Element]:
    """Parse a topology file and return its <system>; MALFORMED: not NCCL's XML, and why.

    Document types and entities are refused, so nothing is fetched and nothing expands.
    """

    def malformed(detail: str) -> Unknown:
        return Unknown(Reason.MALFORMED, printable(source, 256), detail)

    content = text.encode("utf-8", "replace")
    if len(content) > LIMIT_BYTES:
        return malformed(f"more than {LIMIT_BYTES >> 20} MiB")
    builder = _Builder()
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.StartDoctypeDeclHandler = builder.refuse_declarations
    parser.EntityDeclHandler = builder.refuse_declarations
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        return malformed(f"line {error.lineno} is not well-formed XML: {expat.ErrorString(error.code)}")
    except _Refused as refused:
        return malformed(str(refused))
    if not builder.root.children:
        return malformed("no <system> element: not NCCL's XML")
    return builder.root.children[0]


def xml_text(element: Element, indent: int = 0) -> str:
    """Return the XML in NCCL's own form: two spaces a level, no header."""
    from xml.sax.saxutils import quoteattr  # imports urllib and http: 15 ms that only writing needs

    pairs = "".join(f" {key}={quoteattr(value, _QUOTE)}" for key, value in element.attributes.items())
    start = f"{' ' * indent}<{element.name}{pairs}"
    if not element.children:
        return f"{start}/>\n"
    inside = "".join(xml_text(child, indent + 2) for child in element.children)
    return f"{start}>\n{inside}{' ' * indent}</{element.name}>\n"


# With both quotes escaped, every value stands in double quotes.
_QUOTE = {'"': "&quot;"}


GPU_CLASS, NIC_CLASS = "0x03", "0x02"
_MAX_ENDPOINTS = 512
_IDS = {
    "vendor_id": "vendor",
    "device_id": "device",
    "subsystem_vendor_id": "subsystem_vendor",
    "subsystem_device_id": "subsystem_device",
}


def endpoints_of(system: Element) -> tuple[Element, ...]:
    """Return the elements of GPUs and NICs in the order of the file, at most 512."""
    ends = (element for element in system.walk() if is_endpoint(element))
    return tuple(element for element, _ in zip(ends, range(_MAX_ENDPOINTS), strict=False))


def is_endpoint(element: Element) -> bool:
    """Return whether this is a PCI function with the class of a GPU or a NIC; bridges may be invented."""
    return element.name == "pci" and element.get("class").startswith((GPU_CLASS, NIC_CLASS))


def endpoint_ids(system: Element) -> tuple[str, ...]:
    """Return the bus IDs of GPUs and NICs, in lower case."""
    return tuple(bus for element in endpoints_of(system) if (bus := bus_id(element)))


def bus_id(element: Element) -> str:
    """Return an element's bus ID, in lower case as in sysfs."""
    return element.get("busid").lower()


def file_tree(path: str, system: Element) -> FileTree:
    """Return the places by bus ID; an ID that the file repeats keeps its first place, as for NCCL."""
    seats: dict[str, Seat] = {}
    for cpu in system.named("cpu"):
        number = cpu.get("numaid")
        numa = int(number) if number.isdecimal() and len(number) < 7 else UNKNOWN_NUMA
        for element, above in _functions(cpu, ()):
            ids = {
                bus_id(switch): {name: _number(switch.get(attribute)) for name, attribute in _IDS.items()}
                for switch in above
            }
            seat = Seat(bus_id(element), flattened(list(ids), ids), numa)
            seats.setdefault(seat.bus_id, seat)
    return FileTree(path, seats)


def _functions(
    above: Element, switches: tuple[Element, ...]
) -> Iterator[tuple[Element, tuple[Element, ...]]]:
    for element in above.named("pci"):
        yield element, switches
        yield from _functions(element, (element, *switches))


def _number(text: str) -> int | None:
    """Return a sysfs ID such as "0x1000"; None if it is missing or malformed."""
    digits = text.lower().removeprefix("0x")
    return int(digits, 16) if 0 < len(digits) <= 4 and set(digits) <= set("0123456789abcdef") else None


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


# This node's PCI tree in the form that NCCL_TOPO_FILE takes.
#
# The elements are `cpu` and `pci`, as in the files that clouds ship (Azure/azhpc-images, topology/). NCCL
# adds ranks, NVLinks and NIC ports when a job starts (NVIDIA/nccl src/graph/xml.cc). An attribute that is
# unknown here is left out, and NCCL reads it from sysfs.

# NCCL's names of CPU architectures (src/graph/xml.cc ncclTopoGetXmlFromCpu).
_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm64", "ppc64le": "ppc64"}
_MASK_BITS = 32


@dataclass
class _Place:
    """A function that is being placed, and those below it by bus ID."""

    attributes: dict[str, str]
    below: dict[str, _Place] = field(default_factory=dict)


def system_of(topology: Topology) -> Element:
    """Return the node as NCCL reads it from sysfs: CPUs, switches, GPUs and NICs in order of bus ID.

    A topology file that is in use plays no part: the result describes the PCI tree that this machine shows.
    """
    node = topology.node
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    cpus: dict[int, _Place] = {}
    ends = [known(end.bdf, "") for end in (*topology.gpus, *topology.nics)]
    for bdf in (*ends, *(nic.data_direct for nic in topology.nics)):
        function = functions.get(bdf)
        function = functions.get(merged_bdf(function)) if function is not None else None
        if function is None or not function.root:
            continue
        chain = chain_of(topology.parts, function.bdf)
        parts = [part for bdf in reversed(upstream_ports(chain)) if (part := functions.get(bdf)) is not None]
        top = parts[0] if parts else function
        numa = known(top.numa_node, UNKNOWN_NUMA)
        place = cpus.setdefault(numa, _Place(_cpu_attributes(topology, numa)))
        for part in (*parts, function):
            place = place.below.setdefault(part.bdf, _Place(_attributes(part, functions)))
    elements = (_element("cpu", cpus[numa]) for numa in sorted(cpus))
    return Element("system", {"version": VERSION}, tuple(elements))


def _element(name: str, place: _Place) -> Element:
    below = (_element("pci", place.below[bdf]) for bdf in sorted(place.below))
    return Element(name, place.attributes, tuple(below))


def _cpu_attributes(topology: Topology, numa: int) -> dict[str, str]:
    attributes = {"numaid": str(numa)}
    facts, platform = topology.node.numa, topology.node.platform
    nodes = facts.nodes if isinstance(facts, NumaFacts) else ()
    lists = {node.number: known(node.cpulist, "") for node in nodes}
    numbers = {number: parse_list(cpus) or () for number, cpus in lists.items()}
    if numbers.get(numa):
        most = max(max(cpus, default=0) for cpus in numbers.values())
        attributes["affinity"] = cpu_mask(numbers[numa], most + 1)
    if isinstance(platform, PlatformFacts):
        architecture = _ARCHITECTURES.get(known(platform.cpu_architecture, ""))
        if architecture is not None:
            attributes["arch"] = architecture
    return attributes


def cpu_mask(cpus: Iterable[int], count: int) -> str:
    """Return CPUs as the kernel's cpumap writes them: groups of 32 bits in hexadecimal, highest first."""
    mask = sum(1 << cpu for cpu in set(cpus))
    groups = -(-count // _MASK_BITS)
    bits = (1 << _MASK_BITS) - 1
    return ",".join(f"{mask >> (group * _MASK_BITS) & bits:08x}" for group in reversed(range(groups)))


def _attributes(function: PciFunction, functions: dict[str, PciFunction]) -> dict[str, str]:
    """Return the attributes of a function; the link is the best that it and the port above it support."""
    attributes = {"busid": function.bdf}
    ids: tuple[tuple[str, Maybe[int], int], ...] = (
        ("class", function.class_code, 6),
        ("vendor", function.vendor_id, 4),
        ("device", function.device_id, 4),
        ("subsystem_vendor", function.subsystem_vendor_id, 4),
        ("subsystem_device", function.subsystem_device_id, 4),
    )
    for name, value, digits in ids:
        if not isinstance(value, Unknown):
            attributes[name] = f"0x{value:0{digits}x}"
    above = functions.get(function.chain[-2]) if len(function.chain) > 1 else None
    speed, width = most_of(function.link, above.link if above else None)
    if not isinstance(speed, Unknown):
        attributes["link_speed"] = f"{speed:.1f} GT/s PCIe"
    if not isinstance(width, Unknown):
        attributes["link_width"] = str(int(width))
    return attributes
