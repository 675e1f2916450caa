"""Where NCCL uses a topology file, paths, best NICs, checks and the verdict come from it."""

from collections.abc import Callable

import pytest

from probes.base.evidence import Severity
from probes.checks.judgment import judge
from probes.checks.registry import CHECKS, findings
from probes.facts.node import probe_node
from probes.nccl.topology_file import Element, cpu_mask, file_tree, parse_system, system_of, xml_text
from probes.queries.finding import Finding, Status
from probes.recording.redaction.config_files import TOPOLOGY
from probes.recording.redaction.tokens import Tokens
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import add_rank
from probes.simulation.node.model.names import SIMULATED_NAMES
from probes.simulation.node.model.tree import Tree
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State
from probes.topology.nccl_paths import Nccl
from probes.topology.paths import build
from tests.support.doctor import findings_on
from tests.support.env_nodes import changed
from tests.support.nccl_xml import pairs_below_switches

NDV5 = "/opt/microsoft/ndv5/topo.xml"


def configured(text: str, path: str = NDV5) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        tree.add("/etc/nccl.conf", f"NCCL_TOPO_FILE={path}\n")
        tree.add(NDV5, text)

    return change


def near(examination: Examination) -> dict[str, tuple[str, ...]]:
    """Return the NICs within PXB of each GPU, over PCIe."""
    topology = examination.topology
    return {
        gpu.label: tuple(
            nic.id for nic in topology.nics if topology.path(gpu.id, nic.id).nccl_pcie in (Nccl.PIX, Nccl.PXB)
        )
        for gpu in topology.gpus
    }


def finding(examination: Examination, name: str) -> Finding:
    return next(finding for finding in findings(examination) if finding.id == name)


def test_a_virtual_machine_takes_its_paths_from_the_file_of_nccl_conf() -> None:
    examination = changed("cloud-vm", configured(pairs_below_switches()))
    assert near(examination) == {f"GPU{number}": (f"mlx5_{number}",) for number in range(8)}
    verdict = judge(examination).verdict
    assert verdict.state in (State.ACTIVE, State.READY)
    assert (verdict.gpus_served, verdict.nics) == (8, 8)
    assert f"NCCL's topology file {NDV5}" in verdict.reason
    assert examination.topology.best_nics["0008:00:00.0"][0] == "mlx5_3"
    assert finding(examination, "vm-without-p2p").status is Status.PASSED


def test_without_a_file_nothing_changes() -> None:
    examination = changed("cloud-vm", lambda tree: None)
    assert examination.topology.file is None
    assert not any(near(examination).values())


def test_the_default_place_needs_no_variable() -> None:
    path = "/var/run/nvidia-topologyd/virtualTopology.xml"
    examination = changed("cloud-vm", lambda tree: tree.add(path, pairs_below_switches()))
    assert examination.topology.file is not None
    assert examination.topology.file.path == path
    assert all(near(examination).values())


def test_the_file_of_a_job_counts_where_there_is_no_other() -> None:
    def change(tree: Tree) -> None:
        add_rank(tree, 51000, 0, {"NCCL_TOPO_FILE": "/opt/topo.xml"})
        tree.add("/proc/51000/root/opt/topo.xml", pairs_below_switches())

    examination = changed("cloud-vm", change)
    assert examination.topology.file is not None
    assert examination.topology.file.path == "/proc/51000/root/opt/topo.xml"


def test_gpus_that_the_file_places_far_from_every_nic_are_found() -> None:
    """On a virtual machine without a file the distances are not judged."""
    text = pairs_below_switches().replace('<pci busid="0101:00:00.0" class="0x020700"/>', "")
    text = text.replace("</cpu>", '</cpu><cpu numaid="1"><pci busid="0101:00:00.0" class="0x020700"/></cpu>')
    examination = changed("cloud-vm", configured(text))
    assert finding(examination, "gpu-nic-through-cpu").devices == ("0001:00:00.0",)
    far = finding(examination, "gpu-without-near-nic")
    assert far.devices == ("0001:00:00.0",)
    assert far.evidence[0].source == f"{NDV5}, GPU0"
    assert examination.topology.path("0001:00:00.0", "mlx5_0").nccl_pcie is Nccl.SYS


