"""How much memory a process may lock (RLIMIT_MEMLOCK), and how many RDMA objects it may have.

Registered memory counts toward the limit. Without CAP_IPC_LOCK, registering more fails with ENOMEM
(drivers/infiniband/core/umem.c, ib_umem_get).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import field

from probes.base.frozen import frozen
from probes.base.text import printable, printable_lines
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.system.services import UnitSetting, manager_setting, unit_setting
from probes.host.protocol import Host

LIMITS = "/etc/security/limits.conf"
LIMITS_DIRECTORY = "/etc/security/limits.d"
# Services that start jobs and containers; each has its own memlock limit.
STARTERS = (
    *("slurmd.service", "containerd.service", "docker.service", "crio.service", "kubelet.service"),
    *("ssh.service", "sshd.service", "pbs_mom.service"),
)
_OS_RELEASE = "/etc/os-release"
_INIT_LIMITS = "/proc/1/limits"
_MAX_FILES = 128
_MAX_LINES = 64


@frozen
class MemlockLimit:
    """A limit in bytes; math.inf: unlimited."""

    soft_bytes: float
    hard_bytes: float


@frozen
class LimitsLine:
    """A memlock line of limits.conf(5), in bytes; math.inf: unlimited."""

    domain: str  # "*", "root", "@hpc", …
    kind: str  # "soft", "hard", "-": both
    value_bytes: float
    where: str  # "/etc/security/limits.d/rdma.conf:2"


_SSHD_COUNTS = Unknown(Reason.NOT_THERE, _INIT_LIMITS, "pam_limits does not use it on this distribution")


@frozen
class MemlockFacts:
    """The limits of this process and those with which other processes will start."""

    own: Maybe[MemlockLimit]  # of the shell that started gdrtop
    lines: tuple[LimitsLine, ...]  # for logins through PAM, in reading order: the last match wins
    unread: tuple[Unknown, ...]  # what could not be read of /etc/security
    manager_default: Maybe[UnitSetting]  # DefaultLimitMEMLOCK=; NOT_THERE: systemd's own default of 8 MiB
    services: dict[str, Maybe[UnitSetting]]  # LimitMEMLOCK= of installed services that start jobs
    # The limit of logins without a matching line. pam_limits of Debian and Ubuntu takes it from process 1
    # (patches-applied/027_pam_limits_better_init_allow_explicit_root); NOT_THERE: sshd's own limit applies.
    login_default: Maybe[MemlockLimit] = _SSHD_COUNTS


def probe(host: Host) -> MemlockFacts:
    """Read /proc/self/limits, /etc/security, systemd's unit files and, on Debian, /proc/1/limits."""
    lines, unread = _lines(host)
    services = {name: unit_setting(host, name, "Service", "LimitMEMLOCK") for name in STARTERS}
    return MemlockFacts(
        own=map_known(host.read("/proc/self/limits"), parse_limits),
        lines=lines,
        unread=unread,
        manager_default=manager_setting(host, "DefaultLimitMEMLOCK"),
        services={
            name: setting
            for name, setting in services.items()
            if not isinstance(setting, Unknown) or setting.detail != "no such unit"
        },
        login_default=_login_default(host),
    )


def _login_default(host: Host) -> Maybe[MemlockLimit]:
    release = known(host.read(_OS_RELEASE), "")
    if not re.search(r"^ID(?:_LIKE)?=.*\bdebian\b", release, re.M):
        return _SSHD_COUNTS
    return map_known(host.read(_INIT_LIMITS), parse_limits)


def parse_limits(text: str, name: str = "Max locked memory") -> Maybe[MemlockLimit]:
    """Parse the line "Max locked memory  8388608  unlimited  bytes" of /proc/PID/limits."""
    match = re.search(rf"^{name} +([0-9]{{1,20}}|unlimited) +([0-9]{{1,20}}|unlimited) +bytes", text, re.M)
    if match is None:
        return Unknown(Reason.MALFORMED, "/proc/PID/limits", f"no “{name}” line")
    soft, hard = (math.inf if word == "unlimited" else float(word) for word in match.groups())
    return MemlockLimit(soft, hard)


