"""What a redacted recording keeps of each source: one table, the first row that fits counts.

A file without a row is not in the recording. A rule sees a file's bytes and gives back those that are kept;
what it keeps of a text has passed `Tokens.text`, so that a row cannot let an unknown word through.
"""

from __future__ import annotations

import gzip
import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from probes.facts.jobs.process_files import FAMILIES, SINGLES, parse_maps
from probes.facts.kernel.log import recognize
from probes.facts.kernel.release import unpack
from probes.facts.pci.capabilities import (
    CONVENTIONAL_BYTES,
    HEADER_BYTES,
    capabilities,
    extended_capabilities,
    is_gone,
)
from probes.recording.redaction_tokens import ARGUMENT, HOST, JOB, PROGRAM, SERIAL, USER, VARIABLE, Tokens
from probes.recording.redaction_words import PROGRAMS, SYMBOLS, VARIABLES

Rule = Callable[[Tokens, bytes], bytes]


def decoded(content: bytes) -> str:
    """Text, whatever the bytes are; what is no UTF-8 is part of an unknown word."""
    return content.decode("utf-8", "surrogateescape")


def of_text(rule: Callable[[Tokens, str], str]) -> Rule:
    """The rule on bytes of a rule on text."""
    return lambda tokens, content: rule(tokens, decoded(content)).encode("utf-8", "replace")


def of_lines(keep: str, rule: Callable[[Tokens, str], str] | None = None) -> Rule:
    """Keep the lines that begin with `keep`; the others leave empty lines, for lines are counted."""
    pattern = re.compile(keep)
    change = words if rule is None else rule

    def kept(tokens: Tokens, text: str) -> str:
        lines = text.split("\n")
        return "\n".join(change(tokens, one) if pattern.match(one) else "" for one in lines)

    return of_text(kept)


def words(tokens: Tokens, text: str) -> str:
    """Every word by the vocabulary."""
    return tokens.text(text)


_COUNT = re.compile(r"((?:Node [0-9]+ )?[A-Z][A-Za-z_()]*:?\s+|)[0-9]{10,20}(?: kB)?\s*")


def figures(tokens: Tokens, text: str) -> str:
    """The same, where a long number at the end of a line of known words is a count."""
    return "\n".join(
        line if (match := _COUNT.fullmatch(line)) and tokens.keeps(match[1]) else tokens.text(line)
        for line in text.split("\n")
    )


def _buffers(tokens: Tokens, text: str) -> str:
    """The kernel's list of dma-bufs: each line begins with a size."""
    return re.sub(r"(?m)^([0-9]{8,20}\t)?(.*)$", lambda line: (line[1] or "") + tokens.text(line[2]), text)


# /proc


def _host_name(tokens: Tokens, text: str) -> str:
    return "\n".join(host_name(tokens, line) for line in text.split("\n")[:1]) + "\n"


def host_name(tokens: Tokens, name: str) -> str:
    """The tokens of a host's name and of its domain."""
    short, dot, domain = name.strip().partition(".")
    return f"{tokens.name(HOST, short)}{dot}{tokens.name(HOST, domain) if domain else ''}"


_PARAMETERS = re.compile(
    r"(?:intel_|amd_)?iommu(?:\..*)?|pcie?(?:_.*)?|(?:.*[._])?blacklist|(?:default_)?hugepage.*|transparent_.*"
    r"|(?:nvidia|nouveau|mlx|ib_|rdma|module\.|iwl|efa|bnxt|vfio|kvm|intel_|amd_|processor\.|numa).*"
    r"|lockdown|lsm|security|selinux|apparmor|mitigations|isolcpus|nohz.*|rcu_.*|idle|tsc|clocksource|cgroup.*"
    r"|systemd\.unified.*|swiotlb|mem|memmap|crashkernel|panic|nmi_watchdog|audit|console|page_.*"
)


