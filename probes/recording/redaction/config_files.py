"""Rules for configuration: kernel parameters, boot loaders, NCCL, users, limits, modules, topology files."""

from __future__ import annotations

import re
from itertools import takewhile

from probes.facts.kernel.boot_loader import parse_efi_text
from probes.facts.pci.nic_families import MODULE_PREFIXES
from probes.recording.redaction.basic_rules import Rule, decoded, of_lines, of_text
from probes.recording.redaction.kernel_files import variable
from probes.recording.redaction.tokens import ARGUMENT, SYMBOLS, USER, Tokens

_PARAMETERS = re.compile(
    r"(?:intel_|amd_)?iommu(?:\..*)?|pcie?(?:_.*)?|(?:.*[._])?blacklist|(?:default_)?hugepage.*|transparent_.*"
    rf"|(?:{'|'.join(MODULE_PREFIXES)})(?:[_-]\w+)?\..*"  # "ice" and "mana" begin other words, too
    r"|(?:mlx|nvidia|nouveau|ib_|rdma|module\.|iwl|vfio|kvm|intel_|amd_|processor\.|numa).*"
    r"|lockdown|lsm|security|selinux|apparmor|mitigations|isolcpus|nohz.*|rcu_.*|idle|tsc|clocksource|cgroup.*"
    r"|systemd\.unified.*|swiotlb|mem|memmap|crashkernel|panic|nmi_watchdog|audit|console|page_.*"
)


def kernel_parameters(tokens: Tokens, text: str) -> str:
    """Replace unknown words; keep values only of parameters that checks read."""
    kept = []
    for word in text.split():
        name, equals, value = word.partition("=")
        value = tokens.text(value) if _PARAMETERS.fullmatch(name) else value and tokens.token(ARGUMENT, value)
        kept.append(f"{tokens.text(name)}{equals}{value}")
    return " ".join(kept) + "\n"


NCCL_CONF = of_text(lambda tokens, text: "\n".join(_nccl_line(tokens, line) for line in text.split("\n")))


def _nccl_line(tokens: Tokens, line: str) -> str:
    if line.startswith("#") or "NCCL_" not in line:
        return ""
    match = re.match(r"(\s*(?:export\s+)?)(NCCL_\w+)(\s*)=(.*)", line, re.S)
    if match is None:
        return tokens.text(line)
    name, _, value = variable(tokens, f"{match[2]}={match[4]}").partition("=")
    return f"{match[1]}{name}{match[3]}={value}"


def passwd(tokens: Tokens, text: str) -> str:
    """Keep only user names and user ids, as tokens."""
    kept = []
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isdecimal():
            uid = tokens.user_id(fields[2])
            kept.append(f"{tokens.name(USER, fields[0]) if int(uid) else 'root'}:x:{uid}:{uid}::/:/\n")
    return "".join(kept)


def without_comments(tokens: Tokens, text: str) -> str:
    """Remove comments and replace unknown words."""
    return "\n".join(
        "" if line.lstrip()[:1] in ("#", ";") else tokens.text(line.partition("#")[0])
        for line in text.split("\n")
    )


def limits_conf(tokens: Tokens, text: str) -> str:
    """Keep only memlock limits, with users and groups replaced by tokens."""
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
    r"|AMD_IOMMU\w*|ARM_SMMU_V3_SVA|INFINIBAND|INFINIBAND_USER_ACCESS|INFINIBAND_USER_MEM"
    r"|INFINIBAND_ON_DEMAND_PAGING|MLX5_INFINIBAND|MLX5_CORE)=[ymn]$"
)
_CONFIG = of_lines(_CONFIG_OPTIONS, lambda tokens, line: line)


def kernel_config(tokens: Tokens, content: bytes) -> bytes:
    """Keep only the options that checks read."""
    kept = re.sub(rb"\n+", b"\n", _CONFIG(tokens, content))
    return kept if kept.strip() or b"CONFIG_" not in content else b"CONFIG_MODULES=n\n"


_MODULE_LINE = re.compile(
    rb"^(?:[^:\n]*/)?(?:ib|mlx|nv|nvidia|rdma|gdrdrv|nouveau|%s)[\w-]*\.ko(?:\.[gxz]?\w+)?(?::.*)?$"
    % "|".join(MODULE_PREFIXES).encode(),
    re.M,
)
_SYMBOL_LINE = re.compile(
    rb"^.*\b(?:" + b"|".join(sorted(symbol.encode() for symbol in SYMBOLS)) + rb")\b.*$", re.M
)


