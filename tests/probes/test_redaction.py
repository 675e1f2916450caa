"""A redacted recording tells of the node and of nobody."""

import gzip
import ipaddress
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probes.checks.verdict import judge
from probes.command import CommandOutput
from probes.host import LocalHost
from probes.node import probe_node
from probes.platform import PlatformFacts
from probes.rates import read as take_reading
from probes.rdma import RdmaFacts
from probes.recorded import RecordedHost
from probes.recording import Moment, RecordingHost
from probes.recording_format import Question
from probes.redaction import NOBODY, Identifiers
from probes.simulation import SimulatedHost, simulated_names
from probes.topology import build
from tests.probes.recordings import archive_of, moments_of, read
from tests.trees import add_function, add_rdma_device, write
from tests.tui.driving import SteppedClock

NIC = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
SECRETS = [
    "gpu-h100-07",
    "cluster.corp.example",
    "alice",
    "b8ce:f603:0012:3456",
    "b8cef60300123456",
    "ba:ce:f6:12:34:56",
    "10.20.30.40",
    "fd00:1234:5678::9",
    "3b2c1d0e-aaaa-bbbb-cccc-0123456789ab",
    "CN0123456789",
    "hunter2",
    "deadbeef" * 8,
    "0a14:1e28",  # 10.20.30.40 inside of a GID
    "s3cr3t-export",
]


def secretive(root: Path) -> None:
    """A node that gives away all that a node can."""
    add_function(root, NIC, 0x15B3, 0x1021, 0x020700)
    add_rdma_device(root, "mlx5_0", NIC)
    device = "sys/class/infiniband/mlx5_0"
    write(root, "proc/sys/kernel/hostname", "gpu-h100-07.cluster.corp.example\n")
    write(root, "etc/hosts", "10.20.30.40 gpu-h100-07\nfd00:1234:5678::9 other.cluster.corp.example\n")
    write(root, f"{device}/node_desc", "GPU-H100-07 HCA-1\n")
    write(root, f"{device}/node_guid", "b8ce:f603:0012:3456\n")
    write(root, f"{device}/ports/1/gids/0", "fe80:0000:0000:0000:b8ce:f603:0012:3456\n")
    write(root, f"{device}/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a14:1e28\n")
    write(root, "sys/class/net/ib0/address", "ba:ce:f6:12:34:56\n")
    write(root, "sys/class/dmi/id/product_serial", "CN0123456789\n")
    root_disk = "root=UUID=3b2c1d0e-aaaa-bbbb-cccc-0123456789ab"
    write(root, "proc/cmdline", f"{root_disk} iommu=pt nfsroot=s3cr3t-export quiet\n")
    write(root, "proc/1/cgroup", "0::/docker/" + "deadbeef" * 8 + "\n")
    write(root, "proc/4242/cmdline", "/home/alice/bin/train\0--password\0hunter2\0")
    write(root, "home/alice/gpu-h100-07.conf", "owner alice@gpu-h100-07\n")
    write(root, "etc/uuid", "GPU-3b2c1d0e-aaaa-bbbb-cccc-0123456789ab Serial Number: CN0123456789\n")
    write(root, "etc/ibstat", "Node GUID: 0xb8cef60300123456\n")


def moments_with_everything(root: Path) -> list[Moment]:
    secretive(root)
    moments: list[Moment] = []
    recorder = RecordingHost(LocalHost(str(root)), moments.append)
    take_reading(recorder, probe_node(recorder))
    for path in (
        "/etc/ibstat",
        "/etc/hosts",
        "/etc/uuid",
        "/sys/class/net/ib0/address",
        "/sys/class/dmi/id/product_serial",
        "/proc/4242/cmdline",
        "/home/alice/gpu-h100-07.conf",
        "/sys/class/infiniband/mlx5_0/node_desc",
    ):
        recorder.read(path)
    recorder.names("/home/alice")
    recorder.end_moment()
    return moments


def redacted(moments: list[Moment]) -> tuple[bytes, Identifiers]:
    identifiers = Identifiers(redact=True)
    told = [identifiers.take(moment) for moment in moments]
    return archive_of(told, identifiers.host("gpu-h100-07.cluster.corp.example"), "live"), identifiers


def test_none_of_the_originals_is_anywhere_in_the_file(tmp_path: Path) -> None:
    moments = moments_with_everything(tmp_path)
    plain = gzip.decompress(archive_of(moments)).decode("utf-8", "replace").lower()
    archive, _ = redacted(moments)
    told = gzip.decompress(archive).decode("utf-8", "replace").lower()
    for secret in SECRETS:
        assert secret.lower() in plain, f"{secret} was never recorded: the test proves nothing"
        assert secret.lower() not in told


