"""The training job of a simulated node: its answers agree with each other, at every moment."""

import re
from collections import Counter

import pytest

from probes.base.unknown import Unknown, known
from probes.facts.node import probe_node
from probes.facts.rdma.devices import RdmaFacts
from probes.host.rdma_resources import MemoryRegion, RdmaResources
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.faults.live import (
    FLAP_FIRST,
    LOST_AFTER,
    OTHER_PIDS,
    RESTART_BEGINS,
    RESTART_ENDS,
    RESTARTED_PIDS,
    STOPPED_AFTER,
)
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import FIRST_RANK
from probes.simulation.node.model.workload import Phase, schedule
from probes.snapshot.rates import port_rates, read
from tests.support.tiers import WITH_RATES, WITH_VERBS, usual

LIVE = tuple(fault.name for fault in FAULTS.values() if fault.is_live)
MOMENTS = (0.0, 5.5, 16.0, 24.0, 33.0, 45.0, 90.0)


class SimulatedNode:
    """A simulated node and its clock, in seconds since it was opened."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.seconds = 0.0
        self.host = SimulatedHost(name, seed, lambda: 5000.0 + self.seconds)

    def resources(self) -> RdmaResources:
        found = self.host.rdma_resources()
        assert isinstance(found, RdmaResources)
        return found

    def process_of(self, thread: int) -> int:
        return int(self.status(thread, "Tgid"))

    def status(self, pid: int, name: str) -> str:
        match = re.search(rf"^{name}:\s+(\S+)", str(self.host.read(f"/proc/{pid}/status")), re.M)
        assert match, name
        return match[1]

    def regions(self) -> dict[int, list[MemoryRegion]]:
        """Return the regions of each process."""
        found: dict[int, list[MemoryRegion]] = {}
        for region in self.resources().regions:
            if region.pid is not None:
                found.setdefault(self.process_of(region.pid), []).append(region)
        return found

    def uncharged(self) -> dict[int, int]:
        """Return the bytes of each process that are registered and not in VmPin."""
        return {
            pid: sum(-(-region.length_bytes // 4096) * 4096 for region in regions)
            - int(self.status(pid, "VmPin")) * 1024
            for pid, regions in self.regions().items()
        }


@pytest.fixture(params=[*WITH_VERBS, *(f"hgx-h100+{name}" for name in LIVE)])
def node(request: pytest.FixtureRequest) -> SimulatedNode:
    return SimulatedNode(str(request.param))


@pytest.mark.slow
def test_every_object_belongs_to_a_thread_of_a_process_or_to_the_kernel(node: SimulatedNode) -> None:
    for node.seconds in MOMENTS:
        found = node.resources()
        contexts = {(context.device, context.number) for context in found.contexts}
        domains = {(domain.device, domain.number) for domain in found.domains}
        owned = (*found.queue_pairs, *found.regions, *found.domains, *found.completion_queues)
        for owner in owned:
            if owner.kernel_name:
                assert owner.pid is None
            else:
                assert owner.pid is not None
                pid = node.process_of(owner.pid)
                assert str(pid) in known(node.host.names("/proc"), ())
                assert str(owner.pid) in known(node.host.names(f"/proc/{pid}/task"), ())
        assert all(
            (resource.device, resource.pd) in domains for resource in (*found.regions, *found.queue_pairs)
        )
        assert all(
            (domain.device, domain.context) in contexts
            for domain in found.domains
            if domain.context is not None
        )
        numbers = Counter((region.device, region.number) for region in found.regions)
        assert max(numbers.values(), default=1) == 1


def test_the_refcnt_is_the_number_of_regions_through_peermem() -> None:
    for name in ("hgx-h100", "dgx-a100"):
        node = SimulatedNode(name)
        for node.seconds in MOMENTS:
            large = sum(region.length_bytes == 64 << 20 for region in node.resources().regions)
            assert str(large) == node.host.read("/sys/module/nvidia_peermem/refcnt")


@pytest.mark.slow
def test_only_dmabuf_regions_are_not_charged(node: SimulatedNode) -> None:
    """The rings of the queues are charged, so that everything else is below zero."""
    for node.seconds in MOMENTS:
        for pid, missing in node.uncharged().items():
            program = next(program for program in node.host.tree.programs if program.pid == pid)
            assert (missing >= 4 << 20) == (program.via.name == "DMABUF")
            assert missing >= 4 << 20 or -(4 << 20) < missing < 0


def test_threads_are_not_listed_as_processes() -> None:
    node = SimulatedNode("hgx-h100")
    thread = next(region.pid for region in node.resources().regions if region.pid)
    assert str(thread) not in known(node.host.names("/proc"), ())
    assert node.process_of(thread) == FIRST_RANK
    assert "NCCL Service" in str(node.host.read(f"/proc/{thread}/comm"))
    names = node.host.thread_names([FIRST_RANK, 999])
    assert "NCCL IbAsync  0" in known(names[FIRST_RANK], ())
    assert isinstance(names[999], Unknown)


@pytest.mark.slow
def test_a_job_goes_through_phases() -> None:
    for seed in (0, 3):
        node = SimulatedNode("hgx-h100", seed)
        facts = probe_node(node.host)
        traffic: dict[Phase, list[float]] = {phase: [] for phase in Phase}
        storage: dict[Phase, list[float]] = {phase: [] for phase in Phase}
        before = read(node.host, facts)
        for second in range(1, 160):
            node.seconds = float(second)
            after = read(node.host, facts)
            phase = schedule(seed).at(3600.0 + second - 0.5)
            rates = port_rates(before, after)
            if schedule(seed).at(3600.0 + second - 1) is schedule(seed).at(3600.0 + second) is phase:
                traffic[phase].append(known(rates["mlx5_0", 1].sent_gbps, 0.0))
                storage[phase].append(known(rates["mlx5_4", 1].sent_gbps, 0.0))
            before = after
        assert min(traffic[Phase.ALL_REDUCE]) > 200 > 70 > max(traffic[Phase.COMPUTE])
        assert max(traffic[Phase.CHECKPOINT]) < 25
        assert min(storage[Phase.CHECKPOINT]) > 40 > max(storage[Phase.ALL_REDUCE])


@pytest.mark.slow
@pytest.mark.parametrize("name", LIVE)
@pytest.mark.parametrize("node_name", usual(WITH_RATES, WITH_RATES[:1]))
def test_counters_never_go_back_nor_above_the_line_rate(name: str, node_name: str) -> None:
    node = SimulatedNode(f"{node_name}+{name}")
    facts = probe_node(node.host)
    assert isinstance(facts.rdma, RdmaFacts)
    line = {
        (device.name, port.number): known(port.rate_gbps, 0.0)
        for device in facts.rdma.devices
        for port in device.ports
    }
    before = read(node.host, facts)
    for second in range(1, 70):
        node.seconds = float(second)
        after = read(node.host, facts)
        for port, rate in port_rates(before, after).items():
            for gbps in (rate.sent_gbps, rate.received_gbps):
                assert not isinstance(gbps, Unknown)
                assert 0 <= gbps <= line[port]
        before = after


def test_the_kernel_log_is_followed_from_the_first_question_on() -> None:
    node = SimulatedNode("hgx-h100+gpu-off-bus-live")
    assert node.host.kernel_messages() == ()
    node.seconds = LOST_AFTER + 1
    messages = node.host.kernel_messages()
    assert not isinstance(messages, Unknown)
    assert "Xid" in messages[0].text
    assert node.host.kernel_messages() == ()
    live = node.host.nvml_live()
    assert not isinstance(live, Unknown)
    assert len(live) == 7


def test_a_restarted_job_has_new_pids() -> None:
    node = SimulatedNode("hgx-h100+job-restarted-staged")
    assert set(node.regions()) == set(range(FIRST_RANK, FIRST_RANK + 8))
    assert min(node.uncharged().values()) > 0
    node.seconds = (RESTART_BEGINS + RESTART_ENDS) / 2
    assert not node.regions()
    node.seconds = RESTART_ENDS + 1
    assert set(node.regions()) == set(range(RESTARTED_PIDS, RESTARTED_PIDS + 8))
    assert max(node.uncharged().values()) < 0


def test_a_stopped_rank_uses_no_cpu() -> None:
    node = SimulatedNode("hgx-h100+rank-stopped")
    pid = FIRST_RANK + 3

    def cpu_seconds() -> float:
        usage = node.host.process_usage([pid])[pid]
        assert not isinstance(usage, Unknown)
        return known(usage.cpu_seconds, 0.0)

    assert node.status(pid, "State") == "R"
    node.seconds = STOPPED_AFTER + 1
    before = cpu_seconds()
    node.seconds += 10
    assert node.status(pid, "State") == "T"
    assert cpu_seconds() == before


def test_a_port_flaps() -> None:
    node = SimulatedNode("hgx-h100+nic-flapping")
    port = "/sys/class/infiniband/mlx5_3/ports/1"
    seen = []
    for node.seconds in (FLAP_FIRST - 1, FLAP_FIRST + 1, FLAP_FIRST + 6, FLAP_FIRST + 21):
        seen.append((node.host.read(f"{port}/state"), node.host.read(f"{port}/counters/link_downed")))
    assert seen == [("4: ACTIVE", "0"), ("1: DOWN", "1"), ("4: ACTIVE", "1"), ("1: DOWN", "2")]


def test_two_jobs_belong_to_two_users() -> None:
    node = SimulatedNode("hgx-h100+two-jobs-two-users")
    users = {pid: node.status(pid, "Uid") for pid in node.regions()}
    assert Counter(users.values()) == {"1000": 4, "1001": 4}
    assert users[OTHER_PIDS] == "1001"
    assert "job_4712" in str(node.host.read(f"/proc/{OTHER_PIDS}/cgroup"))


@pytest.mark.parametrize("fault", ["nccl-net-socket", "job-tcp"])
def test_a_job_over_tcp_has_no_queue_pairs(fault: str) -> None:
    node = SimulatedNode(f"hgx-h100+{fault}")
    assert all(pair.kernel_name for pair in node.resources().queue_pairs)
    names = known(node.host.thread_names([FIRST_RANK])[FIRST_RANK], ())
    assert any(name.startswith("NCCL Sock") for name in names)
    assert not any(name.startswith("NCCL IbAsync") for name in names)


@pytest.mark.parametrize("seen_from", ["", ",in-pod"])
@pytest.mark.parametrize("maker", ["irdma", "ionic", "erdma", "bnxt", "mana"])
def test_the_nics_of_every_maker_have_rates_also_in_a_pod(maker: str, seen_from: str) -> None:
    node = SimulatedNode(f"pcie-l40s+nic-{maker}{seen_from}")
    facts = probe_node(node.host)
    node.seconds = 20.0
    before = read(node.host, facts)
    node.seconds = 30.0
    rates = port_rates(before, read(node.host, facts)).values()
    assert len(rates) == 2
    assert all(known(rate.sent_gbps, 0.0) > 1 and known(rate.received_gbps, 0.0) > 1 for rate in rates)


def test_congestion_pauses_ethernet_ports() -> None:
    node = SimulatedNode("pcie-l40s+congestion")
    node.seconds = 40.0
    counters = node.host.ethtool_counters(["ens0np0", "eno1"])
    assert known(counters["ens0np0"], {})["rx_prio3_pause_duration"] > 0
    assert isinstance(counters["eno1"], Unknown)
    assert int(str(node.host.read("/sys/class/infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent"))) > 0