def parse_limits_conf(text: str, path: str) -> tuple[LimitsLine, ...]:
    """Parse the memlock lines, `DOMAIN TYPE memlock VALUE` with the value in KiB (limits.conf(5))."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        if len(words) != 4 or words[2] != "memlock" or words[1] not in ("soft", "hard", "-"):
            continue
        value = _kibibytes(words[3])
        if value is not None:
            found.append(LimitsLine(printable(words[0], 64), words[1], value, f"{path}:{number}"))
    return tuple(found[:_MAX_LINES])


def _kibibytes(word: str) -> float | None:
    if word in ("unlimited", "infinity", "-1"):
        return math.inf
    return float(word) * 1024 if re.fullmatch(r"[0-9]{1,18}", word) else None


_FACTORS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}


def parse_unit_limit(value: str) -> Maybe[MemlockLimit]:
    """Parse the value of LimitMEMLOCK=: "infinity", "64M", or SOFT:HARD (systemd.exec(5))."""
    sizes = []
    for part in value.split(":"):
        match = re.fullmatch(r"([0-9]{1,19})([BKMGTPE]?)", part.strip())
        if part.strip() == "infinity":
            sizes.append(math.inf)
        elif match:
            sizes.append(float(int(match[1]) * _FACTORS[match[2]]))
        else:
            return Unknown(Reason.MALFORMED, "LimitMEMLOCK", printable(value, 40))
    if len(sizes) > 2:
        return Unknown(Reason.MALFORMED, "LimitMEMLOCK", printable(value, 40))
    return MemlockLimit(sizes[0], sizes[-1])


def _lines(host: Host) -> tuple[tuple[LimitsLine, ...], tuple[Unknown, ...]]:
    """Read limits.conf, then limits.d by name: later lines override earlier ones (pam_limits(8))."""
    lines: list[LimitsLine] = []
    unread: list[Unknown] = []
    names = host.names(LIMITS_DIRECTORY)
    if isinstance(names, Unknown) and names.reason is not Reason.NOT_THERE:
        unread.append(names)
    below = [name for name in known(names, ()) if name.endswith(".conf")][:_MAX_FILES]
    for path in (LIMITS, *(f"{LIMITS_DIRECTORY}/{name}" for name in below)):
        content = host.read_bytes(path)  # not the text, which is stripped, so that line numbers are correct
        if not isinstance(content, Unknown):
            text = printable_lines(content.decode("utf-8", "replace"))
            lines.extend(parse_limits_conf(text, printable(path)))
        elif content.reason is not Reason.NOT_THERE:
            unread.append(content)
    return tuple(lines), tuple(unread)


# RDMA limits of control groups: how many handles and objects of each device a job may have.
#
# Linux Documentation/admin-guide/cgroup-v2.rst, RDMA Interface Files; kernel/cgroup/rdma.c: a limit counts
# for the group and everything below it, and beyond it the kernel answers EAGAIN. An object is a queue pair,
# a completion queue, a memory region, a protection domain and so on; a handle is an opened device.

CGROUPS = "/sys/fs/cgroup"
_MAX_GROUPS = 256
_MAX_DEPTH = 16
_CGROUP_LINES = 1024
_LINE = re.compile(r"(\S{1,64}) (.{1,200})")
_VALUE = re.compile(r"(hca_handle|hca_object)=(max|[0-9]{1,10})")
_PATH = re.compile(r"(?:/[^/\0\n]{1,255}){1,64}")


@frozen
class RdmaLimit:
    """A limit of a group, and how much of it is in use."""

    group: str  # "/sys/fs/cgroup/system.slice/slurmd.service"
    device: str  # "mlx5_0"
    resource: str  # "hca_handle", "hca_object"
    most: int
    used: Maybe[int]


@frozen
class RdmaCgroupFacts:
    """The limits that apply to gdrtop itself and to processes, the innermost group first."""

    own: Maybe[tuple[RdmaLimit, ...]]
    processes: dict[int, Maybe[tuple[RdmaLimit, ...]]] = field(default_factory=dict)  # by pid


def probe_rdma_cgroups(host: Host, pids: Iterable[int] = ()) -> Maybe[RdmaCgroupFacts]:
    """Read rdma.max and rdma.current of the groups of these processes and of gdrtop itself.

    NOT_THERE: no control groups are mounted. A group without these files has no limits.
    """
    names = host.names(CGROUPS)
    if isinstance(names, Unknown):
        return names
    groups: dict[str, tuple[RdmaLimit, ...]] = {}
    processes = {pid: _of_process(host, str(pid), groups) for pid in pids}
    return RdmaCgroupFacts(_of_process(host, "self", groups), processes)


def _of_process(
    host: Host, pid: str, groups: dict[str, tuple[RdmaLimit, ...]]
) -> Maybe[tuple[RdmaLimit, ...]]:
    source = f"/proc/{pid}/cgroup"
    text = host.read(source)
    if isinstance(text, Unknown):
        return text
    path = parse_group(text)
    if isinstance(path, Unknown):
        return Unknown(path.reason, source, path.detail)
    limits: list[RdmaLimit] = []
    for group in _with_parents(path):
        if group not in groups:
            if len(groups) >= _MAX_GROUPS:
                return Unknown(Reason.NOT_RECORDED, source, f"more than {_MAX_GROUPS} control groups")
            groups[group] = _of_group(host, group)
        limits.extend(groups[group])
    return tuple(limits)


def parse_group(text: str) -> Maybe[str]:
    """Return the directory of the group that limits RDMA (cgroups(7)): version 1's, else version 2's."""
    unified: str | None = None
    for line in text.split("\n")[:64]:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "rdma" in controllers.split(","):
            return _directory(f"{CGROUPS}/rdma", path)
        if not controllers and path:
            unified = path
    if unified is None:
        return Unknown(Reason.MALFORMED, "", "no control group")
    return _directory(CGROUPS, unified)


def _directory(root: str, path: str) -> Maybe[str]:
    if path == "/":
        return root
    if not _PATH.fullmatch(path) or ".." in path.split("/") or "." in path.split("/"):
        return Unknown(Reason.NOT_THERE, "", "the control group is outside this namespace")
    return root + path


def _with_parents(path: str) -> list[str]:
    """Return the directories from a group up to the root, which has no limits."""
    groups: list[str] = []
    while path not in (CGROUPS, f"{CGROUPS}/rdma") and len(groups) < _MAX_DEPTH:
        groups.append(path)
        path = path.rpartition("/")[0]
    # In a container, the root of its namespace is a group with limits.
    return [*groups, path]


def _of_group(host: Host, group: str) -> tuple[RdmaLimit, ...]:
    limits = parse_resources(known(host.read(f"{group}/rdma.max"), ""))
    if not limits:
        return ()
    current = host.read(f"{group}/rdma.current")
    used = parse_resources(known(current, ""))
    missing = current if isinstance(current, Unknown) else Unknown(Reason.NOT_THERE, f"{group}/rdma.current")
    shown = printable(group, 256)
    return tuple(
        RdmaLimit(shown, device, resource, number, used.get((device, resource), missing))
        for (device, resource), number in limits.items()
    )


def parse_resources(text: str) -> dict[tuple[str, str], int]:
    """Parse "mlx5_0 hca_handle=2 hca_object=max" into numbers by device and resource; "max" is left out."""
    found: dict[tuple[str, str], int] = {}
    for line in text.split("\n")[:_CGROUP_LINES]:
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        for word in match[2].split():
            value = _VALUE.fullmatch(word)
            if value is not None and value[2] != "max":
                found[printable(match[1], 64), value[1]] = int(value[2])
    return found
