"""Identifiers in every notation, planted in every source that a recording can have."""

# ruff: noqa: E501, RUF005, SIM905 - the lines are those of the files

import base64
import gzip
import ipaddress
import itertools
import urllib.parse
from collections.abc import Iterator

from probes.base.unknown import Reason, Unknown
from probes.host.fec import FecState
from probes.host.nvml import NvmlFacts, NvmlGpu, NvmlLive
from probes.host.protocol import CommandOutput, KernelMessage
from probes.host.rdma_resources import (
    CompletionQueue,
    MemoryRegion,
    ProtectionDomain,
    QueuePair,
    RdmaContext,
    RdmaResources,
)
from probes.host.tcp_sockets import TcpSocket
from probes.host.usage import InterfaceCounters, ProcessUsage
from probes.recording.format import Question
from probes.recording.recording_host import Moment
from probes.recording.redaction.identifiers import COMMANDS, ENVIRONMENT, FILES
from probes.recording.redaction.tokens import PROGRAMS

NAMES = """
gpu-h100-07 cluster.corp.example login-secure-3 storage-9.acme.example alice.liddell bob_operator carol-svc
dave@acme.example EVEADMIN merger-train llama-secret-405b acme-finetune-v7 job-blackbird project.condor s3cr3t-export
hunter2 tok3n-AbCdEf xyzzy-plugh team-quokka rack-b12-u07 dc-frankfurt-2 kestrel-db widgets_prod pgsql-main
acme-registry.example:5000/llm /home/alice.liddell/run.sh /data/merger-plans/model.bin /scratch/quokka/ckpt-9000
/dev/shm/quokka-psm /opt/acme/bin/agent /mnt/vault7/keys /srv/kestrel /projects/condor/nccl.log partition-gold
qos-platinum account-777x reservation_zeta namespace-quokka pod-condor-0 release-goldfinch ünïcødé-nämé 秘密-名前
""".split()
SERIALS = """
CN0123456789 1423021017999 SN-77Q9Z41 J30ABC7 MT2241X00931 0324816034112 5CG94712AB S3Z8NB0K123456
""".split()
ADDRESSES = """
10.20.30.40 172.31.254.9 fd00:1234:5678::9 2a01:4f8:c17:9a2b::1 203.0.113.77
""".split()
HARDWARE = """
b8ce:f603:0012:3456 b8cef60300129abc 0xb8cef6030012def0 fe80:0000:0000:0000:b8ce:f603:0055:6677
ba:ce:f6:12:34:56 ba-ce-f6-12-34-57 bacef6123458 bace.f612.3459 a0:00:02:20:fe:80:00:00:00:00:00:00:b8:ce:f6:03:00:77:88:99
wwn-0x5002538e40a1b2c3 enxbacef612345a rocexb8cef60300abcdef ibxb8cef60300abcdee
""".split()
IDS = (
    """
3b2c1d0e-aaaa-bbbb-cccc-0123456789ab GPU-9f8e7d6c-1111-2222-3333-445566778899 0123456789abcdef0123456789abcdef
pod5d41402a_bc4b_2a76_b971_9d911017c592 4815162342
""".split()
    + ["deadbeef" * 8]
)
USER_ID, JOB_ID = "31337", "8675309"
MARKERS: list[str] = [*NAMES, *SERIALS, *ADDRESSES, *HARDWARE, *IDS]

