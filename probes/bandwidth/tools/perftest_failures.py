"""What perftest's error lines mean.

Sources: linux-rdma/perftest src/perftest_{parameters,resources,communication}.c, src/cuda_memory.c and its
issues #31, #126, #140, #269, #280, #336, #346; numbers of ibv_wc_status and rdma_cm_event_type from
rdma-core's infiniband/verbs.h and rdma/rdma_cma.h. The options in the sentences are gdrtop's own.
"""

from __future__ import annotations

from collections.abc import Iterator

from probes.bandwidth.model.samples import BY_DMABUF, BY_PEERMEM, HOST_MEMORY
from probes.bandwidth.tools.failures import CAUSE, FOLLOWS, SYMPTOM, FailurePattern

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
            yield FailurePattern(pattern, CAUSE, text, memory)
        yield FailurePattern(pattern, CAUSE, f"with GPU memory: {texts[0]}; with host memory: {texts[2]}")
    other = r"Couldn't allocate MR with error=(?P<a>\d{1,4})"
    yield FailurePattern(other, CAUSE, "the memory could not be registered (errno {a})")


PATTERNS = (
    *_registration_patterns(),
    *(
        FailurePattern(rf"Failed status {status}:", FOLLOWS if status == 5 else CAUSE, text)
        for status, text in _COMPLETION_STATUS.items()
    ),
    FailurePattern(r"Failed status (?P<a>\d{1,3}):", CAUSE,
                   "a message was not delivered (ibv_wc_status {a})"),
    *(
        FailurePattern(rf"Unexpected CM event(?: bl blka)? {event}\b", CAUSE, text)
        for event, text in _CM_EVENTS.items()
    ),
    FailurePattern(r"Unexpected CM event(?: bl blka)? (?P<a>\d{1,3})", CAUSE,
                   "the rdma_cm connection failed (event {a})"),
    # The build and the options.
    FailurePattern(r"unrecognized option '--use_cuda(?!_dmabuf)[^']{0,60}'|^ ?Unsupported memory type", CAUSE,
                   "this perftest is built without CUDA and cannot use GPU memory, like most distributions'"
                   " packages. Build it from source or use NVIDIA's (DOCA, HPC-X, container)"),
    FailurePattern(r"DMABUF requested but not supported in this build"
                   r"|unrecognized option '--use_cuda_dmabuf'", CAUSE,
                   "this perftest is built without DMA-BUF: the build needs CUDA 11.7 and an rdma-core with"
                   " ibv_reg_dmabuf_mr"),
    FailurePattern(r"CUDA DMA-BUF cannot be used without CUDA", CAUSE,
                   "--use_cuda has to come before --use_cuda_dmabuf"),
    FailurePattern(r"Perftest supports CUDA (?:latency )?tests (?:with|only)"
                   r"|Perftest supports CUDA only in BW tests", CAUSE,
                   "this perftest is too old for this latency test with GPU memory: use ib_read_lat,"
                   " ib_send_lat or a newer perftest"),
    FailurePattern(r"(?P<a>\w[\w ]{1,40}) should be between (?P<b>\d{1,10} and \d{1,10})", CAUSE,
                   "an option is out of range: {a} must be between {b}"),
    FailurePattern(r"Duration mode currently doesn't support"
                   r"|run_infinitely (?:exists only|does not|mode is not)", CAUSE,
                   "perftest does not support these options together"),
    # The GPU.
    FailurePattern(r"Failed to load CUDA library dynamically", CAUSE,
                   "libcuda.so was not found: the driver's libraries are missing from the container,"
                   " or the driver was installed without CUDA"),
    FailurePattern(r"DMA-BUF is not supported on this GPU", CAUSE,
                   "the driver does not export this GPU's memory as DMA-BUF: this needs the open kernel"
                   " modules, CUDA 11.7 and kernel 5.12"),
    FailurePattern(r"cuMemGetHandleForAddressRange error=(?P<a>\d{1,4})", CAUSE,
                   "CUDA could not export the GPU memory as DMA-BUF (CUDA error {a})"),
    FailurePattern(r"No such device ID \((?P<a>\d{1,6})\) exists", CAUSE,
                   "there is no CUDA device {a} (is CUDA_VISIBLE_DEVICES set?)"),
    FailurePattern(r"cuDeviceGetByPCIBusId failed", CAUSE,
                   "CUDA does not see a GPU at this PCI address (CUDA_VISIBLE_DEVICES, a container, or"
                   " MIG?)"),
    FailurePattern(r"cuCtxCreate\(\) error=(?P<a>\d{1,4})", CAUSE,
                   "CUDA could not create a context (error {a}): the GPU is in exclusive mode or has failed"),
    FailurePattern(r"Couldn't init GPU context", SYMPTOM, "the GPU could not be initialized"),
    # The NIC.
    FailurePattern(r"IB device (?P<a>\S{1,64}) not found", CAUSE,
                   "there is no RDMA device {a} on this node, or in this container"),
    FailurePattern(r"No IB devices found|Did not detect devices"
                   r"|Unable to find the Infiniband/RoCE device", CAUSE,
                   "no RDMA device is visible: its driver is not loaded, or the container has no"
                   " /dev/infiniband"),
    FailurePattern(r"Port number (?P<a>\d{1,3}) state is (?P<b>\w{1,20})", CAUSE,
                   "port {a} of the NIC is {b}, not active"),
    FailurePattern(r"Couldn't get context for the device", SYMPTOM, "the RDMA device could not be opened"),
    FailurePattern(r"Failed to modify QP (?:\S{1,12} )?to (?P<a>RTR|RTS)", CAUSE,
                   "the two ports cannot connect: with RoCE, check the GID index (RoCE v2 with a routed"
                   " address, at both ends), the route and the MTU; with InfiniBand, check the subnet"
                   " manager"),
    FailurePattern(r"Found Incompatibility issue with GID types", CAUSE,
                   "the two ends use GIDs of different types (IPv4 and IPv6, or RoCE v1 and v2): give the GID"
                   " index at both ends"),
    # The connection.
    FailurePattern(r"Couldn't listen to port (?P<a>\d{1,5})", CAUSE,
                   "the TCP port is in use, perhaps by another test on this node; use another port (--port)"),
    FailurePattern(r"Couldn't connect to (?P<a>\S{1,255}:\d{1,5})", CAUSE,
                   "cannot connect to {a}: the server has not started yet, a firewall drops the port, or the"
                   " name is wrong"),
    FailurePattern(r"Couldn't resolve", CAUSE, "the host name cannot be resolved"),
    FailurePattern(r"Unable to connect \(retries", CAUSE, "the peer does not respond to rdma_cm"),
    FailurePattern(r"Unable to open file descriptor for socket connection"
                   r"|Unable to init the socket connection", SYMPTOM,
                   "the two ends could not connect over TCP: the server has not started, the address is"
                   " wrong, a firewall drops it, or it uses another port (--port)"),
    FailurePattern(r"Failed to exchange dat[ae] between server and clients|Couldn't read remote address",
                   SYMPTOM,
                   "the peer exited, or runs a different version of perftest: its own output shows why"),
    FailurePattern(r"Unable to Connect the HCA's through the link", SYMPTOM, "the two ports cannot connect"),
    FailurePattern(r"[Ff]ailed to create [Mm][Rr]|Couldn't create IB resources"
                   r"|Failed to initialize RDMA contexts", FOLLOWS,
                   "the NIC's resources could not be set up"),
    FailurePattern(r"Failed to (?:connect|handle|get|resolve) RDMA CM"
                   r"|Unable to perform rdma_(?:client|server) function", FOLLOWS,
                   "the rdma_cm connection failed"),
    FailurePattern(r"Parser function exited with Error|Invalid Command or flag", FOLLOWS,
                   "perftest rejects its options"),
    FailurePattern(r"Completion with error at (?P<a>client|server)", FOLLOWS,
                   "a message was not delivered"),
    FailurePattern(r"Failed to complete run_iter_\w{1,20} function", FOLLOWS, "the measurement stopped"),
)  # fmt: skip
"""Listed in matching order."""