def test_devices_that_the_file_does_not_name_stay_where_sysfs_has_them() -> None:
    text = '<system version="1"><cpu numaid="0"><pci busid="0001:00:00.0" class="0x030200"/></cpu></system>'
    plain = changed("cloud-vm", lambda tree: None).topology
    partly = changed("cloud-vm", configured(text)).topology
    assert partly.path("0002:00:00.0", "mlx5_1").nccl_pcie is plain.path("0002:00:00.0", "mlx5_1").nccl_pcie
    assert partly.path("0001:00:00.0", "mlx5_0").nccl_pcie is Nccl.SYS


def test_a_device_below_a_switch_of_the_file_joins_the_files_tree() -> None:
    """NCCL asks sysfs about what the file leaves out, and stops at the first switch that it knows."""
    topology = build(probe_node(SimulatedHost("hgx-h100")))
    gpu, nic = topology.gpus[0].id, topology.best_nics[topology.gpus[0].id][0]
    system = system_of(topology)
    bus = next(pci for pci in system.walk() if pci.name == "pci").get("busid")
    text = f'<system version="1"><cpu numaid="9"><pci busid="{bus}" class="0x060400"/></cpu></system>'
    parsed = parse_system(text, "t")
    assert isinstance(parsed, Element)
    moved = build(topology.node, file_tree("t", parsed))
    assert moved.path(gpu, nic).nccl_pcie is topology.path(gpu, nic).nccl_pcie
    others = [end.id for end in topology.gpus[1:] if topology.path(gpu, end.id).nccl_pcie is Nccl.PHB]
    assert others
    assert all(moved.path(gpu, other).nccl_pcie is Nccl.SYS for other in others)


def test_a_missing_file_of_nccl_conf_is_found_and_the_paths_are_unknown() -> None:
    examination = changed("cloud-vm", configured(pairs_below_switches(), "/opt/gone.xml"))
    assert examination.topology.file is None
    assert examination.usability.state is State.UNKNOWN
    missing = finding(examination, "nccl-topo-file-missing")
    assert missing.status is Status.FOUND
    assert missing.evidence[0].source == "/opt/gone.xml"


def test_a_file_that_is_no_topology_gives_no_paths() -> None:
    examination = changed("cloud-vm", configured("<html/>"))
    assert examination.topology.file is None
    assert finding(examination, "nccl-topo-file-stale").status is Status.UNKNOWN


@pytest.mark.parametrize("name", SIMULATED_NAMES)
def test_what_gdrtop_writes_gives_the_same_paths_when_read(name: str) -> None:
    topology = build(probe_node(SimulatedHost(name)))
    parsed = parse_system(xml_text(system_of(topology)), "t")
    assert isinstance(parsed, Element)
    again = build(topology.node, file_tree("t", parsed))
    assert {pair: path.nccl for pair, path in again.paths.items()} == {
        pair: path.nccl for pair, path in topology.paths.items()
    }
    assert again.best_nics == topology.best_nics
    buses = {element.get("busid") for element in parsed.walk() if element.name == "pci"}
    assert {gpu.id for gpu in topology.gpus} <= buses


def test_the_mask_of_cpus_is_written_like_the_kernels_cpumap() -> None:
    assert cpu_mask((0, 1, 2, 3), 8) == "0000000f"
    assert cpu_mask(range(32, 36), 64) == "0000000f,00000000"


def test_a_healthy_azure_node_has_no_finding_and_every_check_runs() -> None:
    found = findings_on("azure-nd-h100").values()
    wrong = (Severity.CRITICAL, Severity.WARNING)
    assert not [
        finding.id for finding in found if finding.status is Status.FOUND and finding.severity in wrong
    ]
    allowed = {check.id for check in CHECKS if check.is_moving}  # some need watching
    allowed |= {"bit-errors-before-fec", "symbols-lost", "module-hot-events", "module-faulty"}  # no ib_ipoib
    assert {finding.id for finding in found if finding.status is Status.UNKNOWN} <= allowed


def test_a_redacted_file_gives_the_same_paths() -> None:
    text = xml_text(system_of(build(probe_node(SimulatedHost("hgx-h100")))))
    kept = TOPOLOGY(Tokens(), text.encode()).decode()
    systems = [parse_system(content, "t") for content in (text, kept)]
    seats = [file_tree("t", system).seats for system in systems if isinstance(system, Element)]
    assert len(seats) == 2
    assert seats[0] == seats[1]