def kernel_parameters(tokens: Tokens, text: str) -> str:
    """The parameters by the vocabulary, values only of those that a check reads."""
    kept = []
    for word in text.split():
        name, equals, value = word.partition("=")
        value = tokens.text(value) if _PARAMETERS.fullmatch(name) else value and tokens.token(ARGUMENT, value)
        kept.append(f"{tokens.text(name)}{equals}{value}")
    return " ".join(kept) + "\n"


def program(tokens: Tokens, text: str) -> str:
    """A program by its name alone; one that is not known by its token."""
    name = text.strip().rpartition("/")[2]
    return name if name.lower() in PROGRAMS or not name else tokens.name(PROGRAM, name)


def _comm(tokens: Tokens, text: str) -> str:
    return f"{program(tokens, text)}\n"


def command_line(tokens: Tokens, content: bytes) -> bytes:
    """The program, an interpreter's script, variables, and one token for all other arguments; no titles."""
    first, *arguments = content.rstrip(b"\0").split(b"\0")
    start, *title = first.split() or [b""]
    script = next((one for one in arguments if one[:1] != b"-" and not is_variable(one)), b"")
    others = b"\0".join(one for one in (*title, *arguments) if one is not script and not is_variable(one))
    kept = [program(tokens, decoded(start)), program(tokens, decoded(script)) if script else ""]
    kept += [_variable(tokens, decoded(one)) for one in arguments if is_variable(one)]
    if others:
        kept.append(tokens.token(ARGUMENT, decoded(others)))
    return b"".join(one.encode("utf-8", "replace") + b"\0" for one in kept if one)


_NAMED = re.compile(rb"(?:(?:%s)\w*|%s)=" % ("|".join(FAMILIES).encode(), "|".join(SINGLES).encode()))
_ADDRESSES = ("NCCL_COMM_ID", "NCCL_HOSTID")  # names in any case, even where they are known words
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


def is_variable(word: bytes) -> bool:
    """Whether a `NAME=value` is one of the variables that a probe reads."""
    return _NAMED.match(word) is not None


def _variable(tokens: Tokens, text: str) -> str:
    name, _, value = text.partition("=")
    if name not in VARIABLES and name not in SINGLES:
        family = name.partition("_")[0]
        name = f"{family}_REDACTED_{tokens.number(VARIABLE, name)}"
    if name in _JOBS:
        value = str(tokens.number(JOB, value))
    elif name in _ADDRESSES and tokens.keeps(value):
        value = tokens.token(HOST, value)
    return f"{name}={tokens.text(value)}"


def environment(tokens: Tokens, content: bytes) -> bytes:
    """The variables that a probe reads, their values by the vocabulary."""
    kept = (_variable(tokens, decoded(one)) for one in content.split(b"\0") if is_variable(one))
    return b"".join(one.encode("utf-8", "replace") + b"\0" for one in kept)


def _nccl_conf(tokens: Tokens, text: str) -> str:
    return "\n".join(_nccl_line(tokens, line) for line in text.split("\n"))


_NCCL_CONF = of_text(_nccl_conf)


def _nccl_line(tokens: Tokens, line: str) -> str:
    if line.startswith("#") or "NCCL_" not in line:
        return ""
    match = re.match(r"(\s*(?:export\s+)?)(NCCL_\w+)(\s*)=(.*)", line, re.S)
    if match is None:
        return tokens.text(line)
    name, _, value = _variable(tokens, f"{match[2]}={match[4]}").partition("=")
    return f"{match[1]}{name}{match[3]}={value}"


_STATUS = r"(?:State|Tgid|Pid|PPid|NSpid|Threads|Vm\w+|Rss\w+|Cap\w+|(?:Cpus|Mems)_allowed(?:_list)?):"


def _status(tokens: Tokens, text: str) -> str:
    kept = []
    for line in text.split("\n"):
        key, _, value = line.partition(":")
        if key == "Name":
            kept.append(f"Name:\t{program(tokens, value)}")
        elif key in ("Uid", "Gid"):
            kept.append(f"{key}:\t" + "\t".join(tokens.user_id(one) for one in value.split()))
        elif key.startswith("Cap") and re.fullmatch(r"\s*[0-9a-f]{1,16}", value):
            kept.append(line)
        elif re.match(_STATUS, line):
            kept.append((figures if key.startswith(("Vm", "Rss")) else words)(tokens, line))
    return "\n".join([*kept, ""])