_EVERYTHING = " ".join(MARKERS)
_LINES = "\n".join(
    line
    for marker in MARKERS
    for line in (
        f"- {marker}-{marker}",
        f"name={marker}",
        f'acct="{marker}" hostname={marker} uid={USER_ID} auid={USER_ID} res=success',
        f"Hostname set to <{marker}>",
        f"serial {marker}",
        f"sn={marker} s/n:{marker} Serial#:{marker} SerialNumber: {marker}",
        f"<a b='{marker}'>{marker}</a>",
        f"# comment by {marker}",
        f"//{marker}//_{marker[::-1]}",
    )
)
# What each rule looks for, with markers wherever there is room.
_LOG = "\n".join(
    line
    for marker in MARKERS
    for line in (
        f"<6>[    1.000000] usb 1-1: SerialNumber: {marker}",
        f'<5>[    2.000000] audit: acct="{marker}" uid={USER_ID} auid={USER_ID} hostname={marker} exe="/usr/bin/{marker}"',
        f"[    3.000000] {marker.partition('/')[0] or 'x'} kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=4242, name={marker}, GPU has"
        f" fallen off the bus. {marker}",
        f"<4>[    4.000000] mlx5_core 0000:1b:00.0 {marker[:30]}: Link down {marker}",
        f"<4>[    5.000000] INFO: task {marker[:30]}:4242 blocked for more than 120 seconds, uid={USER_ID} serial {marker}",
        f"<4>[    6.000000] {marker}: disagrees about version of symbol {marker}",
        f"<4>[    7.000000] nvidia-peermem {marker} sn={marker} s/n:{marker} Serial#:{marker} wwn-0x{marker} comm={marker}",
        f"<4>[    8.000000] infiniband {marker[:30]}: reg mr failed guid={marker} node {marker} by user {marker}",
        f"[Sun Dec  1 14:54:40 2024] {marker[:60]} kernel: mlx5_core 0000:5c:00.0: high temperature {marker}",
    )
)
_CGROUP = "".join(
    f"{number}:cpu,{secret}:/slurm/{secret}/uid_{USER_ID}/job_{JOB_ID}/step_0/{secret}\n"
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{secret}.slice/cri-containerd-{secret}.scope\n"
    f"0::/user.slice/user-{USER_ID}.slice/session-{JOB_ID}.scope/{secret}\n"
    for number, secret in enumerate(MARKERS)
)
_VARIABLES = [
    *(f"NCCL_COMM_ID={marker}" for marker in MARKERS),
    *(f"NCCL_HOSTID={marker}" for marker in MARKERS),
    *(f"NCCL_DEBUG_FILE=/tmp/{marker}/%h.%p.log" for marker in MARKERS),
    *(f"UCX_LOG_FILE={marker}" for marker in MARKERS),
    *(f"NCCL_SOCKET_IFNAME=^{marker},={marker},lo" for marker in MARKERS),
    *(f"NCCL_{name.upper().replace('-', '_')}=1" for name in NAMES[:20] if name.isascii()),
    *(f"API_TOKEN_{marker}={marker}" for marker in MARKERS),
]
_STATUS = (
    "".join(
        f"Name:\t{marker}\nGroups:\t{USER_ID} {marker}\nSeccomp:\t{marker}\nState:\tS ({marker})\n"
        for marker in MARKERS
    )
    + f"Uid:\t{USER_ID}\t{USER_ID}\t{USER_ID}\t{USER_ID}\nGid:\t{USER_ID}\t{USER_ID}\t{USER_ID}\t{USER_ID}\n"
)
_MAPS = "".join(
    f"7f00-7f01 r-xp 00000000 08:01 {number}                 {path}\n"
    for number, secret in enumerate(MARKERS)
    for path in (
        f"/home/{secret}/lib/libnccl.so.2.21.5",
        f"/{secret}/libibverbs.so.1 (deleted)",
        f"/dev/shm/{secret}",
        secret,
    )
)
_PASSWD = "".join(
    f"{marker.replace(':', '_')}:x:{USER_ID}:{USER_ID}:{marker},Room {marker}:/home/{marker}:/bin/{marker}\n"
    for marker in MARKERS
)
_MOUNTS = "".join(
    f"{marker}:/export/{marker} /mnt/{marker} nfs4 rw,addr={marker},uid={USER_ID},username={marker} 0 0\n"
    for marker in MARKERS
)
_ROUTE = "Iface\tDestination\tGateway\tFlags\n" + "".join(
    f"{secret[:15]}\t{address.packed[::-1].hex().upper()}\t{address.packed[::-1].hex().upper()}\t0003\n"
    for secret, address in zip(
        NAMES, itertools.cycle(map(ipaddress.IPv4Address, ADDRESSES[:2])), strict=False
    )
)
_ROUTE6 = "".join(
    f"{ipaddress.IPv6Address(address).packed.hex()} 40 {'0' * 32} 00 {ipaddress.IPv6Address(address).packed.hex()} 00000400 00000001"
    f" 00000000 00000003 {name[:15]}\n"
    for address in ADDRESSES[2:4]
    for name in NAMES
)
_TCP = "".join(
    f"   {number}: {ipaddress.IPv4Address(secret).packed[::-1].hex().upper()}:4853 00000000:0000 0A 00000000:00000000 00:00000000"
    f" 00000000 {USER_ID} 0 {JOB_ID} 1 0000000000000000 100 0 0 10 0\n"
    for number, secret in enumerate(ADDRESSES[:2])
)
_CONFIGURATION = "".join(
    f"# {marker}\n@{marker} soft memlock unlimited # {marker}\n{marker} - memlock 8192\ninstall {marker} /bin/{marker} # {marker}\n"
    f"options nvidia NVreg_RegistryDwords={marker}\nblacklist {marker}\nNCCL_SOCKET_IFNAME={marker}\n  NCCL_DEBUG={marker}\n"
    f"NCCL_COMM_ID={marker}\n{marker}=NCCL_DEBUG\n[Service]\nLimitMEMLOCK={marker}\nEnvironment={marker}\nUser={marker}\n"
    f'PRETTY_NAME="{marker}"\nBUILD_ID={marker}\nCONFIG_{marker}=y\nCONFIG_DEFAULT_HOSTNAME="{marker}"\nexport NCCL_X={marker}\n'
    f"kernel/drivers/nvidia/{marker}.ko: {marker}/ib_core.ko.zst {marker}\nextra/{marker}/nvidia.ko: {marker}\n"
    f"0x12345678\tib_register_peer_memory_client\t{marker}/ib_core\tEXPORT_SYMBOL\t{marker}\n"
    f"alias symbol:ib_register_peer_memory_client {marker}\n"
    for marker in MARKERS
)
_XML = '<system version="1">' + "".join(
    f'<cpu host_hash="{marker}" arch="{marker}" numaid="{marker}"><pci busid="{marker}" class="0x020000" {marker}="1"><net name="{marker}"'
    f' guid="{marker}" dev="{marker}"/></pci></cpu><{marker}/>{marker}'
    for marker in MARKERS
)
_MODINFO = "".join(
    f"filename:       /lib/modules/{marker}/nvidia.ko\nauthor: {marker}\nsigner:         {marker}\nsig_key: {marker}\n"
    f"version: {marker}\ndepends: {marker},ib_core\nparm: {marker}\n"
    for marker in MARKERS
)
_TEXTS = {
    "cgroup": _CGROUP, "cpuset": _CGROUP, "status": _STATUS, "maps": _MAPS, "passwd": _PASSWD, "mounts": _MOUNTS,
    "mountinfo": _MOUNTS, "route": _ROUTE, "ipv6_route": _ROUTE6, "tcp": _TCP, "tcp6": _TCP,
}  # fmt: skip


