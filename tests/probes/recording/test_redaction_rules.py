"""What a redacted recording keeps of each source, and which words it replaces."""

import ast
import gzip
import ipaddress
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.jobs.process_files import parse_program
from probes.facts.kernel.release import parse_config, unpack
from probes.facts.pci.config_space import ConfigSpace
from probes.facts.pci.config_space import parse_config as parse_pci_config
from probes.host.protocol import CommandOutput
from probes.recording.format import Question
from probes.recording.recording_host import Moment
from probes.recording.redaction.config_files import TOPOLOGY
from probes.recording.redaction.identifiers import FILES, Identifiers, row_of
from probes.recording.redaction.tokens import _SECTIONS, NOBODY, is_known
from tests.probes.recording import planted
from tests.support.recordings import archive_of, read

ROOT = Path(__file__).parents[3]


def test_processes_that_no_check_needs_are_recorded_without_command_line() -> None:
    answers: dict[Question, object] = {
        Question("file", ("/proc/77/cmdline",)): b"mysql -pSECRET: alice",
        Question("file", ("/proc/78/cmdline",)): b"",
    }
    for redact in (False, True):
        recorded = Identifiers(redact).apply(Moment(0, 0.0, True, (), dict(answers))).answers
        assert b"SECRET" not in recorded[Question("file", ("/proc/77/cmdline",))]
        assert recorded[Question("file", ("/proc/77/cmdline",))]
        assert recorded[Question("file", ("/proc/78/cmdline",))] == b""


def test_the_names_of_debians_driver_files_are_kept() -> None:
    install = b"install nvidia-uvm modprobe nvidia ; modprobe -i nvidia-current-open-uvm $CMDLINE_OPTS"
    index = b"updates/dkms/nvidia-current-open-uvm.ko.zst: updates/dkms/nvidia-current-open.ko\n"
    for path, content in (
        ("/etc/modprobe.d/nvidia.conf", install),
        ("/lib/modules/6.1.0-50-amd64/modules.dep", index),
    ):
        question = Question("file", (path,))
        answers: dict[Question, object] = {question: content}
        assert Identifiers(redact=True).apply(Moment(0, 0.0, True, (), answers)).answers[question] == content


@pytest.mark.parametrize(
    ("cmdline", "recorded"),
    [
        (b"/usr/bin/python3\0train.py\0--key\0hunter2\0", b"python3\0program-1\0argument-1\0"),
        (b"/home/alice/secret-solver\0", b"program-1\0"),
        (b"mpirun\0-x\0NCCL_DEBUG=INFO\0", b"mpirun\0NCCL_DEBUG=INFO\0argument-1\0"),
        (b"postgres: alice payroll [local] idle\0\0\0", b"program-1\0argument-1\0"),
    ],
)
def test_the_program_and_nccl_variables_of_a_job_are_kept(cmdline: bytes, recorded: bytes) -> None:
    answers: dict[Question, object] = {
        Question("file", ("/proc/77/maps",)): b"",
        Question("file", ("/proc/77/cmdline",)): cmdline,
    }
    moment = Identifiers(redact=True).apply(Moment(0, 0.0, True, (), answers))
    assert moment.answers[Question("file", ("/proc/77/cmdline",))] == recorded


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
    recorded = identifiers.apply(Moment(0, 0.0, True, (), answers)).answers
    user = recorded[passwd].decode().splitlines()[1].split(":")
    assert user[0] == "user-1"
    uid = user[2]
    assert f"Uid:\t{uid}\t" in recorded[status].decode()
    assert re.fullmatch(
        rf"4:memory:/slurm/uid_{uid}/job_1/step_0/task_1\n0::/kubepods.slice/kubepods-burstable.slice/"
        rf"kubepods-burstable-pod00000001_0000_0000_0000_0{{12}}.slice/cri-containerd-0{{11}}10{{52}}.scope\n"
        rf"0::/user.slice/user-{uid}.slice/session-2.scope/redacted-\d+\n",
        recorded[path].decode(),
    )


def test_routes_use_the_same_tokens_as_the_session() -> None:
    answers: dict[Question, object] = {
        Question("environment", ("SSH_CONNECTION",)): "10.20.30.40 51234 10.20.30.1 22",
        Question("file", ("/proc/net/route",)): (
            b"Iface\tDestination\tGateway\tFlags\nens3\t00000000\t011E140A\t0003\nens3\t001E140A\t00000000\t0001\n"
        ),
    }
    recorded = list(Identifiers(redact=True).apply(Moment(0, 0.0, True, (), answers)).answers.values())
    client, port, server, _ = recorded[0].split()
    assert port == "51234"
    assert client.startswith("198.18.")
    default = recorded[1].decode().splitlines()[1].split("\t")
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
        parts = [part for part in re.split("[/|]", row.paths) if part and "*" not in part]
        unknown = [part for part in parts if not is_known(part)]
        assert not unknown, f"add to [paths] in probes/recording/redaction/words.txt: {unknown}"