def _stat(tokens: Tokens, text: str) -> str:
    pid, _, rest = text.partition(" (")
    name, _, figures_of = rest.rpartition(") ")
    return f"{tokens.text(pid)} ({program(tokens, name)}) {figures(tokens, figures_of)}"


def _maps(tokens: Tokens, text: str) -> str:
    """The libraries that a check reads, without addresses and inodes."""
    kept = []
    for line in text.split("\n"):
        fields = line.split(None, 5)
        if len(fields) == 6 and parse_maps(line.encode("utf-8", "replace")):
            kept.append(f"0-1 r-xp 0 00:00 0 {tokens.text(fields[5])}\n")
    return "".join(dict.fromkeys(kept))


# A part of a control group's path: what is kept, an identifier, what is kept. Sources: systemd.slice(5), the
# drivers of Kubernetes and container engines, Slurm's cgroup plugins, PBS.
_CGROUP_PARTS = tuple(
    re.compile(one)
    for one in (
        r"(?P<before>uid_|user-|user@)(?P<uid>\d+)(?P<after>\.slice|\.service)?",
        r"(?P<before>step_|task_|job_|session-|jobid-|app-)?(?P<job>\d+)(?P<after>\.scope|\.service)?",
        r"(?P<before>(?:kubepods-)?(?:burstable-|besteffort-|guaranteed-)?pod)"
        r"(?P<pod>[0-9a-f]{8}([-_])(?:[0-9a-f]{4}\3){3}[0-9a-f]{12})(?P<after>\.slice)?",
        r"(?P<before>docker-|cri-containerd-|crio-|crio-conmon-|libpod-|containerd-)?"
        r"(?P<id>[0-9a-f]{64}|[0-9a-f]{32})(?P<after>\.scope)?",
    )
)


def cgroup(tokens: Tokens, text: str) -> str:
    """The structure; jobs, pods, containers, sessions and users by tokens."""
    kept = []
    for line in text.splitlines():
        numbers, colon, path = line.rpartition(":")
        parts = "/".join(_cgroup_part(tokens, one) for one in path.split("/"))
        kept.append(f"{tokens.text(numbers)}{colon}{parts}\n")
    return "".join(kept)


def _cgroup_part(tokens: Tokens, part: str) -> str:
    for pattern in _CGROUP_PARTS:
        match = pattern.fullmatch(part)
        if match is not None:
            found = {name: text or "" for name, text in match.groupdict().items()}
            before, after = found.pop("before"), found.pop("after")
            ((kind, value),) = found.items()
            return f"{before}{_cgroup_token(tokens, kind, value, before)}{after}"
    return tokens.text(part)


def _cgroup_token(tokens: Tokens, kind: str, value: str, before: str) -> str:
    if kind == "uid":
        return tokens.user_id(value)
    if kind == "job":
        return value if before in ("step_", "task_") and len(value) < 4 else str(tokens.number(JOB, value))
    if kind == "pod":
        return tokens.text(value.replace("_", "-")).replace("-", value[8])
    return tokens.text(value)


def _tcp(tokens: Tokens, text: str) -> str:
    """Only the sockets that listen, without addresses, users and inodes."""
    kept = ["  sl  local_address rem_address   st"]
    for number, match in enumerate(
        re.finditer(r"^ *\d+: ([0-9A-F]{8,32}):([0-9A-F]{4}) \S+:0000 0A ", text, re.M)
    ):
        zero = "0" * len(match[1])
        kept.append(
            f"{number:4}: {zero}:{match[2]} {zero}:0000 0A 00000000:00000000 00:00000000 00000000     0"
        )
    return "\n".join([*kept, ""])


def _route(tokens: Tokens, text: str) -> str:
    """/proc/net/route: destinations and gateways are little-endian numbers."""
    kept = []
    for line in text.splitlines():
        fields = enumerate(line.split("\t"))
        kept.append("\t".join(_route_field(tokens, column, field.strip()) for column, field in fields))
    return "\n".join([*kept, ""])


