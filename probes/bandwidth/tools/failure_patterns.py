"""What error lines mean that any of the tools can print: CUDA, SSH, numactl and the system.

Sources: numactl/numactl numactl.c and libnuma.c, the lines as version 2.0.16 prints them; Docker's default
seccomp profile, which allows set_mempolicy and mbind only with CAP_SYS_NICE; sched_setaffinity(2). The
options in the sentences are gdrtop's own.
"""

from __future__ import annotations

from probes.bandwidth.tools.failures import CAUSE, FOLLOWS, SYMPTOM, FailurePattern

_NO_BIND = "use --no-bind to measure without binding"
_BINDING = (
    r"(?:set_mempolicy|mbind|setting membind|sched_setaffinity\S{0,20}(?: failed)?): Operation not permitted"
)

FIRST_PATTERNS = (
    # The GPU.
    FailurePattern(r"cuInit\(0\) returned 100\b|no available device\(s\) that support CUDA", CAUSE,
                   "CUDA sees no GPU"),
    FailurePattern(r"cuInit\(0\) returned (?:802|803)\b", CAUSE,
                   "the GPUs are not ready: the fabric manager is not running (802), or the driver's parts"
                   " differ in version (803)"),
    FailurePattern(r"cuInit\(0\) returned (?P<a>\d{1,4})", CAUSE, "CUDA does not start (error {a})"),
    FailurePattern(r"cuMemAlloc\w{0,12} error=2\b|out of memory", CAUSE, "the GPU's memory is full"),
    FailurePattern(r"libcuda\.so[^ ]{0,8}: cannot open shared object", CAUSE,
                   "libcuda.so was not found: the driver's libraries are missing in the container, or"
                   " the driver was installed without CUDA"),
    # numactl.
    FailurePattern(_BINDING, CAUSE,
                   "numactl may not bind here: a container's seccomp profile forbids it without CAP_SYS_NICE"
                   f" (Docker: --cap-add SYS_NICE); {_NO_BIND}"),
    FailurePattern(r"sched_setaffinity\S{0,20}(?: failed)?: Invalid argument", CAUSE,
                   "numactl may use none of the NUMA node's CPUs: the cpuset of the job or container excludes"
                   f" them, or the node has no CPUs; {_NO_BIND}"),
    FailurePattern(r"(?:set_mempolicy|mbind|setting membind): Invalid argument", CAUSE,
                   "numactl may not use the NUMA node's memory: the cpuset of the job or container excludes"
                   f" it, or the node has no memory; {_NO_BIND}"),
    FailurePattern(r"libnuma: Warning: node (?:argument )?(?P<a>\d{1,10}) (?:is out of range|not allowed)"
                   r"|^<(?P<b>\d{1,10})> is invalid", CAUSE,
                   "numactl may not use NUMA node {a}{b}: the cpuset of the job or container excludes it, it"
                   f" has no memory, or it does not exist; {_NO_BIND}"),
    FailurePattern(r"This system does not support NUMA policy|No NUMA support available", CAUSE,
                   "numactl finds no NUMA policy: the kernel has none, or the container forbids it;"
                   f" {_NO_BIND}"),
    FailurePattern(r"failed to run command .numactl.: No such file|^env: .numactl.: No such file"
                   r"|^(?:[\w -]{1,20}: ){0,3}numactl: command not found", CAUSE,
                   f"numactl is not installed on the node of this test, or not in its PATH; {_NO_BIND}"),
    # SSH, and a missing program.
    FailurePattern(r"(?P<a>\S{1,120}): Permission denied"
                   r" \((?:publickey|password|gssapi|keyboard)[^)]{0,80}\)", CAUSE,
                   "SSH does not let {a} in without a password. Set up a key (ssh-copy-id): gdrtop does not"
                   " enter passwords"),
    FailurePattern(r"Host key verification failed", CAUSE,
                   "SSH does not know the peer's host key: log in once by hand"),
    FailurePattern(r"ssh: Could not resolve hostname (?P<a>\S{1,120}):", CAUSE,
                   "SSH cannot resolve the host name {a}"),
    FailurePattern(r"ssh: connect to host (?P<a>\S{1,120}) port (?P<b>\d{1,5}): (?P<c>[\w ]{1,60})", CAUSE,
                   "SSH cannot reach {a} (port {b}: {c})"),
    FailurePattern(r"failed to run command .(?P<a>[\w.\-]{1,60}).: No such file"
                   r"|^(?:env: |numactl: execution of )[^\w](?P<b>[\w.\-]{1,60}).: No such file"
                   r"|^(?:[\w -]{1,20}: ){0,3}(?P<c>[\w.\-]{1,60}): command not found", CAUSE,
                   "{a}{b}{c} is not installed on the node of this test, or not in its PATH"),
)  # fmt: skip
"""Compared with a line before the patterns of the tool itself."""

LAST_PATTERNS = (
    FailurePattern(r"(?:unrecognized|invalid) option (?:-- )?(?P<a>\S{1,60})", CAUSE,
                   "the installed version does not support the option {a}"),
    FailurePattern(r"(?i:address already in use)", CAUSE,
                   "the TCP port is taken: another test runs on this node, or use another port (--port)"),
    FailurePattern(r"getaddrinfo|Name or service not known", CAUSE, "the host name cannot be resolved"),
    FailurePattern(r"\[?(?P<a>CUDA_ERROR_\w{1,60})\]?", SYMPTOM, "CUDA failed: {a}"),
    FailurePattern(r"[Pp]ermission denied|Operation not permitted", SYMPTOM,
                   "the test needs root, or access to the device"),
    FailurePattern(r"error while loading shared libraries: (?P<a>\S{1,80}):", CAUSE,
                   "the library {a} is missing"),
    FailurePattern(r"[Ss]egmentation fault", FOLLOWS, "the test crashed"),
)  # fmt: skip
"""Compared with a line after the patterns of the tool itself."""