def test_every_word_of_setup_is_read() -> None:
    """A fact that is dropped leaves no word."""
    files = [path for path in (ROOT / "probes").rglob("*.py") if "simulation" not in path.parts]
    files += (ROOT / "probes").glob("checks/*/texts.toml")
    source = "".join(path.read_text(encoding="utf-8").lower() for path in files)
    unread = [word for word in _SECTIONS["setup"] if word.partition("-4a67b082")[0] not in source]
    assert not unread, f"remove from [setup] in probes/recording/redaction/words.txt: {unread}"


def test_configuration_space_loses_only_the_serial_number() -> None:
    content = planted.config_space()
    path = "/sys/bus/pci/devices/0000:1b:00.0/config"
    answers: dict[Question, object] = {Question("file", (path,)): content}
    (recorded,) = Identifiers(redact=True).apply(Moment(0, 0.0, True, (), answers)).answers.values()
    before, after = parse_pci_config(content), parse_pci_config(recorded)
    assert isinstance(before, ConfigSpace)
    assert not isinstance(before.acs, Unknown)
    assert before == after
    assert bytes.fromhex("b8cef60300129abc")[::-1] not in recorded


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
        recorded = Identifiers(redact).apply(Moment(0, 0.0, True, (), dict(answers))).answers
        assert list(recorded.values()) == targets[1:3]


def test_known_kernel_messages_are_kept() -> None:
    log = (
        "<6>[    0.000000] Command line: BOOT_IMAGE=/vmlinuz nfsroot=s3cr3t-export iommu=pt quiet\n"
        "<6>[    1.000000] usb 1-1: SerialNumber: CN0123456789\n"
        "<6>[    2.000000] mlx5_core 0000:1b:00.0 eth0: ba:ce:f6:12:34:56\n"
        "-- Boot 0123456789abcdef0123456789abcdef --\n"
        "<4>[    3.000000] NVRM: Xid (PCI:0000:1b:00): 79, pid=4242, name=solver-9, GPU has fallen off"
        " the bus.\n"
        "<5>[ 1200.000000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.124.06\n"
    )
    question = Question("run", ("dmesg",))
    output = CommandOutput(("dmesg",), 0, log, "")
    recorded = Identifiers(redact=True).apply(Moment(0, 0.0, True, (), {question: output})).answers[question]
    assert isinstance(recorded, CommandOutput)
    assert recorded.stdout.splitlines() == [
        "<6>[    0.000000] ",
        log.splitlines()[-2].replace("solver-9", "program-1"),
        log.splitlines()[-1],
    ]


def test_options_of_a_packed_kernel_config_are_kept() -> None:
    text = b'CONFIG_DMA_SHARED_BUFFER=y\nCONFIG_DEFAULT_HOSTNAME="gpu-h100-07"\n'
    question = Question("file", ("/proc/config.gz",))
    moment = Identifiers(redact=True).apply(Moment(0, 0.0, True, (), {question: gzip.compress(text)}))
    recorded = unpack(moment.answers[question])
    assert parse_config(recorded, "CONFIG_DMA_SHARED_BUFFER") is True
    assert b"gpu-h100-07" not in recorded


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


@pytest.mark.slow
@settings(max_examples=300)
@given(st.text(min_size=1, max_size=8), st.text(max_size=40))
@example("srv", "ſrv SRV srv")
@example("ZOË", "zoë ZOË Zoë")
def test_a_name_of_any_characters_is_replaced_and_breaks_nothing(name: str, text: str) -> None:
    identifiers = Identifiers(redact=True)
    identifiers.host(name)
    recorded = identifiers.text(f"{text} ({name}) ({name.upper()}) {text}")
    if name.isalpha() and len(name) > 2 and not is_known(name):
        assert f"({name})" not in recorded or name.lower() in NOBODY


@pytest.mark.slow
@settings(max_examples=300)
@given(st.text(alphabet="0123456789abcdef:.-@/ %home\0gGuU\n", max_size=80))
def test_redacted_text_has_no_address(text: str) -> None:
    recorded = Identifiers(redact=True).text(text)
    for found in re.findall(r"(?<![\w.:-])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", recorded):
        assert found.startswith("02:00") or not found.strip("0:") or not found.strip("f:")


