"""PCI functions: hwloc's trees against lstopo, and lspci's registers against lspci's words."""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from probes.base.unknown import Unknown, known
from probes.facts.pci import config_space
from probes.facts.pci import functions as pci
from probes.facts.pci.config_space import ConfigSpace, PciExpress
from probes.facts.pci.functions import PciFacts
from probes.facts.system import numa
from probes.facts.system.numa import NumaFacts, parse_list
from probes.host.machine.local import LocalHost
from probes.nccl.log.facts import Place
from probes.read.pasted_host import PastedHost
from probes.read.pci_functions import read_functions
from probes.read.reading import Section
from tests.machines.compared import Compared, compare
from tests.support.hwloc_trees import expected_functions, expected_locality, expected_numa_nodes

_SHOWN = re.compile(r"(?:VGA|3D|Ethernet|Infiniband|PCI bridge)")
_HEAD = re.compile(r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.*)", re.M)
_CONTROL = re.compile(
    r"DevCtl:.*\n\s*RlxdOrd([+-]) ExtTag([+-]).*\n\s*MaxPayload (\d+) bytes, MaxReadReq (\d+) bytes"
)
_LINK = re.compile(r"Lnk(Cap|Sta):.*?Speed ([\d.]+)GT/s.*?Width x(\d+)")


def hwloc_tree(archive: Path) -> Compared:
    """Compare NUMA nodes, PCI functions and where these are with what lstopo prints of the tree."""
    name = archive.name.removesuffix(".tar.bz2")
    outputs = (archive.with_name(f"{name}.{ending}") for ending in ("xml", "console"))
    text = next(path for path in outputs if path.exists()).read_text()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as tree:
        tree.extractall(folder)
        (root,) = Path(folder).iterdir()
        host = LocalHost(str(root))
        nodes, facts = numa.probe(host), pci.probe(host)
    assert isinstance(nodes, NumaFacts)
    has_gpu_memory = name == "nvidiagpunumanodes"  # its nodes have no CPUs, and lstopo leaves them out
    own = {node.number for node in nodes.nodes if node.cpulist or not has_gpu_memory}
    result = compare(
        dict.fromkeys((("NUMA node", number) for number in expected_numa_nodes(text)), "there"),
        dict.fromkeys((("NUMA node", number) for number in own), "there"),
    )
    wanted = expected_functions(text)
    if not wanted:
        return result
    assert isinstance(facts, PciFacts)
    ours = {
        bdf: (known(each.class_code, 0) >> 8, known(each.vendor_id, 0), known(each.device_id, 0))
        for bdf, each in facts.functions.items()
    }
    # lstopo leaves out bridges without anything below, and with --no-io what it holds to be dull.
    listed = {bdf: ids for bdf, ids in ours.items() if bdf in wanted}
    result += compare(wanted, listed)
    if text.startswith("<?xml") and name != "fakepcilocalities":  # that one's are forced by a variable
        near = {bdf: frozenset(found) for bdf, found in expected_locality(text).items()}
        result += compare(near, {bdf: _near(facts, nodes, bdf) for bdf in near if bdf in facts.functions})
    return result


def _near(facts: PciFacts, nodes: NumaFacts, bdf: str) -> frozenset[int]:
    """Return the NUMA nodes near a function; of a node that the kernel does not know, those of its CPUs."""
    function = facts.functions[bdf]
    if not isinstance(function.numa_node, Unknown):
        return frozenset((function.numa_node,))
    cpus = set(parse_list(str(function.local_cpulist)) or ())
    return frozenset(node.number for node in nodes.nodes if cpus & set(parse_list(str(node.cpulist)) or ()))


def lspci_registers(path: Path) -> Compared:
    """Compare links, Device Control, ACS and ATS of GPUs, NICs and bridges with the words of lspci -vvv."""
    text = path.read_text(errors="replace")
    parsed = read_functions(Section("lspci", tuple(text.splitlines()), Place("lspci", 1)))
    host = PastedHost(parsed.answers)
    facts = pci.probe(host)
    assert isinstance(facts, PciFacts)
    blocks = {bdf: block for bdf, name, block in _blocks(text) if _SHOWN.match(name)}
    spaces = config_space.probe(host, blocks).functions
    result = Compared(0)
    for bdf, block in blocks.items():
        truth = {(bdf, name): value for name, value in _registers(block).items()}
        ours: dict[object, object] = {
            (bdf, name): value for name, value in _read_registers(spaces[bdf]).items()
        }
        link = facts.functions[bdf].link if bdf in facts.functions else None
        for kind, speed, width in _LINK.findall(block):
            truth[bdf, f"Lnk{kind}"] = float(speed), int(width)
            if link is not None:
                pair = (
                    (link.speed_gtps, link.width) if kind == "Sta" else (link.max_speed_gtps, link.max_width)
                )
                unknown = next((each for each in pair if isinstance(each, Unknown)), None)
                ours[bdf, f"Lnk{kind}"] = pair if unknown is None else unknown
        result += compare(truth, ours)
    return result


def hex_dump(path: Path) -> Compared:
    """Compare what gdrtop decodes from the bytes of config space with what lspci printed of them."""
    text = path.read_text(errors="replace")
    content = bytes.fromhex("".join(re.findall(r"^[0-9a-f]{2,3}: ([0-9a-f ]+)$", text, re.M)))
    truth = _registers(text)
    if len(content) <= config_space.CONVENTIONAL_BYTES:  # lspci saw more than was kept
        truth = {name: value for name, value in truth.items() if name not in ("ACS", "ATS")}
    return compare(truth, _read_registers(config_space.parse_config(content)))


def _blocks(text: str) -> Iterator[tuple[str, str, str]]:
    heads = list(_HEAD.finditer(text))
    for head, after in zip(heads, [*heads[1:], None], strict=True):
        bdf = head[1] if head[1].count(":") == 2 else f"0000:{head[1]}"
        yield bdf, head[2], text[head.start() : after.start() if after else len(text)]


def _registers(block: str) -> dict[str, object]:
    """Return what lspci says of one function."""
    found: dict[str, object] = {}
    if control := _CONTROL.search(block):
        found |= {"RlxdOrd": control[1] == "+", "ExtTag": control[2] == "+"}
        found |= {"MaxPayload": int(control[3]), "MaxReadReq": int(control[4])}
    if acs := re.search(r"ACSCtl:\s*(SrcValid.*\S)", block):
        found["ACS"] = acs[1]
    if ats := re.search(r"ATSCtl:\s*Enable([+-])", block):
        found["ATS"] = ats[1] == "+"
    return found


def _read_registers(space: object) -> dict[str, object]:
    """Return the same as gdrtop decoded it, as far as it is known."""
    if not isinstance(space, ConfigSpace):
        return {}
    found: dict[str, object] = {}
    if isinstance(space.express, PciExpress):
        found |= {"RlxdOrd": space.express.relaxed_ordering, "ExtTag": space.express.extended_tags}
        found["MaxPayload"] = space.express.max_payload_bytes
        found["MaxReadReq"] = space.express.max_read_request_bytes
    if not isinstance(space.acs, Unknown):
        found["ACS"] = str(space.acs.on)
    if not isinstance(space.ats_enabled, Unknown):
        found["ATS"] = space.ats_enabled
    return found
