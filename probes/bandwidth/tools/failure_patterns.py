"""What the tools' error lines mean, as patterns and sentences; troubles.py chooses among them.

Sources: linux-rdma/perftest src/perftest_{parameters,resources,communication}.c, src/cuda_memory.c and
its issues #31, #126, #140, #269, #280, #336, #346; NVIDIA/gdrcopy src/gdrapi.c and tests/common.hpp;
NVIDIA/nccl-tests src/common.h; numbers of ibv_wc_status and rdma_cm_event_type from rdma-core's
infiniband/verbs.h and rdma/rdma_cma.h. Options that are to be given are gdrtop's own.
"""

from __future__ import annotations

from probes.bandwidth.tools.numactl_texts import NUMACTL_TEXTS

CAUSE, SYMPTOM, FOLLOWS = 0, 1, 2
"""How much a line explains: the cause, what failed, or only that something failed before."""

# Errors of registering memory, by errno: (GPU memory by nvidia-peermem, by DMA-BUF, host memory).
_NO_PEERMEM = (
    "nvidia_peermem does not serve this GPU memory: load it, or test by DMA-BUF (--memory dmabuf) if that"
    " is what this node uses"
)
_NO_DMABUF = (
    "the RDMA driver or its library cannot register DMA-BUF memory: kernel 5.12 or newer, an mlx5 driver and"
    " an rdma-core that know it are needed; in a container, the container's own rdma-core"
)
_MEMLOCK = "the locked memory limit is too low: ulimit -l unlimited, also for SSH sessions and services"
# Locked memory is not counted for DMA-BUF: the kernel pins no pages of the process.
_NO_ROOM = "the GPU's BAR1 is full, or the NIC's firmware has no resources left (see the kernel log)"
MR_ERRORS: dict[int, tuple[str, str, str]] = {
    14: (
        _NO_PEERMEM,
        "the DMA-BUF of the GPU memory could not be mapped for the NIC (EFAULT)",
        "the buffer could not be pinned (EFAULT)",
    ),
    93: (_NO_PEERMEM, _NO_DMABUF, "the RDMA library does not support this kind of registration"),
    95: (
        "the RDMA driver does not support this registration of GPU memory, neither by nvidia_peermem nor by"
        " DMA-BUF",
        _NO_DMABUF,
        "the RDMA driver does not support this registration",
    ),
    22: (
        "the RDMA driver refuses the address: nvidia_peermem was built for another OFED than the one"
        " loaded, or"
        " this GPU is not a data center GPU",
        "the RDMA driver refuses the DMA-BUF: its GPU memory is not mapped by PCIe, or the access flags"
        " (relaxed"
        " ordering) are refused",
        "the RDMA driver refuses the registration (EINVAL)",
    ),
    524: (
        "the NVIDIA driver does not give this NIC access to GPU memory (errno 524): it does not support the "
        "PCI topology, or NVreg_GrdmaPciTopoCheckOverride=2 is set (see the kernel log)",
    )
    * 2
    + ("the RDMA driver does not support this registration",),
    12: (f"{_MEMLOCK}; or {_NO_ROOM}", f"no room for the registration (ENOMEM): {_NO_ROOM}", _MEMLOCK),
    1: ("it needs root or CAP_IPC_LOCK",) * 3,
}
MR_OLD = (
    "the GPU memory could not be registered, most often because nvidia_peermem is not loaded (this perftest"
    " is too old to report the reason)",
    "the DMA-BUF of the GPU memory could not be registered",
    "the buffer could not be registered, most often because of the locked memory limit (ulimit -l)",
)

COMPLETION_STATUS: dict[int, str] = {
    4: "the NIC could not reach the local memory; with GPU memory mostly ACS redirection on the switches"
    " between GPU and NIC, or an nvidia_peermem built for another OFED",
    5: "a consequence of an earlier error: the first other status shows the cause",
    9: "the peer refused the request: different tests run at the two ends",
    10: "the peer's memory was too small or not open to it: start both ends with the same sizes (--size)",
    11: "the peer could not carry it out; with GPU memory mostly ACS redirection at the peer's GPU",
    12: "the peer did not answer: with RoCE a wrong GID index, no route between the ports or lost"
    " packets; with InfiniBand the path or the peer's port",
    13: "the peer was not ready to receive for too long",
}
"""ibv_wc_status of perftest's "Failed status N" → why."""

CM_EVENTS: dict[int, str] = {
    1: "the address cannot be resolved on an RDMA device: give the address of the RoCE or IPoIB interface",
    3: "no RDMA route to the peer",
    6: "the connection failed",
    7: "the peer cannot be reached by RDMA: not its RDMA interface's address, or no route",
    8: "the peer refused: no server listens on this port",
    10: "the peer closed the connection: its own output shows why",
}
"""rdma_cm_event_type of "Unexpected CM event bl blka N" → why."""

