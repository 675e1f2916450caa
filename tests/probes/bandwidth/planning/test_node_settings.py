"""The settings that gdrtop proposes on its simulated nodes."""

from dataclasses import replace

import pytest

from probes.bandwidth.model.command import Refused
from probes.bandwidth.planning.node_settings import active_port, gid_index, gpu_memory, perftest_defaults
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.base.unknown import Reason, Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.rdma.devices import Gid, RdmaFacts, RdmaPort
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine

NO = Unknown(Reason.NOT_THERE)


@pytest.fixture(scope="module", params=["hgx-h100", "gb200", "dgx-a100"])
def examination(request: pytest.FixtureRequest) -> Examination:
    return examine(SimulatedHost(str(request.param)))


def port(layer: str, *gids: Gid) -> RdmaPort:
    return RdmaPort(1, "ACTIVE", "LinkUp", 400.0, "4X NDR", layer, 0, NO, gids, NO, NO)


def gid(index: int, address: str, kind: str = "RoCE v2") -> Gid:
    return Gid(index, address, kind, NO)


LOCAL = "fe80:0000:0000:0000:0000:0000:0000:0001"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a00:0007"
IPV6 = "2001:0db8:0000:0000:0000:0000:0000:0007"


def test_the_gid() -> None:
    everything = (
        gid(0, LOCAL, "IB/RoCE v1"),
        gid(1, LOCAL),
        gid(2, IPV6),
        gid(3, IPV4, "IB/RoCE v1"),
        gid(5, IPV4),
    )
    assert gid_index(port("Ethernet", *everything)) == 5
    assert gid_index(port("Ethernet", *everything[:4])) == 2
    assert gid_index(port("Ethernet", *everything[:2])) == 1
    assert isinstance(gid_index(port("Ethernet", everything[0])), Unknown)
    assert gid_index(port("InfiniBand", everything[0])) is None
    assert isinstance(gid_index(replace(port("Ethernet"), gids=NO)), Unknown)


def test_every_gpu_has_a_test(examination: Examination) -> None:
    node = examination.node
    assert isinstance(node.gpus, GpuFacts)
    assert isinstance(node.rdma, RdmaFacts)
    for gpu in node.gpus.gpus:
        settings = perftest_defaults(examination, gpu.bdf)
        assert isinstance(settings, PerftestSettings)
        assert settings.gpu is not None
        assert (settings.gpu.bdf, settings.gpu.index) == (gpu.bdf, gpu.index)
        assert settings.device == examination.topology.best_nics[gpu.bdf][0]
        device = next(device for device in node.rdma.devices if device.name == settings.device)
        assert settings.numa_node == device.numa_node
        taken = active_port(device)
        assert taken is not None
        assert settings.gid_index == gid_index(taken)


def test_host_memory_of_a_nic(examination: Examination) -> None:
    assert isinstance(examination.node.rdma, RdmaFacts)
    name = examination.node.rdma.devices[0].name
    settings = perftest_defaults(examination, nic=name)
    assert isinstance(settings, PerftestSettings)
    assert (settings.device, settings.gpu) == (name, None)


def test_the_path_is_the_nodes_or_the_one_that_is_asked_for(examination: Examination) -> None:
    assert isinstance(examination.node.gpus, GpuFacts)
    bdf = examination.node.gpus.gpus[0].bdf
    for dmabuf in (True, False):
        settings = perftest_defaults(examination, bdf, dmabuf=dmabuf)
        assert isinstance(settings, PerftestSettings)
        assert settings.gpu is not None
        assert settings.gpu.dmabuf is dmabuf


def test_what_is_not_there(examination: Examination) -> None:
    for answer in (
        perftest_defaults(examination),
        perftest_defaults(examination, "0000:ff:00.0"),
        perftest_defaults(examination, nic="mlx5_99"),
    ):
        assert isinstance(answer, Refused)


def test_gpu_memory_that_no_nic_can_reach_is_refused_by_design() -> None:
    spark = examine(SimulatedHost("dgx-spark"))
    refused = gpu_memory(spark, spark.node.known_gpus[0], "rocep1s0f0")
    assert isinstance(refused, Refused)
    assert refused.reason.startswith("by design: GB10 (DGX Spark) does not support GPUDirect RDMA")