def config_space() -> bytes:
    """Return one with a GUID in its Device Serial Number, VPD and vendor capabilities."""
    content = bytearray(4096)
    content[0:4], content[6], content[0x34] = b"\xb3\x15\x21\x10", 0x10, 0x48
    secret = bytes.fromhex("b8cef60300129abc")
    content[0x48:0x50], content[0x50:0x58], content[0x58:0x60] = (
        b"\x03\x50\0\0abcd",
        b"\x09\x60\x08\0" + secret[:4],
        secret,
    )
    content[0x60:0x70] = b"\x10\0\x02\0" + bytes(12)
    content[0x100:0x104], content[0x104:0x10C] = b"\x03\0\x01\x15", secret[::-1]
    content[0x150:0x154], content[0x154:0x15C] = b"\x0d\0\x01\x20", b"\x7f\0\x1d\0" + secret[:4]
    content[0x200:0x204], content[0x204:0x210] = b"\x0b\0\x01\0", secret + b"aaaa"
    content[0x900:0x908] = secret
    return bytes(content)


def _contents(path: str) -> Iterator[bytes]:
    name = path.rpartition("/")[2]
    yield _LINES.encode()
    yield _EVERYTHING.encode()
    yield _CONFIGURATION.encode()
    yield _XML.encode()
    yield (_EVERYTHING + "\n").encode("utf-16")
    yield b"\0".join(marker.encode() for marker in MARKERS)
    yield b"\x7fELF\0libcuda.so\0" + b"\0".join(marker.encode() for marker in MARKERS)
    yield b"\0".join(text.encode() for text in (*_VARIABLES, *MARKERS))
    yield gzip.compress(_CONFIGURATION.encode())
    yield base64.b64encode(_EVERYTHING.encode())
    if name in _TEXTS:
        yield _TEXTS[name].encode()
    if name == "config":
        yield config_space()
    for marker in (
        MARKERS if name in ("cmdline", "stat", "comm", "hostname", "board_id", "srcversion", "config") else ()
    ):
        if not marker.isdecimal():  # a number alone is no more than a number
            yield f"{marker}\n".encode()
        if name == "cmdline":  # a title, a program of somebody's, arguments
            yield f"{marker}: {marker} [priv]".encode()
            yield b"\0".join(
                f.encode()
                for f in (
                    f"/home/{marker}/{marker}",
                    f"--password={marker}",
                    f"NCCL_HOSTID={marker}",
                    marker,
                    "",
                )
            )
        if name == "stat":
            yield f"4242 ({marker}) S 1 {marker} 0\n".encode()


