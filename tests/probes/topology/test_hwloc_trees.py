"""The trees that hwloc is tested on: what gdrtop reads there equals hwloc's own expected output."""

import tarfile
import xml.etree.ElementTree as ElementTree

import pytest

from probes.base.unknown import Unknown, known
from probes.facts.pci import functions as pci
from probes.facts.pci.functions import PciFacts
from probes.facts.system import numa
from probes.facts.system.numa import NumaFacts, parse_list
from probes.host.machine.local import LocalHost
from tests.support.hwloc_trees import (
    TREES,
    USUAL_TREES,
    bits,
    expected_functions,
    expected_locality,
    expected_numa_nodes,
)
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