def test_the_same_value_has_the_same_token_and_its_shape(tmp_path: Path) -> None:
    archive, _ = redacted(moments_with_everything(tmp_path))
    host = RecordedHost(read(archive))
    guid = host.read("/sys/class/infiniband/mlx5_0/node_guid")
    assert isinstance(guid, str)
    assert re.fullmatch(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}", guid)
    assert host.read("/sys/class/infiniband/mlx5_0/ports/1/gids/0") == f"fe80:0000:0000:0000:{guid}"
    hosts = str(host.read("/etc/hosts"))
    address = ipaddress.IPv4Address(hosts.split()[0])
    high, low = int(address) >> 16, int(address) & 0xFFFF
    mapped = f"0000:0000:0000:0000:0000:ffff:{high:04x}:{low:04x}"
    assert host.read("/sys/class/infiniband/mlx5_0/ports/1/gids/1") == mapped
    assert ipaddress.IPv6Address(hosts.split()[2])
    assert re.fullmatch("(02|00)(:[0-9a-f]{2}){5}", str(host.read("/sys/class/net/ib0/address")))
    name = str(host.read("/proc/sys/kernel/hostname")).partition(".")[0]
    assert host.read("/sys/class/infiniband/mlx5_0/node_desc") == f"{name} HCA-1"
    assert host.names("/home/user-1") == (f"{name}.conf",)
    assert isinstance(host.read(f"/home/user-1/{name}.conf"), str)
    uuid = str(host.read("/etc/uuid")).split()[0]
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid)


def test_what_a_check_reads_on_the_kernels_command_line_stays(tmp_path: Path) -> None:
    archive, _ = redacted(moments_with_everything(tmp_path))
    words = str(RecordedHost(read(archive)).read("/proc/cmdline")).split()
    assert {"iommu=pt", "quiet"} <= set(words)
    assert [word.partition("=")[0] for word in words] == ["root", "iommu", "nfsroot", "quiet"]


@pytest.mark.parametrize("redact", [False, True])
def test_of_an_environment_only_what_a_probe_keeps_is_recorded_in_any_case(redact: bool) -> None:
    environ = (
        b"PATH=/bin\0API_TOKEN=hunter2\0NCCL_DEBUG=INFO\0XNCCL_=hunter2\0CUDA_VISIBLE_DEVICES=0,1\0NCCL_"
    )
    question = Question("file", ("/proc/4242/environ",))
    moment = Identifiers(redact).take(Moment(0, 0.0, True, (), {question: environ}))
    assert moment.answers[question] == b"NCCL_DEBUG=INFO\0CUDA_VISIBLE_DEVICES=0,1\0"


def test_of_open_files_only_devices_are_named() -> None:
    targets = ["/data/merger-plans/model.bin", "/dev/nvidia0", "/dev/infiniband/uverbs3", "socket:[4711]"]
    answers: dict[Question, object] = {
        Question("link", (f"/proc/4242/fd/{number}",)): target for number, target in enumerate(targets)
    }
    told = Identifiers(redact=True).take(Moment(0, 0.0, True, (), dict(answers))).answers
    assert list(told.values()) == ["/file-1", *targets[1:]]


def test_a_kernel_log_gives_away_no_more_than_the_files() -> None:
    log = (
        "<6>[    0.000000] Command line: BOOT_IMAGE=/vmlinuz nfsroot=s3cr3t-export iommu=pt quiet\n"
        "<6>[    1.000000] usb 1-1: SerialNumber: CN0123456789\n"
        "<6>[    2.000000] mlx5_core 0000:1b:00.0 eth0: ba:ce:f6:12:34:56\n"
        "-- Boot 0123456789abcdef0123456789abcdef --\n"
        "<4>[    3.000000] NVRM: Xid (PCI:0000:1b:00): 79, pid=4242, GPU has fallen off the bus.\n"
    )
    question = Question("run", ("dmesg",))
    output = CommandOutput(("dmesg",), 0, log, "")
    told = Identifiers(redact=True).take(Moment(0, 0.0, True, (), {question: output})).answers[question]
    assert isinstance(told, CommandOutput)
    for secret in ("s3cr3t", "CN0123456789", "ba:ce:f6", "0123456789abcdef"):
        assert secret not in told.stdout
    assert len(told.stdout.splitlines()) == len(log.splitlines())
    assert "iommu=pt quiet\n" in told.stdout
    assert "mlx5_core 0000:1b:00.0 eth0: " in told.stdout
    assert told.stdout.splitlines()[-1] == log.splitlines()[-1]


def test_compressed_content_is_left_whole() -> None:
    config = gzip.compress(b"CONFIG_DMA_SHARED_BUFFER=y\n" + bytes(range(256)) * 99) + b"a@b /home/me"
    question = Question("file", ("/proc/config.gz",))
    moment = Moment(0, 0.0, True, (), {question: config})
    assert Identifiers(redact=True).take(moment) == moment


def test_it_is_the_same_node_but_for_the_names(tmp_path: Path) -> None:
    moments = moments_with_everything(tmp_path)
    archive, _ = redacted(moments)
    plain, told = probe_node(RecordedHost(read(archive_of(moments)))), probe_node(RecordedHost(read(archive)))
    assert isinstance(told.platform, PlatformFacts)
    assert told.platform.hostname == "host-1.host-2"
    assert isinstance(told.rdma, RdmaFacts)
    assert isinstance(plain.rdma, RdmaFacts)
    assert [device.name for device in told.rdma.devices] == [device.name for device in plain.rdma.devices]
    assert told.pci == plain.pci
    assert told.modules == plain.modules
    assert told.gpudirect == plain.gpudirect


