"""Rules for files of the kernel: CPUs, PCI configuration space, DMA buffers, host names, processes."""

from __future__ import annotations

import ipaddress
import re

from probes.facts.jobs.process_files import (
    FAMILIES,
    SINGLES,
    is_overwritten,
    parse_maps,
    parse_serving_options,
    serving_words,
)
from probes.facts.pci import config_space
from probes.recording.redaction.basic_rules import decoded, figures
from probes.recording.redaction.tokens import (
    ARGUMENT,
    HOST,
    JOB,
    PROGRAM,
    PROGRAMS,
    VARIABLE,
    VARIABLES,
    Tokens,
)


def cpuinfo(tokens: Tokens, text: str) -> str:
    """Keep the first processor's vendor, family and model, and whether it runs under a hypervisor."""
    kept = []
    for line in text.lstrip("\n").partition("\n\n")[0].split("\n"):
        key, _, value = line.partition(":")
        if key.strip() in ("vendor_id", "CPU implementer", "CPU architecture"):
            kept.append(tokens.text(line))
        elif key.strip() in ("cpu family", "model") and re.fullmatch(r" ?[0-9]{1,4}", value):
            kept.append(line)
        elif key.strip() == "flags":
            flags = [flag for flag in value.split() if flag in ("lm", "hypervisor")]
            kept.append(f"flags\t: {' '.join(flags)}")
    return "\n".join([*kept, "", ""])


def dma_buffers(tokens: Tokens, text: str) -> str:
    """Keep the size at the start of each line in the kernel's list of DMA-BUFs."""
    return re.sub(r"(?m)^([0-9]{8,20}\t)?(.*)$", lambda line: (line[1] or "") + tokens.text(line[2]), text)


# Capability -> bytes that probes read: PCI Express; ACS, ATS, Resizable BAR.
_CAPABILITIES = {0x10: 0x3C}
_EXTENDED_CAPABILITIES = {0x0D: 8, 0x0F: 8, 0x15: 52}


def pci_config(tokens: Tokens, content: bytes) -> bytes:
    """Keep the registers and capabilities that probes read; another capability has the serial number."""
    if config_space.is_gone(content):
        return b"\xff" * len(content)
    kept = bytearray(len(content))
    kept[:4] = content[:4]  # vendor and device
    if len(content) <= config_space.HEADER_BYTES:
        return bytes(kept)
    kept[0x06] = content[0x06] & 0x10  # has a capability list
    kept[0x0E] = content[0x0E]  # header type
    listed = config_space.capabilities(content).items()
    found = [(at, _CAPABILITIES[kind]) for kind, at in listed if kind in _CAPABILITIES]
    kept[0x34] = found[0][0] if found else 0
    for offset, size in found:
        kept[offset : offset + size] = content[offset : offset + size]
        kept[offset + 1] = 0  # end of the list
    if len(content) <= config_space.CONVENTIONAL_BYTES:
        return bytes(kept)
    listed = config_space.extended_capabilities(content).items()
    sizes = _EXTENDED_CAPABILITIES
    places = sorted((at, sizes[kind]) for kind, at in listed if kind in sizes)
    if places and places[0][0] != config_space.CONVENTIONAL_BYTES:
        places.insert(0, (config_space.CONVENTIONAL_BYTES, 0))  # the list must start there
    for (offset, size), (following, _) in zip(places, [*places[1:], (0, 0)], strict=False):
        number = int.from_bytes(content[offset : offset + 4], "little") & 0xFFFFF if size else 0x10000
        kept[offset : offset + size] = content[offset : offset + size]
        kept[offset : offset + 4] = (number | following << 20).to_bytes(4, "little")
    return bytes(kept)


def host_name(tokens: Tokens, name: str) -> str:
    """Return the tokens of a host's name and of its domain."""
    short, dot, domain = name.strip().partition(".")
    return f"{tokens.name(HOST, short)}{dot}{tokens.name(HOST, domain) if domain else ''}"


def listening_sockets(tokens: Tokens, text: str) -> str:
    """Keep only listening sockets, without addresses, users and inodes."""
    kept = ["  sl  local_address rem_address   st"]
    sockets = re.finditer(r"^ *\d+: ([0-9A-F]{8,32}):([0-9A-F]{4}) \S+:0000 0A ", text, re.M)
    for number, match in enumerate(sockets):
        zero, rest = "0" * len(match[1]), "00000000:00000000 00:00000000 00000000     0"
        kept.append(f"{number:4}: {zero}:{match[2]} {zero}:0000 0A {rest}")
    return "\n".join([*kept, ""])


