"""Why a test failed, in one sentence for an admin: by its output, exit status and perftest's error lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from probes.bandwidth.model.samples import (
    BY_DMABUF,
    BY_PEERMEM,
    HOST_MEMORY,
    LINE_LIMIT,
    Fact,
    Sample,
    clean_line,
)
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
    text: str
    rank: int = CAUSE  # CAUSE, SYMPTOM or FOLLOWS
    memory: str = ""  # HOST_MEMORY, BY_PEERMEM or BY_DMABUF: only with this memory; "": with any

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern, compiled when a line is first compared with it."""
        return re.compile(self.pattern)


def failure_patterns(*rows: tuple[str, str] | tuple[str, str, int]) -> tuple[FailurePattern, ...]:
    """Return a table of rows: a pattern, its sentence, and how much that explains unless it is the cause."""
    return tuple(FailurePattern(*row) for row in rows)


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

FIRST_PATTERNS = failure_patterns(
    # The GPU.
    (r"cuInit\(0\) returned 100\b|no available device\(s\) that support CUDA", "CUDA sees no GPU"),
    (r"cuInit\(0\) returned (?:802|803)\b",
     "the GPUs are not ready: the fabric manager is not running (802), or driver components have different"
     " versions (803)"),
    (r"cuInit\(0\) returned (?P<a>\d{1,4})", "CUDA failed to start (error {a})"),
    (r"cuMemAlloc\w{0,12} error=2\b|out of memory", "the GPU's memory is full"),
    (r"libcuda\.so[^ ]{0,8}: cannot open shared object",
     "libcuda.so was not found: the driver's libraries are missing from the container, or the driver was"
     " installed without CUDA"),
    # numactl.
    (_BINDING,
     "numactl cannot bind: a container's seccomp profile forbids it without CAP_SYS_NICE (Docker:"
     f" --cap-add SYS_NICE); {_NO_BIND}"),
    (r"sched_setaffinity\S{0,20}(?: failed)?: Invalid argument",
     "numactl cannot use the NUMA node's CPUs: the cpuset of the job or container excludes them, or the"
     f" node has no CPUs; {_NO_BIND}"),
    (r"(?:set_mempolicy|mbind|setting membind): Invalid argument",
     "numactl cannot use the NUMA node's memory: the cpuset of the job or container excludes it, or the"
     f" node has no memory; {_NO_BIND}"),
    (r"libnuma: Warning: node (?:argument )?(?P<a>\d{1,10}) (?:is out of range|not allowed)"
     r"|^<(?P<b>\d{1,10})> is invalid",
     "numactl cannot use NUMA node {a}{b}: the cpuset of the job or container excludes it, it"
     f" has no memory, or it does not exist; {_NO_BIND}"),
    (r"This system does not support NUMA policy|No NUMA support available",
     f"NUMA policy is unavailable: the kernel does not support it, or the container forbids it; {_NO_BIND}"),
    (r"failed to run command .numactl.: No such file|^env: .numactl.: No such file"
     r"|^(?:[\w -]{1,20}: ){0,3}numactl: command not found",
     f"numactl is not installed on the test node, or not in its PATH; {_NO_BIND}"),
    # SSH, and a missing program.
    (r"(?P<a>\S{1,120}): Permission denied \((?:publickey|password|gssapi|keyboard)[^)]{0,80}\)",
     "SSH login to {a} without a password failed. Set up a key (ssh-copy-id): gdrtop does not enter"
     " passwords"),
    (r"Host key verification failed", "SSH does not know the peer's host key: log in once by hand"),
    (r"ssh: Could not resolve hostname (?P<a>\S{1,120}):", "SSH cannot resolve the host name {a}"),
    (r"ssh: connect to host (?P<a>\S{1,120}) port (?P<b>\d{1,5}): (?P<c>[\w ]{1,60})",
     "SSH cannot reach {a} (port {b}: {c})"),
    (r"failed to run command .(?P<a>[\w.\-]{1,60}).: No such file"
     r"|^(?:env: |numactl: execution of )[^\w](?P<b>[\w.\-]{1,60}).: No such file"
     r"|^(?:[\w -]{1,20}: ){0,3}(?P<c>[\w.\-]{1,60}): command not found",
     "{a}{b}{c} is not installed on the test node, or not in its PATH"),
)  # fmt: skip
"""Compared with a line before the patterns of the tool itself."""