_ROUTE_MASK = 7  # the column


def _route_field(tokens: Tokens, column: int, field: str) -> str:
    if not re.fullmatch(r"[0-9A-F]{8}", field):
        return tokens.text(field)
    address = ipaddress.IPv4Address(bytes.fromhex(field)[::-1])
    zeros = f"{int(address):032b}".lstrip("1")
    if not int(address) or (column == _ROUTE_MASK and "1" not in zeros):
        return field
    return ipaddress.IPv4Address(tokens.address(address)).packed[::-1].hex().upper()


def _route6(tokens: Tokens, text: str) -> str:
    """/proc/net/ipv6_route: destination, source and next hop are 32 digits each."""

    def field(found: re.Match[str]) -> str:
        address = ipaddress.IPv6Address(bytes.fromhex(found[0]))
        return ipaddress.IPv6Address(tokens.address(address)).packed.hex()

    kept = []
    for line in text.splitlines():
        *figures_of, name = line.split() or [""]
        kept.append(
            " ".join(
                (
                    *(
                        re.sub(r"^[0-9a-f]{32}$", field, one) if len(one) == 32 else one
                        for one in figures_of
                        if re.fullmatch(r"[0-9a-f]{2}|[0-9a-f]{8}|[0-9a-f]{32}", one)
                    ),
                    tokens.text(name),
                )
            )
        )
    return "\n".join([*kept, ""])


def _passwd(tokens: Tokens, text: str) -> str:
    """User and user id alone, both by tokens."""
    kept = []
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isdecimal():
            uid = tokens.user_id(fields[2])
            kept.append(f"{tokens.name(USER, fields[0]) if int(uid) else 'root'}:x:{uid}:{uid}::/:/\n")
    return "".join(kept)


# Configuration files


def _without_comments(tokens: Tokens, text: str) -> str:
    return "\n".join(
        "" if line.lstrip()[:1] in ("#", ";") else tokens.text(line.partition("#")[0])
        for line in text.split("\n")
    )


def _limits_conf(tokens: Tokens, text: str) -> str:
    kept = []
    for line in text.split("\n"):
        fields = line.partition("#")[0].split()
        is_kept = len(fields) == 4 and fields[2] == "memlock" and fields[1] in ("soft", "hard", "-")
        if is_kept:
            group = "@" if fields[0].startswith("@") else ""
            domain = group + tokens.name(USER, fields[0].removeprefix("@"))
            value = fields[3] if fields[3].lstrip("-").isdecimal() else tokens.text(fields[3])
            fields = [domain, fields[1], fields[2], value]
        kept.append(" ".join(fields) if is_kept else "")
    return "\n".join(kept)


_CONFIG_OPTIONS = (
    r"CONFIG_(?:DMA_SHARED_BUFFER|MODULES|MODULE_SIG\w*|PCI_P2PDMA|PCIEASPM\w*|IOMMU_DEFAULT\w*|INTEL_IOMMU\w*"
    r"|AMD_IOMMU\w*|INFINIBAND|INFINIBAND_USER_ACCESS|MLX5_INFINIBAND|MLX5_CORE)=[ymn]$"
)
_CONFIG = of_lines(_CONFIG_OPTIONS, lambda tokens, line: line)


def _kernel_config(tokens: Tokens, content: bytes) -> bytes:
    kept = re.sub(rb"\n+", b"\n", _CONFIG(tokens, content))
    return kept if kept.strip() or b"CONFIG_" not in content else b"CONFIG_MODULES=n\n"


def _packed_config(tokens: Tokens, content: bytes) -> bytes:
    return gzip.compress(_kernel_config(tokens, unpack(content)), mtime=0)


def _module_lines(tokens: Tokens, content: bytes) -> bytes:
    """Of modules.dep and its like the lines of modules that gdrtop knows."""
    return b"\n".join(tokens.text(decoded(one)).encode() for one in _MODULE_LINE.findall(content)) + b"\n"


