"""What numactl's own error lines mean, when it cannot bind a test to a NUMA node.

Sources: numactl/numactl numactl.c and libnuma.c, the lines as version 2.0.16 prints them; Docker's default
seccomp profile, which lets set_mempolicy and mbind by with CAP_SYS_NICE only; sched_setaffinity(2).
"""

from __future__ import annotations

_WITHOUT = "--no-bind measures without binding"
_LEFT_OUT = "the cpuset of the job or container leaves"

NUMACTL_TEXTS: tuple[tuple[str, str], ...] = (
    (
        r"(?:set_mempolicy|mbind|setting membind|sched_setaffinity\S{0,20}(?: failed)?)"
        r": Operation not permitted",
        "numactl may not bind here: a container's seccomp profile refuses it without CAP_SYS_NICE (Docker:"
        f" --cap-add SYS_NICE); {_WITHOUT}",
    ),
    (
        r"sched_setaffinity\S{0,20}(?: failed)?: Invalid argument",
        f"numactl may use none of the NUMA node's CPUs: {_LEFT_OUT} them out, or it has none; {_WITHOUT}",
    ),
    (
        r"(?:set_mempolicy|mbind|setting membind): Invalid argument",
        f"numactl may not use the NUMA node's memory: {_LEFT_OUT} it out, or it has none; {_WITHOUT}",
    ),
    (
        r"libnuma: Warning: node (?:argument )?(?P<a>\d{1,10}) (?:is out of range|not allowed)"
        r"|^<(?P<b>\d{1,10})> is invalid",
        f"numactl may not use NUMA node {{a}}{{b}}: {_LEFT_OUT} it out, it has no memory, or it is not"
        f" there; {_WITHOUT}",
    ),
    (
        r"This system does not support NUMA policy|No NUMA support available",
        f"numactl finds no NUMA policy: a kernel without it, or a container that refuses it; {_WITHOUT}",
    ),
    (
        r"failed to run command .numactl.: No such file|^env: .numactl.: No such file"
        r"|^(?:[\w -]{1,20}: ){0,3}numactl: command not found",
        f"numactl is not installed where it was to run, or not on the path there; {_WITHOUT}",
    ),
)
"""(pattern, sentence) in the order in which they are tried; each names the cause."""