_SOME = itertools.cycle([MARKERS[at : at + 8] for at in range(0, len(MARKERS), 8)])


def _paths(paths: str) -> Iterator[str]:
    """Return paths that match the row: with markers, and with names that other questions have."""
    for pattern in paths.split("|"):
        for secret in ("4242", "mlx5_0", *(marker.replace("/", "_") for marker in next(_SOME))):
            yield pattern.replace("**", f"{secret}/x" if pattern.endswith("**") else secret).replace(
                "*", secret
            )


def questions() -> dict[Question, object]:
    """Return an answer full of markers to every kind of question."""
    answers: dict[Question, object] = {}
    full: set[object] = set()
    for row in FILES:
        for path in _paths(row.paths):
            # Each rule has every content once, under as many paths as it takes: one question has one answer.
            contents = (
                list(_contents(path)) if "4242" in path and row.rule not in full else [_EVERYTHING.encode()]
            )
            for number, content in enumerate(contents):
                answers.setdefault(Question("file", (path.replace("4242", str(4242 + number)),)), content)
            full |= {row.rule} if "4242" in path else set()
            target = f"/{MARKERS[0]}/{path}"
            if "4242" in path:
                answers[Question("names", (path,))] = tuple(marker.replace("/", "_") for marker in MARKERS)
            answers[Question("link", (path,))] = target
            answers[Question("resolve", (path,))] = target
            answers[Question("size", (path,))] = 4
            answers[Question("readable", (path,))] = True
            answers[Question("writable", (path,))] = Unknown(Reason.IO_ERROR, target, target)
    for number, secret in enumerate(MARKERS):
        place = secret if secret.startswith("/") else f"/{secret}"
        answers[Question("file", (place,))] = secret.encode()
        answers[Question("link", (f"/proc/4242/fd/{number}",))] = place
        answers[Question("link", (f"/proc/{number}/exe",))] = place
        answers[Question("dmabuf_errno", (secret,))] = Unknown(Reason.IO_ERROR, secret, secret)
        answers[Question("interface_counters", (secret,))] = InterfaceCounters(
            1, Unknown(Reason.IO_ERROR, secret, secret)
        )
        answers[Question("thread_names", (str(number),))] = (
            secret,
            f"NCCL {secret}",
            f"pt_{secret}",
            secret[:15],
        )
        answers[Question("rdma_statistics", (f"{secret}/1",))] = {secret: 1, f"tx_{secret}": 2, "tx_bytes": 3}
        answers[Question("ethtool_counters", (secret,))] = {
            secret: 1,
            f"rx_prio3_{secret}": 2,
            "rx_prio3_pause": 3,
        }
        answers[Question("fec_states", (secret,))] = FecState(secret, {secret: 1, "corrected_bits": 2})
        answers[Question("process_usage", (str(number),))] = ProcessUsage(
            secret, 1.0, 1 << 20, "0-3", Unknown(Reason.IO_ERROR, secret, secret)
        )
        answers[Question("run", (secret, secret))] = CommandOutput((secret, secret), 0, secret, secret)
    for program in sorted(PROGRAMS | COMMANDS.keys()):
        outputs = (_EVERYTHING, _LINES, _LOG, _MODINFO, _CONFIGURATION)
        full = program in COMMANDS or program in ("systemctl", "rdma")  # the others have the same rule
        for number, output in enumerate(outputs if full else outputs[:1]):
            argv = (program, "--all" if number else "--help", str(number), *MARKERS)
            answers[Question("run", argv)] = CommandOutput(argv, 1, output, output)
    for name in (*ENVIRONMENT, "HOSTNAME", "USER", "API_TOKEN", *MARKERS):
        answers[Question("environment", (name,))] = _EVERYTHING
    answers[Question("nvml")] = NvmlFacts(
        *MARKERS[:2],
        tuple(_gpu(number, secret) for number, secret in enumerate(MARKERS)),
        Unknown(Reason.DRIVER_ERROR, "x", _LINES),
    )
    lost = Unknown(Reason.DRIVER_ERROR, _EVERYTHING, _LINES)
    answers[Question("nvml_live")] = tuple(
        NvmlLive(marker, *[lost] * 13, throttle_reasons=(marker,)) for marker in MARKERS
    )
    answers[Question("rdma_resources")] = RdmaResources(
        tuple(
            QueuePair(secret, number, secret, secret, kernel_name=secret)
            for number, secret in enumerate(MARKERS)
        ),
        tuple(
            MemoryRegion(secret, number, 4096, kernel_name=secret) for number, secret in enumerate(MARKERS)
        ),
        tuple(ProtectionDomain(secret, number, kernel_name=secret) for number, secret in enumerate(MARKERS)),
        tuple(RdmaContext(secret, number, kernel_name=secret) for number, secret in enumerate(MARKERS)),
        tuple(CompletionQueue(secret, number, kernel_name=secret) for number, secret in enumerate(MARKERS)),
        unread=tuple(MARKERS),
        hidden=tuple(MARKERS),
    )
    lines = [line.partition("] ")[2] for line in _LOG.split("\n")]
    answers[Question("kernel_messages")] = tuple(
        KernelMessage(number, 1.0, 4, text) for number, text in enumerate((*lines, *MARKERS))
    )
    answers[Question("tcp_sockets")] = tuple(
        TcpSocket(number, 7000 + number, secret, 1, secret, 2, 1 << 30, 0)
        for number, secret in enumerate(MARKERS)
    )
    answers[Question("is_root")] = True
    return answers


