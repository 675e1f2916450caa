"""Inference engines of a simulated node: what each of their paths leaves in files, netlink and counters."""

from __future__ import annotations

from collections import Counter

import pytest

from probes.base.unknown import Unknown, known
from probes.checks.judgment import judge
from probes.facts.node import probe_node
from probes.host.nvml import NvmlLive
from probes.host.rdma_resources import RdmaResources
from probes.host.tcp_sockets import TcpSocket
from probes.live.job_examination import examine_with_jobs
from probes.queries.finding import Severity, Status
from probes.simulation.faults.inference import FAULTS
from probes.simulation.host import SimulatedHost, job_nodes
from probes.snapshot.rates import port_rates, read
from tests.support.pilot import SteppedClock

NAMES = tuple(fault.name for fault in FAULTS)
SECONDS = 6.0  # of a burst and the pause behind it


class Engines:
    """A simulated node with engines, and its clock."""

    def __init__(self, name: str) -> None:
        self.clock = SteppedClock()
        self.host = SimulatedHost(name, clock=self.clock)

    def resources(self) -> RdmaResources:
        found = self.host.rdma_resources()
        assert not isinstance(found, Unknown)
        return found

    def sockets(self) -> tuple[TcpSocket, ...]:
        found = self.host.tcp_sockets()
        assert not isinstance(found, Unknown)
        return found

    def gpus(self) -> tuple[NvmlLive, ...]:
        found = self.host.nvml_live()
        assert not isinstance(found, Unknown)
        return found

    def gbps(self, seconds: float = SECONDS) -> tuple[float, float]:
        """What all ports send and receive on average."""
        node = probe_node(self.host)
        before = read(self.host, node)
        self.clock.now += seconds
        rates = port_rates(before, read(self.host, node)).values()
        return (
            sum(known(rate.sent_gbps, 0.0) for rate in rates),
            sum(known(rate.received_gbps, 0.0) for rate in rates),
        )

    def uncharged(self, pid: int) -> int:
        """Bytes of a worker that are registered and not pinned."""
        registered = sum(region.length_bytes for region in self.resources().regions if region.pid == pid)
        status = str(self.host.read(f"/proc/{pid}/status"))
        return registered - int(status.partition("VmPin:")[2].split()[0]) * 1024


def test_workers_show_a_title_over_their_command_and_environment() -> None:
    host = Engines("hgx-h100+kv-over-rdma").host
    assert known(host.read_bytes("/proc/47002/cmdline"), b"").rstrip(b"\0") == b"VLLM::Worker_TP0"
    assert host.read("/proc/47002/comm") == "VLLM::Worker_TP"  # 15 characters
    assert set(known(host.read_bytes("/proc/47002/environ"), b"")) == {0}
    assert b"kv_buffer_device" in known(host.read_bytes("/proc/47000/cmdline"), b"")
    assert "async" in known(host.thread_names([47002])[47002], ())
    assert "libplugin_UCX.so" in str(host.read("/proc/47002/maps"))


def test_ucx_lists_pairs_without_a_peer_and_a_pool_on_each_nic() -> None:
    node = Engines("hgx-h100+kv-over-rdma")
    found = node.resources()
    pairs = [pair for pair in found.queue_pairs if pair.pid == 47002]
    assert Counter((pair.kind, pair.state) for pair in pairs) == {("UD", "RTS"): 20}
    assert all(pair.remote is None for pair in pairs)
    assert [region.length_bytes for region in found.regions if region.pid == 47002] == [40 << 30] * 10
    assert node.uncharged(47002) > 390 << 30  # DMA-BUF


def test_memory_of_the_host_is_pinned() -> None:
    for name in ("kv-staged", "nixl-ucx-without-cuda"):
        assert Engines(f"hgx-h100+{name}").uncharged(47002) < 0
    assert "libuct_cuda" not in str(Engines("hgx-h100+nixl-ucx-without-cuda").host.read("/proc/47002/maps"))
    assert b'"kv_buffer_device":"cpu"' in known(
        Engines("hgx-h100+kv-staged").host.read_bytes("/proc/47000/cmdline"), b""
    )


