"""The trees that hwloc is tested on: what gdrtop reads there equals hwloc's own expected output."""

import re
import tarfile
import xml.etree.ElementTree as ElementTree

import pytest

from probes.base.unknown import Unknown, known
from probes.facts.pci import functions as pci
from probes.facts.pci.functions import PciFacts
from probes.facts.system import numa
from probes.facts.system.numa import NumaFacts, parse_list
from probes.host.machine.local import LocalHost
from tests.support.hwloc_trees import TREES, USUAL_TREES
from tests.support.machines import machine_file
from tests.support.tiers import usual


@pytest.fixture(params=usual(TREES, USUAL_TREES), scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def host(name: str, tmp_path_factory: pytest.TempPathFactory) -> LocalHost:
    directory = tmp_path_factory.mktemp("hwloc")
    with tarfile.open(machine_file(f"hwloc_sysfs/{name}.tar.bz2")) as archive:
        archive.extractall(directory)
    (root,) = directory.iterdir()
    return LocalHost(str(root))


def expected(name: str) -> str:
    for ending in ("xml", "console"):
        try:
            return machine_file(f"hwloc_sysfs/{name}.{ending}").read_text()
        except pytest.skip.Exception:
            continue
    pytest.skip("no expected output")


def expected_numa_nodes(text: str) -> set[int]:
    if text.startswith("<?xml"):
        tree = ElementTree.fromstring(text)
        # All of the machine's, a cgroup's limits apart: gdrtop looks at the node, not at what it may use.
        (machine,) = (o for o in tree.iter("object") if o.get("type") == "Machine")
        return bits(machine.get("complete_nodeset", ""))
    return {int(number) for number in re.findall(r"NUMANode L#\d+ \(P#(\d+)", text)}


def expected_functions(text: str) -> dict[str, tuple[int, int, int]]:
    """BDF -> class (16 bits), vendor, device, of the functions hwloc lists, bridges with upstream PCI too."""
    found: dict[str, tuple[int, int, int]] = {}
    if text.startswith("<?xml"):
        for element in ElementTree.fromstring(text).iter("object"):
            kind = re.match(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", element.get("pci_type", ""))
            if kind:
                code, vendor, device = (int(part, 16) for part in kind.groups())
                found[element.get("pci_busid", "")] = code, vendor, device
        return found
    pattern = r"(?:busid|PCIBridge.*?busid)=([0-9a-f:.]+) id=([0-9a-f]{4}):([0-9a-f]{4}) class=([0-9a-f]{4})"
    for bdf, vendor, device, code in re.findall(pattern, text):
        found[bdf] = int(code, 16), int(vendor, 16), int(device, 16)
    return found


def expected_locality(text: str) -> dict[str, set[int]]:
    """BDF -> NUMA nodes near it, by the nodeset of the nearest object above that has one."""
    found: dict[str, set[int]] = {}

    def walk(node_element: ElementTree.Element, nodes: set[int]) -> None:
        if node_element.get("nodeset"):
            nodes = bits(node_element.get("nodeset", ""))
        if node_element.get("pci_busid"):
            found[node_element.get("pci_busid", "")] = nodes
        for child in node_element.findall("object"):
            walk(child, nodes)

    walk(ElementTree.fromstring(text), set())
    return found


def bits(text: str) -> set[int]:
    words = [int(word, 16) for word in text.split(",")]
    value = 0
    for word in words:
        value = value << 32 | word
    return {number for number in range(value.bit_length()) if value >> number & 1}


@pytest.mark.slow
def test_numa_nodes(name: str, host: LocalHost) -> None:
    wanted = expected_numa_nodes(expected(name))
    facts = numa.probe(host)
    assert isinstance(facts, NumaFacts)
    found = {node.number for node in facts.nodes}
    if name == "nvidiagpunumanodes":
        # hwloc leaves out the nodes that are GPU memory; they have no CPUs.
        found = {node.number for node in facts.nodes if node.cpulist}
    assert found == wanted


@pytest.mark.slow
def test_pci_functions(name: str, host: LocalHost) -> None:
    wanted = expected_functions(expected(name))
    facts = pci.probe(host)
    if not wanted:
        assert isinstance(facts, Unknown)  # no devices in the dump
        return
    assert isinstance(facts, PciFacts)
    found = {
        # hwloc prints 0 where a stripped dump has no ids; for gdrtop they are unknown.
        bdf: (
            node_element.class_code >> 8,
            known(node_element.vendor_id, 0),
            known(node_element.device_id, 0),
        )
        for bdf, node_element in facts.functions.items()
        if isinstance(node_element.class_code, int)
    }
    if name == "2pa-pcidomain32bits":
        # Without --whole-io hwloc lists what it holds to be of interest only.
        assert wanted.items() <= found.items()
        return
    # hwloc folds no function away with --whole-io, but it shows a bridge only where something hangs below.
    assert wanted.items() <= found.items()
    assert all(code in (0x0604, 0x0600) or bdf in wanted for bdf, (code, _, _) in found.items())


def test_locality(name: str, host: LocalHost) -> None:
    if name == "fakepcilocalities":
        pytest.skip("its expected localities are forced by an environment variable of hwloc's")
    text = expected(name)
    if not text.startswith("<?xml") or not (wanted := expected_locality(text)):
        pytest.skip("the expected output gives no locality of PCI devices")
    facts = pci.probe(host)
    nodes = numa.probe(host)
    assert isinstance(facts, PciFacts)
    assert isinstance(nodes, NumaFacts)
    for bdf, near in wanted.items():
        read = facts.functions[bdf].numa_node
        if isinstance(read, int):
            assert near == {read}
        else:
            # The kernel says -1: hwloc goes by the CPUs it holds to be near, mostly all of them.
            cpus = set(parse_list(str(facts.functions[bdf].local_cpulist)) or ())
            assert near == {n.number for n in nodes.nodes if cpus & set(parse_list(str(n.cpulist)) or ())}


def test_cpus_of_numa_nodes(name: str, host: LocalHost) -> None:
    text = expected(name)
    if not text.startswith("<?xml"):
        pytest.skip("the console output gives CPUs by core only")
    facts = numa.probe(host)
    assert isinstance(facts, NumaFacts)
    for element in ElementTree.fromstring(text).iter("object"):
        if element.get("type") == "NUMANode":
            (node,) = (node for node in facts.nodes if node.number == int(element.get("os_index", "")))
            assert isinstance(node.cpulist, str)
            assert set(parse_list(node.cpulist) or ()) == bits(element.get("complete_cpuset", ""))