def _gpu(number: int, marker: str) -> NvmlGpu:
    lost = Unknown(Reason.DRIVER_ERROR, marker, marker)
    peers = ((marker, 4),)
    serial = f"{marker}-board"
    return NvmlGpu(
        number, marker, marker, marker, lost, lost, lost, lost, peers, lost, lost, lost, serial=serial
    )


def moments() -> list[Moment]:
    """Return two moments: the names of host and users become known in the second."""
    answers = questions()
    later: dict[Question, object] = {
        Question("file", ("/proc/sys/kernel/hostname",)): f"{NAMES[0]}.{NAMES[1]}\n".encode(),
        Question("file", ("/proc/4242/environ",)): b"\0".join(variable.encode() for variable in _VARIABLES),
        Question("file", ("/sys/bus/pci/devices/0000:1b:00.0/config",)): config_space(),
        **{
            Question("file", (path,)): text.encode()
            for path, text in {
                "/proc/net/tcp": _TCP,
                "/proc/net/route": _ROUTE,
                "/proc/net/ipv6_route": _ROUTE6,
                "/etc/passwd": _PASSWD,
                "/etc/nccl.conf": _CONFIGURATION,
                "/etc/os-release": _CONFIGURATION,
                "/etc/modules": _CONFIGURATION,
                "/etc/security/limits.conf": _CONFIGURATION,
                "/proc/mounts": _MOUNTS,
                "/proc/cmdline": _EVERYTHING,
                "/proc/cpuinfo": _LINES,
                "/proc/version": f"Linux version {MARKERS[0]} ({MARKERS[1]}) {_EVERYTHING}",
            }.items()
        },
        Question("file", ("/proc/config.gz",)): gzip.compress(_CONFIGURATION.encode()),
        Question("file", ("/proc/4300/maps",)): _MAPS.encode(),
        Question(
            "file", ("/proc/4300/cmdline",)
        ): f"/home/{NAMES[4]}/{NAMES[9]}\0--key\0{NAMES[15]}\0".encode(),
    }
    return [Moment(0, 1.0, True, (), answers), Moment(1, 2.0, False, (), later)]