def routes(tokens: Tokens, text: str) -> str:
    """Replace addresses in /proc/net/route, which are little-endian numbers."""
    kept = []
    for line in text.splitlines():
        fields = enumerate(line.split("\t"))
        kept.append("\t".join(_route_field(tokens, column, field.strip()) for column, field in fields))
    return "\n".join([*kept, ""])


_ROUTE_MASK = 7  # column


def _route_field(tokens: Tokens, column: int, field: str) -> str:
    if not re.fullmatch(r"[0-9A-F]{8}", field):
        return tokens.text(field)
    address = ipaddress.IPv4Address(bytes.fromhex(field)[::-1])
    zeros = f"{int(address):032b}".lstrip("1")
    if not int(address) or (column == _ROUTE_MASK and "1" not in zeros):
        return field
    return ipaddress.IPv4Address(tokens.address(address)).packed[::-1].hex().upper()


def ipv6_routes(tokens: Tokens, text: str) -> str:
    """Replace addresses in /proc/net/ipv6_route: destination, source and next hop have 32 digits each."""

    def field(digits: str) -> str:
        address = ipaddress.IPv6Address(bytes.fromhex(digits))
        return ipaddress.IPv6Address(tokens.address(address)).packed.hex()

    kept = []
    for line in text.splitlines():
        *numbers, name = line.split() or [""]
        numbers = [text for text in numbers if re.fullmatch(r"[0-9a-f]{2}|[0-9a-f]{8}|[0-9a-f]{32}", text)]
        fields = [field(number) if len(number) == 32 else number for number in numbers]
        kept.append(" ".join((*fields, tokens.text(name))))
    return "\n".join([*kept, ""])


# Rules for files of processes in /proc.


# Titles of processes of vLLM and SGLang, and what the kernel keeps of them.
_ENGINE = re.compile(r"(?:VLLM|sglang)::[A-Za-z]{1,24}(?:_[A-Z]{0,4}[0-9]{0,4}){0,6}")


def program(tokens: Tokens, text: str) -> str:
    """Keep the name of a known program; replace others by a token."""
    name = text.strip().rpartition("/")[2]
    is_known = name.lower() in PROGRAMS or not name or _ENGINE.fullmatch(name)
    return name if is_known else tokens.name(PROGRAM, name)


# Names that NCCL, PyTorch and CUDA give their threads, of which the kernel keeps 15 characters.
_LIBRARY_THREAD = re.compile(
    r"NCCL (?:RAS|GIN Progress|UDS Service|Progress|Service|IbAsync|SockS|SockR|CtrMon)[ \d]*"
    r"|pt_(?:main_thread|autograd_\d+|nccl_watchdg|nccl_heartbt|data_worker|data_pin|tcpstore_uv|gloo_runloop)"
    r"|cuda-EvtHandlr|cuda\d{8,11}"
)


def thread_name(tokens: Tokens, name: str) -> str:
    """Keep the names that libraries give their threads; replace others unless the program is known."""
    return name if _LIBRARY_THREAD.fullmatch(name) else program(tokens, name)


def command_line(tokens: Tokens, content: bytes) -> bytes:
    """Keep the program, an interpreter's script and variables; one token replaces all other arguments."""
    options = serving_words(parse_serving_options(content))
    first, *arguments = content.rstrip(b"\0").split(b"\0")
    start, *title = first.split() or [b""]
    variables = [argument for argument in arguments if is_variable(argument)]
    script = next((word for word in arguments if word[:1] != b"-" and not is_variable(word)), b"")
    rest = [word for word in (*title, *arguments) if word is not script and not is_variable(word)]
    others = b"\0".join(rest)
    kept = [program(tokens, decoded(start)), program(tokens, decoded(script)) if script else ""]
    kept += [variable(tokens, decoded(item)) for item in variables]
    if others:
        kept.append(tokens.token(ARGUMENT, decoded(others)))
    return b"".join(item.encode("utf-8", "replace") + b"\0" for item in kept if item) + options


_NAMED = re.compile(rb"(?:(?:%s)\w*|%s)=" % ("|".join(FAMILIES).encode(), "|".join(SINGLES).encode()))
_ADDRESSES = ("NCCL_COMM_ID", "NCCL_HOSTID")  # always names, even if they are known words
_KEYS = ("NCCL_IB_PKEY_VALUE", "UCX_IB_PKEY")  # the other variables of keys have an index
_KEY = re.compile(r"\b(?:0[xX][0-9a-fA-F]{1,4}|[1-9][0-9]{0,4})\b", re.ASCII)
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