LAST_PATTERNS = failure_patterns(
    (r"(?:unrecognized|invalid) option (?:-- )?(?P<a>\S{1,60})",
     "the installed version does not support the option {a}"),
    (r"(?i:address already in use)",
     "the TCP port is in use, perhaps by another test on this node; use another port (--port)"),
    (r"getaddrinfo|Name or service not known", "the host name cannot be resolved"),
    (r"\[?(?P<a>CUDA_ERROR_\w{1,60})\]?", "CUDA failed: {a}", SYMPTOM),
    (r"[Pp]ermission denied|Operation not permitted",
     "the test needs root, or access to the device", SYMPTOM),
    (r"error while loading shared libraries: (?P<a>\S{1,80}):", "the library {a} is missing"),
    (r"[Ss]egmentation fault", "the test crashed", FOLLOWS),
)  # fmt: skip
"""Compared with a line after the patterns of the tool itself."""


# What perftest's error lines mean.
#
# Sources: linux-rdma/perftest src/perftest_{parameters,resources,communication}.c, src/cuda_memory.c and its
# issues #31, #126, #140, #269, #280, #336, #346; numbers of ibv_wc_status and rdma_cm_event_type from rdma-
# core's infiniband/verbs.h and rdma/rdma_cma.h. The options in the sentences are gdrtop's own.

_NO_PEERMEM = (
    "nvidia_peermem does not handle this GPU memory: load it, or test with DMA-BUF (--memory dmabuf) if this"
    " node uses that"
)
_NO_DMABUF = (
    "the RDMA driver or its library cannot register DMA-BUF memory: this needs kernel 5.12 or newer, and an"
    " mlx5 driver and rdma-core that support it (in a container, the container's own rdma-core)"
)
_MEMLOCK = "the locked memory limit is too low: set ulimit -l unlimited, also for SSH sessions and services"
# DMA-BUF does not count as locked memory: the kernel pins no pages of the process.
_NO_ROOM = "the GPU's BAR1 is full, or the NIC's firmware has no resources left (see the kernel log)"
_NO_ACCESS = (
    "the NVIDIA driver does not give this NIC access to GPU memory (errno 524): it does not support the PCI"
    " topology, or NVreg_GrdmaPciTopoCheckOverride=2 is set (see the kernel log)"
)
_NO_SUPPORT = "the RDMA driver does not support this registration"

REGISTRATION_ERRORS: dict[int, tuple[str, str, str]] = {
    14: (
        _NO_PEERMEM,
        "the DMA-BUF of the GPU memory could not be mapped for the NIC (EFAULT)",
        "the buffer could not be pinned (EFAULT)",
    ),
    93: (_NO_PEERMEM, _NO_DMABUF, "the RDMA library does not support this kind of registration"),
    95: (
        "the RDMA driver does not support this registration of GPU memory, neither via nvidia_peermem nor via"
        " DMA-BUF",
        _NO_DMABUF,
        _NO_SUPPORT,
    ),
    22: (
        "the RDMA driver rejects the address: nvidia_peermem was built for a different OFED than the loaded"
        " one, or this GPU is not a data center GPU",
        "the RDMA driver rejects the DMA-BUF: its GPU memory is not mapped over PCIe, or the access flags"
        " (relaxed ordering) are rejected",
        "the RDMA driver rejects the registration (EINVAL)",
    ),
    524: (_NO_ACCESS, _NO_ACCESS, _NO_SUPPORT),
    12: (f"{_MEMLOCK}; or {_NO_ROOM}", f"memory registration failed (ENOMEM): {_NO_ROOM}", _MEMLOCK),
    1: ("the test needs root or CAP_IPC_LOCK",) * 3,
}
"""errno of registering memory → the sentence for nvidia-peermem, DMA-BUF and host memory."""
_WITHOUT_ERRNO = (
    "the GPU memory could not be registered, most often because nvidia_peermem is not loaded (this perftest"
    " is too old to report the reason)",
    "the DMA-BUF of the GPU memory could not be registered",
    "the buffer could not be registered, most often because of the locked memory limit (ulimit -l)",
)

