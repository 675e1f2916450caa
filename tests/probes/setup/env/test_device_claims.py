"""Claims of Dynamic Resource Allocation, and slices: whether GPU and NIC are a near pair."""

from __future__ import annotations

import re

import pytest

from probes.base.evidence import Severity
from probes.read.specifications import shown
from probes.setup.env.lint import FileReport, judge_text
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine

ROOT, NUMA = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"


def claim(constraints: str = "", gpus: str = "count: 1", nics: str = "count: 1", nic: str = "dranet") -> str:
    return f"""\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: pair}}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly: {{deviceClassName: gpu.nvidia.com, {gpus}}}
      - name: nic
        exactly: {{deviceClassName: {nic}, {nics}}}
      constraints: [{constraints}]
"""


def matching(attribute: str = ROOT, requests: str = "requests: [gpu, nic], ") -> str:
    return f"{{{requests}matchAttribute: {attribute}}}"


def a_slice(node: str, driver: str, *roots: str, more: str = "", before_v1: bool = False) -> str:
    start, end = ("basic: {", "}") if before_v1 else ("", "")
    devices = "\n".join(
        f"  - {{name: d{number}, {start}attributes: {{{ROOT}: {{string: '{root}'}}{more}}}{end}}}"
        for number, root in enumerate(roots)
    )
    version = "v1beta1" if before_v1 else "v1"
    return (
        f"---\napiVersion: resource.k8s.io/{version}\nkind: ResourceSlice\nspec:\n  driver: {driver}\n"
        f"  nodeName: {node}\n  devices:\n{devices}\n"
    )


def read(text: str, node: str = "") -> FileReport:
    report = judge_text(text, examine(SimulatedHost(node)) if node else None)
    assert report is not None
    return report


def said(text: str, node: str = "") -> list[str]:
    return [f"{problem.severity.value}: {problem.title}" for problem in read(text, node).problems]


NEAR = "note: ResourceClaimTemplate pair gets 1 GPU and 1 NIC below one PCIe root"


@pytest.mark.parametrize("node", ["", "hgx-h100", "dgx-a100"])
def test_a_claim_that_matches_the_root_gets_a_near_pair(node: str) -> None:
    assert said(claim(matching()), node) == [NEAR]
    assert said(claim(matching(requests="")), node) == [NEAR]
    old = re.sub(r"exactly: \{(.*), (.*)\}", r"\1\n        \2", claim(matching()))
    assert said(old, node) == [NEAR]


def test_a_claim_without_a_constraint_may_get_any_nic() -> None:
    (title,) = said(claim())
    assert title == (
        "warning: ResourceClaimTemplate pair requests GPUs and NICs, but not that they are near each other"
    )
    assert ROOT in read(claim()).problems[0].fix
    assert said(claim(matching(requests="requests: [gpu], "))) == [title]
    for whole in (claim(gpus="count: 8", nics="count: 8"), claim(gpus="allocationMode: All")):
        assert said(whole) == []
        assert shown(read(whole)) == "YAML: 1 object checked, nothing wrong found"
    assert said(claim(gpus="count: 4"), "gb200") == []
    assert said(claim(gpus="count: 2"), "gb200") == [title]


@pytest.mark.parametrize(
    ("attribute", "severity"),
    [(NUMA, "note"), ("dra.net/rack", "note"), ("resources.kubernetes.io/pcieRoot", "warning")],
)
def test_other_attributes_are_not_the_nearest_pair(attribute: str, severity: str) -> None:
    title = f"{severity}: ResourceClaimTemplate pair matches {attribute}, not {ROOT}"
    assert said(claim(matching(attribute))) == [title]


@pytest.mark.parametrize(
    ("text", "node", "wanted"),
    [
        (claim(matching()), "gb200", "1 GPU and 1 NIC"),
        (claim(matching(), "count: 8", "count: 8"), "hgx-h100", "8 GPUs and 8 NICs"),
        (claim(matching(), "allocationMode: All"), "hgx-h100", "all GPUs and 1 NIC"),
    ],
)
def test_a_claim_that_no_root_of_this_node_can_meet(text: str, node: str, wanted: str) -> None:
    assert said(text, node) == [
        f"warning: ResourceClaimTemplate pair cannot be allocated on this node: no PCIe root has {wanted}"
    ]


@pytest.mark.parametrize(
    "text", [claim(nic="mine"), claim(gpus="count: X"), claim().replace("gpu.nvidia.com", "fpga")]
)
def test_what_is_no_known_pair_of_gpu_and_nic_is_not_judged(text: str) -> None:
    assert said(text) == []


@pytest.mark.parametrize("before_v1", [False, True])
def test_slices_say_which_gpus_have_a_nic(before_v1: bool) -> None:
    near = a_slice("n1", "gpu.nvidia.com", "pci0000:15", "pci0000:26", before_v1=before_v1)
    near += a_slice("n1", "dra.net", "pci0000:15", before_v1=before_v1)
    assert said(near) == ["note: n1: an RDMA NIC has the PCIe root of 1 of 2 GPUs"]
    assert NEAR in said(near + "---\n" + claim(matching()))
    far = a_slice("n2", "gpu.nvidia.com", "pci0008:00", "") + a_slice("n2", "dra.net", "pci0000:00", "")
    (none,) = said(far)
    assert none == f"note: n2: no RDMA NIC has the {ROOT} of a GPU"
    both = said(far + "---\n" + claim(matching()), "hgx-h100")
    assert (none in both, any("cannot be allocated on n2" in title for title in both)) == (True, True)


def test_devices_that_are_no_rdma_nics_do_not_count() -> None:
    gpus = a_slice("n1", "gpu.nvidia.com", "pci0000:15")
    assert said(gpus + a_slice("n1", "dra.net", "pci0000:15", more=", dra.net/rdma: {bool: false}")) == []
    assert said(gpus + a_slice("n1", "compute-domain.nvidia.com", "pci0000:15")) == []
    assert said(gpus) == []


def test_all_slices_of_a_cluster_are_read_as_kubectl_prints_them() -> None:
    slices = [
        a_slice(f"n{number}", driver, "pci0000:15")
        for number in range(70)
        for driver in ("gpu.nvidia.com", "dra.net")
    ]
    items = "".join(
        each.removeprefix("---\n").replace("\n", "\n  ").strip().join(("- ", "\n")) for each in slices
    )
    report = read(f"apiVersion: v1\nkind: List\nitems:\n{items}")
    (problem,) = report.problems
    assert (problem.severity, report.objects) == (Severity.NOTE, 140)
    assert problem.title.endswith("an RDMA NIC has the PCIe root of 1 of 1 GPU")
