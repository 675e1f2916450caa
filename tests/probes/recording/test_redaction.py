"""A redacted recording describes the node and identifies nobody."""

import gzip
import io
import ipaddress
import re
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from probes.base.unknown import Unknown
from probes.facts.node import probe_node
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system.platform import PlatformFacts
from probes.host.machine.local import LocalHost
from probes.recording.format import Question
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.redaction.config_files import kernel_parameters
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.redaction.tokens import Tokens
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from probes.snapshot.rates import read as take_reading
from probes.snapshot.verdict import assess
from probes.topology.paths import build
from tests.probes.recording import planted
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, moments_of, read
from tests.support.tiers import usual
from tests.support.trees import add_function, add_rdma_device, write

NIC = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")


def node_with_names(root: Path) -> None:
    """Write a node whose files have names and addresses in many places."""
    add_function(root, NIC, 0x15B3, 0x1021, 0x020700)
    add_rdma_device(root, "mlx5_0", NIC)
    device = "sys/class/infiniband/mlx5_0"
    write(root, "proc/sys/kernel/hostname", "gpu-h100-07.cluster.corp.example\n")
    write(root, f"{device}/node_desc", "GPU-H100-07 HCA-1\n")
    write(root, f"{device}/node_guid", "b8ce:f603:0012:3456\n")
    write(root, f"{device}/ports/1/gids/0", "fe80:0000:0000:0000:b8ce:f603:0012:3456\n")
    write(root, f"{device}/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a14:1e28\n")
    write(root, "sys/class/net/ib0/address", "ba:ce:f6:12:34:56\n")
    write(root, "sys/class/net/enxbacef6123456/address", "ba-ce-f6-12-34-56\n")
    root_disk = "root=UUID=3b2c1d0e-aaaa-bbbb-cccc-0123456789ab"
    write(root, "proc/cmdline", f"{root_disk} iommu=pt nfsroot=s3cr3t-export quiet\n")
    write(root, "proc/1/cgroup", "0::/docker/" + "deadbeef" * 8 + "\n")
    write(root, "proc/mounts", "10.20.30.40:/export/alice /home/alice nfs4 rw,addr=10.20.30.40 0 0\n")
    write(root, "proc/4242/cmdline", "/home/alice/bin/train\0--password\0hunter2\0")
    write(
        root,
        "proc/4242/limits",
        "Max locked memory         unlimited            unlimited            bytes\n",
    )
    write(root, "etc/modprobe.d/alice.conf", "# by alice@gpu-h100-07\nblacklist nouveau\n")


def moments_with_names(root: Path) -> list[Moment]:
    node_with_names(root)
    moments: list[Moment] = []
    recorder = RecordingHost(LocalHost(str(root)), moments.append)
    take_reading(recorder, probe_node(recorder))
    for path in (
        "/proc/mounts",
        "/sys/class/net/ib0/address",
        "/sys/class/net/enxbacef6123456/address",
        "/proc/4242/cmdline",
        "/proc/4242/limits",
        "/sys/class/infiniband/mlx5_0/node_desc",
    ):
        recorder.read(path)
    recorder.names("/sys/class/net")
    recorder.end_moment()
    return moments


def redacted(moments: list[Moment]) -> tuple[bytes, Identifiers]:
    identifiers = Identifiers(redact=True)
    masked = [identifiers.apply(moment) for moment in moments]
    return archive_of(masked, identifiers.host("gpu-h100-07.cluster.corp.example"), "live"), identifiers


@pytest.mark.slow
@pytest.mark.parametrize("every", usual([1, 5], {5}))
def test_no_marker_is_anywhere_in_the_file_in_any_notation(every: int) -> None:
    """In the files and commands that a recording can have; in the fast tier, in a fifth of them."""
    moments = [
        replace(moment, answers=dict(list(moment.answers.items())[::every])) for moment in planted.moments()
    ]
    plain = _parts(archive_of(moments))
    identifiers = Identifiers(redact=True)
    masked = [identifiers.apply(moment) for moment in moments]
    label = identifiers.label(f"/dumps/{planted.NAMES[9]}/{planted.NAMES[0]}")
    parts = _parts(
        archive_of(masked, identifiers.host(f"{planted.NAMES[0]}.{planted.NAMES[1]}"), "tree", label)
    )
    markers = [*planted.MARKERS, planted.USER_ID, planted.JOB_ID]
    assert len(set(markers)) >= 60
    left, recorded = [], 0
    for marker in markers:
        is_there = marker.encode() in plain
        assert is_there or every > 1, f"{marker} was never recorded: the test proves nothing"
        recorded += is_there
        left += [(marker, notation) for notation in planted.notations(marker) if notation in parts]
    assert not left
    assert recorded >= 0.9 * len(markers)


def _parts(archive: bytes) -> bytes:
    """Return everything in the file: names and headers, contents, and what is packed in them."""
    content = gzip.decompress(archive)
    parts = [content]
    with tarfile.open(fileobj=io.BytesIO(content)) as members:
        for member in members:
            file = members.extractfile(member)
            packed = b"" if file is None else file.read()
            if packed.startswith(b"\x1f\x8b"):
                try:
                    parts.append(gzip.decompress(packed))
                except (zlib.error, EOFError, OSError):  # what a text rule has left of it
                    continue
    return b"\n".join({line for part in parts for line in part.split(b"\n")})