_COMPLETION_STATUS = {
    4: "the NIC could not reach the local memory; with GPU memory, usually because of ACS redirection on the"
    " switches between GPU and NIC, or because nvidia_peermem was built for a different OFED",
    5: "an earlier error caused this: look for the first error with a different status",
    9: "the peer refused the request: the two ends run different tests",
    10: "the peer's memory was too small or not accessible: start both ends with the same sizes (--size)",
    11: "the peer could not execute the request; with GPU memory, usually because of ACS redirection at the"
    " peer's GPU",
    12: "the peer did not respond: with RoCE because of a wrong GID index, no route between the ports or lost"
    " packets; with InfiniBand because of the path or the peer's port",
    13: "the peer took too long to become ready to receive",
}
"""ibv_wc_status in "Failed status N" → sentence."""

_CM_EVENTS = {
    1: "the address cannot be resolved on an RDMA device: give the address of the RoCE or IPoIB interface",
    3: "there is no RDMA route to the peer",
    6: "the connection failed",
    7: "RDMA cannot reach the peer: this is not the address of its RDMA interface, or there is no route",
    8: "the peer refused the connection: no server listens on this port",
    10: "the peer closed the connection: its own output shows why",
}
"""rdma_cm_event_type in "Unexpected CM event bl blka N" → sentence."""


def _registration_patterns() -> Iterator[FailurePattern]:
    """Yield a row for each error and memory, and one for memory that is unknown."""
    tables = [(rf" with error={errno}\b", texts) for errno, texts in REGISTRATION_ERRORS.items()]
    for suffix, texts in (*tables, ("(?! with error)", _WITHOUT_ERRNO)):
        pattern = f"Couldn't allocate MR{suffix}"
        for memory, text in zip((BY_PEERMEM, BY_DMABUF, HOST_MEMORY), texts, strict=True):
            yield FailurePattern(pattern, text, memory=memory)
        yield FailurePattern(pattern, f"with GPU memory: {texts[0]}; with host memory: {texts[2]}")
    other = r"Couldn't allocate MR with error=(?P<a>\d{1,4})"
    yield FailurePattern(other, "the memory could not be registered (errno {a})")


