"""GPU and NIC that look adjacent in a virtual machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.kernel.release import KernelFacts
from probes.facts.pci.functions import PciFacts
from probes.queries.finding import Finding, Status
from probes.queries.unproven_paths import BEHIND_IOMMU, IN_GUEST, OVER_C2C, unproven_pairs
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices import pci as config
from probes.snapshot.examination import examine
from tests.support.doctor import examination_of
from tests.support.tiers import USUAL_NODES
from widgets.base.lines import Tone, plain
from widgets.node import matrix, path
from widgets.node.highlights import Highlights


def finding_of(host: SimulatedHost) -> Finding:
    (finding,) = findings(examine(host), only={"vm-pair-unproven"})
    return finding


def test_a_short_path_in_a_guest_proves_nothing() -> None:
    """ai-dynamo/dynamo issue 12463: garbage tokens on passthrough VMs."""
    finding = finding_of(SimulatedHost("hgx-h100+vm-pair-unproven", clock=lambda: 1000.0))
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.WARNING)
    assert "GPU0 and mlx5_0" in finding.evidence[0].value


def test_with_ats_the_guest_is_silent() -> None:
    host = SimulatedHost("hgx-h100+vm-pair-unproven", clock=lambda: 1000.0)
    for nic in host.tree.nics:
        config.set_bits(host.tree, nic.bdf, config.ATS_CONTROL, 0x8000, 0x8000)
    assert finding_of(host).status is Status.PASSED


@pytest.mark.parametrize("node", USUAL_NODES)
def test_usual_nodes_are_silent(node: str) -> None:
    (finding,) = findings(examination_of(node), only={"vm-pair-unproven"})
    assert finding.status is not Status.FOUND


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node", "pairs", "reason"),
    [
        ("hgx-h100+vm-pair-unproven", 16, IN_GUEST),
        ("hgx-h100", 0, ""),
        ("hgx-b300+iommu-translated", 64, BEHIND_IOMMU),
        ("hgx-b300", 0, ""),
        ("hgx-h100+iommu-translated", 0, ""),  # Linux 6.8
        ("gb200", 0, ""),
    ],
)
def test_pairs_whose_data_may_be_wrong(node: str, pairs: int, reason: str) -> None:
    """dynamo issue 12463; open-gpu-kernel-modules issue 1324: “writes silently discarded”."""
    found = unproven_pairs(examine(SimulatedHost(node, clock=lambda: 1000.0)))
    assert len(found) == pairs
    assert set(found.values()) == ({reason} if reason else set())


def test_the_topology_draws_no_such_path_as_good() -> None:
    examination = examine(SimulatedHost("hgx-h100+vm-pair-unproven", clock=lambda: 1000.0))
    topology, unproven = examination.topology, unproven_pairs(examination)
    for gpu, nic in unproven:
        text, tone = matrix.cell_of(topology, gpu, nic, Highlights(unproven=unproven))
        assert text.endswith("?")
        assert tone is Tone.WARNING
    (legend, *_) = matrix.legend(topology, 120, Highlights(unproven=unproven))
    assert "? data may be wrong" in plain(legend)
    pair = next(iter(unproven))
    drawn = [plain(line) for line in path.draw(topology, topology.path(*pair), 100, doubt=unproven[pair])]
    assert f"Unproven: {IN_GUEST}" in drawn


def test_wrong_data_is_marked_before_a_detour() -> None:
    """A path that does both has the mark of the worse."""
    examination = examine(SimulatedHost("hgx-b300+iommu-translated", clock=lambda: 1000.0))
    topology, unproven = examination.topology, unproven_pairs(examination)
    both = Highlights(unproven=unproven, detours=frozenset(unproven))
    gpu, nic = next(iter(unproven))
    assert matrix.cell_of(topology, gpu, nic, both)[0].endswith("?")
    assert "via CPU" not in plain(matrix.legend(topology, 120, both)[0])
    drawn = path.best_pairs(topology, 100, unproven, {}, 20, unproven)
    assert "data may be wrong" in plain(drawn[1])


@pytest.mark.parametrize("change", ["passthrough", "platform"])
def test_a_translation_that_no_check_finds_marks_no_path(change: str) -> None:
    examination = examine(SimulatedHost("hgx-b300+iommu-translated", clock=lambda: 1000.0))
    node = examination.node
    assert unproven_pairs(examination)
    if change == "platform":
        node = replace(node, platform=Unknown(Reason.TIMED_OUT))
    else:  # before Linux 5.11, the command line shows it
        assert isinstance(node.pci, PciFacts)
        assert isinstance(node.kernel, KernelFacts)
        no_type = Unknown(Reason.NOT_THERE)
        functions = {bdf: replace(each, iommu_type=no_type) for bdf, each in node.pci.functions.items()}
        kernel = replace(node.kernel, cmdline="root=/dev/sda1 iommu=pt")
        node = replace(node, pci=replace(node.pci, functions=functions), kernel=kernel)
    examination = replace(examination, node=node)
    (finding,) = findings(examination, only={"iommu-translated"})
    assert finding.status is not Status.FOUND
    assert not unproven_pairs(examination)


def test_an_efa_behind_the_cpu_of_a_gpu_with_c2c_is_unproven() -> None:
    """ofiwg/libfabric pull request 12864, of P6e: "A CUDA dmabuf fd encodes exactly one DMA path"."""
    examination = examination_of("aws-p5")
    gpus = examination.node.gpus
    assert isinstance(gpus, GpuFacts)
    assert unproven_pairs(examination) == {}
    first, *others = gpus.gpus
    node = replace(examination.node, gpus=replace(gpus, gpus=(replace(first, c2c_links=10), *others)))
    over_c2c = replace(examination, node=node)
    near = {(first.bdf, f"rdmap{bus}s0") for bus in range(79, 83)}  # those below its switch
    found = unproven_pairs(over_c2c)
    assert set(found.values()) == {OVER_C2C}
    assert found.keys() == {(first.bdf, nic.id) for nic in examination.topology.nics} - near
