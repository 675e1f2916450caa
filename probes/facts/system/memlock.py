"""How much memory a process may lock (RLIMIT_MEMLOCK), and what sets the limit for logins and services.

Registered memory counts toward the limit. Without CAP_IPC_LOCK, registering more fails with ENOMEM
(drivers/infiniband/core/umem.c, ib_umem_get).
"""

from __future__ import annotations

import math
import re

from probes.base.frozen import frozen
from probes.base.text import printable, printable_lines
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.system.systemd_units import UnitSetting, manager_setting, unit_setting
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
