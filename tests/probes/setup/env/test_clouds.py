"""The vendor's settings come first, and nothing is stacked on EFA or gIB."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.facts.gpu.gpus import GpuFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system.platform import Cloud, Provider
from probes.setup.env.advice import Advice, State, lines_of
from probes.setup.env.clouds import GIB_SCRIPT
from probes.simulation.node.model.tree import Tree
from probes.snapshot.examination import Examination
from tests.support.doctor import examination_of
from tests.support.env_nodes import advice_for, changed, note_on
from tests.support.nccl_xml import pairs_below_switches

AZURE, GOOGLE = Cloud(Provider.AZURE, ""), Cloud(Provider.GOOGLE, "")
ORACLE, AWS = Cloud(Provider.ORACLE, ""), Cloud(Provider.AWS, "p5.48xlarge")
ORACLES = (*("NCCL_IB_TC", "NCCL_IB_TIMEOUT", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IGNORE_CPU_AFFINITY"),)
NDV5 = "/opt/microsoft/ndv5/topo.xml"


def with_efa(name: str = "cloud-vm") -> Examination:
    examination = examination_of(name)
    rdma = examination.node.rdma
    assert isinstance(rdma, RdmaFacts)
    devices = tuple(replace(device, driver="efa") for device in rdma.devices)
    return replace(examination, node=replace(examination.node, rdma=replace(rdma, devices=devices)))


def with_gpus(node: str | Examination, name: str) -> Examination:
    examination = examination_of(node) if isinstance(node, str) else node
    gpus = examination.node.gpus
    assert isinstance(gpus, GpuFacts)
    changed_gpus = replace(gpus, gpus=tuple(replace(gpu, name=name) for gpu in gpus.gpus))
    return replace(examination, node=replace(examination.node, gpus=changed_gpus))


def topology(buses: tuple[str, ...]) -> str:
    inner = "".join(f'<pci busid="{bus}" class="0x030200"/>' for bus in buses)
    return f'<system version="1"><cpu numaid="0">{inner}</cpu></system>\n'


def test_on_efa_the_plugin_sets_everything() -> None:
    advice, settings = advice_for(with_efa(), cloud=AWS)
    assert settings == {}
    assert advice.vendor == "AWS with EFA"
    assert note_on(advice, "NCCL_*").state is State.VENDOR
    assert "no effect on EFA" in note_on(advice, "NCCL_IB_*").text


def test_on_google_the_script_is_named_and_nothing_added() -> None:
    advice, settings = advice_for("cloud-vm", cloud=GOOGLE)
    assert settings == {}
    assert advice.source_script == GIB_SCRIPT


def test_a_line_in_nccl_conf_that_is_stacked_on_gib_is_named() -> None:
    node = changed("cloud-vm", lambda tree: tree.add("/etc/nccl.conf", "NCCL_IB_TC=52\nNCCL_DEBUG=WARN\n"))
    advice, _ = advice_for(node, cloud=GOOGLE)
    assert "remove the line" in note_on(advice, "NCCL_IB_TC").text
    assert not any(note.variable == "NCCL_DEBUG" for note in advice.notes)


def test_azure_gets_what_its_images_set() -> None:
    advice, settings = advice_for("cloud-vm", cloud=AZURE)
    assert settings == {"NCCL_IB_PCI_RELAXED_ORDERING": "1", "NCCL_IGNORE_CPU_AFFINITY": "1"}
    assert all("azhpc-images" in setting.source for setting in advice.settings)
    assert note_on(advice, "NCCL_TOPO_FILE").state is State.UNKNOWN


def test_azure_gets_the_topology_file_that_describes_it() -> None:
    def change(tree: Tree) -> None:
        tree.add(NDV5, topology(("0001:00:00.0", "0101:00:00.0")))
        tree.add("/opt/microsoft/ndv4/topo.xml", topology(("000f:00:00.0",)))

    settings = advice_for(changed("cloud-vm", change), cloud=AZURE)[1]
    assert settings["NCCL_TOPO_FILE"] == NDV5


def test_with_azures_own_nccl_conf_nothing_is_added() -> None:
    def change(tree: Tree) -> None:
        tree.add(NDV5, pairs_below_switches())
        lines = ("NCCL_IB_PCI_RELAXED_ORDERING=1", f"NCCL_TOPO_FILE={NDV5}", "NCCL_IGNORE_CPU_AFFINITY=1")
        tree.add("/etc/nccl.conf", "\n".join(lines))

    advice, settings = advice_for(changed("cloud-vm", change), cloud=AZURE)
    assert settings == {}
    assert advice.is_complete


def test_oracle_gets_its_traffic_class_and_its_own_file_wins() -> None:
    advice, settings = advice_for(with_gpus("pcie-l40s", "NVIDIA H100"), cloud=ORACLE)
    assert settings["NCCL_IB_TC"] == "41"
    assert settings["NCCL_IB_TIMEOUT"] == "22"
    assert "NCCL_IB_QPS_PER_CONNECTION" not in settings  # 1 is the default; only A100 has 4
    assert "NCCL_IB_TC" not in advice_for("hgx-h100", cloud=AZURE)[1]
    own = changed("pcie-l40s", lambda tree: tree.add("/etc/nccl.conf", "NCCL_IB_TC=105\n"))
    advice, settings = advice_for(with_gpus(own, "NVIDIA H100"), cloud=ORACLE)
    assert "NCCL_IB_TC" not in settings
    assert any(note.state is State.IN_FILE and "has 105" in note.text for note in advice.notes)


def test_a_cloud_advises_only_for_machines_whose_images_set_it() -> None:
    gb200 = advice_for(with_gpus("cloud-vm", "NVIDIA GB200"), cloud=AZURE)[1]
    assert "NCCL_IB_PCI_RELAXED_ORDERING" not in gb200
    a100 = advice_for(with_gpus("pcie-l40s", "NVIDIA A100-SXM4-80GB"), cloud=ORACLE)[1]
    assert a100["NCCL_IB_QPS_PER_CONNECTION"] == "4"
    assert "NCCL_IB_TIMEOUT" not in a100
    assert "NCCL_IB_TC" not in advice_for("pcie-l40s", cloud=ORACLE)[1]


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("NVIDIA H200", {"NCCL_IB_TC", "NCCL_IB_TIMEOUT", "NCCL_IGNORE_CPU_AFFINITY"}),
        ("NVIDIA B200", {"NCCL_IB_TC", "NCCL_IB_TIMEOUT", "NCCL_IGNORE_CPU_AFFINITY"}),
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            {"NCCL_IB_TC", "NCCL_IB_TIMEOUT", "NCCL_IGNORE_CPU_AFFINITY"},
        ),
        ("NVIDIA GB300", {"NCCL_IB_TC", "NCCL_IB_TIMEOUT", "NCCL_IB_QPS_PER_CONNECTION"}),
        ("NVIDIA GB200", set()),  # its machine types differ, and no file of the node names it
    ],
)
def test_oracle_sets_variables_by_machine(gpu: str, expected: set[str]) -> None:
    """oracle-quickstart/oci-hpc, nccl-conf files and templates; oci-hpc-oke, manifests/nccl-tests."""
    advice, settings = advice_for(with_gpus(changed("oci-h100", bare), gpu), cloud=ORACLE)
    assert {name for name in settings if name in ORACLES} == expected
    assert "Do not add any" not in heading(advice)


def heading(advice: Advice) -> str:
    return " ".join(line.removeprefix("# ") for line in lines_of(advice, "this node", "shell"))


def bare(tree: Tree) -> None:
    """Replace the cloud's file by one that only logs."""
    tree.add("/etc/nccl.conf", "NCCL_DEBUG=WARN\n")


def test_the_clouds_software_is_named_only_where_it_sets_something() -> None:
    assert "whose software sets the variables" in heading(advice_for("oci-h100", cloud=ORACLE)[0])
    for cloud in (AZURE, ORACLE):
        advice, _ = advice_for(with_gpus(changed("oci-h100", bare), "NVIDIA GB200"), cloud=cloud)
        assert "whose software" not in heading(advice)
