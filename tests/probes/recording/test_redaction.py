"""A redacted recording describes the node and identifies nobody."""

import gzip
import io
import ipaddress
import re
import tarfile
import zlib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probes.base.unknown import Unknown
from probes.facts.jobs.process_files import parse_program
from probes.facts.kernel.release import parse_config, unpack
from probes.facts.node import probe_node
from probes.facts.pci.capabilities import ConfigSpace
from probes.facts.pci.capabilities import parse_config as parse_pci_config
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system.platform import PlatformFacts
from probes.host.command import CommandOutput
from probes.host.local import LocalHost
from probes.recording.format import Question
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.redaction.table import FILES
from probes.recording.redaction.tokens import NOBODY
from probes.recording.redaction.words import is_known
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from probes.simulation.node.description import simulated_names
from probes.snapshot.rates import read as take_reading
from probes.snapshot.verdict import judge
from probes.topology.paths import build
from tests.probes.recording import planted
from tests.probes.recording.recordings import archive_of, moments_of, read
from tests.trees import add_function, add_rdma_device, write
from tests.tui.pilot import SteppedClock

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
    told = [identifiers.apply(moment) for moment in moments]
    return archive_of(told, identifiers.host("gpu-h100-07.cluster.corp.example"), "live"), identifiers


def test_no_marker_is_anywhere_in_the_file_in_any_notation() -> None:
    moments = planted.moments()
    plain = _parts(archive_of(moments))
    identifiers = Identifiers(redact=True)
    told = [identifiers.apply(moment) for moment in moments]
    label = identifiers.label(f"/dumps/{planted.NAMES[9]}/{planted.NAMES[0]}")
    parts = _parts(
        archive_of(told, identifiers.host(f"{planted.NAMES[0]}.{planted.NAMES[1]}"), "tree", label)
    )
    markers = [*planted.MARKERS, planted.USER_ID, planted.JOB_ID]
    assert len(set(markers)) >= 60
    left = []
    for marker in markers:
        assert marker.encode() in plain, f"{marker} was never recorded: the test proves nothing"
        left += [(marker, one) for one in planted.notations(marker) if one in parts]
    assert not left


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
    (interface,) = [one for one in known_names(host, "/sys/class/net") if one != "ib0"]
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


def test_processes_that_no_check_needs_are_recorded_without_command_line() -> None:
    answers: dict[Question, object] = {
        Question("file", ("/proc/77/cmdline",)): b"mysql -pSECRET: alice",
        Question("file", ("/proc/78/cmdline",)): b"",
    }
    for redact in (False, True):
        told = Identifiers(redact).apply(Moment(0, 0.0, True, (), dict(answers))).answers
        assert b"SECRET" not in told[Question("file", ("/proc/77/cmdline",))]
        assert told[Question("file", ("/proc/77/cmdline",))]
        assert told[Question("file", ("/proc/78/cmdline",))] == b""


@pytest.mark.parametrize(
    ("cmdline", "told"),
    [
        (b"/usr/bin/python3\0train.py\0--key\0hunter2\0", b"python3\0program-1\0argument-1\0"),
        (b"/home/alice/secret-solver\0", b"program-1\0"),
        (b"mpirun\0-x\0NCCL_DEBUG=INFO\0", b"mpirun\0NCCL_DEBUG=INFO\0argument-1\0"),
        (b"postgres: alice payroll [local] idle\0\0\0", b"program-1\0argument-1\0"),
    ],
)
def test_the_program_and_nccl_variables_of_a_job_are_kept(cmdline: bytes, told: bytes) -> None:
    answers: dict[Question, object] = {
        Question("file", ("/proc/77/maps",)): b"",
        Question("file", ("/proc/77/cmdline",)): cmdline,
    }
    moment = Identifiers(redact=True).apply(Moment(0, 0.0, True, (), answers))
    assert moment.answers[Question("file", ("/proc/77/cmdline",))] == told