@pytest.mark.slow
@settings(max_examples=200)
@given(st.binary(max_size=200), st.sampled_from(["/proc/cmdline", "/proc/1/cmdline", "/x/serial", "/x"]))
def test_no_bytes_raise_an_error(content: bytes, path: str) -> None:
    identifiers = Identifiers(redact=True)
    moment = identifiers.apply(Moment(0, 0.0, True, (), {Question("file", (path,)): content}))
    assert all(isinstance(answer, bytes) for answer in moment.answers.values())
    assert read(archive_of([moment])).moments


def test_words_of_gdrtops_sentences_are_kept_in_its_own_text_only() -> None:
    identifiers = Identifiers(redact=True)
    assert identifiers.host("login") == "host-1"
    assert identifiers.text("redirect to login") == "redacted-1 to host-1"
    assert identifiers.value("Disable ACS redirect on login") == "Disable ACS redirect on host-1"
    assert identifiers.text("redirect") == "redacted-1"


def test_why_an_answer_is_unknown_stays_readable() -> None:
    """Every detail that a host gives as plain text, in probes/host."""
    identifiers = Identifiers(redact=True)
    details = [
        node.args[2].value
        for path in sorted((ROOT / "probes/host").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Unknown"
        if len(node.args) > 2 and isinstance(node.args[2], ast.Constant)
    ]
    assert len(details) > 10
    for detail in details:
        answer = Unknown(Reason.IO_ERROR, "ibstat", str(detail))
        moment = Moment(0, 0.0, False, (), {Question("run", ("ibstat",)): answer})
        (recorded,) = identifiers.apply(moment).answers.values()
        assert recorded == answer, "add the missing words to [sentences] in words.txt"


def test_the_limits_of_a_control_group_are_found_again_under_its_token() -> None:
    cgroup = Question("file", ("/proc/77/cgroup",))
    limits = Question("file", ("/sys/fs/cgroup/slurm/uid_4711/job_88123/rdma.max",))
    answers: dict[Question, object] = {
        cgroup: b"0::/slurm/uid_4711/job_88123\n",
        limits: b"mlx5_0 hca_handle=2 hca_object=max \n",
    }
    recorded = Identifiers(redact=True).apply(Moment(0, 0.0, True, (), answers)).answers
    path = recorded[cgroup].decode().strip().removeprefix("0::")
    assert "4711" not in path
    assert "88123" not in path
    assert recorded[Question("file", (f"/sys/fs/cgroup{path}/rdma.max",))] == answers[limits]


def test_counters_of_a_pods_own_sysfs_are_kept_and_no_other_file_of_it() -> None:
    counters = "/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
    assert row_of(f"/proc/41000/root{counters}") == row_of(counters)
    for path in ("/sys/class/infiniband/../../../home/alice/key", "/home/alice/key"):
        row = row_of(f"/proc/41000/root{path}")
        assert row is not None
        assert row.rule is TOPOLOGY


def test_partition_keys_become_tokens_that_keep_membership_and_equality() -> None:
    files = {
        "/sys/class/infiniband/mlx5_0/ports/1/pkeys/0": (b"0x8013\n", b"0x8001\n"),
        "/sys/class/infiniband/mlx5_0/ports/1/pkeys/1": (b"0x7fff\n", b"0x7fff\n"),
        "/sys/class/infiniband/mlx5_0/ports/1/pkeys/2": (b"0x0013\n", b"0x0001\n"),
        "/sys/class/infiniband/mlx5_0/ports/1/pkeys/3": (b"0x8014\n", b"0x8002\n"),
        "/sys/class/infiniband/mlx5_0/ports/1/pkeys/4": (b"0x0000\n", b"0x0000\n"),
        "/sys/class/infiniband/mlx5_0/ports/1/pkeys/5": (b"0xffff\n", b"0xffff\n"),
        "/sys/class/infiniband/mlx5_0/ports/1/pkeys/6": (b"acme\n", b"redacted-1\n"),
        "/proc/7/environ": (
            b"UCX_IB_PKEY=0x14\0NCCL_IB_PKEY_VALUE=32787\0NCCL_IB_PKEY=3\0UCX_IB_PKEY=auto\0",
            b"UCX_IB_PKEY=0x0002\0NCCL_IB_PKEY_VALUE=0x8001\0NCCL_IB_PKEY=3\0UCX_IB_PKEY=auto\0",
        ),
    }
    answers: dict[Question, object] = {
        Question("file", (path,)): before for path, (before, _) in files.items()
    }
    recorded = Identifiers(redact=True).apply(Moment(0, 0.0, True, (), answers)).answers
    assert recorded == {Question("file", (path,)): after for path, (_, after) in files.items()}