PATTERNS = *_registration_patterns(), *failure_patterns(
    *(
        (rf"Failed status {status}:", text, FOLLOWS if status == 5 else CAUSE)
        for status, text in _COMPLETION_STATUS.items()
    ),
    (r"Failed status (?P<a>\d{1,3}):", "a message was not delivered (ibv_wc_status {a})"),
    *(
        (rf"Unexpected CM event(?: bl blka)? {event}\b", text)
        for event, text in _CM_EVENTS.items()
    ),
    (r"Unexpected CM event(?: bl blka)? (?P<a>\d{1,3})", "the rdma_cm connection failed (event {a})"),
    # The build and the options.
    (r"unrecognized option '--use_cuda(?!_dmabuf)[^']{0,60}'|^ ?Unsupported memory type",
     "this perftest is built without CUDA and cannot use GPU memory, like most distributions' packages."
     " Build it from source or use NVIDIA's (DOCA, HPC-X, container)"),
    (r"DMABUF requested but not supported in this build|unrecognized option '--use_cuda_dmabuf'",
     "this perftest is built without DMA-BUF: the build needs CUDA 11.7 and an rdma-core with"
     " ibv_reg_dmabuf_mr"),
    (r"CUDA DMA-BUF cannot be used without CUDA", "--use_cuda has to come before --use_cuda_dmabuf"),
    (r"Perftest supports CUDA (?:latency )?tests (?:with|only)|Perftest supports CUDA only in BW tests",
     "this perftest is too old for this latency test with GPU memory: use ib_read_lat, ib_send_lat or a"
     " newer perftest"),
    (r"(?P<a>\w[\w ]{1,40}) should be between (?P<b>\d{1,10} and \d{1,10})",
     "an option is out of range: {a} must be between {b}"),
    (r"Duration mode currently doesn't support|run_infinitely (?:exists only|does not|mode is not)",
     "perftest does not support these options together"),
    # The GPU.
    (r"Failed to load CUDA library dynamically",
     "libcuda.so was not found: the driver's libraries are missing from the container, or the driver was"
     " installed without CUDA"),
    (r"DMA-BUF is not supported on this GPU",
     "the driver does not export this GPU's memory as DMA-BUF: this needs the open kernel modules, CUDA"
     " 11.7 and kernel 5.12"),
    (r"cuMemGetHandleForAddressRange error=(?P<a>\d{1,4})",
     "CUDA could not export the GPU memory as DMA-BUF (CUDA error {a})"),
    (r"No such device ID \((?P<a>\d{1,6})\) exists",
     "there is no CUDA device {a} (is CUDA_VISIBLE_DEVICES set?)"),
    (r"cuDeviceGetByPCIBusId failed",
     "CUDA does not see a GPU at this PCI address (CUDA_VISIBLE_DEVICES, a container, or MIG?)"),
    (r"cuCtxCreate\(\) error=(?P<a>\d{1,4})",
     "CUDA could not create a context (error {a}): the GPU is in exclusive mode or has failed"),
    (r"Couldn't init GPU context", "the GPU could not be initialized", SYMPTOM),
    # The NIC.
    (r"IB device (?P<a>\S{1,64}) not found",
     "there is no RDMA device {a} on this node, or in this container"),
    (r"No IB devices found|Did not detect devices|Unable to find the Infiniband/RoCE device",
     "no RDMA device is visible: its driver is not loaded, or the container has no /dev/infiniband"),
    (r"Port number (?P<a>\d{1,3}) state is (?P<b>\w{1,20})", "port {a} of the NIC is {b}, not active"),
    (r"Couldn't get context for the device", "the RDMA device could not be opened", SYMPTOM),
    (r"Failed to modify QP (?:\S{1,12} )?to (?P<a>RTR|RTS)",
     "the two ports cannot connect: with RoCE, check the GID index (RoCE v2 with a routed address, at both"
     " ends), the route and the MTU; with InfiniBand, check the subnet manager"),
    (r"Found Incompatibility issue with GID types",
     "the two ends use GIDs of different types (IPv4 and IPv6, or RoCE v1 and v2): give the GID index at"
     " both ends"),
    # The connection.
    (r"Couldn't listen to port (?P<a>\d{1,5})",
     "the TCP port is in use, perhaps by another test on this node; use another port (--port)"),
    (r"Couldn't connect to (?P<a>\S{1,255}:\d{1,5})",
     "cannot connect to {a}: the server has not started yet, a firewall drops the port, or the name is"
     " wrong"),
    (r"Couldn't resolve", "the host name cannot be resolved"),
    (r"Unable to connect \(retries", "the peer does not respond to rdma_cm"),
    (r"Unable to open file descriptor for socket connection|Unable to init the socket connection",
     "the two ends could not connect over TCP: the server has not started, the address is wrong, a"
     " firewall drops it, or it uses another port (--port)", SYMPTOM),
    (r"Failed to exchange dat[ae] between server and clients|Couldn't read remote address",
     "the peer exited, or runs a different version of perftest: its own output shows why", SYMPTOM),
    (r"Unable to Connect the HCA's through the link", "the two ports cannot connect", SYMPTOM),
    (r"[Ff]ailed to create [Mm][Rr]|Couldn't create IB resources|Failed to initialize RDMA contexts",
     "the NIC's resources could not be set up", FOLLOWS),
    (r"Failed to (?:connect|handle|get|resolve) RDMA CM|Unable to perform rdma_(?:client|server) function",
     "the rdma_cm connection failed", FOLLOWS),
    (r"Parser function exited with Error|Invalid Command or flag", "perftest rejects its options", FOLLOWS),
    (r"Completion with error at (?P<a>client|server)", "a message was not delivered", FOLLOWS),
    (r"Failed to complete run_iter_\w{1,20} function", "the measurement stopped", FOLLOWS),
)  # fmt: skip
"""Listed in matching order."""