def notations(marker: str) -> set[bytes]:
    """Return all notations in which a marker could be found."""
    bare = "".join(c for c in marker if c.isalnum())
    texts = {marker, marker.lower(), marker.upper(), marker[::-1], urllib.parse.quote(marker, safe="")}
    texts |= {
        marker.replace("/", "_"),
        marker.replace("-", "_"),
        marker.replace(":", "-"),
        marker.replace("_", "-"),
    }
    if len(bare) > 6:
        texts |= {bare, bare.lower(), bare.upper(), bare[::-1]}
    raw = marker.encode()
    texts |= {raw.hex(), raw.hex().upper(), marker.encode("unicode_escape").decode(), ascii(marker)[1:-1]}
    found = {text.encode() for text in texts}
    found |= {
        secret.encode(code)
        for secret in (marker, marker.lower())
        for code in ("utf-16-le", "utf-16-be", "utf-32-le")
    }
    for start in range(3):  # wherever it stands in what was encoded
        found.add(base64.b64encode(b" " * start + raw + b"   ")[4 if start else 0 : -8])
    try:
        address = ipaddress.ip_address(marker)
    except ValueError:
        pass
    else:
        packed = address.packed
        found |= {packed.hex().encode(), packed.hex().upper().encode(), packed[::-1].hex().upper().encode()}
        found |= {address.exploded.encode(), address.compressed.encode(), str(int(address)).encode()}
        if len(packed) == 4:
            found |= {f"{packed.hex()[:4]}:{packed.hex()[4:]}".encode()}
    if len(bare) in (12, 16) and all(c in "0123456789abcdefABCDEF" for c in bare):
        found |= {bytes.fromhex(bare), bytes.fromhex(bare)[::-1], str(int(bare, 16)).encode()}
        found |= {
            ":".join(bare[at : at + size] for at in range(0, len(bare), size)).encode() for size in (2, 4)
        }
    return {text for text in found if len(text) > 4}
