"""What a pod has for GPUDirect RDMA, as its user sees it, and the request to the admin."""

from __future__ import annotations

from dataclasses import replace

from probes.base.site import ClusterPlaces, Site, set_site
from probes.base.unknown import Reason, Unknown
from probes.facts.system.device_nodes import DeviceNode, DeviceNodeFacts
from probes.host.protocol import refused
from probes.queries.finding import Status
from probes.setup.env.container import is_rdma
from probes.setup.env.own_container import container_rows
from probes.setup.env.own_container import request_of as request_of_rows
from probes.snapshot.examination import Examination
from tests.support.doctor import examination_of, findings_on


def shown(examination: Examination) -> dict[str, str]:
    return {row.name: row.shown for row in container_rows(examination)}


def request_of(examination: Examination) -> tuple[str, ...]:
    return request_of_rows(examination, container_rows(examination))


def with_files(*usable: bool | Unknown) -> Examination:
    """A pod on pcie-l40s with the files of these devices."""
    pod = examination_of("pcie-l40s+in-pod")
    files = tuple(DeviceNode(f"/dev/infiniband/uverbs{number}", each) for number, each in enumerate(usable))
    assert isinstance(pod.device_nodes, DeviceNodeFacts)
    return replace(pod, device_nodes=replace(pod.device_nodes, rdma=files))


def test_outside_of_a_container_nothing_is_shown() -> None:
    assert container_rows(examination_of("pcie-l40s")) == ()
    assert request_of(examination_of("pcie-l40s")) == ()


def test_a_pod_that_has_everything_needs_no_request() -> None:
    pod = examination_of("pcie-l40s+in-pod")
    assert request_of(pod) == ()
    rows = shown(pod)
    assert rows["RDMA devices"] == "mlx5_0, mlx5_1"
    assert rows["Locked memory"] == "no limit (CAP_IPC_LOCK)"
    assert rows["Device plugin"].startswith("PCIDEVICE_NVIDIA_COM_HOSTDEV=0000:1b:00.0")
    assert "rates are unknown here" in rows["RDMA mode"]


def test_each_refusal_has_its_own_word() -> None:
    words = {
        shown(with_files(True, why))["RDMA devices"].partition("mlx5_1: ")[2]
        for why in (False, refused("/dev/infiniband/uverbs1"), Unknown(Reason.IO_ERROR, "", "I/O error"))
    }
    assert len(words) == 3
    assert any("EPERM" in word for word in words)
    assert shown(with_files(True))["RDMA devices"] == "mlx5_0; mlx5_1: no device file"


def test_without_a_device_the_admin_is_asked_for_one() -> None:
    request = "\n".join(request_of(examination_of("pcie-l40s+dev-infiniband-refused")))
    assert request.startswith("Please change the pod pcie-l40s")
    assert "rdma/NAME: 1" in request
    assert "EPERM" in request
    assert "vpc.amazonaws.com/efa: 1" in "\n".join(
        request_of(examination_of("aws-p5+dev-infiniband-refused"))
    )


def test_what_is_unknown_is_no_reason_for_a_request() -> None:
    unread = Unknown(Reason.TIMED_OUT, "/dev", "no answer")
    pod = with_files(unread, unread)
    assert "unknown" in shown(pod)["RDMA devices"]
    assert request_of(pod) == ()
    nearest_unread = with_files(unread, True)
    assert "Pairs" not in shown(nearest_unread)
    assert request_of(nearest_unread) == ()


def test_lock_limit_and_shared_memory_are_in_one_request() -> None:
    request = "\n".join(request_of(examination_of("hgx-h100+container-shm-small")))
    assert "[IPC_LOCK]" in request
    assert "at most 8 MiB" in request
    assert "emptyDir" in request


def test_a_higher_lock_limit_is_asked_for_where_the_check_finds_a_low_one() -> None:
    for name in (
        "hgx-h100+in-pod",
        "aws-p5+in-pod",
        "aws-p5+container-shm-small",
        "hgx-h100+container-shm-small",
    ):
        asked = {row.name for row in container_rows(examination_of(name)) if row.ask}
        is_found = findings_on(name)["memlock-shell"].status is Status.FOUND
        assert ("Locked memory" in asked) == is_found, name


def test_a_far_nic_is_named_with_the_nearer_one_that_another_pod_has() -> None:
    pod = with_files(refused("/dev/infiniband/uverbs0"), True)
    assert "mlx5_0 is nearer to GPU0" in shown(pod)["Pairs"]
    assert "resource.kubernetes.io/pcieRoot" in "\n".join(request_of(pod))


def test_the_site_names_its_own_resources() -> None:
    assert isinstance(is_rdma("example.com/fast"), Unknown)
    set_site(Site(places=ClusterPlaces(rdma_resources="example.com/nic-*, example.com/fast")))
    try:
        assert is_rdma("example.com/fast") is True
        assert is_rdma("example.com/nic-0") is True
        assert isinstance(is_rdma("example.com/other"), Unknown)
        request = request_of(examination_of("pcie-l40s+dev-infiniband-refused"))
        assert "example.com/fast: 1" in "\n".join(request)
    finally:
        set_site(Site())


def test_shared_memory_is_asked_for_where_the_check_finds_too_little() -> None:
    for name in ("hgx-h100+container-shm-small", "hgx-h100+in-pod", "hgx-h100+dev-infiniband-refused"):
        asked = {row.name for row in container_rows(examination_of(name)) if row.ask}
        is_found = findings_on(name)["container-shm-small"].status is Status.FOUND
        assert ("/dev/shm" in asked) == is_found, name