@pytest.mark.parametrize(
    ("cmdline", "kept"),
    [
        (b"/usr/bin/python3\0-u\0/data/train.py\0--key\0hunter2\0", b"train.py\0"),
        (b"/opt/solver\0--password=hunter2\0", b"solver\0"),
        (b"python3\0-c\0login('hunter2')\0", b"python3\0"),
        (b"/\0hunter2", b"\0"),
    ],
)
def test_arguments_of_a_job_are_not_recorded(cmdline: bytes, kept: bytes) -> None:
    answers: dict[Question, object] = {
        Question("file", ("/proc/77/maps",)): b"",
        Question("file", ("/proc/77/cmdline",)): cmdline,
    }
    moment = Identifiers(redact=False).apply(Moment(0, 0.0, True, (), answers))
    assert moment.answers[Question("file", ("/proc/77/cmdline",))] == kept
    assert str(parse_program(kept)) == str(parse_program(cmdline))


def test_control_group_paths_have_tokens_for_jobs_pods_and_users() -> None:
    identifiers = Identifiers(redact=True)
    path = Question("file", ("/proc/77/cgroup",))
    passwd = Question("file", ("/etc/passwd",))
    status = Question("file", ("/proc/77/status",))
    pod = "pod5d41402a_bc4b_2a76_b971_9d911017c592"
    answers: dict[Question, object] = {
        passwd: b"root:x:0:0:root:/root:/bin/bash\nalice:x:4711:4711:Alice L:/home/alice:/bin/zsh\n",
        status: b"Name:\ttrain\nUid:\t4711\t4711\t4711\t4711\n",
        path: (
            "4:memory:/slurm/uid_4711/job_88123/step_0/task_1\n"
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{pod}.slice/"
            f"cri-containerd-{'ab' * 32}.scope\n"
            "0::/user.slice/user-4711.slice/session-3.scope/alice-run\n"
        ).encode(),
    }
    told = identifiers.apply(Moment(0, 0.0, True, (), answers)).answers
    user = told[passwd].decode().splitlines()[1].split(":")
    assert user[0] == "user-1"
    uid = user[2]
    assert f"Uid:\t{uid}\t" in told[status].decode()
    assert re.fullmatch(
        rf"4:memory:/slurm/uid_{uid}/job_1/step_0/task_1\n0::/kubepods.slice/kubepods-burstable.slice/"
        rf"kubepods-burstable-pod00000001_0000_0000_0000_0{{12}}.slice/cri-containerd-0{{11}}10{{52}}.scope\n"
        rf"0::/user.slice/user-{uid}.slice/session-2.scope/redacted-\d+\n",
        told[path].decode(),
    )


def test_routes_use_the_same_tokens_as_the_session() -> None:
    answers: dict[Question, object] = {
        Question("environment", ("SSH_CONNECTION",)): "10.20.30.40 51234 10.20.30.1 22",
        Question("file", ("/proc/net/route",)): (
            b"Iface\tDestination\tGateway\tFlags\nens3\t00000000\t011E140A\t0003\nens3\t001E140A\t00000000\t0001\n"
        ),
    }
    told = list(Identifiers(redact=True).apply(Moment(0, 0.0, True, (), answers)).answers.values())
    client, port, server, _ = told[0].split()
    assert port == "51234"
    assert client.startswith("198.18.")
    default = told[1].decode().splitlines()[1].split("\t")
    assert default[:2] == ["ens3", "00000000"]
    assert str(ipaddress.IPv4Address(bytes.fromhex(default[2])[::-1])) == server


def test_a_question_without_a_rule_is_not_recorded() -> None:
    answers: dict[Question, object] = {
        Question("file", ("/srv/data/x",)): b"1",
        Question("size", ("/home/alice/x",)): 1,
        Question("run", ("alices-tool",)): CommandOutput(("alices-tool",), 0, "", ""),
        Question("environment", ("API_TOKEN",)): "1",
    }
    assert not Identifiers(redact=True).apply(Moment(0, 0.0, True, (), answers)).answers


def test_every_path_in_the_table_is_kept() -> None:
    for row in FILES:
        parts = [part for part in row.paths.split("/") if part and "*" not in part]
        assert [part for part in parts if not is_known(part)] == []


def test_configuration_space_loses_only_the_serial_number() -> None:
    content = planted.config_space()
    path = "/sys/bus/pci/devices/0000:1b:00.0/config"
    answers: dict[Question, object] = {Question("file", (path,)): content}
    (told,) = Identifiers(redact=True).apply(Moment(0, 0.0, True, (), answers)).answers.values()
    before, after = parse_pci_config(content), parse_pci_config(told)
    assert isinstance(before, ConfigSpace)
    assert not isinstance(before.acs, Unknown)
    assert before == after
    assert bytes.fromhex("b8cef60300129abc")[::-1] not in told


