"""A probe that raises, hangs or lies affects only its own field of the node."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu import gpus
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.kernel import modules
from probes.facts.kernel import release as kernel
from probes.facts.node import Node, probe_node
from probes.facts.pci import functions as pci
from probes.facts.pci.functions import PciFacts
from probes.facts.rdma import devices as rdma
from probes.facts.system import numa, platform
from probes.host.machine.local import LocalHost
from probes.host.nvml import NvmlFacts
from probes.host.probe_thread import note, start_probe
from probes.host.protocol import READ_LIMIT_BYTES, CudaGpu, Host
from probes.simulation.host import SimulatedHost

LONG = 60.0
PROBES = {
    "pci": pci,
    "gpus": gpus,
    "rdma": rdma,
    "modules": modules,
    "kernel": kernel,
    "numa": numa,
    "platform": platform,
}


class Stuck:
    """A probe that hangs until its gate opens."""

    def __init__(self) -> None:
        self.starts = 0
        self.gate = threading.Event()

    def __call__(self, *_: object) -> Unknown:
        self.starts += 1
        self.gate.wait()
        return Unknown(Reason.NOT_THERE, "back again")


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    probe = Stuck()
    yield probe
    probe.gate.set()


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "proc/driver").mkdir(parents=True)
    return LocalHost(str(tmp_path))


def test_an_empty_tree_gives_a_whole_node(host: LocalHost) -> None:
    node = probe_node(host)
    assert node.origin == host.origin
    assert isinstance(node.pci, PciFacts)
    assert isinstance(node.gpus, GpuFacts)
    assert isinstance(node.gpudirect, GpuDirectFacts)
    assert isinstance(node.rdma, Unknown)
    assert node.rdma.reason is Reason.NOT_THERE


@pytest.mark.parametrize("name", list(PROBES))
def test_a_probe_that_raises_spoils_only_its_own_place(
    name: str, host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no \x1b[2J way\nat all")

    monkeypatch.setattr(PROBES[name], "probe", broken)
    node = probe_node(host)
    spoilt = getattr(node, name)
    assert isinstance(spoilt, Unknown)
    assert spoilt.reason is Reason.MALFORMED
    assert spoilt.source == name
    assert "ValueError" in spoilt.detail
    assert spoilt.detail.isprintable()
    assert isinstance(node.gpudirect, GpuDirectFacts)


def test_an_io_error_is_called_one(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Host) -> None:
        raise OSError("the device is gone")

    monkeypatch.setattr(numa, "probe", broken)
    facts = probe_node(host).numa
    assert isinstance(facts, Unknown)
    assert facts.reason is Reason.IO_ERROR


def test_a_slow_libcuda_is_waited_for_as_long_as_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs that sleep, or are not persistent, take seconds to start; the paths are still known."""
    host = SimulatedHost("hgx-h100")
    answer = host.cuda_gpus()
    assert not isinstance(answer, Unknown)

    def slow() -> Maybe[tuple[CudaGpu, ...]]:
        note("libcuda", LONG)
        time.sleep(0.6)
        return (replace(answer[0], rdma_supported=False), *answer[1:])

    monkeypatch.setattr(host, "cuda_gpus", slow)
    direct = probe_node(host, seconds=0.3).gpudirect
    assert isinstance(direct, GpuDirectFacts)
    assert direct.gpu_support[answer[0].bdf].peermem is False


@pytest.mark.parametrize("name", list(PROBES))
def test_a_probe_that_hangs_is_reported_and_the_others_answer(
    name: str, host: LocalHost, monkeypatch: pytest.MonkeyPatch, stuck: Stuck
) -> None:
    monkeypatch.setattr(PROBES[name], "probe", stuck)
    node = probe_node(host, seconds=0.05)
    spoilt = getattr(node, name)
    assert isinstance(spoilt, Unknown)
    assert spoilt.reason is Reason.TIMED_OUT
    assert "no answer" in str(spoilt)


def test_a_stuck_probe_is_not_started_again_and_comes_back_when_it_can(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch, stuck: Stuck
) -> None:
    monkeypatch.setattr(numa, "probe", stuck)
    for _ in range(3):
        assert isinstance(probe_node(host, seconds=0.02).numa, Unknown)
    assert stuck.starts == 1
    stuck.gate.set()
    back = probe_node(host, seconds=LONG).numa
    assert isinstance(back, Unknown)
    assert back.source == "back again"


def test_hosts_do_not_wait_for_each_other(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: Stuck
) -> None:
    monkeypatch.setattr(numa, "probe", stuck)
    probe_node(host, seconds=0.02)
    other = LocalHost(str(tmp_path))
    monkeypatch.setattr(numa, "probe", lambda _: Unknown(Reason.NOT_THERE, "the other host"))
    facts = probe_node(other, seconds=LONG).numa
    assert isinstance(facts, Unknown)
    assert facts.source == "the other host"


def test_two_rounds_at_once_share_the_probe_under_way(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch, stuck: Stuck
) -> None:
    monkeypatch.setattr(numa, "probe", stuck)
    nodes: list[Node] = []
    rounds = [
        threading.Thread(target=lambda: nodes.append(probe_node(host, seconds=LONG)), daemon=True)
        for _ in range(2)
    ]
    for thread in rounds:
        thread.start()
    stuck.gate.set()
    for thread in rounds:
        thread.join(LONG)
    assert [getattr(node.numa, "source", None) for node in nodes] == ["back again"] * 2


def test_gpus_are_seen_on_the_bus_while_nvml_hangs(tmp_path: Path, stuck: Stuck) -> None:
    class Hanging(LocalHost):
        def nvml(self) -> Maybe[NvmlFacts]:
            return stuck()

    device = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    (device / "uevent").write_text("DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\n")
    facts = probe_node(Hanging(str(tmp_path)), seconds=0.5).gpus
    assert isinstance(facts, GpuFacts)
    assert [gpu.bdf for gpu in facts.gpus] == ["0000:1b:00.0"]
    assert facts.driver.nvml is not None
    assert facts.driver.nvml.startswith("no answer for")


def test_gpus_without_a_bus_say_what_they_wait_for(tmp_path: Path) -> None:
    facts = probe_node(LocalHost(str(tmp_path))).gpus
    assert isinstance(facts, Unknown)
    assert "PCI devices" in facts.detail


class SlowHost(LocalHost):
    """A node whose CPUs are saturated: each question takes one second of its own clock."""

    def __init__(self, root: str, now: list[float]) -> None:
        super().__init__(root)
        self._now = now

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        self._now[0] += 1.0
        return super().read_bytes(path, limit)


def test_a_probe_that_keeps_asking_is_late_and_not_stuck(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    slow = SlowHost(str(tmp_path), now)

    nearly_done, gate = threading.Event(), threading.Event()

    def ask() -> int:
        for _ in range(20):
            slow.read("/proc/sys/kernel/osrelease")
        nearly_done.set()
        gate.wait(LONG)
        return 20

    running = start_probe(slow, "slow", ask)
    assert nearly_done.wait(LONG)
    threading.Timer(0.1, gate.set).start()
    assert running.answer(5.0) == 20


def test_a_single_question_without_an_answer_is_named(host: LocalHost, tmp_path: Path) -> None:
    gate = threading.Event()

    def ask() -> int:
        host.read("/proc/version")
        gate.wait(LONG)
        return 0

    answer = start_probe(host, "stuck", ask).answer(0.05)
    gate.set()
    assert isinstance(answer, Unknown)
    assert "no answer from /proc/version for" in str(answer)
