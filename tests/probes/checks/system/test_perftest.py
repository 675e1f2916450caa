"""Checks of perftest, libraries and GDRCopy: passed, found and unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.registry import findings
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system.platform import Environment, PlatformFacts
from probes.facts.system.tools import InstalledLibrary, LibraryFacts, Perftest, ToolFacts
from probes.queries.finding import Finding, Status
from probes.snapshot.examination import Examination
from tests.support.doctor import examination_of, findings_on

ABSENT = Unknown(Reason.NOT_THERE, "absent")
DENIED = Unknown(Reason.NEEDS_ROOT, "closed")
OF_PERFTEST = ("perftest-missing", "perftest-without-cuda", "perftest-without-dmabuf", "libcuda-link-missing")


def said(examination: Examination, check: str) -> Finding:
    (finding,) = findings(examination, only={check})
    return finding


def with_perftest(perftest: Maybe[Perftest], name: str = "hgx-h100") -> Examination:
    node = examination_of(name)
    assert isinstance(node.tools, ToolFacts)
    return replace(node, tools=replace(node.tools, perftest=perftest))


def built(cuda: Maybe[bool], dmabuf: Maybe[bool], opens: Maybe[bool] = False) -> Perftest:
    return Perftest(("ib_write_bw",), "6.23", cuda, dmabuf, "/usr/bin/ib_write_bw", opens)


def test_a_missing_perftest_is_reported_once() -> None:
    found = [check for check in OF_PERFTEST if said(with_perftest(ABSENT), check).status is Status.FOUND]
    assert found == ["perftest-missing"]


def test_a_host_without_a_gpu_needs_no_perftest() -> None:
    node = with_perftest(ABSENT)
    login = replace(node, topology=replace(node.topology, gpus=()))
    assert said(login, "perftest-missing").status is Status.PASSED


def test_a_distribution_perftest_is_reported_once() -> None:
    node = with_perftest(built(cuda=False, dmabuf=False))
    found = [check for check in OF_PERFTEST if said(node, check).status is Status.FOUND]
    assert found == ["perftest-without-cuda"]


@pytest.mark.parametrize("check", OF_PERFTEST)
def test_a_perftest_that_cannot_be_read_is_unknown(check: str) -> None:
    assert said(with_perftest(DENIED), check).status is Status.UNKNOWN
    if check != "perftest-missing":
        node = with_perftest(built(DENIED, DENIED, DENIED))
        assert said(node, check).status is Status.UNKNOWN


def test_perftest_without_dmabuf_depends_on_the_paths_of_the_node() -> None:
    old = built(cuda=True, dmabuf=False)
    with_peermem = said(with_perftest(old), "perftest-without-dmabuf")
    without = said(with_perftest(old, "pcie-l40s"), "perftest-without-dmabuf")
    assert (with_peermem.severity, without.severity) == (Severity.NOTE, Severity.WARNING)


def with_library(soname: str, *paths: str) -> Examination:
    node = examination_of("hgx-h100")
    assert isinstance(node.libraries, LibraryFacts)
    here = tuple(
        InstalledLibrary(path, version if "." in version else ABSENT)
        for path in paths
        for version in [path.partition(".so.")[2]]
    )
    return replace(node, libraries=LibraryFacts({**node.libraries.found, soname: here}))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/usr/lib64/libibverbs.so.1.14.39.0", Status.PASSED),
        ("/usr/lib64/libibverbs.so.1.12.34.0", Status.PASSED),
        ("/usr/lib64/libibverbs.so.1.11.33.1", Status.FOUND),
        ("/usr/lib64/libibverbs.so.1.8.28.0", Status.FOUND),
        ("/usr/lib64/libibverbs.so.1", Status.UNKNOWN),
    ],
)
def test_libibverbs_is_judged_by_its_interface_version(path: str, status: Status) -> None:
    assert said(with_library("libibverbs.so.1", path), "rdma-core-without-dmabuf").status is status


def test_a_perftest_that_is_linked_to_cuda_needs_no_link() -> None:
    node = with_perftest(built(cuda=True, dmabuf=True, opens=False))
    assert isinstance(node.libraries, LibraryFacts)
    node = replace(node, libraries=LibraryFacts({**node.libraries.found, "libcuda.so": ()}))
    assert said(node, "libcuda-link-missing").status is Status.PASSED


def test_the_link_is_created_beside_the_library() -> None:
    fix = findings_on("hgx-h100+libcuda-link-missing")["libcuda-link-missing"].fix
    assert fix is not None
    assert fix.steps[0].argv == ("ln", "-s", "libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so")


def test_gdrcopy_is_not_needed_for_gpudirect_rdma() -> None:
    """GDRCopy is at most a note. Without it its driver is not needed."""
    finding = findings_on("hgx-h100+gdrdrv-missing")["gdrdrv-missing"]
    assert finding.severity is Severity.NOTE
    assert "GPUDirect RDMA is not affected" in finding.impact
    assert findings_on("pcie-l40s")["gdrdrv-missing"].status is Status.PASSED


@pytest.mark.parametrize(
    ("driver", "severity"), [("mlx5_core", Severity.CRITICAL), ("bnxt_en", Severity.NOTE)]
)
def test_a_vendors_own_provider_may_be_elsewhere_in_a_container(driver: str, severity: Severity) -> None:
    node = examination_of("hgx-h100")
    assert isinstance(node.node.rdma, RdmaFacts)
    assert isinstance(node.node.platform, PlatformFacts)
    assert isinstance(node.libraries, LibraryFacts)
    devices = tuple(replace(device, driver=driver) for device in node.node.rdma.devices)
    inside = replace(
        node.node,
        rdma=replace(node.node.rdma, devices=devices),
        platform=replace(node.node.platform, environment=Environment.CONTAINER),
    )
    bare = replace(node, node=inside, libraries=replace(node.libraries, verbs_providers=()))
    finding = said(bare, "libibverbs-missing")
    assert (finding.status, finding.severity) == (Status.FOUND, severity)
    assert bool(finding.takes) is (severity is Severity.CRITICAL)


def test_unreadable_facts_are_unknown() -> None:
    node = replace(examination_of("hgx-h100"), libraries=DENIED, tools=DENIED, device_nodes=DENIED)
    for check in (
        "rdma-core-without-dmabuf",
        "libibverbs-missing",
        "gdrdrv-missing",
        "gdrdrv-device-missing",
        "perftest-port-in-use",
    ):
        assert said(node, check).status is Status.UNKNOWN