def _symbol_lines(tokens: Tokens, content: bytes) -> bytes:
    """Of Module.symvers and modules.symbols the lines of symbols that gdrtop looks for."""
    return b"\n".join(tokens.text(decoded(one)).encode() for one in _SYMBOL_LINE.findall(content)) + b"\n"


_MODULE_LINE = re.compile(
    rb"^(?:[^:\n]*/)?(?:ib|mlx|nv|nvidia|rdma|gdrdrv|nouveau|bnxt|irdma|efa|cxi)[\w-]*\.ko(?:\.[gxz]?\w+)?(?::.*)?$",
    re.M,
)
_SYMBOL_LINE = re.compile(
    rb"^.*\b(?:" + b"|".join(sorted(one.encode() for one in SYMBOLS)) + rb")\b.*$", re.M
)


def _cpuinfo(tokens: Tokens, text: str) -> str:
    """The first processor's maker and whether it has a hypervisor above it."""
    kept = []
    for line in text.lstrip("\n").partition("\n\n")[0].split("\n"):
        key, _, value = line.partition(":")
        if key.strip() in ("vendor_id", "CPU implementer", "CPU architecture"):
            kept.append(tokens.text(line))
        elif key.strip() == "flags":
            kept.append("flags\t: " + " ".join(one for one in value.split() if one in ("lm", "hypervisor")))
    return "\n".join([*kept, "", ""])


_TOPOLOGY_ATTRIBUTE = re.compile(
    r'\b(busid|class|vendor|device|subsystem_vendor|subsystem_device|link_speed|link_width|numaid|affinity|arch|dev|sm|rank|gdr|speed|port|maxconn|keep|coll|version|target|tclass|count|familyid|modelid)="([^"<>]{0,64})"'
)


def _topology(tokens: Tokens, text: str) -> str:
    """NCCL's XML without the attributes that name something."""
    if "<system" not in text:
        return "redacted\n" if text else ""
    kept = []
    for match in re.finditer(
        r"<(/?)(system|cpu|pci|gpu|nic|net|nvlink|c2c|pcilink|grid)\b([^<>]*?)(/?)>", text
    ):
        attributes = "".join(
            f' {one[1]}="{tokens.text(one[2])}"' for one in _TOPOLOGY_ATTRIBUTE.finditer(match[3])
        )
        kept.append(f"<{match[1]}{match[2]}{attributes}{match[4]}>\n")
    return "".join(kept)


_TOPOLOGY = of_text(_topology)


def chosen_by_others(path: str, content: bytes) -> bytes:
    """Keep what NCCL reads of a file whose path a user chooses: NCCL_TOPO_FILE and links lead anywhere."""
    row = row_of(path)
    if row is not None and row.rule not in (None, _TOPOLOGY, _NCCL_CONF):
        return content
    if path.endswith(".conf"):
        return b"\n".join(line if b"NCCL_" in line else b"" for line in content.split(b"\n"))
    return content if b"<system" in content else b""


# /sys and programs


def kept_where(pattern: str) -> Rule:
    """Kept where all of the text has this form; else every word by the vocabulary."""
    form = re.compile(pattern)
    return of_text(lambda tokens, text: text if form.fullmatch(text) else tokens.text(text))


# Capability -> bytes that a probe reads: PCI Express; ACS, ATS, Resizable BAR.
_CAPABILITIES = {0x10: 0x3C}
_EXTENDED_CAPABILITIES = {0x0D: 8, 0x0F: 8, 0x15: 52}