TEXTS: tuple[tuple[str, int, str], ...] = (
    # The build and the options.
    (
        r"unrecognized option '--use_cuda(?!_dmabuf)[^']{0,60}'|^ ?Unsupported memory type",
        CAUSE,
        "this perftest is built without CUDA and cannot use GPU memory: distributions ship it like that."
        " Build it from source or use NVIDIA's (DOCA, HPC-X, container)",
    ),
    (
        r"DMABUF requested but not supported in this build|unrecognized option '--use_cuda_dmabuf'",
        CAUSE,
        "this perftest is built without DMA-BUF: it needs CUDA 11.7 and an rdma-core with ibv_reg_dmabuf_mr"
        " at build time",
    ),
    (r"CUDA DMA-BUF cannot be used without CUDA", CAUSE, "--use_cuda has to come before --use_cuda_dmabuf"),
    (
        r"Perftest supports CUDA (?:latency )?tests (?:with|only)|Perftest supports CUDA only in BW tests",
        CAUSE,
        "this perftest is too old for this latency test with GPU memory: use ib_read_lat, ib_send_lat"
        " or a newer perftest",
    ),
    (
        r"(?:unrecognized|invalid) option (?:-- )?(?P<a>\S{1,60})",
        CAUSE,
        "the installed version does not support the option {a}",
    ),
    (
        r"(?P<a>\w[\w ]{1,40}) should be between (?P<b>\d{1,10} and \d{1,10})",
        CAUSE,
        "an option is out of its range: {a} between {b}",
    ),
    (
        r"Duration mode currently doesn't support|run_infinitely (?:exists only|does not|mode is not)",
        CAUSE,
        "perftest does not support these options together",
    ),
    # The GPU.
    (
        r"Failed to load CUDA library dynamically|libcuda\.so[^ ]{0,8}: cannot open shared object",
        CAUSE,
        "libcuda.so was not found: in a container without the driver's libraries, or a driver without"
        " compute",
    ),
    (
        r"DMA-BUF is not supported on this GPU",
        CAUSE,
        "the driver does not export this GPU's memory as DMA-BUF: it needs the open kernel modules,"
        " CUDA 11.7 and kernel 5.12",
    ),
    (
        r"cuMemGetHandleForAddressRange error=(?P<a>\d{1,4})",
        CAUSE,
        "CUDA could not export the GPU memory as DMA-BUF (CUDA error {a})",
    ),
    (
        r"No such device ID \((?P<a>\d{1,6})\) exists",
        CAUSE,
        "there is no CUDA device {a} (CUDA_VISIBLE_DEVICES?)",
    ),
    (
        r"cuDeviceGetByPCIBusId failed",
        CAUSE,
        "CUDA does not see a GPU at this PCI address (CUDA_VISIBLE_DEVICES, a container, or MIG?)",
    ),
    (
        r"cuInit\(0\) returned (?:802|803)\b",
        CAUSE,
        "the GPUs are not ready: the fabric manager is not running (802) or the driver's parts differ (803)",
    ),
    (r"cuInit\(0\) returned 100\b|no available device\(s\) that support CUDA", CAUSE, "CUDA sees no GPU"),
    (r"cuInit\(0\) returned (?P<a>\d{1,4})", CAUSE, "CUDA does not start (error {a})"),
    (r"cuMemAlloc\w{0,12} error=2\b|out of memory", CAUSE, "the GPU's memory is full"),
    (
        r"cuCtxCreate\(\) error=(?P<a>\d{1,4})",
        CAUSE,
        "CUDA could not create a context (error {a}): the GPU is in exclusive mode, or has failed",
    ),
    (r"Couldn't init GPU context", SYMPTOM, "the GPU could not be initialized"),
    # The NIC.
    (r"IB device (?P<a>\S{1,64}) not found", CAUSE, "there is no RDMA device {a} here (in this container?)"),
    (
        r"No IB devices found|Did not detect devices|Unable to find the Infiniband/RoCE device",
        CAUSE,
        "no RDMA device is visible: no driver, or a container without /dev/infiniband",
    ),
    (r"Port number (?P<a>\d{1,3}) state is (?P<b>\w{1,20})", CAUSE, "port {a} of the NIC is {b}, not active"),
    (r"Couldn't get context for the device", SYMPTOM, "the RDMA device could not be opened"),
    (
        r"Failed to modify QP (?:\S{1,12} )?to (?P<a>RTR|RTS)",
        CAUSE,
        "the two ports cannot connect: with RoCE the GID index (RoCE v2 with an address that is"
        " routed, on both ends), a route and the same MTU; with InfiniBand, check the subnet manager",
    ),
    (
        r"Found Incompatibility issue with GID types",
        CAUSE,
        "the two ends use GIDs of different kinds (IPv4 and IPv6, or RoCE v1 and v2): give both their GID"
        " index",
    ),
    # What goes before the tool, and the peer.
    *((pattern, CAUSE, told) for pattern, told in NUMACTL_TEXTS),
    (
        r"(?P<a>\S{1,120}): Permission denied \((?:publickey|password|gssapi|keyboard)[^)]{0,80}\)",
        CAUSE,
        "SSH does not let {a} in without a password. Set up a key (ssh-copy-id); gdrtop enters no password",
    ),
    (
        r"Host key verification failed",
        CAUSE,
        "SSH does not know the peer's host key: log in once by hand",
    ),
    (
        r"ssh: Could not resolve hostname (?P<a>\S{1,120}):",
        CAUSE,
        "SSH cannot resolve the host name {a}",
    ),
    (
        r"ssh: connect to host (?P<a>\S{1,120}) port (?P<b>\d{1,5}): (?P<c>[\w ]{1,60})",
        CAUSE,
        "SSH does not reach {a} (port {b}: {c})",
    ),
    (
        r"failed to run command .(?P<a>[\w.\-]{1,60}).: No such file"
        r"|^(?:env: |numactl: execution of )[^\w](?P<b>[\w.\-]{1,60}).: No such file"
        r"|^(?:[\w -]{1,20}: ){0,3}(?P<c>[\w.\-]{1,60}): command not found",
        CAUSE,
        "{a}{b}{c} is not installed where it was to run, or not in the PATH there",
    ),
    # The connection.
    (
        r"Couldn't listen to port (?P<a>\d{1,5})|(?i:address already in use)",
        CAUSE,
        "the TCP port is taken: another test runs on this node, or take another port (--port)",
    ),
    (
        r"Couldn't connect to (?P<a>\S{1,255}:\d{1,5})",
        CAUSE,
        "nothing answers at {a}: the server is not started yet, a firewall drops the port, or the name is"
        " wrong",
    ),
    (r"Couldn't resolve|getaddrinfo|Name or service not known", CAUSE, "the host name cannot be resolved"),
    (r"Unable to connect \(retries", CAUSE, "the peer does not respond by rdma_cm"),
    (
        r"Unable to open file descriptor for socket connection|Unable to init the socket connection",
        SYMPTOM,
        "the two ends could not connect by TCP: server not started, wrong address, firewall, or another"
        " port (--port)",
    ),
    (
        r"Failed to exchange dat[ae] between server and clients|Couldn't read remote address",
        SYMPTOM,
        "the peer ended or is another version of perftest: its own output shows why",
    ),
    (r"Unable to Connect the HCA's through the link", SYMPTOM, "the two ports cannot connect"),
    (
        r"[Ff]ailed to create [Mm][Rr]|Couldn't create IB resources|Failed to initialize RDMA contexts",
        FOLLOWS,
        "the resources of the NIC could not be set up",
    ),
    (r"Failed to (?:connect|handle|get|resolve) RDMA CM", FOLLOWS, "the connection by rdma_cm failed"),
    (r"Unable to perform rdma_(?:client|server) function", FOLLOWS, "the connection by rdma_cm failed"),
    (r"Parser function exited with Error|Invalid Command or flag", FOLLOWS, "perftest refuses its options"),
    (r"Completion with error at (?P<a>client|server)", FOLLOWS, "a message was not delivered"),
    (r"Failed to complete run_iter_\w{1,20} function", FOLLOWS, "the measurement stopped"),
    # gdrcopy.
    (
        r"gdr_open error|unable to open GDR driver|error opening driver",
        CAUSE,
        "gdrdrv is not loaded, or /dev/gdrdrv is not there or not open to you (modprobe gdrdrv; in a"
        " container,"
        " the device has to be passed in); GPUDirect RDMA does not need it",
    ),
    (
        r"This GPU does not support GPUDirect RDMA",
        CAUSE,
        "this GPU or its driver does not let other devices map its memory, as GeForce and some vGPU",
    ),
    (r"Assertion \"[^\"]{1,120}\" failed", SYMPTOM, "the test stopped at a failed step"),
    # nccl-tests.
    (
        r"Test NCCL failure [^']{0,200}'(?P<a>[^'/]{1,80})",
        SYMPTOM,
        "NCCL failed ({a}): run it again with NCCL_DEBUG=WARN, the first WARN line shows why",
    ),
    (r"Test CUDA failure [^']{0,200}'(?P<a>[^']{1,80})", CAUSE, "CUDA failed: {a}"),
    (
        r"Out of bounds values : (?P<a>[1-9]\d{0,18}) FAILED",
        CAUSE,
        "{a} values came out wrong: data was corrupted",
    ),
    (
        r"NCCL WARN (?:Failed to initialize any NET plugin|Error: network IB not found)",
        CAUSE,
        "NCCL found no usable RDMA NIC: ports, /dev/infiniband in this container, or NCCL_IB_HCA",
    ),
    (r"NCCL WARN (?P<a>.{1,160})", SYMPTOM, "NCCL warns: {a}"),
    (r": Test failure ", FOLLOWS, "the test stopped"),
    # nvbandwidth.
    (r"\[?(?P<a>CUDA_ERROR_\w{1,60})\]?", SYMPTOM, "CUDA failed: {a}"),
    # All.
    (r"[Pp]ermission denied|Operation not permitted", SYMPTOM, "it needs root, or access to the device"),
    (r"error while loading shared libraries: (?P<a>\S{1,80}):", CAUSE, "the library {a} is missing"),
    (r"[Ss]egmentation fault", FOLLOWS, "it crashed"),
)
"""(pattern, CAUSE, SYMPTOM or FOLLOWS, sentence) in the order in which they are tried on a line."""
