"""Events of GPUs, modules, nvidia_peermem and the kernel log."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpudirect import PeermemReading
from probes.host.nvml import LOST
from probes.host.protocol import KernelMessage
from probes.live.events.detectors import KernelEvents
from probes.live.model.sample import EventKind, GpuSample, LiveSample
from probes.snapshot.condition import THROTTLED
from tests.support.event_runs import Following, lasting, texts
from tests.support.live_samples import ABSENT, a_gpu, a_port, a_process, a_sample, gpu_bdf

OFF_THE_BUS = Unknown(Reason.DRIVER_ERROR, "GPU 3", LOST)
XID_79 = "NVRM: Xid (PCI:0000:13:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def with_gpu(number: int = 3, live: Unknown | None = None, **parts: Any) -> LiveSample:
    def gpu(n: int) -> GpuSample:
        if n != number:
            return a_gpu(n)
        return GpuSample(gpu_bdf(n), n, live) if live is not None else a_gpu(n, **parts)

    return a_sample(gpus=tuple(gpu(n) for n in range(8)))


def message(text: str, at: float = 5000.0, priority: int = 3) -> KernelMessage:
    return KernelMessage(1, at, priority, text)


def test_a_gpu_that_falls_off_the_bus_is_one_event() -> None:
    node = Following()
    node.see(a_sample(), 3)
    (lost,) = node.see(with_gpu(live=OFF_THE_BUS), 60)
    assert (lost.kind, lost.severity) == (EventKind.GPU_LOST, Severity.CRITICAL)
    assert lost.text == "GPU 3 (0000:13:00.0) has fallen off the bus"


def test_xid_79_and_nvml_report_one_loss() -> None:
    node = Following()
    node.see(a_sample(), 3)
    said = message("NVRM: GPU 0000:13:00.0: GPU has fallen off the bus.")
    events = node.see(with_gpu(live=OFF_THE_BUS), 60, (message(XID_79), said))
    assert [(event.kind, event.severity) for event in events] == [(EventKind.XID, Severity.CRITICAL)]
    assert events[0].text == "Xid 79 on 0000:13:00.0: GPU has fallen off the bus"


def test_kernel_messages_name_the_gpu_and_the_nic() -> None:
    names = {"0000:13:00.0": "GPU 3", "0000:1b:00.0": "mlx5_1"}
    fault = "DMAR: [DMA Write NO_PASID] Request device [1b:00.0] fault addr 0x2f000000000"
    hung = "INFO: task python3:4711 blocked for more than 120 seconds."
    corrected = "nvidia 0000:13:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer"
    said = (message(XID_79), message(fault), message(hung), message(corrected))
    events = KernelEvents().update(said, 0.0, 0.0, names)
    assert [event.text for event in events] == [
        "Xid 79 on GPU 3 (0000:13:00.0): GPU has fallen off the bus",
        f"mlx5_1: {fault}",
        hung,
        f"GPU 3: {corrected}",
    ]
    assert [event.subject for event in events] == ["0000:13:00.0", "0000:1b:00.0", "pid 4711", "0000:13:00.0"]
    assert [event.severity for event in events[1:]] == [Severity.WARNING, Severity.NOTE, Severity.NOTE]


def test_a_gpu_that_was_lost_from_the_start_is_no_event() -> None:
    assert not Following().see(with_gpu(live=OFF_THE_BUS), 10)


def test_nvml_that_answers_for_no_gpu_has_lost_none() -> None:
    node = Following()
    node.see(a_sample(), 3)
    gone = Unknown(Reason.NOT_THERE, "NVML", "the NVIDIA driver is not loaded")
    assert not node.see(a_sample(gpus=tuple(GpuSample(gpu_bdf(n), n, gone) for n in range(8))), 30)


def test_an_idle_gpu_lowers_its_link_speed_without_an_event() -> None:
    node = Following()
    node.see(a_sample(), 5)
    for _ in range(3):
        assert not node.see(with_gpu(link_generation=1, busy=0), 10)
        assert not node.see(with_gpu(link_generation=1, busy=95), 2)  # it takes a moment to speed up
        assert not node.see(a_sample(), 10)


def test_a_link_that_is_slower_under_load_is_an_event() -> None:
    node = Following()
    node.see(a_sample(), 5)
    (retrained,) = node.see(with_gpu(link_generation=4), 10)
    assert retrained.text == "the PCIe link of GPU 3 (0000:13:00.0) changed from Gen5 x16 to Gen4 x16"
    assert (retrained.kind, retrained.severity) == (EventKind.LINK_RETRAINED, Severity.WARNING)


def test_a_link_that_loses_lanes_is_an_event_even_when_idle() -> None:
    node = Following()
    node.see(a_sample(), 5)
    assert texts(node.see(with_gpu(link_generation=1, link_width=8, busy=0), 10)) == [
        "the PCIe link of GPU 3 (0000:13:00.0) changed from x16 to x8"
    ]
    assert not node.see(with_gpu(link_width=8), 10)


def test_a_gpu_that_is_too_hot_is_throttled_but_one_at_its_power_limit_is_not() -> None:
    node = Following()
    node.see(a_sample(), 3)
    assert not node.see(with_gpu(throttle_reasons=("power cap",)), 30)
    assert not node.see(with_gpu(throttle_reasons=("thermal",)), 2)
    (throttled,) = node.see(with_gpu(throttle_reasons=("power cap", "thermal")), 30)
    assert throttled.text == "GPU 3 (0000:13:00.0) is throttled (thermal)"
    for _ in range(5):
        assert not node.see(a_sample(), 10)
        assert not node.see(with_gpu(throttle_reasons=("thermal",)), 5)


@pytest.mark.parametrize("parts", [{"live": OFF_THE_BUS}, {"throttle_reasons": OFF_THE_BUS}])
def test_a_throttled_gpu_that_shows_no_figures_is_not_throttled_forever(parts: dict[str, Unknown]) -> None:
    node = Following()
    node.see(a_sample(), 3)
    node.see(with_gpu(throttle_reasons=("thermal",)), 5)
    assert lasting(node, THROTTLED) == ["GPU 3 (0000:13:00.0) is throttled (thermal)"]
    assert EventKind.THROTTLED not in {event.kind for event in node.see(with_gpu(**parts), 10)}
    assert not lasting(node, THROTTLED)
    assert not node.see(a_sample(), 5)
    assert not lasting(node, THROTTLED)


def test_modules_that_are_loaded_and_unloaded() -> None:
    node = Following()
    node.see(a_sample(modules={"nvidia": "live", "nvidia_peermem": "not loaded"}), 3)
    (loaded,) = node.see(a_sample(), 3)
    assert (loaded.kind, loaded.text) == (EventKind.MODULE_LOADED, "nvidia_peermem was loaded")
    unloading = a_sample(modules={"nvidia": "live", "nvidia_peermem": "unloading"})
    assert not node.see(unloading, 2)
    assert not node.see(a_sample(modules={}), 5)  # not known at that moment
    (unloaded,) = node.see(a_sample(modules={"nvidia": "live", "nvidia_peermem": "not loaded"}), 3)
    assert (unloaded.kind, unloaded.severity) == (EventKind.MODULE_UNLOADED, Severity.WARNING)


def test_the_reference_count_of_peermem_leaves_and_reaches_0() -> None:
    def used(count: Maybe[int]) -> LiveSample:
        return a_sample(peermem=PeermemReading(count, ABSENT))

    node = Following()
    node.see(used(0), 3)
    assert texts(node.see(used(8), 3)) == ["nvidia_peermem is in use (reference count 8)"]
    assert not node.see(used(16), 3)
    assert not node.see(used(ABSENT), 3)
    assert texts(node.see(used(0), 3)) == ["nvidia_peermem is no longer in use (reference count 0)"]


def test_missed_samples_are_an_event() -> None:
    node = Following()
    node.see(a_sample(), 10)
    node.now += 13
    (missed,) = node.see(a_sample(), 5)
    assert (missed.kind, missed.text) == (EventKind.SAMPLES_MISSED, "gdrtop took no sample for 14 s")


def test_a_rewound_recording_is_no_event() -> None:
    node = Following()
    node.see(a_sample(), 60)
    node.now = 5.0
    assert not node.see(a_sample(ranks=0, ports=()), 5)


@pytest.mark.parametrize(
    ("text", "kind", "severity"),
    [
        (XID_79, EventKind.XID, Severity.CRITICAL),
        ("NVRM: Xid (PCI:0000:13:00): 119, pid=1, Timeout waiting for RPC", EventKind.XID, Severity.CRITICAL),
        ("NVRM: Xid (PCI:0000:13:00): 94, Contained: CE User Channel", EventKind.XID, Severity.WARNING),
        ("NVRM: Xid (PCI:0000:13:00): 31, pid=1, MMU Fault", EventKind.XID, Severity.NOTE),
        (
            "mlx5_core 0000:9b:00.0: poll_health:1: Fatal error 1 detected",
            EventKind.KERNEL_MESSAGE,
            Severity.WARNING,
        ),
        (
            "pcieport 0000:9a:01.0: AER: Corrected error received: 0000:9b:00.0",
            EventKind.KERNEL_MESSAGE,
            Severity.NOTE,
        ),
        (
            "DMAR: [DMA Write NO_PASID] Request device [9b:00.0] fault addr 0x0",
            EventKind.KERNEL_MESSAGE,
            Severity.WARNING,
        ),
        (
            "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
            EventKind.KERNEL_MESSAGE,
            Severity.WARNING,
        ),
        ("infiniband mlx5_3: something new went wrong", EventKind.KERNEL_MESSAGE, Severity.NOTE),
        ("ib_uverbs: something new went wrong", EventKind.KERNEL_MESSAGE, Severity.NOTE),
        ("rdma_rxe: something new went wrong", EventKind.KERNEL_MESSAGE, Severity.NOTE),
        ("ice 0000:9b:00.0: something new went wrong", EventKind.KERNEL_MESSAGE, Severity.NOTE),
        ("bnxt_en 0000:9b:00.0 eth0: NIC Link is Down", EventKind.KERNEL_MESSAGE, Severity.WARNING),
        (
            "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).  "
            "The GPU likely needs to be reset.",
            EventKind.KERNEL_MESSAGE,
            Severity.WARNING,
        ),
    ],
)
def test_kernel_messages_that_matter_are_explained(text: str, kind: EventKind, severity: Severity) -> None:
    node = Following()
    (event,) = node.see(a_sample(), 1, (message(text),))
    assert (event.kind, event.severity) == (kind, severity)
    assert event.explanation


@pytest.mark.parametrize(
    "text",
    [
        "usb 1-1: new high-speed USB device number 2",
        "mlx5_core 0000:9b:00.0: firmware version: 28.43.2026",
        "EXT4-fs error (device sda1): ext4_lookup",
        "nvidia: loading out-of-tree module taints kernel.",
    ],
)
def test_other_kernel_messages_are_ignored(text: str) -> None:
    assert not Following().see(a_sample(), 1, (message(text, priority=6),))


def test_harmless_lines_and_details_of_others_are_no_event() -> None:
    lines = (
        "NVRM: GPU Board Serial Number: 1650000000000",
        "NVRM: Resizable BAR is not supported on this kernel version.",
        "mlx5_core 0000:9b:00.0:   device [15b3:1021] error status/mask=00000001/00002000",
    )
    assert not Following().see(a_sample(), 1, tuple(message(line) for line in lines))


def test_an_event_of_the_kernel_says_the_cause_and_what_to_do() -> None:
    line = "mlx5_core 0000:9b:00.0: poll_health:781:(pid 0): device's health compromised - reached miss count"
    (event,) = Following().see(a_sample(), 1, (message(line),))
    assert "firmware hangs" in event.explanation
    assert "mlxfwreset" in event.explanation


def test_loading_a_proprietary_module_is_no_event() -> None:
    lines = (
        "nvidia: loading out-of-tree module taints kernel.",
        "nvidia_peermem: module uses symbols from proprietary module nvidia, inheriting taint.",
    )
    assert not Following().see(a_sample(), 1, tuple(message(line) for line in lines))


def test_what_drivers_log_while_the_node_boots_is_no_event() -> None:
    lines = (
        "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
        "mlx5_core 0000:9b:00.1: Port module event: module 1, Cable unplugged",
    )
    at_boot = tuple(message(line, at=42.0) for line in lines)
    later = tuple(message(line) for line in lines)
    assert not Following().see(a_sample(), 1, at_boot)
    assert len(Following().see(a_sample(), 1, later)) == 2


def test_a_repeated_message_is_counted() -> None:
    node = Following()
    line = "mlx5_core 0000:9b:00.0: mlx5_cmd_out_err:838:(pid {}): ACCESS_REG(0x805) op_mod(0x1) failed"
    first = tuple(message(line.format(pid)) for pid in range(100))
    assert len(node.see(a_sample(), 1, first)) == 1
    assert not node.see(a_sample(), 1, (message(line.format(7)),) * 50)
    (counted,) = node.see(a_sample(), 90)
    assert counted.text.startswith("149 more times in the last minute: mlx5_core 0000:9b:00.0: ")
    assert not node.see(a_sample(), 120)


def test_a_flood_of_different_messages_is_limited_but_a_critical_one_is_not_lost() -> None:
    node = Following()
    flood = tuple(
        message(f"infiniband mlx5_0: {chr(97 + n % 26)}{chr(97 + n // 26)} failed") for n in range(400)
    )
    events = node.see(a_sample(), 1, (*flood, message(XID_79)))
    assert len(events) < 40
    assert [event.severity for event in events].count(Severity.CRITICAL) == 1
    later = texts(node.see(a_sample(), 120))
    assert "370 further kernel messages about GPUs and NICs are not listed" in later


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (Reason.NEEDS_ROOT, "Run as root to see kernel messages as they arrive"),
        (Reason.NOT_RECORDED, "The recording has no kernel messages"),
    ],
)
def test_a_log_that_cannot_be_read_is_one_limit(reason: Reason, said: str) -> None:
    node = Following()
    assert not node.see(a_sample(limits=("Something else.",)), 3, Unknown(reason, "/dev/kmsg"))
    assert node.sample.limits == ("Something else.", said)


@pytest.mark.slow
@given(
    st.lists(
        st.builds(KernelMessage, st.integers(), st.floats(0, 1e6), st.integers(0, 7), st.text(max_size=600))
    )
)
def test_any_message_is_printable_and_short(messages: list[KernelMessage]) -> None:
    for event in Following().see(a_sample(), 1, tuple(messages)):
        assert event.text.isprintable()
        assert len(event.text) < 500


def test_a_detector_that_fails_costs_only_its_own_events() -> None:
    node = Following()
    node.see(a_sample(), 3)
    broken = a_sample(peermem=None, ranks=7)
    events = node.see(broken, 3)
    assert texts(events) == ["pid 4718 (train.py, rank 7) ended"]
    assert node.sample.limits == ("An error in gdrtop hides events of nvidia_peermem (AttributeError)",)


GONE = Unknown(Reason.TIMED_OUT, "somewhere")


@pytest.mark.parametrize(
    "sample",
    [
        a_sample(processes=GONE, jobs=()),
        a_sample(processes=(a_process(0, rank=GONE, state=GONE, threads=GONE, cpu_percent=GONE),)),
        a_sample(ports=(a_port(0, GONE, state=GONE, line_rate_gbps=GONE, pause_percent=GONE),)),
        a_sample(ports=(a_port(0, counters={"symbol_error": GONE, "new": GONE}, netdev=GONE),)),
        a_sample(gpus=(a_gpu(0, GONE, link_width=GONE, link_generation=GONE, throttle_reasons=GONE),)),
        a_sample(gpus=(GpuSample(gpu_bdf(0), GONE, GONE),), peermem=PeermemReading(GONE, GONE)),
        a_sample(0.0, 0, gpus=(), ports=(), modules={}),
    ],
)
def test_unknown_figures_are_never_an_error(sample: LiveSample) -> None:
    node = Following()
    for _ in range(3):
        node.see(a_sample(), 3)
        node.see(sample, 5)
        assert node.sample.limits == ()


def test_one_ethernet_port_that_goes_down_is_one_event() -> None:
    """Its netdev and its RDMA device each log it; an InfiniBand port has only the second line."""
    events = KernelEvents()
    netdev = "mlx5_core 0000:53:00.0 ens3np0: Link down"
    device = "mlx5_core 0000:53:00.0 mlx5_3: Port: 1 Link DOWN"
    assert len(events.update((message(netdev), message(device, 5000.2)), 0.0, 0.0)) == 1
    assert len(KernelEvents().update((message(device),), 0.0, 0.0)) == 1
    assert len(KernelEvents().update((message(device), message(netdev, 5001.0)), 0.0, 0.0)) == 1
    other = device.replace("53", "54")
    assert len(KernelEvents().update((message(netdev), message(other)), 0.0, 0.0)) == 2
    assert len(KernelEvents().update((message(netdev), message(device, 5060.0)), 0.0, 0.0)) == 2


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (156, "at its next reset"),
        (157, "Contact support"),
        (158, "reset the GPU"),
        (167, "PCIe transfer of the GPU timed out"),
        (171, "memory error"),
        (173, "C2C link"),
        (999, "Look up the number"),
    ],
)
def test_newer_xids_are_explained(number: int, words: str) -> None:
    text = f"NVRM: Xid (PCI:0000:13:00): {number}, something happened"
    (event,) = KernelEvents().update((message(text),), 0.0, 0.0)
    assert words in event.explanation