def pci_config(tokens: Tokens, content: bytes) -> bytes:
    """The registers and capabilities that a probe reads; another capability is the device's serial number."""
    if is_gone(content):
        return b"\xff" * len(content)
    kept = bytearray(len(content))
    kept[:4] = content[:4]  # vendor and device
    if len(content) <= HEADER_BYTES:
        return bytes(kept)
    kept[0x06], kept[0x0E] = (
        content[0x06] & 0x10,
        content[0x0E],
    )  # whether it has capabilities, kind of header
    found = [(at, _CAPABILITIES[one]) for one, at in capabilities(content).items() if one in _CAPABILITIES]
    kept[0x34] = found[0][0] if found else 0
    for offset, size in found:
        kept[offset : offset + size] = content[offset : offset + size]
        kept[offset + 1] = 0  # the last of the list
    if len(content) <= CONVENTIONAL_BYTES:
        return bytes(kept)
    extended = extended_capabilities(content)
    places = sorted(
        (at, _EXTENDED_CAPABILITIES[one]) for one, at in extended.items() if one in _EXTENDED_CAPABILITIES
    )
    if places and places[0][0] != CONVENTIONAL_BYTES:
        places.insert(0, (CONVENTIONAL_BYTES, 0))  # where the list has to begin
    for (offset, size), (following, _) in zip(places, [*places[1:], (0, 0)], strict=False):
        number = int.from_bytes(content[offset : offset + 4], "little") & 0xFFFFF if size else 0x10000
        kept[offset : offset + size] = content[offset : offset + size]
        kept[offset : offset + 4] = (number | following << 20).to_bytes(4, "little")
    return bytes(kept)


_STRINGS = (
    b"libcuda.so\0",
    b"libcuda.so",
    b"cuMemGetHandleForAddressRange",
    b"use_cuda_bus_id\0",
    b"use_cuda\0",
    b"use_cuda_dmabuf\0",
    b"ipv6-addr\0",
    b"ibv_reg_dmabuf_mr",
)


def _program_strings(tokens: Tokens, content: bytes) -> bytes:
    """Only which of the strings that a check looks for the program has."""
    kept = b"\0".join(one for one in _STRINGS if one in content) + b"\0"
    return (content[:4] if content.startswith(b"\x7fELF") else b"redacted") + b"\0" + kept


# Output of commands

_LOG_PREFIX = re.compile(r"((?:<\d{1,4}>)?\[[^\]]{1,40}\](?:\[[^\]]{1,20}\])? ?)(?:\S{1,64} kernel: )?(.*)")
_NAMED_VALUE = re.compile(
    r"(?i)\b((?:[a-z]*uid|[a-z]*gid|ses|acct|hostname|host|user|owner|comm|name|exe|terminal"
    r"|serial(?:[ _]?n(?:umber|o))?|s/?n|asset|wwn|wwid|id)[#]?)"
    r"(\s*[=:]\s*|-|\s+(?=0x|\w*\d))(\"[^\"]*\"|[^\s,;)]+)"
)


def kernel_log(tokens: Tokens, text: str) -> str:
    """The messages that gdrtop knows, and the time of the first line: how far back the log goes."""
    kept = []
    for line in text.split("\n"):
        match = _LOG_PREFIX.fullmatch(line[:1000])
        prefix, message = (match[1], match[2]) if match else ("", line[:1000])
        if not re.fullmatch(r"(?:<\d+>)?\[[ \d.]+\](?:\[[ TC\d]+\])? ?", prefix):
            prefix = tokens.text(prefix)
        if recognize(message, 0.0) is not None:
            kept.append(prefix + _message(tokens, message))
        elif not kept and match:
            kept.append(prefix)
    return "\n".join([*kept, ""])


def _message(tokens: Tokens, message: str) -> str:
    def named(found: re.Match[str]) -> str:
        kind = PROGRAM if found[1].lower() in ("comm", "name", "exe") else SERIAL
        value = found[3].strip('"')
        if found[1].lower().endswith("uid"):
            return f"{found[1]}{found[2]}{tokens.user_id(value)}"
        return f"{found[1]}{found[2]}{tokens.token(kind, value) if value.strip('-0x') else value}"

    # A value that follows its name is private even where it is a known word or a short number.
    pieces = re.split(
        r"(\x00[^\x00]*\x00)",
        _NAMED_VALUE.sub(lambda found: f"\0{named(found)}\0", message.replace("\0", " ")),
    )
    return "".join(one.strip("\0") if one.startswith("\0") else tokens.text(one) for one in pieces)


_MODINFO = r"(?:filename|name|version|srcversion|license|vermagic|depends|signer|sig_id|intree|parm):"


