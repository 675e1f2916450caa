"""What the errors of modprobe, insmod and rmmod mean, by their own output and the kernel log.

Sources: kmod tools/modprobe.c and libkmod; Linux kernel/module/{main,version,signing}.c; NVIDIA open kernel
modules, kernel-open/nvidia-peermem/nvidia-peermem.c.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from probes.base.unknown import Maybe, Unknown

_PROGRAMS = ("modprobe", "insmod", "rmmod")
_INSERT = re.compile(r"could not insert (?:module )?'?(?P<module>[\w.\-/]{1,200})'?: (?P<why>.{1,200})")
_PEERMEM = re.compile(r"nvidia[-_]peermem(?:\.ko)?$")
_REMOVED_IN_USE = re.compile(r"Module (?P<module>[\w\-]{1,64}) is in use(?: by: (?P<users>.{1,200}))?")

# Patterns of the kernel log, the most specific first.
_KERNEL_LOG: tuple[tuple[str, str], ...] = (
    (
        r"disagrees about version of symbol module_layout|version magic '",
        "the module file was built for another kernel: rebuild it for the running one (dkms install --force)",
    ),
    (
        r"disagrees about version of symbol (?P<symbol>\w{1,100})",
        "{module} was built against a different version of {symbol} than the loaded one: OFED or the kernel"
        " changed after the driver was built; rebuild the NVIDIA modules",
    ),
    (
        r"Unknown symbol (?P<symbol>\w{1,100})",
        "no loaded module exports {symbol}: the kernel's own ib_core is loaded instead of OFED's, or a"
        " module that {module} needs is missing",
    ),
    (
        r"error while registering|memory_peers",
        "the peer-memory interface refused the registration: another client uses the same name (is"
        " nv_peer_mem loaded?)",
    ),
    (r"invalid (?P<symbol>\w{1,60}) param value", "a modprobe.d options line has a bad value for {symbol}"),
    (
        r"Loading of (?:unsigned module|module with unavailable key) is rejected",
        "this kernel accepts only signed modules, and {module} is not signed with a key it trusts: enroll"
        " the key (mokutil --import) or disable Secure Boot",
    ),
    (r"Lockdown: ", "kernel lockdown is on (Secure Boot), so only signed modules can be loaded"),
    (r"NVRM: .{0,200}(?:version|mismatch)", "the parts of the NVIDIA driver have different versions"),
)
_SILENT = (
    "if the kernel log shows nothing, this means that nvidia_peermem was built without OFED's peer-memory"
    " symbols; install OFED first, then rebuild the NVIDIA modules"
)
# Patterns of kmod's own output: strerror of the kernel's answer.
_ERRNO_TEXTS: tuple[tuple[str, str], ...] = (
    (r"Key was rejected by service|Required key not available", "the kernel does not trust its signature"),
    (r"Operation not permitted", "loading needs root, or is forbidden (modules_disabled, lockdown)"),
    (r"Exec format error|Invalid module format", "the module file was built for another kernel"),
    (r"Unknown symbol", "it needs a symbol that no loaded module exports, or has an unknown option"),
    (r"No such device", "{module} found no device it supports; see the kernel log"),
    (r"Cannot allocate memory", "the kernel has no memory left for the module"),
    (r"(?:Module already in kernel|File exists)", "it is already loaded, or built in"),
)


def explain(argv: Sequence[str], output: Sequence[str], kernel_lines: Maybe[Sequence[str]]) -> str:
    """Return one sentence for an admin; "" if the program's own output says everything."""
    if not argv or argv[0].rpartition("/")[2] not in _PROGRAMS:
        return ""
    for line in output[-50:]:
        line = line[:1000]
        in_use = _REMOVED_IN_USE.search(line)
        if in_use:
            users = f" by {in_use['users']}" if in_use["users"] else " (its refcnt shows by how many)"
            return f"{in_use['module']} is in use{users}; it can be unloaded once nothing uses it"
        if re.search(r"Module \S{1,64} not found", line):
            return (
                "no such module file for the running kernel: its package is missing, or was built for"
                " another kernel"
            )
        if "Error running install command" in line:
            return "an install line in modprobe.d runs another command instead of loading the module"
        failed = _INSERT.search(line)
        if failed:
            return _not_inserted(failed["module"], failed["why"], kernel_lines)
    return ""


def _not_inserted(module: str, why: str, kernel_lines: Maybe[Sequence[str]]) -> str:
    """Return why the kernel refused a module; `module` may be a dependency of the requested one."""
    if not isinstance(kernel_lines, Unknown):
        for line in kernel_lines:
            for pattern, text in _KERNEL_LOG:
                match = re.search(pattern, line[:1000])
                if match:
                    return text.format(module=module, symbol=match.groupdict().get("symbol") or "")
    if "Invalid argument" in why and _PEERMEM.search(module):
        if isinstance(kernel_lines, Unknown):
            unread = f"the kernel log would say why, but cannot be read ({kernel_lines.reason.value})"
            return f"{unread}; {_SILENT}"
        if not kernel_lines:
            return _SILENT
    for pattern, text in _ERRNO_TEXTS:
        if re.search(pattern, why):
            return text.format(module=module)
    return ""
