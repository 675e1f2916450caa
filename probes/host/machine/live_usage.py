"""CPU, memory and network use on this machine, read with psutil."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import psutil

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.usage import InterfaceCounters, ProcessUsage, cpu_list

T = TypeVar("T")


def process_usage(pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
    """Return the use of each process. It never raises; a process that has ended is NOT_THERE."""
    return {pid: _usage(pid) for pid in pids}


def _usage(pid: int) -> Maybe[ProcessUsage]:
    source = f"/proc/{pid}"
    process = _ask(source, lambda: psutil.Process(pid))
    if isinstance(process, Unknown):
        return process
    with process.oneshot():
        times = _ask(source, process.cpu_times)
        memory = _ask(source, process.memory_info)
        return ProcessUsage(
            # By the node's own user database, LDAP included; the effective user, as in /proc/PID/status.
            user=_ask(source, lambda: printable(pwd.getpwuid(process.uids().effective).pw_name, 48)),
            cpu_seconds=times if isinstance(times, Unknown) else times.user + times.system,
            memory_bytes=memory if isinstance(memory, Unknown) else memory.rss,
            cpus=_ask(source, lambda: cpu_list(process.cpu_affinity())),
            started_at=_ask(source, process.create_time),
        )


def interface_counters(names: Sequence[str]) -> Mapping[str, Maybe[InterfaceCounters]]:
    """Return the counters of interfaces by name: one read of /proc/net/dev for all."""
    found = _ask("/proc/net/dev", lambda: psutil.net_io_counters(pernic=True, nowrap=False))
    if isinstance(found, Unknown):
        return dict.fromkeys(names, found)
    return {
        name: InterfaceCounters(found[name].bytes_sent, found[name].bytes_recv)
        if name in found
        else Unknown(Reason.NOT_THERE, "/proc/net/dev", f"no interface {printable(name, 40)}")
        for name in names
    }


def _ask(source: str, ask: Callable[[], T]) -> Maybe[T]:
    try:
        return ask()
    except (psutil.NoSuchProcess, FileNotFoundError):
        return Unknown(Reason.NOT_THERE, source, "the process has exited")
    except (psutil.AccessDenied, PermissionError):
        return Unknown(Reason.NEEDS_ROOT, source)
    except KeyError:
        return Unknown(Reason.NOT_THERE, source, "the user is not in the node's user database")
    except (psutil.Error, OSError, ValueError, IndexError) as error:
        return Unknown(Reason.IO_ERROR, source, printable(str(error), 120))
