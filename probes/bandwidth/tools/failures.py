"""Why a test failed, in one sentence for an admin, from its output and its exit status."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from probes.bandwidth.model.samples import BY_DMABUF, BY_PEERMEM, LINE_LIMIT, Fact, Sample, clean_line
from probes.base.frozen import frozen

CAUSE, SYMPTOM, FOLLOWS = 0, 1, 2
"""How much a line explains: the cause, what failed, or only that something failed before it."""
_GPU = re.compile(r"^(?:initializing CUDA|creating CUDA Ctx|allocated GPU buffer)")
_DMABUF = re.compile(r"^using DMA-BUF for GPU buffer|^Calling ibv_reg_(?:dmabuf_mr|mr_ex with dmabuf)")
_LINES = 2000
_SIGNALS = {
    2: "the test was interrupted",
    9: "the test was killed",
    11: "the test crashed (segmentation fault)",
    15: "the test was terminated",
}


@frozen
class FailurePattern:
    """One row of a table: a line that matches means this sentence, in which {a} is the group `a`."""

    pattern: str
    rank: int  # CAUSE, SYMPTOM or FOLLOWS
    text: str
    memory: str = ""  # HOST_MEMORY, BY_PEERMEM or BY_DMABUF: only with this memory; "": with any

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern, compiled when a line is first compared with it."""
        return re.compile(self.pattern)


@frozen
class Failure:
    """One thing that went wrong."""

    text: str  # one sentence
    raw: str  # the line it was read from; "" if only the exit status is known
    rank: int  # CAUSE, SYMPTOM or FOLLOWS: the lower, the more it explains


Output = Sample | Fact | Failure
"""What a parser reads from a line."""


def memory_in(lines: Iterable[str]) -> str:
    """Return the memory that perftest's lines name; "" if none does. The lines may be in any order."""
    memory = ""
    for line in lines:
        if _DMABUF.match(line):
            return BY_DMABUF
        if _GPU.match(line):
            memory = BY_PEERMEM
    return memory


def failure_in(line: str, patterns: Iterable[FailurePattern], memory: str = "") -> Failure | None:
    """Return the failure of the first pattern that matches a line, in the order of the table."""
    line = line[:LINE_LIMIT]
    for row in patterns:
        if row.memory not in ("", memory):
            continue
        if match := row.compiled.search(line):
            groups = {name: clean_line(text or "") for name, text in match.groupdict().items()}
            return Failure(row.text.format(**groups), clean_line(line), row.rank)
    return None


def failures_in(line: str, patterns: Iterable[FailurePattern], memory: str = "") -> tuple[Output, ...]:
    """Return the failure in a line as a parser returns what it reads."""
    failure = failure_in(line, patterns, memory)
    return () if failure is None else (failure,)


def most_telling(
    lines: Sequence[str], status: int | None, patterns: Sequence[FailurePattern], memory: str = ""
) -> Failure | None:
    """Return the failure that explains most of a run; None if the run succeeded.

    `status` is the exit status, negative for a signal as in subprocess; None while the test runs. `memory`
    is what was requested, if known.
    """
    if len(lines) > 2 * _LINES:
        # In a long log the first error is the cause, and the last lines show how it ended.
        lines = [*lines[:_LINES], *lines[-_LINES:]]
    memory = memory or memory_in(lines)
    if status == 0:
        # A test that succeeded may still have printed warnings. Only wrong results count.
        lines = [line for line in lines if "FAILED" in line]
    failures = filter(None, (failure_in(line, patterns, memory) for line in lines))
    best = min(failures, key=lambda failure: failure.rank, default=None)
    return best if best is not None or not status else _from_status(status, lines)


def _from_status(status: int, lines: Sequence[str]) -> Failure:
    signal = -status if status < 0 else status - 128
    raw = next((clean_line(line) for line in reversed(lines) if line.strip()), "")
    if signal in _SIGNALS:
        return Failure(_SIGNALS[signal], raw, SYMPTOM)
    if status == 127:
        return Failure("the program was not found", raw, CAUSE)
    if status == 126:
        return Failure("the program is not executable", raw, CAUSE)
    if status == 124:
        return Failure("the test exceeded its time limit", raw, SYMPTOM)
    return Failure(f"the test exited with status {status}", raw, FOLLOWS)