def test_the_same_value_has_the_same_token_and_its_shape(tmp_path: Path) -> None:
    archive, _ = redacted(moments_with_names(tmp_path))
    host = ReplayHost(read(archive))
    guid = host.read("/sys/class/infiniband/mlx5_0/node_guid")
    assert isinstance(guid, str)
    assert re.fullmatch(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}", guid)
    assert host.read("/sys/class/infiniband/mlx5_0/ports/1/gids/0") == f"fe80:0000:0000:0000:{guid}"
    mounts = str(host.read("/proc/mounts"))
    address = ipaddress.IPv4Address(mounts.split(":")[0])
    assert f"addr={address} " in mounts
    high, low = int(address) >> 16, int(address) & 0xFFFF
    mapped = f"0000:0000:0000:0000:0000:ffff:{high:04x}:{low:04x}"
    assert host.read("/sys/class/infiniband/mlx5_0/ports/1/gids/1") == mapped
    mac = str(host.read("/sys/class/net/ib0/address"))
    assert re.fullmatch("02(:[0-9a-f]{2}){5}", mac)
    (interface,) = [name for name in known_names(host, "/sys/class/net") if name != "ib0"]
    assert host.read(f"/sys/class/net/{interface}/address") == mac.replace(":", "-")
    name = str(host.read("/proc/sys/kernel/hostname")).partition(".")[0]
    assert host.read("/sys/class/infiniband/mlx5_0/node_desc").startswith(f"{name} ")  # type: ignore[union-attr]
    (file,) = known_names(host, "/etc/modprobe.d")
    assert file.endswith(".conf")
    assert host.read(f"/etc/modprobe.d/{file}") == "blacklist nouveau"


def known_names(host: ReplayHost, path: str) -> tuple[str, ...]:
    names = host.names(path)
    assert not isinstance(names, Unknown)
    return names


def test_kernel_parameters_that_checks_read_are_kept(tmp_path: Path) -> None:
    archive, _ = redacted(moments_with_names(tmp_path))
    words = str(ReplayHost(read(archive)).read("/proc/cmdline")).split()
    assert {"iommu=pt", "quiet"} <= set(words)
    assert [word.partition("=")[0] for word in words] == ["root", "iommu", "nfsroot", "quiet"]


@pytest.mark.parametrize(
    ("parameter", "is_kept"),
    [("ice.debug=3", True), ("mana_ib.depth=3", True), ("manager_pin=3", False), ("icecast=3", False)],
)
def test_only_parameters_of_a_module_begin_with_the_name_of_a_nic_family(
    parameter: str, is_kept: bool
) -> None:
    assert kernel_parameters(Tokens(), parameter).strip().endswith("=3") is is_kept


def test_a_redacted_node_differs_only_in_names(tmp_path: Path) -> None:
    moments = moments_with_names(tmp_path)
    archive, _ = redacted(moments)
    plain, masked = probe_node(ReplayHost(read(archive_of(moments)))), probe_node(ReplayHost(read(archive)))
    assert isinstance(masked.platform, PlatformFacts)
    assert masked.platform.hostname == "host-1.host-2"
    assert isinstance(masked.rdma, RdmaFacts)
    assert isinstance(plain.rdma, RdmaFacts)
    assert [device.name for device in masked.rdma.devices] == [device.name for device in plain.rdma.devices]
    assert masked.pci == plain.pci
    assert masked.modules == plain.modules
    assert masked.gpudirect == plain.gpudirect


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(simulated_names(), {"gb200"}))
def test_every_simulated_node_has_the_same_topology_and_verdict_when_redacted(name: str) -> None:
    clock = SteppedClock()
    moments = moments_of(SimulatedHost(name, clock=clock), clock, 2)
    archive, _ = redacted(moments)
    hosts = [ReplayHost(read(archive_of(moments))), ReplayHost(read(archive))]
    (plain, masked) = [probe_node(host) for host in hosts]
    assert masked.pci == plain.pci
    assert masked.modules == plain.modules
    assert masked.numa == plain.numa
    ends = [[end.id for end in (*build(node).gpus, *build(node).nics)] for node in (plain, masked)]
    assert ends[0] == ends[1]
    for a in ends[0]:
        for b in ends[0]:
            if a != b:
                assert build(masked).path(a, b) == build(plain).path(a, b)
    verdicts = [
        assess(node, build(node), take_reading(host, node))
        for node, host in zip((plain, masked), hosts, strict=True)
    ]
    assert verdicts[0] == verdicts[1]


def test_identifiers_are_counted_without_redaction(tmp_path: Path) -> None:
    moments = moments_with_names(tmp_path)
    counting = Identifiers()
    taken = [counting.apply(moment) for moment in moments]
    command_line = Question("file", ("/proc/4242/cmdline",))
    for moment, kept in zip(moments, taken, strict=True):
        # No recording has more of a job's command line than its program.
        program = {command_line: b"train\0"} if command_line in moment.answers else {}
        assert kept.answers == {**moment.answers, **program}
    # The arguments that no recording has are not counted either.
    counts = redacted(moments)[1].counts
    assert {kind for kind in counts if counts[kind] != counting.counts[kind]} == {
        "command-line argument",
        "program name",
    }
    kinds = {"host name", "GUID", "IP address", "MAC address", "command-line argument", "container id"}
    assert kinds <= counting.counts.keys()
