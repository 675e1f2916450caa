"""What a container, a control group, a namespace or a user may use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probes.base.unknown import Reason, Unknown
from probes.facts.gpu.gpus import NOT_LISTED, GpuFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system.device_nodes import DeviceNode, DeviceNodeFacts
from probes.facts.system.limits import RdmaCgroupFacts, RdmaLimit
from probes.facts.system.numa import CpusetFacts
from probes.facts.system.platform import Environment, PlatformFacts
from probes.queries.usable_here import usable_here
from probes.snapshot.examination import Examination
from probes.topology.paths import build
from tests.support.doctor import examination_of

HGX = examination_of("hgx-h100")
FILES = HGX.device_nodes
GPU0, GPU1 = (gpu.id for gpu in HGX.topology.gpus[:2])


def with_files(**files: Any) -> Examination:
    assert isinstance(FILES, DeviceNodeFacts)
    return replace(HGX, device_nodes=replace(FILES, **files))


def with_node(**facts: Any) -> Examination:
    node = replace(HGX.node, **facts)
    return replace(HGX, node=node, topology=build(node))


def test_a_session_with_every_device_has_no_mark() -> None:
    for name in ("hgx-h100", "gb200", "cloud-vm", "pcie-l40s"):
        usable = usable_here(examination_of(name))
        assert not usable.not_usable
        assert not usable.other_numa_nodes


def test_devices_without_their_file_or_without_permission_are_named() -> None:
    files = (DeviceNode("/dev/nvidia0", True), DeviceNode("/dev/nvidia1", False))
    usable = usable_here(with_files(gpu=files)).not_usable
    assert usable[GPU1] == "no permission for the device file"
    assert GPU0 not in usable
    assert len(usable) == 7


def test_a_container_without_rdma_devices_may_use_no_nic() -> None:
    absent = Unknown(Reason.NOT_THERE, "/dev/infiniband")
    usable = usable_here(with_files(rdma=absent)).not_usable
    assert set(usable) == {nic.id for nic in HGX.topology.nics}


def test_what_could_not_be_read_is_unknown_and_not_forbidden() -> None:
    unread = Unknown(Reason.NOT_RECORDED, "/dev", "the tree has no /dev/null")
    usable = usable_here(with_files(rdma=unread, gpu=unread))
    assert not usable.not_usable
    assert usable.devices[GPU0] == unread


def test_a_gpu_that_the_container_toolkit_hides_is_not_in_the_container() -> None:
    gpus, platform = HGX.node.gpus, HGX.node.platform
    assert isinstance(gpus, GpuFacts)
    assert isinstance(platform, PlatformFacts)
    hidden = replace(
        gpus.gpus[1],
        minor=Unknown(Reason.NOT_THERE, "/proc/driver/nvidia/gpus"),
        nvml=Unknown(Reason.NOT_THERE, "NVML", NOT_LISTED),
    )
    few = replace(gpus, gpus=(gpus.gpus[0], hidden, *gpus.gpus[2:]))
    inside = with_node(gpus=few, platform=replace(platform, environment=Environment.CONTAINER))
    assert usable_here(inside).not_usable == {GPU1: "not passed into the container"}
    assert usable_here(inside).is_container
    assert not usable_here(with_node(gpus=few)).not_usable


def test_a_device_in_another_namespace_is_there_and_not_usable() -> None:
    rdma = HGX.node.rdma
    assert isinstance(rdma, RdmaFacts)
    moved = rdma.devices[0]
    assert isinstance(moved.bdf, str)
    node = with_node(rdma=replace(rdma, devices=rdma.devices[1:], devices_elsewhere=(moved.bdf,)))
    assert list(usable_here(node).not_usable.values()) == ["its RDMA device is in another network namespace"]


def test_a_cgroup_that_allows_no_handle_forbids_the_nic() -> None:
    limit = RdmaLimit("/sys/fs/cgroup/pod", "mlx5_2", "hca_handle", 0, 0)
    limited = replace(HGX, rdma_cgroup=RdmaCgroupFacts((limit,)))
    assert usable_here(limited).not_usable == {"mlx5_2": "the control group allows no RDMA handles"}


def test_a_cpuset_leaves_out_numa_nodes() -> None:
    def limited(cpus: str, memory: str) -> dict[int, str]:
        return usable_here(replace(HGX, cpuset=CpusetFacts(cpus, memory))).other_numa_nodes

    assert limited("0-7", "0-1") == {1: "no CPU in the cpuset"}
    assert limited("0-223", "1") == {0: "no memory in the cpuset"}
    assert limited("0-223", "0-1") == {}
    unread = Unknown(Reason.MALFORMED, "/proc/self/status")
    assert not usable_here(replace(HGX, cpuset=unread)).other_numa_nodes
