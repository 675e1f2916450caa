"""ClusterPolicy, NVIDIADriver, NicClusterPolicy, values of charts, plugins' configs and SR-IOV policies."""

from __future__ import annotations

import pytest

from probes.base.evidence import Severity
from probes.setup.env.assignments import FileKind
from probes.setup.manifests import gpu_operator
from probes.setup.manifests.manifest_text import Refused
from tests.probes.setup.env.test_lint import ERROR, NOTE, WARNING, has, judged, said
from tests.support.parsed_manifests import DMABUF, PEERMEM, request_of

PARTS = ("daemonsets", "dcgm", "dcgmExporter", "devicePlugin", "gfd", "nodeStatusExporter", "operator")
REST = "".join(f"  {name}: {{}}\n" for name in PARTS)


def policy(driver: str, rest: str = "") -> str:
    top = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: cluster-policy}\nspec:\n"
    return f"{top}  driver: {driver}\n{REST}  toolkit: {{}}\n{rest}"


def of_policy(driver: str, rest: str = "", node: str = "hgx-h100") -> list[tuple[int, Severity, str]]:
    return said(judged(policy(driver, rest), FileKind.POD, node))


@pytest.mark.parametrize(
    ("driver", "severity", "words"),
    [
        ("{enabled: true}", NOTE, "Jobs use DMA-BUF"),
        ("{kernelModuleType: proprietary}", ERROR, "neither DMA-BUF nor nvidia-peermem"),
        ("{kernelModuleType: Open}", ERROR, "is not one of auto, open, proprietary"),
        ("{kernelModuleType: proprietary, version: 620.10}", ERROR, "has no proprietary kernel modules"),
        ("{kernelModuleType: auto, version: 550.90.07}", WARNING, "may come with proprietary"),
        ("{version: 535.183.01}", WARNING, "may come with proprietary"),
        ("{useOpenKernelModules: true}", WARNING, "ignores useOpenKernelModules"),
        ("{rdma: {enabled: 'true'}}", ERROR, "enabled is a text"),
        ("{rdma: {enabled: true, usehostMofed: true}}", WARNING, "did you mean useHostMofed?"),
        ("{enabled: false, rdma: {enabled: true}}", WARNING, "driver.enabled is false"),
        ("{useNvidiaDriverCRD: true, rdma: {enabled: true}}", WARNING, "useNvidiaDriverCRD is true"),
    ],
)
def test_settings_of_the_driver_and_what_they_mean(driver: str, severity: Severity, words: str) -> None:
    assert any(row[1] is severity and words in row[2] for row in of_policy(driver)), of_policy(driver)


def test_peermem_waits_for_ofed_where_it_is() -> None:
    """hgx-h100 has OFED on the host."""
    right = of_policy("{rdma: {enabled: true, useHostMofed: true}}")
    assert right == [(5, NOTE, "The driver pods load nvidia-peermem after OFED on the host")]
    report = judged(policy("{rdma: {enabled: true}}"), FileKind.POD)
    assert has(report, 5, WARNING, "after OFED in the Network Operator's container")
    assert "wait for the container forever" in report.problems[0].detail


def test_a_policy_of_nics_without_a_driver_leaves_peermem_waiting() -> None:
    nics = "---\napiVersion: mellanox.com/v1alpha1\nkind: NicClusterPolicy\nspec: {nvIpam: {}}\n"
    report = judged(policy("{rdma: {enabled: true}}", nics), FileKind.POD, "dgx-spark")
    assert any("has no ofedDriver" in problem.detail for problem in report.problems)


def test_a_short_policy_is_a_patch() -> None:
    text = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nspec: {driver: {enabled: true}}\n"
    report = judged(text, FileKind.POD)
    assert has(report, 3, NOTE, "is valid as a patch only")
    assert report.exit_status == 0


def test_gdrcopy_and_gds_need_a_driver_that_has_them() -> None:
    host = of_policy("{enabled: false}", "  gdrcopy: {enabled: true}\n")
    assert any(row[1] is WARNING and "gdrcopy needs the driver container" in row[2] for row in host)
    gds = of_policy("{kernelModuleType: proprietary}", "  gds: {enabled: true}\n")
    assert any("GPUDirect Storage needs the open kernel modules" in row[2] for row in gds)


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: nvidia.com/v1alpha1\nkind: NVIDIADriver\nspec: {kernelModuleType: proprietary}\n",
        "driver: {kernelModuleType: proprietary}\n",
        "gpu-operator:\n  driver: {kernelModuleType: proprietary}\n",
    ],
)
def test_the_driver_of_other_objects_is_judged_alike(text: str) -> None:
    report = judged(text, FileKind.POD)
    assert [row[1] for row in said(report)] == [ERROR]


def test_values_on_the_command_line_of_helm() -> None:
    text = "helm upgrade -i g nvidia/gpu-operator --set driver.kernelModuleType=proprietary,gds.enabled=false"
    assert has(judged(text), 1, ERROR, "neither DMA-BUF nor nvidia-peermem")


NICS = """\
apiVersion: mellanox.com/v1alpha1
kind: NicClusterPolicy
metadata: {name: nic-cluster-policy}
spec:
  ofedDriver: {image: doca-driver, env: [{name: UNLOAD_STORAGE_MODULE, value: true}]}
  rdmaSharedDevicePlugin:
    config: |
      {
        "configList": [
          %s
        ]
      }
"""
SHARED = '{"resourceName": "%s", "rdmaHcaMax": %s, "selectors": {%s}}'