def _modinfo(tokens: Tokens, text: str) -> str:
    kept = []
    for line in text.split("\n"):
        if re.match(_MODINFO, line) is None:
            continue
        key, _, value = line.partition(":")
        is_sum = key == "srcversion" and re.fullmatch(r"\s*[0-9A-F]{1,33}\s*", value)
        kept.append(line if is_sum else f"{key}:{tokens.text(value)}")
    return "\n".join([*kept, ""])


def _known_words(tokens: Tokens, text: str) -> str:
    """The options of a usage text; whatever else is in it is left out."""
    return "\n".join(
        dict.fromkeys(one for one in re.findall(r"-{1,2}[a-z][\w-]{0,40}", text) if tokens.keeps(one))
    )


class Row(NamedTuple):
    """Paths (`*`: one part, `**`: any number of them) and what is kept of the files there."""

    paths: str
    rule: Rule | None  # None: whether they are there, how long, where they lead; no content


_WORDS, _FIGURES = of_text(words), of_text(figures)
_CPU_MASK = r"[0-9a-f]{1,8}(?:,[0-9a-f]{8}){0,255}\s*"
_COUNTERS = (
    "**/counters/*",
    "**/hw_counters/*",
    "**/statistics/*",
    "**/aer_dev_*",
    "**/meminfo",
    "**/cgroup.procs",
    "kernel/mm/memory_peers/**",
)
FILES: Sequence[Row] = (
    Row("/proc/cmdline", of_text(kernel_parameters)),
    Row("/proc/cpuinfo", of_text(_cpuinfo)),
    Row("/proc/config.gz", _packed_config),
    Row("/proc/driver/nvidia/**", _WORDS),
    Row("/proc/version", of_lines("Linux version", lambda t, line: t.text(" ".join(line.split()[:3])))),
    Row("/proc/sys/kernel/hostname", of_text(_host_name)),
    Row("/proc/sys/**", _WORDS),
    Row("/proc/net/tcp", of_text(_tcp)),
    Row("/proc/net/tcp6", of_text(_tcp)),
    Row("/proc/net/route", of_text(_route)),
    Row("/proc/net/ipv6_route", of_text(_route6)),
    Row("/proc/*/net/route", of_text(_route)),
    Row("/proc/*/net/ipv6_route", of_text(_route6)),
    Row("/proc/*/comm", of_text(_comm)),
    Row("/proc/*/task/*/comm", of_text(_comm)),
    Row("/proc/*/status", of_text(_status)),
    Row("/proc/*/stat", of_text(_stat)),
    Row("/proc/*/limits", of_lines("Limit |Max locked memory ", figures)),
    Row("/proc/*/environ", environment),
    Row("/proc/*/cmdline", command_line),
    Row("/proc/*/maps", of_text(_maps)),
    Row("/proc/*/cgroup", of_text(cgroup)),
    Row("/proc/*/cpuset", of_text(cgroup)),
    Row("/proc/*/mounts", _WORDS),
    Row("/proc/*/mountinfo", _WORDS),
    Row("/proc/*/fd/*", None),
    Row("/proc/*/fdinfo/*", None),
    Row("/proc/*/fd", None),
    Row("/proc/*/root/**.conf", _NCCL_CONF),
    Row("/proc/*/cwd/**.conf", _NCCL_CONF),
    Row("/proc/*/root/dev/**", None),
    Row("/proc/*/root/**", _TOPOLOGY),
    Row("/proc/*/cwd/**", _TOPOLOGY),
    Row("/proc/*/*", None),
    Row("/proc/mounts", _WORDS),
    Row("/proc/modules", _WORDS),
    Row("/proc/filesystems", _WORDS),
    Row("/proc/meminfo", _FIGURES),
    Row("/proc/uptime", _FIGURES),
    Row("/proc/devices", _WORDS),
    Row("/proc/xen/*", _WORDS),
    Row("/proc/*", None),
    Row("/proc", None),
    Row("/sys/module/*/srcversion", kept_where(r"[0-9A-F]{24,33}\s*")),
    Row(
        "/sys/class/infiniband/*/board_id",
        kept_where(r"(?:MT_|SM_|HP_|FB_|DEL|HPE|LNV|MSF|NVD|IBM|ISR|INL|ORC)[0-9]{10}\s*"),
    ),
    Row("/sys/**/config", pci_config),
    Row("/sys/**/resource", kept_where(r"(?:0x[0-9a-f]{16} 0x[0-9a-f]{16} 0x[0-9a-f]{16}\n?){1,32}")),
    Row("/sys/**/local_cpus", kept_where(_CPU_MASK)),
    Row("/sys/**/cpumap", kept_where(_CPU_MASK)),
    Row("/sys/firmware/efi/efivars/*", kept_where(r"[\0-\x1f]\0\0\0[\0\1]")),
    *(Row(f"/sys/{one}", _FIGURES) for one in _COUNTERS),
    Row("/sys/kernel/debug/dma_buf/bufinfo", of_text(_buffers)),
    Row("/sys/**", _WORDS),
    Row("/etc/hostname", of_text(_host_name)),
    Row("/etc/os-release", of_lines("(?:PRETTY_NAME|NAME|ID|ID_LIKE|VERSION_ID)=")),
    Row("/usr/lib/os-release", of_lines("(?:PRETTY_NAME|NAME|ID|ID_LIKE|VERSION_ID)=")),
    Row("/etc/passwd", of_text(_passwd)),
    Row("/etc/nccl.conf", _NCCL_CONF),
    Row("/etc/security/limits**.conf", of_text(_limits_conf)),
    Row("**/systemd/**", of_lines(r"\s*(?:\[\w+\]|LimitMEMLOCK|DefaultLimitMEMLOCK)", figures)),
    Row("**/modprobe.d/*", of_text(_without_comments)),
    Row("**/modules-load.d/*", of_text(_without_comments)),
    Row("/etc/modules", of_text(_without_comments)),
    Row("/etc/rdma/**", of_text(_without_comments)),
    Row("/etc/**", None),
    Row("/boot/config-*", _kernel_config),
    Row("/lib/modules/*/config", _kernel_config),
    Row("**/modules.dep", _module_lines),
    Row("**/modules.builtin", _module_lines),
    Row("**/modules.symbols", _symbol_lines),
    Row("**/Module.symvers", _symbol_lines),
    Row("/var/run/nvidia-topologyd/**", _TOPOLOGY),
    Row("/usr/bin/*", _program_strings),
    Row("/usr/sbin/*", _program_strings),
    Row("/usr/local/bin/*", _program_strings),
    Row("/usr/local/sbin/*", _program_strings),
    Row("/bin/*", _program_strings),
    Row("/sbin/*", _program_strings),
    Row("/dev", None),
    Row("/dev/**", None),
    *(Row(f"/{top}/**", None) for top in ("boot", "lib", "lib64", "usr", "var", "run")),
    Row("/.dockerenv", None),
)

COMMANDS: dict[str, Callable[[Tokens, str], str]] = {
    "dmesg": kernel_log,
    "journalctl": kernel_log,
    "modinfo": _modinfo,
}
"""What is kept of a command's output; of every other known program its words."""

ENVIRONMENT = ("KUBERNETES_SERVICE_HOST", "container", "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
"""The variables of gdrtop's own session that are kept, their values by the vocabulary."""


def usage(tokens: Tokens, text: str) -> str:
    """The output of `PROGRAM --help`."""
    return _known_words(tokens, text)


def _expression(paths: str) -> re.Pattern[str]:
    pieces = re.split(r"(\*\*|\*)", paths)
    return re.compile("".join({"**": ".*", "*": "[^/]*"}.get(one, re.escape(one)) for one in pieces), re.S)


_COMPILED = tuple((_expression(row.paths), row) for row in FILES)


def row_of(path: str) -> Row | None:
    """The row of a path; None: nothing of it is kept."""
    return next((row for pattern, row in _COMPILED if pattern.fullmatch(path)), None)