# What any of the tools can print: CUDA, SSH, numactl and the system. Sources: numactl/numactl numactl.c and
# libnuma.c, the lines as version 2.0.16 prints them; Docker's default seccomp profile, which allows
# set_mempolicy and mbind only with CAP_SYS_NICE; sched_setaffinity(2). The options in the sentences are
# gdrtop's own.
_NO_BIND = "use --no-bind to measure without binding"
_BINDING = (
    r"(?:set_mempolicy|mbind|setting membind|sched_setaffinity\S{0,20}(?: failed)?): Operation not permitted"
)

FIRST_PATTERNS = (
    # The GPU.
    FailurePattern(r"cuInit\(0\) returned 100\b|no available device\(s\) that support CUDA", CAUSE,
                   "CUDA sees no GPU"),
    FailurePattern(r"cuInit\(0\) returned (?:802|803)\b", CAUSE,
                   "the GPUs are not ready: the fabric manager is not running (802), or driver"
                   " components have different versions (803)"),
    FailurePattern(r"cuInit\(0\) returned (?P<a>\d{1,4})", CAUSE, "CUDA failed to start (error {a})"),
    FailurePattern(r"cuMemAlloc\w{0,12} error=2\b|out of memory", CAUSE, "the GPU's memory is full"),
    FailurePattern(r"libcuda\.so[^ ]{0,8}: cannot open shared object", CAUSE,
                   "libcuda.so was not found: the driver's libraries are missing from the container,"
                   " or the driver was installed without CUDA"),
    # numactl.
    FailurePattern(_BINDING, CAUSE,
                   "numactl cannot bind: a container's seccomp profile forbids it without CAP_SYS_NICE"
                   f" (Docker: --cap-add SYS_NICE); {_NO_BIND}"),
    FailurePattern(r"sched_setaffinity\S{0,20}(?: failed)?: Invalid argument", CAUSE,
                   "numactl cannot use the NUMA node's CPUs: the cpuset of the job or container excludes"
                   f" them, or the node has no CPUs; {_NO_BIND}"),
    FailurePattern(r"(?:set_mempolicy|mbind|setting membind): Invalid argument", CAUSE,
                   "numactl cannot use the NUMA node's memory: the cpuset of the job or container excludes"
                   f" it, or the node has no memory; {_NO_BIND}"),
    FailurePattern(r"libnuma: Warning: node (?:argument )?(?P<a>\d{1,10}) (?:is out of range|not allowed)"
                   r"|^<(?P<b>\d{1,10})> is invalid", CAUSE,
                   "numactl cannot use NUMA node {a}{b}: the cpuset of the job or container excludes it, it"
                   f" has no memory, or it does not exist; {_NO_BIND}"),
    FailurePattern(r"This system does not support NUMA policy|No NUMA support available", CAUSE,
                   "NUMA policy is unavailable: the kernel does not support it, or the container forbids it;"
                   f" {_NO_BIND}"),
    FailurePattern(r"failed to run command .numactl.: No such file|^env: .numactl.: No such file"
                   r"|^(?:[\w -]{1,20}: ){0,3}numactl: command not found", CAUSE,
                   f"numactl is not installed on the test node, or not in its PATH; {_NO_BIND}"),
    # SSH, and a missing program.
    FailurePattern(r"(?P<a>\S{1,120}): Permission denied"
                   r" \((?:publickey|password|gssapi|keyboard)[^)]{0,80}\)", CAUSE,
                   "SSH login to {a} without a password failed. Set up a key (ssh-copy-id): gdrtop does not"
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
                   "{a}{b}{c} is not installed on the test node, or not in its PATH"),
)  # fmt: skip
"""Compared with a line before the patterns of the tool itself."""

LAST_PATTERNS = (
    FailurePattern(r"(?:unrecognized|invalid) option (?:-- )?(?P<a>\S{1,60})", CAUSE,
                   "the installed version does not support the option {a}"),
    FailurePattern(r"(?i:address already in use)", CAUSE,
                   "the TCP port is in use, perhaps by another test on this node; use another port (--port)"),
    FailurePattern(r"getaddrinfo|Name or service not known", CAUSE, "the host name cannot be resolved"),
    FailurePattern(r"\[?(?P<a>CUDA_ERROR_\w{1,60})\]?", SYMPTOM, "CUDA failed: {a}"),
    FailurePattern(r"[Pp]ermission denied|Operation not permitted", SYMPTOM,
                   "the test needs root, or access to the device"),
    FailurePattern(r"error while loading shared libraries: (?P<a>\S{1,80}):", CAUSE,
                   "the library {a} is missing"),
    FailurePattern(r"[Ss]egmentation fault", FOLLOWS, "the test crashed"),
)  # fmt: skip
"""Compared with a line after the patterns of the tool itself."""