def test_kernel_parameters_that_checks_read_are_kept(tmp_path: Path) -> None:
    archive, _ = redacted(moments_with_names(tmp_path))
    words = str(ReplayHost(read(archive)).read("/proc/cmdline")).split()
    assert {"iommu=pt", "quiet"} <= set(words)
    assert [word.partition("=")[0] for word in words] == ["root", "iommu", "nfsroot", "quiet"]


@pytest.mark.parametrize("redact", [False, True])
def test_only_environment_variables_that_probes_keep_are_recorded(redact: bool) -> None:
    environ = (
        b"PATH=/bin\0API_TOKEN=hunter2\0NCCL_DEBUG=INFO\0XNCCL_=hunter2\0CUDA_VISIBLE_DEVICES=0,1\0NCCL_"
    )
    question = Question("file", ("/proc/4242/environ",))
    moment = Identifiers(redact).apply(Moment(0, 0.0, True, (), {question: environ}))
    assert moment.answers[question] == b"NCCL_DEBUG=INFO\0CUDA_VISIBLE_DEVICES=0,1\0"


@pytest.mark.parametrize("redact", [False, True])
@pytest.mark.parametrize(
    "path",
    [
        "/proc/4242/root/etc/shadow",
        "/proc/4242/root/etc/nccl.conf",  # a link out of the container, which root follows
        "/proc/4242/cwd/secret.xml",
        "/etc/shadow",
        "/root/.nccl.conf",
        "/home/alice/keys/id_rsa",
    ],
)
def test_a_file_chosen_by_a_user_keeps_only_what_nccl_reads(path: str, redact: bool) -> None:
    """NCCL_TOPO_FILE=/etc/shadow, and the node is recorded by root."""
    question = Question("file", (path,))

    def taken(content: bytes) -> list[object]:
        return list(Identifiers(redact).apply(Moment(0, 0.0, True, (), {question: content})).answers.values())

    for answer in taken(b"root:$6$hunter2:19000:0:99999:7:::\n-----BEGIN KEY-----\n"):
        assert not isinstance(answer, bytes) or not answer.strip(b"\nredacted")
    if not redact:
        useful = b"NCCL_DEBUG=INFO\n" if path.endswith(".conf") else b'<system version="1"></system>'
        assert taken(useful) == [useful]


def test_networks_in_routes_have_no_site_addresses() -> None:
    """10.20.0.0/16 and 131.188.0.0/16 by 131.188.0.1, and the default route."""
    lines = (
        "eth0\t0000140A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0",
        "eth0\t0000BC83\t0100BC83\t0003\t0\t0\t100\t00F0FFFF\t0\t0\t0",
        "eth0\t00000000\t0100BC83\t0003\t0\t0\t100\t00000000\t0\t0\t0",
    )
    question = Question("file", ("/proc/net/route",))
    moment = Moment(0, 0.0, True, (), {question: "\n".join(lines).encode()})
    (answer,) = Identifiers(redact=True).apply(moment).answers.values()
    assert isinstance(answer, bytes)
    assert b"140A" not in answer
    assert b"BC83" not in answer
    rows = [line.split("\t") for line in answer.decode().splitlines()]
    assert [row[7] for row in rows] == ["0000FFFF", "00F0FFFF", "00000000"]
    assert rows[2][1] == "00000000"


def test_open_files_other_than_devices_are_not_recorded() -> None:
    targets = [
        "/data/merger-plans/model.bin",
        "/dev/nvidia0",
        "/dev/infiniband/uverbs3",
        "socket:[4711]",
        "/dev/shm/x",
    ]
    answers: dict[Question, object] = {
        Question("link", (f"/proc/4242/fd/{number}",)): target for number, target in enumerate(targets)
    }
    for redact in (False, True):
        told = Identifiers(redact).apply(Moment(0, 0.0, True, (), dict(answers))).answers
        assert list(told.values()) == targets[1:3]


