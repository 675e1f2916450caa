"""CPU, memory and network use, and threads: the dataclasses, and how to read them from the files of a tree.

On a live host psutil gives the same answers (machine/live_usage.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from probes.base.frozen import frozen
from probes.base.text import printable, spans
from probes.base.unknown import Maybe, Reason, Unknown, map_known, parse_known
from probes.host.values import Files, read_integer

PASSWD = "/etc/passwd"
_NAME_LIMIT = 48  # of a user's name
_TICKS_PER_SECOND = 100  # USER_HZ, the unit of /proc/PID/stat on x86 and Arm
MAX_THREADS = 1024  # of a process; a rank with data loaders has a few hundred
_MAX_THREAD_NAMES = 256
_THREAD_NAME_BYTES = 64  # the kernel gives 15 characters and a newline


@frozen
class Stat:
    """Some fields of /proc/PID/stat."""

    state: str
    parent: int
    cpu_seconds: float  # all threads, user and system time
    started: int  # clock ticks after boot: with the pid, it identifies a process


def parse_stat(text: str) -> Maybe[Stat]:
    """Parse fields 3, 4, 14, 15 and 22. The name, field 2, may contain anything."""
    fields = text.rpartition(") ")[2].split()
    figures = (*fields[1:2], *fields[11:13], *fields[19:20])
    digits = "".join(figures)
    if len(figures) < 4 or not (digits.isascii() and digits.isdigit()) or max(map(len, figures)) > 20:
        return Unknown(Reason.MALFORMED, "/proc/PID/stat")
    parent, user, system, started = map(int, figures)
    return Stat(printable(fields[0], 1), parent, (user + system) / _TICKS_PER_SECOND, started)


@frozen
class ProcessUsage:
    """One process: its user, and what it uses of CPU and memory."""

    user: Maybe[str]
    cpu_seconds: Maybe[float]  # all threads, user and system time, since the process started
    memory_bytes: Maybe[int]  # resident
    cpus: Maybe[str]  # the CPUs it may run on, as a kernel list: "0-55,112-167"
    started_at: Maybe[float]  # seconds since 1970


@frozen
class InterfaceCounters:
    """Bytes through a network interface. RDMA traffic bypasses it and is not included."""

    sent_bytes: Maybe[int]
    received_bytes: Maybe[int]


def cpu_list(numbers: Iterable[int]) -> str:
    """Return numbers as a kernel list: "0-55,112-167"."""
    return ",".join(spans(numbers))


def read_usage(host: Files, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
    """Return what /proc and /etc/passwd of a dumped, recorded or simulated node say about processes."""
    users = map_known(host.read(PASSWD), parse_passwd) if pids else {}
    booted = _match(host.read("/proc/stat"), "/proc/stat", r"^btime ([0-9]{1,12})$")
    return {pid: _usage(host, pid, users, booted) for pid in pids}


def _usage(host: Files, pid: int, users: Maybe[dict[int, str]], booted: Maybe[str]) -> Maybe[ProcessUsage]:
    path = f"/proc/{pid}/status"
    status = host.read(path)
    if isinstance(status, Unknown):
        return status
    uid = _match(status, path, r"^Uid:\s+[0-9]{1,10}\s+([0-9]{1,10})\s")
    memory = _match(status, path, r"^VmRSS:\s+([0-9]{1,15}) kB$")
    cpus = _match(status, path, r"^Cpus_allowed_list:\s+([0-9,-]{1,4096})$")
    stat = map_known(host.read(f"/proc/{pid}/stat"), parse_stat)
    started = map_known(stat, lambda found: found.started / _TICKS_PER_SECOND)
    return ProcessUsage(
        user=map_known(uid, lambda number: user_name(int(number), users)),
        cpu_seconds=map_known(stat, lambda found: found.cpu_seconds),
        memory_bytes=map_known(memory, lambda kibibytes: int(kibibytes) * 1024),
        cpus=cpus,
        started_at=map_known(started, lambda after: map_known(booted, lambda at: int(at) + after)),
    )


def parse_passwd(text: str) -> dict[int, str]:
    """Return names by user ID from lines NAME:PASSWORD:UID:… (passwd(5)); the first line of an ID counts."""
    users: dict[int, str] = {}
    for line in text.split("\n"):
        fields = line.split(":", 3)
        if len(fields) == 4 and fields[0] and re.fullmatch(r"[0-9]{1,10}", fields[2]):
            users.setdefault(int(fields[2]), printable(fields[0], _NAME_LIMIT))
    return users


def user_name(uid: int, users: Maybe[dict[int, str]]) -> Maybe[str]:
    """Return the name of a user ID."""
    absent = Unknown(Reason.NOT_THERE, PASSWD, f"no user {uid}")
    return map_known(users, lambda names: names.get(uid) or absent)


def read_counters(host: Files, names: Sequence[str]) -> Mapping[str, Maybe[InterfaceCounters]]:
    """Return the counters of interfaces by name, from /sys/class/net."""

    def counters(name: str) -> Maybe[InterfaceCounters]:
        base = f"/sys/class/net/{name}/statistics"
        sent, received = read_integer(host, f"{base}/tx_bytes"), read_integer(host, f"{base}/rx_bytes")
        return sent if isinstance(sent, Unknown) else InterfaceCounters(sent, received)

    return {name: counters(name) for name in names}


def read_thread_names(host: Files, pids: Sequence[int]) -> Mapping[int, Maybe[tuple[str, ...]]]:
    """Return the distinct names of each process's threads, sorted; libraries such as NCCL name theirs."""
    return {pid: _thread_names(host, f"/proc/{pid}/task") for pid in pids}


def _thread_names(host: Files, path: str) -> Maybe[tuple[str, ...]]:
    threads = host.names(path)
    if isinstance(threads, Unknown):
        return threads
    found: set[bytes] = set()
    failed: Unknown | None = None
    for thread in [name for name in threads if name.isdecimal()][:MAX_THREADS]:
        name = host.read_bytes(f"{path}/{thread}/comm", _THREAD_NAME_BYTES)
        if isinstance(name, Unknown):  # the thread has ended meanwhile
            failed = name
        else:
            found.add(name.strip())
    if failed is not None and not found:
        return failed
    return tuple(sorted({printable(name.decode("utf-8", "replace")) for name in found})[:_MAX_THREAD_NAMES])


def _match(text: Maybe[str], source: str, pattern: str) -> Maybe[str]:
    search = re.compile(pattern, re.M).search
    matched = parse_known(text, search, source, Reason.NOT_RECORDED, "the line is missing")
    return map_known(matched, lambda match: match[1])
