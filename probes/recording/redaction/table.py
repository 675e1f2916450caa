"""What a redacted recording keeps of each source: one table, in which the first matching row counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from probes.facts.system.cloud import AZURE_TAG, ORACLE_TAG
from probes.facts.system.tools import DIRECTORIES as PROGRAM_DIRECTORIES
from probes.recording.redaction import config_files, kernel_files, processes
from probes.recording.redaction.answers import (
    cluster_objects,
    kernel_log,
    modinfo,
    program_strings,
    symbol_versions,
)
from probes.recording.redaction.basic_rules import Rule, figures, kept_where, of_lines, of_text, words
from probes.recording.redaction.tokens import Tokens


class Row(NamedTuple):
    """Paths (`*`: one part, `**`: any number of parts) and the rule for files there."""

    paths: str
    rule: Rule | None  # None: only existence, size and link target, no content


_WORDS, _FIGURES = of_text(words), of_text(figures)
_CPU_MASK = r"[0-9a-f]{1,8}(?:,[0-9a-f]{8}){0,255}\s*"
_COUNTERS = (
    *("**/counters/*", "**/hw_counters/*", "**/statistics/*", "**/aer_dev_*", "**/meminfo"),
    *("**/cgroup.procs", "kernel/mm/memory_peers/**"),
)
_SLURM = of_lines(r"(?i)\s*(?:prolog|propagateresourcelimitsexcept)\s*=")
FILES: Sequence[Row] = (
    Row("/proc/cmdline", of_text(config_files.kernel_parameters)),
    Row("/proc/cpuinfo", of_text(kernel_files.cpuinfo)),
    Row("/proc/config.gz", config_files.packed_kernel_config),
    Row("/proc/driver/nvidia/**", _WORDS),
    Row("/proc/version", of_lines("Linux version", lambda t, line: t.text(" ".join(line.split()[:3])))),
    Row("/proc/sys/kernel/hostname", of_text(kernel_files.host_name_file)),
    Row("/proc/sys/**", _WORDS),
    Row("/proc/net/tcp", of_text(kernel_files.listening_sockets)),
    Row("/proc/net/tcp6", of_text(kernel_files.listening_sockets)),
    Row("/proc/net/route", of_text(kernel_files.routes)),
    Row("/proc/net/ipv6_route", of_text(kernel_files.ipv6_routes)),
    Row("/proc/*/net/route", of_text(kernel_files.routes)),
    Row("/proc/*/net/ipv6_route", of_text(kernel_files.ipv6_routes)),
    Row("/proc/*/comm", of_text(processes.process_name)),
    Row("/proc/*/task/*/comm", of_text(processes.process_name)),
    Row("/proc/*/status", of_text(processes.status)),
    Row("/proc/*/stat", of_text(processes.stat)),
    Row("/proc/*/limits", of_lines("Limit |Max (?:locked memory|stack size) ", figures)),
    Row("/proc/*/environ", processes.environment),
    Row("/proc/*/cmdline", processes.command_line),
    Row("/proc/*/maps", of_text(processes.maps)),
    Row("/proc/*/cgroup", of_text(processes.cgroup)),
    Row("/proc/*/cpuset", of_text(processes.cgroup)),
    Row("/proc/*/mounts", _WORDS),
    Row("/proc/*/mountinfo", _WORDS),
    Row("/proc/*/fd/*", None),
    Row("/proc/*/fdinfo/*", None),
    Row("/proc/*/fd", None),
    Row("/proc/*/root/**.conf", config_files.NCCL_CONF),
    Row("/proc/*/cwd/**.conf", config_files.NCCL_CONF),
    Row("/proc/*/root/dev/**", None),
    Row("/proc/*/root/**/pkgconfig/ucx.pc", of_lines(r"Version: ?[0-9]{1,2}(?:\.[0-9]{1,3}){2}$")),
    Row("/proc/*/root/**", config_files.TOPOLOGY),
    Row("/proc/*/cwd/**", config_files.TOPOLOGY),
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
    Row("/sys/**/config", kernel_files.pci_config),
    Row("/sys/**/vpd", kernel_files.vital_product_data),
    Row("/sys/**/resource", kept_where(r"(?:0x[0-9a-f]{16} 0x[0-9a-f]{16} 0x[0-9a-f]{16}\n?){1,32}")),
    Row("/sys/**/local_cpus", kept_where(_CPU_MASK)),
    Row("/sys/**/cpumap", kept_where(_CPU_MASK)),
    Row("/sys/class/dmi/id/chassis_asset_tag", kept_where(rf"{AZURE_TAG}\s*|{re.escape(ORACLE_TAG)}\s*")),
    Row("/sys/class/dmi/id/bios_version", kept_where(r"[A-Z]{0,4}[0-9][0-9A-Za-z.]{0,15}\s*")),
    Row("/sys/firmware/efi/efivars/Loader*", config_files.boot_variable),
    Row("/sys/firmware/efi/efivars/*", kept_where(r"[\0-\x1f]\0\0\0[\0\1]")),
    *(Row(f"/sys/{path}", _FIGURES) for path in _COUNTERS),
    Row("/sys/**/telemetry/*", kept_where(r"[0-9]{1,20}@[0-9]{1,20}\.[0-9]{9}\s*")),
    Row("/sys/kernel/debug/dma_buf/bufinfo", of_text(kernel_files.dma_buffers)),
    Row("/sys/**", _WORDS),
    Row("/etc/hostname", of_text(kernel_files.host_name_file)),
    Row("/etc/os-release", of_lines("(?:PRETTY_NAME|NAME|ID|ID_LIKE|VERSION_ID|VARIANT_ID)=")),
    Row("/usr/lib/os-release", of_lines("(?:PRETTY_NAME|NAME|ID|ID_LIKE|VERSION_ID|VARIANT_ID)=")),
    Row("/etc/passwd", of_text(config_files.passwd)),
    Row("/etc/nccl.conf", config_files.NCCL_CONF),
    Row("/etc/security/limits**.conf", of_text(config_files.limits_conf)),
    Row("**/systemd/**", of_lines(r"\s*(?:\[\w+\]|LimitMEMLOCK|DefaultLimitMEMLOCK)", figures)),
    Row("**/modprobe.d/*", of_text(config_files.without_comments)),
    Row("**/modules-load.d/*", of_text(config_files.without_comments)),
    Row("/etc/modules", of_text(config_files.without_comments)),
    Row("/etc/rdma/**", of_text(config_files.without_comments)),
    Row("/etc/default/grub**", of_text(config_files.grub_settings)),
    Row("/etc/slurm**.conf", _SLURM),
    Row("/run/slurm/conf/**.conf", _SLURM),
    Row("/etc/dkms/framework.conf**", of_lines(r"\s*mok_certificate=")),
    Row("/etc/**", None),
    Row("/boot/grub*/grubenv", of_text(config_files.grub_settings)),
    Row("/boot/grub*/grub.cfg", of_text(config_files.grub_menu)),
    Row("**/loader/loader.conf", of_lines(r"default\s")),
    Row("/opt/amazon/efa_installed_packages", None),
    Row("/opt/nvidia/nvlsm/**", None),
    Row("/home/kubernetes", None),
    Row("/efi/**", None),
    Row("/boot/config-*", config_files.kernel_config),
    Row("/lib/modules/*/config", config_files.kernel_config),
    Row("**/modules.dep", config_files.module_lines),
    Row("**/modules.builtin", config_files.module_lines),
    Row("**/modules.symbols", config_files.symbol_lines),
    Row("**/Module.symvers", config_files.symbol_lines),
    Row("/var/run/nvidia-topologyd/**", config_files.TOPOLOGY),
    Row("/opt/microsoft/*/topo.xml", config_files.TOPOLOGY),
    *(Row(f"{directory}/*", program_strings) for directory in PROGRAM_DIRECTORIES),
    Row("/dev", None),
    Row("/dev/**", None),
    *(Row(f"/{top}/**", None) for top in ("boot", "lib", "lib64", "usr", "var", "run")),
    Row("/.dockerenv", None),
)
COMMANDS: dict[str, Callable[[Tokens, str], str]] = {
    "dmesg": kernel_log,
    "journalctl": kernel_log,
    "modinfo": modinfo,
    "modprobe": symbol_versions,
    "kubectl": cluster_objects,
    "oc": cluster_objects,
}
"""Rules for the output of commands; in the output of other known programs, unknown words are replaced."""
ENVIRONMENT = ("KUBERNETES_SERVICE_HOST", "container", "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
"""Variables of gdrtop's own session that are kept, with unknown words in their values replaced."""


def _expression(paths: str) -> re.Pattern[str]:
    pieces = re.split(r"(\*\*|\*)", paths)
    wildcards = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(wildcards.get(piece, re.escape(piece)) for piece in pieces), re.S)


_COMPILED = tuple((_expression(row.paths), row) for row in FILES)


def row_of(path: str) -> Row | None:
    """Return the row of a path; None if nothing of it is kept."""
    return next((row for pattern, row in _COMPILED if pattern.fullmatch(path)), None)


def read_by_nccl(path: str, content: bytes) -> bytes:
    """Keep only what NCCL reads in a file that a user chose: NCCL_TOPO_FILE and links can point anywhere."""
    row = row_of(path)
    if row is not None and row.rule not in (None, config_files.TOPOLOGY, config_files.NCCL_CONF):
        return content
    if path.endswith(".conf"):
        return b"\n".join(line if b"NCCL_" in line else b"" for line in content.split(b"\n"))
    return content if b"<system" in content else b""
