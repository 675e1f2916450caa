"""RDMA limits of control groups: how many handles and objects of each device a job may have.

Linux Documentation/admin-guide/cgroup-v2.rst, RDMA Interface Files; kernel/cgroup/rdma.c: a limit counts for
the group and everything below it, and beyond it the kernel answers EAGAIN. An object is a queue pair, a
completion queue, a memory region, a protection domain and so on; a handle is an opened device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.host.protocol import Host

CGROUPS = "/sys/fs/cgroup"
OWN = "self"
_MAX_GROUPS = 256
_MAX_DEPTH = 16
_MAX_LINES = 1024
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


def probe(host: Host, pids: Iterable[int] = ()) -> Maybe[RdmaCgroupFacts]:
    """Read rdma.max and rdma.current of the groups of these processes and of gdrtop itself.

    NOT_THERE: no control groups are mounted. A group without these files has no limits.
    """
    names = host.names(CGROUPS)
    if isinstance(names, Unknown):
        return names
    groups: dict[str, tuple[RdmaLimit, ...]] = {}
    read = {str(pid): _of_process(host, str(pid), groups) for pid in (OWN, *pids)}
    return RdmaCgroupFacts(read.pop(OWN), {int(pid): limits for pid, limits in read.items()})


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
    """Return the directory of the group that limits RDMA, from /proc/PID/cgroup (cgroups(7)).

    It is that of the rdma controller of version 1 if it is mounted, else that of version 2.
    """
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
    for line in text.split("\n")[:_MAX_LINES]:
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        for word in match[2].split():
            value = _VALUE.fullmatch(word)
            if value is not None and value[2] != "max":
                found[printable(match[1], 64), value[1]] = int(value[2])
    return found