def test_known_kernel_messages_are_kept() -> None:
    log = (
        "<6>[    0.000000] Command line: BOOT_IMAGE=/vmlinuz nfsroot=s3cr3t-export iommu=pt quiet\n"
        "<6>[    1.000000] usb 1-1: SerialNumber: CN0123456789\n"
        "<6>[    2.000000] mlx5_core 0000:1b:00.0 eth0: ba:ce:f6:12:34:56\n"
        "-- Boot 0123456789abcdef0123456789abcdef --\n"
        "<4>[    3.000000] NVRM: Xid (PCI:0000:1b:00): 79, pid=4242, name=solver-9, GPU has fallen off"
        " the bus.\n"
    )
    question = Question("run", ("dmesg",))
    output = CommandOutput(("dmesg",), 0, log, "")
    told = Identifiers(redact=True).apply(Moment(0, 0.0, True, (), {question: output})).answers[question]
    assert isinstance(told, CommandOutput)
    assert told.stdout.splitlines() == [
        "<6>[    0.000000] ",
        log.splitlines()[-1].replace("solver-9", "program-1"),
    ]


def test_options_of_a_packed_kernel_config_are_kept() -> None:
    text = b'CONFIG_DMA_SHARED_BUFFER=y\nCONFIG_DEFAULT_HOSTNAME="gpu-h100-07"\n'
    question = Question("file", ("/proc/config.gz",))
    moment = Identifiers(redact=True).apply(Moment(0, 0.0, True, (), {question: gzip.compress(text)}))
    told = unpack(moment.answers[question])
    assert parse_config(told, "CONFIG_DMA_SHARED_BUFFER") is True
    assert b"gpu-h100-07" not in told


def test_a_redacted_node_differs_only_in_names(tmp_path: Path) -> None:
    moments = moments_with_names(tmp_path)
    archive, _ = redacted(moments)
    plain, told = probe_node(ReplayHost(read(archive_of(moments)))), probe_node(ReplayHost(read(archive)))
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
    hosts = [ReplayHost(read(archive_of(moments))), ReplayHost(read(archive))]
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
        "127.0.0.1 ::1 0.0.0.0",
        "4: ACTIVE",
        "400 Gb/sec (4X NDR)",
        "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
        "12:34:56",
        "user root on localhost",
        "Ubuntu 22.04.5 LTS",
    ],
)
def test_words_that_identify_nobody_are_kept(text: str) -> None:
    assert Identifiers(redact=True).text(text) == text


def test_a_user_named_like_a_module_does_not_hide_the_module() -> None:
    identifiers = Identifiers(redact=True)
    answers: dict[Question, object] = {
        Question("file", ("/etc/passwd",)): b"nvidia_uvm:x:1000:1000::/home/nvidia_uvm:/bin/sh\n",
        Question("file", ("/sys/module/nvidia_uvm/initstate",)): b"live\n",
    }
    moment = identifiers.apply(Moment(0, 0.0, True, (), dict(answers)))
    assert moment.answers[Question("file", ("/sys/module/nvidia_uvm/initstate",))] == b"live\n"
    assert b"nvidia_uvm" not in moment.answers[Question("file", ("/etc/passwd",))]


@settings(max_examples=300, deadline=None)
@given(st.text(min_size=1, max_size=8), st.text(max_size=40))
@example("srv", "ſrv SRV srv")
@example("ZOË", "zoë ZOË Zoë")
def test_a_name_of_any_characters_is_replaced_and_breaks_nothing(name: str, text: str) -> None:
    identifiers = Identifiers(redact=True)
    identifiers.host(name)
    told = identifiers.text(f"{text} ({name}) ({name.upper()}) {text}")
    if name.isalpha() and len(name) > 2 and not is_known(name):
        assert f"({name})" not in told or name.lower() in NOBODY


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789abcdef:.-@/ %home\0gGuU\n", max_size=80))
def test_redacted_text_has_no_address(text: str) -> None:
    told = Identifiers(redact=True).text(text)
    for found in re.findall(r"(?<![\w.:-])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", told):
        assert found.startswith("02:00") or not found.strip("0:") or not found.strip("f:")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["/proc/cmdline", "/proc/1/cmdline", "/x/serial", "/x"]))
def test_no_bytes_raise_an_error(content: bytes, path: str) -> None:
    identifiers = Identifiers(redact=True)
    moment = identifiers.apply(Moment(0, 0.0, True, (), {Question("file", (path,)): content}))
    assert all(isinstance(answer, bytes) for answer in moment.answers.values())
    assert read(archive_of([moment])).moments