def partition_key(tokens: Tokens, text: str) -> str:
    """Replace partition keys, in a file of a port's table or in a variable."""
    return tokens.text(_KEY.sub(lambda key: f"0x{tokens.partition_key(int(key[0], 0)):04x}", text))


def is_variable(word: bytes) -> bool:
    """Return whether a `NAME=value` is one of the variables that probes read."""
    return _NAMED.match(word) is not None


def variable(tokens: Tokens, text: str) -> str:
    """Replace unknown words in `NAME=value`, and unknown names."""
    name, _, value = text.partition("=")
    if name not in VARIABLES and name not in SINGLES:
        family = name.partition("_")[0]
        name = f"{family}_REDACTED_{tokens.number(VARIABLE, name)}"
    if name in _JOBS:
        value = str(tokens.number(JOB, value))
    elif name in _KEYS:
        value = partition_key(tokens, value)
    elif name in _ADDRESSES and tokens.keeps(value):
        value = tokens.token(HOST, value)
    return f"{name}={tokens.text(value)}"


def environment(tokens: Tokens, content: bytes) -> bytes:
    """Keep the variables that probes read; replace unknown words in their values."""
    if is_overwritten(content):
        return content[:1]
    kept = (variable(tokens, decoded(item)) for item in content.split(b"\0") if is_variable(item))
    return b"".join(item.encode("utf-8", "replace") + b"\0" for item in kept)


_STATUS = r"(?:State|Tgid|Pid|PPid|NSpid|Threads|Vm\w+|Rss\w+|Cap\w+|(?:Cpus|Mems)_allowed(?:_list)?):"


def status(tokens: Tokens, text: str) -> str:
    """Keep the fields of /proc/PID/status that probes read."""
    kept = []
    for line in text.split("\n"):
        key, _, value = line.partition(":")
        if key == "Name":
            kept.append(f"Name:\t{program(tokens, value)}")
        elif key in ("Uid", "Gid"):
            kept.append(f"{key}:\t" + "\t".join(tokens.user_id(uid) for uid in value.split()))
        elif key.startswith("Cap") and re.fullmatch(r"\s*[0-9a-f]{1,16}", value):
            kept.append(line)
        elif re.match(_STATUS, line):
            kept.append((figures if key.startswith(("Vm", "Rss")) else Tokens.text)(tokens, line))
    return "\n".join([*kept, ""])


def stat(tokens: Tokens, text: str) -> str:
    """Replace the program's name in /proc/PID/stat unless it is known."""
    pid, _, rest = text.partition(" (")
    name, _, figures_of = rest.rpartition(") ")
    return f"{tokens.text(pid)} ({program(tokens, name)}) {figures(tokens, figures_of)}"


def maps(tokens: Tokens, text: str) -> str:
    """Keep the libraries that checks read, without addresses and inodes."""
    kept = []
    for line in text.split("\n"):
        fields = line.split(None, 5)
        if len(fields) == 6 and parse_maps(line.encode("utf-8", "replace")):
            kept.append(f"0-1 r-xp 0 00:00 0 {tokens.text(fields[5])}\n")
    return "".join(dict.fromkeys(kept))


# Parts of a control group's path: text to keep, an identifier, text to keep. Sources: systemd.slice(5), the
# drivers of Kubernetes and container engines, Slurm's cgroup plugins, PBS.
_CGROUP_PARTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<before>uid_|user-|user@)(?P<uid>\d+)(?P<after>\.slice|\.service)?",
        r"(?P<before>step_|task_|job_|session-|jobid-|app-)?(?P<job>\d+)(?P<after>\.scope|\.service)?",
        r"(?P<before>(?:kubepods-)?(?:burstable-|besteffort-|guaranteed-)?pod)"
        r"(?P<pod>[0-9a-f]{8}([-_])(?:[0-9a-f]{4}\3){3}[0-9a-f]{12})(?P<after>\.slice)?",
        r"(?P<before>docker-|cri-containerd-|crio-|crio-conmon-|libpod-|containerd-)?"
        r"(?P<id>[0-9a-f]{64}|[0-9a-f]{32})(?P<after>\.scope)?",
    )
)


def cgroup(tokens: Tokens, text: str) -> str:
    """Keep the structure; replace jobs, pods, containers, sessions and users by tokens."""
    rows = (line.rpartition(":") for line in text.splitlines())
    return "".join(f"{tokens.text(ids)}{colon}{cgroup_path(tokens, path)}\n" for ids, colon, path in rows)


def cgroup_path(tokens: Tokens, path: str) -> str:
    """Return a directory or file of control groups with the tokens that /proc/PID/cgroup has."""
    return "/".join(_cgroup_part(tokens, part) for part in path.split("/"))


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