@pytest.mark.parametrize("name", simulated_names())
def test_every_simulated_node_has_the_same_topology_and_verdict_when_redacted(name: str) -> None:
    clock = SteppedClock()
    moments = moments_of(SimulatedHost(name, clock=clock), clock, 2)
    archive, _ = redacted(moments)
    hosts = [RecordedHost(read(archive_of(moments))), RecordedHost(read(archive))]
    (plain, told) = [probe_node(host) for host in hosts]
    assert told.pci == plain.pci
    assert told.modules == plain.modules
    assert told.numa == plain.numa
    ends = [[end.id for end in (*build(node).gpus, *build(node).nics)] for node in (plain, told)]
    assert ends[0] == ends[1]
    for a in ends[0]:
        for b in ends[0]:
            if a != b:
                assert build(told).path(a, b) == build(plain).path(a, b)
    verdicts = [
        judge(node, build(node), take_reading(host, node))
        for node, host in zip((plain, told), hosts, strict=True)
    ]
    assert verdicts[0] == verdicts[1]


def test_the_kinds_that_it_holds_are_counted_without_redaction_too(tmp_path: Path) -> None:
    moments = moments_with_everything(tmp_path)
    counting = Identifiers()
    assert [counting.take(moment) for moment in moments] == moments
    assert counting.counts.keys() == redacted(moments)[1].counts.keys()
    kinds = {
        "host name",
        "user name",
        "GUID",
        "UUID",
        "serial number",
        "IP address",
        "MAC address",
        "command-line argument",
        "container id",
    }
    assert counting.counts.keys() == kinds


@pytest.mark.parametrize(
    "text",
    [
        "0000:1b:00.0",
        "0000:00:00.0 0000:ff:1f.7",
        "570.124.06",
        "12.8.570.124.06",
        "28.39.1002",
        "6.8.0-60-generic",
        "5.15.0-1.2",
        "0000:0000:0000:0000",
        "00:00:00:00:00:00",
        "0x00000000fb000000 0x00000000fbffffff 0x0000000000140204",
        "127.0.0.1 ::1 0.0.0.0",
        "4: ACTIVE",
        "400 Gb/sec (4X NDR)",
        "pci:v000015B3d00001021sv000015B3sd00000041bc02sc00i00",
        "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
        "12:34:56",
        "std::vector",
        "user root on localhost",
        "Ubuntu 22.04.5 LTS",
    ],
)
def test_what_identifies_nobody_stays_as_it_is(text: str) -> None:
    assert Identifiers(redact=True).text(text) == text


def test_a_user_named_like_a_module_does_not_take_the_module_along() -> None:
    identifiers = Identifiers(redact=True)
    answers = {
        Question("file", ("/home/nvidia_uvm/x",)): b"x",
        Question("file", ("/sys/module/nvidia_uvm/initstate",)): b"live\n",
    }
    moment = identifiers.take(Moment(0, 0.0, True, (), dict(answers)))
    assert moment.answers[Question("file", ("/sys/module/nvidia_uvm/initstate",))] == b"live\n"


def test_a_name_met_late_in_a_moment_is_replaced_in_all_of_it() -> None:
    identifiers = Identifiers(redact=True)
    answers = {
        Question("file", ("/etc/motd",)): b"ask zoe about this node\n",
        Question("link", ("/proc/7/exe",)): "/home/zoe/bin/train",
    }
    moment = identifiers.take(Moment(0, 0.0, True, (), dict(answers)))
    assert b"zoe" not in b"".join(one if isinstance(one, bytes) else b"" for one in moment.answers.values())


@settings(max_examples=300, deadline=None)
@given(st.text(min_size=1, max_size=8), st.text(max_size=40))
@example("srv", "ſrv SRV srv")
@example("ZOË", "zoë ZOË Zoë")
def test_a_name_of_any_characters_is_replaced_and_breaks_nothing(name: str, text: str) -> None:
    identifiers = Identifiers(redact=True)
    identifiers.host(name)
    told = identifiers.text(f"{text} ({name}) ({name.upper()}) {text}")
    if name.isalpha() and len(name) > 2 and name.isascii():
        assert f"({name})" not in told or name.lower() in NOBODY


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789abcdef:.-@/ %home\0gGuU\n", max_size=80))
def test_no_text_breaks_it_and_a_redacted_text_holds_no_address(text: str) -> None:
    told = Identifiers(redact=True).text(text)
    for found in re.findall(r"(?<![\w.:-])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", told):
        assert found.startswith("02:00") or not found.strip("0:") or not found.strip("f:")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["/proc/cmdline", "/proc/1/cmdline", "/x/serial", "/x"]))
def test_no_bytes_break_it(content: bytes, path: str) -> None:
    identifiers = Identifiers(redact=True)
    moment = identifiers.take(Moment(0, 0.0, True, (), {Question("file", (path,)): content}))
    assert all(isinstance(answer, bytes) for answer in moment.answers.values())
    assert read(archive_of([moment])).moments
