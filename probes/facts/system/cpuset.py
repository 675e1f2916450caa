"""The CPUs and NUMA nodes that this process may use, as limited by a job, a container or taskset.

The programs that it starts have the same limits. libnuma reads the same lines (set_task_constraints).
"""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.system.numa import parse_list
from probes.host.protocol import Host

STATUS = "/proc/self/status"


@frozen
class CpusetFacts:
    """Kernel list format: "0-55,112-167"."""

    cpus: Maybe[str]
    memory_nodes: Maybe[str]


def probe(host: Host) -> Maybe[CpusetFacts]:
    """Read /proc/self/status (proc_pid_status(5))."""
    text = host.read(STATUS)
    return map_known(text, parse_status)


def parse_status(text: str) -> CpusetFacts:
    """Parse the lines "Cpus_allowed_list:" and "Mems_allowed_list:"."""
    return CpusetFacts(_list(text, "Cpus_allowed_list"), _list(text, "Mems_allowed_list"))


def _list(text: str, name: str) -> Maybe[str]:
    match = re.search(rf"^{name}:[ \t]*([^\n]{{0,4096}})$", text, re.M)
    if match is None:
        return Unknown(Reason.MALFORMED, STATUS, f"no line “{name}”")
    numbers = match[1].strip()
    if parse_list(numbers) is None:
        return Unknown(Reason.MALFORMED, STATUS, printable(numbers, 40))
    return numbers