def test_prefill_sends_what_decode_receives() -> None:
    clock = SteppedClock()
    hosts = job_nodes("hgx-h100", 2, dict.fromkeys(range(2), "kv-over-rdma"), clock=clock)
    rates = []
    for host in hosts.values():
        node = Engines("hgx-h100")
        node.clock, node.host, clock.now = clock, host, 1000.0
        rates.append(node.gbps())
    prefill, decode = rates
    assert prefill[0] == pytest.approx(decode[1], rel=0.01)
    assert prefill[0] > 500 > 1 > max(prefill[1], decode[0])


@pytest.mark.parametrize("name", ["kv-over-tcp", "ucx-without-verbs"])
def test_tcp_leaves_the_nics_alone_and_names_the_peer(name: str) -> None:
    node = Engines(f"hgx-h100+{name}")
    before = {each.inode: each for each in node.sockets()}
    sent, received = node.gbps()
    assert max(sent, received) < 1
    for each in node.sockets():
        assert (each.local, each.remote) == ("10.0.0.7", "10.0.0.8")
        assert each.bytes_acked - before[each.inode].bytes_acked > 100e6 * SECONDS
    pids = range(47002, 47010)
    owned = [inode for pid in pids for inode in known(node.host.socket_inodes([pid])[pid], ())]
    assert sorted(owned) == sorted(before)
    assert not [pair for pair in node.resources().queue_pairs if not pair.kernel_name]
    has_files = not isinstance(node.host.names("/proc/47002/root/dev/infiniband"), Unknown)
    assert has_files is (name == "ucx-without-verbs")


def test_two_engines_of_a_node_meet_on_loopback() -> None:
    node = Engines("hgx-h100+kv-over-loopback")
    sockets = node.sockets()
    ends = {(each.local_port, each.remote_port) for each in sockets}
    assert {(remote, local) for local, remote in ends} == ends
    assert {each.remote for each in sockets} == {"127.0.0.1"}
    namespaces = {known(node.host.link(f"/proc/{pid}/ns/pid"), "") for pid in (47002, 47102)}
    assert len(namespaces) == 2


def test_nvlink_carries_what_prefill_sends_and_decode_receives() -> None:
    node = Engines("hgx-h100+kv-over-nvlink")
    sent = [known(gpu.nvlink_tx_bytes_per_second, 0.0) for gpu in node.gpus()]
    received = [known(gpu.nvlink_rx_bytes_per_second, 0.0) for gpu in node.gpus()]
    assert min(*sent[:4], *received[4:]) > 10e9
    assert max(*sent[4:], *received[:4]) < 1e6
    names = (known(node.host.thread_names([pid])[pid], ()) for pid in (47001, 47003, 47101))
    assert all("async" in each and not any(name.startswith("NCCL") for name in each) for each in names)
    assert max(node.gbps()) < 1
    assert not node.sockets()
    assert Engines("pcie-l40s+kv-over-nvlink").sockets()  # without NVLink, UCX uses TCP


def test_tensor_parallelism_uses_nvlink_all_the_time() -> None:
    node = Engines("hgx-h100+kv-over-tcp")
    for node.clock.now in (1000.0, 1005.0, 1011.0):
        assert min(known(gpu.nvlink_tx_bytes_per_second, 0.0) for gpu in node.gpus()) > 5e9


@pytest.mark.parametrize("name", NAMES)
def test_counters_and_sockets_never_go_back(name: str) -> None:
    node = Engines(f"hgx-h100+{name}")
    before = {each.inode: each.bytes for each in node.sockets()}
    for _ in range(14):
        sent, received = node.gbps(1.0)
        assert sent >= 0 <= received
        now = {each.inode: each.bytes for each in node.sockets()}
        assert all(now[inode] >= count for inode, count in before.items())
        before = now


@pytest.mark.parametrize("name", ["kv-over-rdma", "kv-over-nvlink"])
def test_healthy_engines_have_no_finding(name: str) -> None:
    judgment = judge(examine_with_jobs(SimulatedHost(f"hgx-h100+{name}", clock=SteppedClock())))
    found = [finding for finding in judgment.findings if finding.status is Status.FOUND]
    assert [finding.id for finding in found if finding.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("node", ["dgx-a100", "gb200", "aws-p5", "slingshot", "dgx-spark", "cloud-vm"])
def test_engines_serve_on_every_kind_of_node(node: str) -> None:
    for name in NAMES:
        examination = examine_with_jobs(SimulatedHost(f"{node}+{name}", clock=SteppedClock()))
        failed = [finding.id for finding in judge(examination).findings if "bug in gdrtop" in finding.cause]
        assert not failed