@pytest.mark.parametrize(
    ("entry", "severity", "words"),
    [
        (SHARED % ("hca-a", 63, '"vendors": ["15b3"]'), ERROR, "characters other than"),
        (SHARED % ("a", 0, '"vendors": ["15b3"]'), ERROR, "rdmaHcaMax is not set for a"),
        (SHARED % ("a", 63, ""), ERROR, "neither selectors nor devices"),
        (SHARED % ("a", 63, '"vendors": ["0x15b3"]'), WARNING, "matches no NIC"),
        (
            SHARED % ("a", 63, '"devices": ["1021"], "vendors": ["15b3"]'),
            WARNING,
            "does not know the selector",
        ),
        (SHARED % ("a", 63, '"ifNames": ["none0"]'), WARNING, "match no NIC of this node"),
        (SHARED % ("a", 63, '"vendors": ["15b3"],'), ERROR, "not valid JSON"),
        ("", ERROR, "has no resource"),
    ],
)
def test_the_config_of_the_shared_device_plugin(entry: str, severity: Severity, words: str) -> None:
    rows = said(judged(NICS % entry, FileKind.POD))
    assert any(row[1] is severity and words in row[2] for row in rows), rows


def test_names_of_selectors_are_read_in_any_case_and_lines_are_those_of_the_file() -> None:
    entry = SHARED % ("a", 63, '"Vendors": ["15b3"], "ifnames": ["ib0"]')
    rows = said(judged(NICS % entry, FileKind.POD))
    assert [row[:2] for row in rows] == [(5, ERROR), (5, WARNING)]  # of env alone
    wrong = said(judged(NICS % (SHARED % ("a", 63, "")), FileKind.POD))
    assert [row[0] for row in wrong if "neither" in row[2]] == [10]


def test_variables_of_the_ofed_container() -> None:
    report = judged(NICS % (SHARED % ("a", 63, '"vendors": ["15b3"]')), FileKind.POD)
    assert has(report, 5, ERROR, "is not a string")
    assert has(report, 5, WARNING, "did you mean UNLOAD_STORAGE_MODULES?")


def test_a_config_map_of_a_plugin_is_read_too() -> None:
    config = '{"resourceList": [{"resourceName": "a", "selectors": {}}]}'
    text = f"kind: ConfigMap\ndata:\n  config.json: '{config}'\n"
    assert has(judged(text, FileKind.POD), 3, WARNING, "isRdma is not true for a")


def test_pods_request_what_the_policies_of_the_file_offer() -> None:
    pod = (
        "---\nspec:\n  hostNetwork: true\n  hostIPC: true\n  containers:\n  - name: train\n"
        "    securityContext: {privileged: true}\n    resources: {limits: {nvidia.com/gpu: 8, rdma/b: 1}}\n"
    )
    text = NICS % (SHARED % ("a", 63, '"vendors": ["15b3"]')) + pod
    assert has(judged(text, FileKind.POD), 18, WARNING, "requests rdma/b, which no policy")
    assert not has(judged(text.replace("rdma/b", "rdma/a"), FileKind.POD), 18, WARNING, "no policy")


SRIOV = "apiVersion: sriovnetwork.openshift.io/v1\nkind: SriovNetworkNodePolicy\nspec: {resourceName: a%s}\n"


def test_virtual_functions_need_is_rdma_and_a_kernel_driver() -> None:
    assert has(judged(SRIOV % "", FileKind.POD), 3, WARNING, "isRdma is not true")
    vfio = judged(SRIOV % ", isRdma: true, deviceType: vfio-pci", FileKind.POD)
    assert has(vfio, 3, ERROR, "no RDMA device")
    right = judged(SRIOV % ", isRdma: true, numVfs: 8", FileKind.POD)
    assert (said(right), right.exit_status) == ([], 0)


NETWORK = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nspec:\n  config: '%s'\n"


def test_networks_of_pods() -> None:
    assert has(judged(NETWORK % "{", FileKind.POD), 4, ERROR, "not valid JSON")
    assert has(judged(NETWORK % '{"type": "macvlan"}', FileKind.POD), 4, WARNING, "has no ipam")
    sriov = judged(NETWORK % '{"type": "ib-sriov", "pkey": "8001"}', FileKind.POD)
    assert has(sriov, 4, WARNING, "partition key")
    assert has(sriov, 4, NOTE, "Without the CNI plugin “rdma”")
    chained = '{"plugins": [{"type": "sriov", "ipam": {"type": "nv-ipam"}}, {"type": "rdma"}]}'
    assert said(judged(NETWORK % chained, FileKind.POD)) == []


@pytest.mark.parametrize("node", ["hgx-h100", "bare-roce", "hgx-b200"])
def test_what_gdrtop_manifest_writes_is_right(node: str) -> None:
    for path in (DMABUF, PEERMEM):
        for write in (gpu_operator.cluster_policy, gpu_operator.helm, gpu_operator.nic_cluster_policy):
            text = write(request_of(node, path))
            assert not isinstance(text, Refused)
            report = judged(text, FileKind.POD, node)
            assert report.objects == 1
            assert {row[1] for row in said(report)} <= {NOTE}, said(report)