def _lines_like(pattern: re.Pattern[bytes]) -> Rule:
    return lambda tokens, content: (
        b"\n".join(tokens.text(decoded(line)).encode() for line in pattern.findall(content)) + b"\n"
    )


module_lines, symbol_lines = _lines_like(_MODULE_LINE), _lines_like(_SYMBOL_LINE)
"""Keep the lines of known modules, of known symbols."""


_TOPOLOGY_TAG = re.compile(r"<(/?)(system|cpu|pci|gpu|nic|net|nvlink|c2c|pcilink|grid)\b([^<>]*?)(/?)>")
_TOPOLOGY_ATTRIBUTE = re.compile(
    r'\b(busid|class|vendor|device|subsystem_vendor|subsystem_device|link_speed|link_width|numaid|affinity|arch|dev|sm|rank|gdr|speed|port|maxconn|keep|coll|version|target|tclass|count|familyid|modelid)="([^"<>]{0,64})"'
)


def _topology(tokens: Tokens, text: str) -> str:
    if "<system" not in text:
        return "redacted\n" if text else ""
    kept = []
    for match in _TOPOLOGY_TAG.finditer(text):
        pairs = _TOPOLOGY_ATTRIBUTE.finditer(match[3])
        attributes = "".join(f' {pair[1]}="{tokens.text(pair[2])}"' for pair in pairs)
        kept.append(f"<{match[1]}{match[2]}{attributes}{match[4]}>\n")
    return "".join(kept)


TOPOLOGY = of_text(_topology)

_GRUB = re.compile(
    r"\s*((?:export\s+)?(?:GRUB_DEFAULT|GRUB_ENABLE_BLSCFG|GRUB_FLAVOUR_ORDER|GRUB_TOP_LEVEL|saved_entry"
    r"|next_entry))=(.{0,1024})"
)
_GRUB_LINE = re.compile(
    r"\s*(?:(?P<entry>menuentry|submenu)\s.*"
    r"|(?P<command>linux(?:efi|16)?)\s+(?P<image>\S{1,1024})(?P<parameters>(?:\s.{0,4096})?))"
)
_RELEASE_START = re.compile(r"[0-9]{1,3}\.[0-9]{1,4}(?:\.|-|$)")
_LOADER_NAME = re.compile(r"(?:systemd-boot|GRUB) [0-9][0-9.]{0,12}")
_WORD = re.compile(r"[0-9]{1,3}|[a-z]{1,12}")


def grub_settings(tokens: Tokens, text: str) -> str:
    """Keep the settings that choose a kernel, and of an entry only the kernel's release."""
    matches = (_GRUB.fullmatch(line) for line in text.split("\n"))
    return "".join(f"{match[1]}={_entry(tokens, match[2])}\n" for match in matches if match)


def grub_menu(tokens: Tokens, text: str) -> str:
    """Keep the entries of grub.cfg without their titles, and the kernel of each with its parameters."""
    kept = []
    for line in text.split("\n"):
        match = _GRUB_LINE.fullmatch(line)
        if match and match["entry"]:
            kept.append(f"{match['entry']} 'redacted' {{\n")
        elif match:
            parameters = kernel_parameters(tokens, match["parameters"])
            kept.append(f"{match['command']} /vmlinuz-{_entry(tokens, match['image'])} {parameters}")
    return "".join(kept)


def boot_variable(tokens: Tokens, content: bytes) -> bytes:
    """Keep the boot loader's name and version, or the kernel's release in the name of an entry."""
    text = parse_efi_text(content)
    name = _LOADER_NAME.match(text)
    kept = name[0] if name else _entry(tokens, text)
    return content[:4] + kept.encode("utf-16-le") if len(content) >= 4 else b""


def _entry(tokens: Tokens, text: str) -> str:
    """Return the words of a setting, or the release in an entry's name, as far as all are known."""
    text = text.strip().strip("\"'").removesuffix(".conf")
    if _WORD.fullmatch(text):
        return tokens.text(text)
    parts = re.split(r"[- >/]", text)
    start = next((at for at, part in enumerate(parts) if _RELEASE_START.match(f"{part}-")), None)
    if start is None:
        return tokens.text(text)
    return "-".join(takewhile(tokens.keeps, parts[start:]))
