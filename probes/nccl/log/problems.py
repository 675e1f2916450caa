"""What the error lines of NCCL and of PyTorch's watchdog mean, and what to do.

Status numbers: enum ibv_wc_status of rdma-core's infiniband/verbs.h; NCCL prints only the number up to 2.28.7
(net_ib.cc), and the name from 2.28.9 on. Vendor error 129 (0x81) of mlx5 is "retry counter exceeded".

Causes of other lines, in NVIDIA/nccl: the hints of misc/ibvwrap.cc for ibv_modify_qp; os/linux.cc and
docs/userguide troubleshooting (Docker) for /dev/shm; misc/cudawrap.cc for cuMem; misc/mlx5dvsymbols.cc and
net_ib/init.cc for Data Direct; net_ib/connect.cc for GIDs; init.cc for GPUs and NICs; mnnvl.cc; issues 976,
1338 and 1488 for NVLS, issue 1573 for GIDs in containers, issue 2190 for host memory; gin.cc for GIN. Of EFA:
aws/aws-ofi-nccl src/platform-aws.cpp and nccl_ofi_ofiutils.cpp; ofiwg/libfabric prov/efa/src/efa_strerror.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from probes.base.frozen import frozen

STATUSES = [
    "SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR",
    "MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR",
    "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR",
    "INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR", "TM_ERR",
    "TM_RNDV_INCOMPLETE",
]  # fmt: skip
_ACS = "ACS redirection on the switches between GPU and NIC"
_STATUS_CAUSES = {
    4: (
        f"The NIC could not access the local memory. With GPU memory, suspect {_ACS}, or "
        "an nvidia_peermem built for a different OFED.",
        "Run gdrtop check on this node.",
    ),
    5: (
        "This follows from an earlier error on the same queue pair.",
        "Look for the first error with another status.",
    ),
    9: ("The peer refused the request: the two ends disagree.", "Run the same NCCL and plugin everywhere."),
    10: (
        f"The peer's memory was not accessible. With GPU memory, suspect {_ACS} at the peer. "
        "The peer may also have exited.",
        "Run gdrtop check on the peer.",
    ),
    11: (
        f"The peer's NIC could not execute the request. With GPU memory, suspect {_ACS} at the peer.",
        "Run gdrtop check on the peer.",
    ),
    12: (
        "The peer did not respond. Its process exited, its port or the path is down, or the network drops "
        "packets. With RoCE, the GID index may be wrong or a route may be missing.",
        "Find the first rank that failed. Check the ports of both ends (gdrtop check), and the RoCE GID, PFC "
        "and routes. A larger NCCL_IB_TIMEOUT only helps if the network pauses for a long time.",
    ),
    13: (
        "The peer took too long to become ready to receive: its process is hung or very slow.",
        "Look at the peer's process and its GPU.",
    ),
    20: ("The peer did not respond in time.", "Check the peer's process and the path to it."),
}
_NAMED = {name: number for number, name in enumerate(STATUSES)}


@frozen
class Explanation:
    """What an error line means."""

    kind: str
    title: str
    cause: str
    fix: str
    is_note: bool = False  # no error: NCCL goes on


@frozen
class Form:
    """What a line means that begins with a pattern."""

    pattern: re.Pattern[str]
    meaning: Explanation  # {a}, {b} and {c} in it are the groups


def _form(pattern: str, kind: str, title: str, cause: str, fix: str, is_note: bool = False) -> Form:
    return Form(re.compile(pattern), Explanation(kind, title, cause, fix, is_note))


_COMPLETION = re.compile(
    r"Got completion.{0,200}?(?:with error (\d{1,3})|wc->status=\(([A-Z_]{1,40})\)(\d{1,3})"
    r"|status=(?:([A-Za-z_ ]{1,40})\((\d{1,3})\)|(\d{1,3})))"
)
_GPU_MEMORY = (
    "The NIC could not register GPU memory, most often because neither nvidia_peermem nor DMA-BUF is usable."
)
_MODIFY_QP = r"Call to (?P<a>ibv_modify_qp) failed with (?:error|\d{1,4})"
_ON_DEVICE = r"(?:, on dev [^\s,]{1,64})?"
_NVLS = (
    "NVLink SHARP (NVLS) does not work",
    "NVLS could not set up its multicast memory. NCCL's maintainers say the usual cause is a Fabric Manager "
    "that was restarted without resetting the GPUs.",
    "Run once with NCCL_NVLS_ENABLE=0. If it works, drain the node, stop Fabric Manager, reset the GPUs and "
    "start it again, or reboot.",
)
_NVLS_SOURCE = "transport/nvls.cc:"
_NVLS_FAILURE = re.compile(r"(?:Cuda|CUDA) failure (?:1 )?'invalid argument'")
_FORMS = (
    _form(r"Got non-fatal async event ?: ?(?P<a>[^(]{1,60})", "async-event-minor", "RDMA event: {a}",
          "The NIC reports a change to a port or its addresses.",
          "If the port went down, check its link (gdrtop check)."),
    _form(r"async fatal event on (?P<a>QP|CQ|SRQ|device)[^:]{0,250}: ?(?P<b>.{1,80})", "async-event",
          "Fatal RDMA event on a {a}: {b}", "The NIC reports that a queue cannot continue.",
          "Check this node's kernel log, and find the first failed rank."),
    _form(r"async (?:fatal )?event ?: ?(?P<a>.{1,80})", "async-event", "RDMA event: {a}",
          "The NIC reports an error in a port, a queue or itself.",
          "Check the port's link and this node's kernel log."),
    _form(r"Call to (?P<a>ibv_reg_dmabuf_mr\w*|mlx5dv_reg_dmabuf_mr) failed with error (?P<b>.{1,60})",
          "register-dmabuf", "{a} failed: {b}",
          "The RDMA driver or its library cannot register DMA-BUF memory: this needs kernel 5.12 or newer, "
          "and an mlx5 driver and rdma-core that support it (in a container, the container's own rdma-core).",
          "Run gdrtop check, or load nvidia_peermem."),
    _form(r"Call to (?P<a>ibv_reg_mr\w*) failed with error (?P<b>Cannot allocate memory[^;]{0,40})",
          "register-memory-limit", "{a} failed: {b}",
          "The locked memory limit is too low, or the GPU's BAR1 is full.",
          "Set ulimit -l unlimited, also in the container and in the service that starts jobs."),
    _form(r"Call to (?P<a>ibv_reg_mr\w*) failed with error (?P<b>.{1,60})", "register-memory",
          "{a} failed: {b}", _GPU_MEMORY, "Run gdrtop check on this node."),
    _form(r"Call to (?P<a>ibv_create_qp|ibv_create_cq|ibv_alloc_pd)\w* failed with error (?P<b>.{1,60})",
          "create-queue", "{a} failed: {b}",
          "The NIC has no resources left, or the locked memory limit is too low.",
          "Check ulimit -l and how many queue pairs the node's jobs use (rdma resource)."),
    _form(rf"{_MODIFY_QP} (?P<b>Connection timed out{_ON_DEVICE})", "connect-queue", "{a} failed: {b}",
          "The NIC did not reach the peer's NIC in time. According to NCCL, NICs of different rails are "
          "often not connected to each other.",
          "Run once with NCCL_CROSS_NIC=0. If it works, connect the rails or keep the setting. If not, check "
          "the routes and RoCE GIDs of both NICs (gdrtop check)."),
    _form(rf"{_MODIFY_QP} (?P<b>Invalid argument{_ON_DEVICE})", "connect-queue", "{a} failed: {b}",
          "According to NCCL, NCCL_IB_GID_INDEX often selects a wrong GID.",
          "Remove NCCL_IB_GID_INDEX: NCCL 2.21 and newer then select the GID. Check the RoCE GIDs (gdrtop "
          "check)."),
    _form(rf"{_MODIFY_QP} (?P<b>[^,]{{1,60}}{_ON_DEVICE})", "connect-queue", "{a} failed: {b}",
          "A queue pair could not connect. With RoCE: a wrong GID index, no route, or a port that is down.",
          "Check the RoCE GIDs and the routes between the ports (gdrtop check)."),
    _form(r"attaching to shared memory segment /dev/shm/nccl-.{0,64}\(size 0\)", "cumem-host-differs",
          "Two ranks allocate host memory in different ways",
          "From 2.26.3 on, each process tries cuMem for host memory and falls back to /dev/shm. Here it "
          "works for one rank and not for the other, often because a NUMA node has memory but no CPU, or "
          "because their containers differ.",
          "Set NCCL_CUMEM_HOST_ENABLE=0 for all ranks."),
    _form(r"failed to (?:extend|create shared memory file) /dev/shm/|Could not map /dev/shm/"
          r"|(?:creating|attaching to) shared memory segment|Call to posix_fallocate failed", "shared-memory",
          "NCCL could not use shared memory in /dev/shm",
          "Most often /dev/shm is full, or too small: a Docker container has 64 MiB by default.",
          "Check df -h /dev/shm in the job's container. With Docker, use --shm-size=1g; in Kubernetes, mount "
          "an emptyDir with medium: Memory at /dev/shm."),
    _form(r"Duplicate GPU detected|Multiple Ranks are using the same GPU", "duplicate-gpu",
          "Two ranks use the same GPU",
          "NCCL needs a GPU for each rank. The job starts more ranks than this node has GPUs, or the ranks "
          "do not select their GPU by local rank.",
          "Check the ranks per node, and CUDA_VISIBLE_DEVICES and the selected device of each rank."),
    _form(r"(?:no socket interface|no interface|No IP interface|No usable listening interface) found",
          "no-interface", "NCCL found no network interface for TCP",
          "Even with RDMA, ranks connect over TCP first. No interface of this node or container that has an "
          "address matches NCCL_SOCKET_IFNAME.",
          "Compare NCCL_SOCKET_IFNAME with ip addr, in the job's container."),
    _form(r"Detected mixed local Net device counts across ranks \(min (?P<a>\d{1,9}), max (?P<b>\d{1,9})\)",
          "mixed-nics", "Ranks have different numbers of NICs: {a} to {b}",
          "A node lost a NIC or a port, or NCCL_IB_HCA selects different NICs there.",
          "The lines “Rank … has … local Net devices” before this one name the ranks with fewer NICs. Run "
          "gdrtop check on their nodes."),
    _form(r"MNNVL .{0,60}available but not working", "mnnvl", "NVLink between nodes (MNNVL) does not work",
          "The GPUs are in one NVLink domain, but IMEX cannot share their memory: its service is not ready "
          "on all nodes, or the job has no IMEX channel.",
          "Check nvidia-imex-ctl -N and /dev/nvidia-caps-imex-channels, also in the job's container (gdrtop "
          "check)."),
    _form(r"security group on either this instance or the peer instance", "efa-security-group",
          "The EFA plugin suspects the security group",
          "The peer never answered. A security group without a rule to itself is the usual cause; the peer "
          "may also have exited.",
          "Allow all traffic from and to the security group itself, in both directions, on all nodes. All "
          "nodes must be in one subnet."),
    _form(r"Unreachable remote\b", "efa-unreachable", "An EFA peer never answered",
          "Likely a security group without a rule to itself, or nodes in different subnets. The peer may "
          "also have exited.",
          "Find the first rank that failed. If none did, allow all traffic from and to the security group "
          "itself, in both directions."),
    _form(r"Unresponsive remote\b", "efa-unresponsive", "An EFA peer stopped answering",
          "It answered before, so the security group is not the cause. Likely its process or its node has "
          "failed. With libfabric on P6e, a DMA-BUF for PCIe over an EFA beside the CPU ends like this, too.",
          "Find the first rank that failed, and check its node (gdrtop check). On P6e, gdrtop topo marks "
          "such pairs with ?."),
    _form(r"GDR support reported to NCCL but then couldn't be configured on an endpoint", "efa-gdr",
          "The EFA plugin could not configure GPUDirect RDMA",
          "The plugin had found GPUDirect RDMA usable, and libfabric then refused GPU memory.",
          "Run gdrtop check on this node, and check its kernel log for “dma-buf attach failed”."),
    _form(r"Unable to use GIN: Peermem is not supported", "gin-peermem",
          "NCCL's device API (GIN) cannot register GPU memory",
          "It needs DMA-BUF or nvidia_peermem; the older nv_peer_mem does not count.",
          "Run gdrtop check on this node."),
    _form(r"Failed to open mlx5dv symbols", "mlx5dv-missing", "libmlx5 could not be opened",
          "NCCL uses it for Data Direct and other functions of ConnectX-8 and newer. Other NICs do not need "
          "it.",
          "With ConnectX-7 or older, ignore this. With newer NICs, install libmlx5 (rdma-core) in the job's "
          "image.", is_note=True),
    _form(r"rail policy was set to CX9 but the number of CX9 found \(=(?P<a>\d{1,4})\)", "rail-policy",
          "NCCL assigns no rails to {a} ConnectX-9",
          "Its rail policy needs a multiple of 8. One may be missing. NCCL counts NICs with firmware 82.x.",
          "Run gdrtop check on this node. If the number is right, set NCCL_IB_RAIL_POLICY=NONE.",
          is_note=True),
    _form(r"Unrecognized NCCL_IB_RAIL_POLICY=(?P<a>[^\s,]{1,60})", "rail-policy-value",
          "NCCL ignores NCCL_IB_RAIL_POLICY={a}", "It does not know the value.",
          "Use CX9, CX9:ALT, CX9:BLOCK or NONE.", is_note=True),
    _form(r"read failed in ncclIbRoceGetVersionNum: Invalid argument", "gid-table",
          "NCCL could not read the type of a RoCE GID",
          "In a container, some indexes of the GID table cannot be read. NCCL before 2.26.2 stops at one.",
          "Use NCCL 2.26.2 or newer, or set NCCL_IB_GID_INDEX to the index of a RoCE v2 GID. The index "
          "differs between pods, so do not set it in /etc/nccl.conf."),
    _form(r"dlvsym failed on mlx5dv_(?:get_data_direct_sysfs_path|reg_dmabuf_mr)", "data-direct-missing",
          "libmlx5 has no Data Direct functions",
          "It is older than this NCCL expects. Only NICs with Data Direct (ConnectX-8 and newer) need them; "
          "others use GPUDirect RDMA without them.",
          "With ConnectX-7 or older, ignore this. With newer NICs, install a newer rdma-core in the job's "
          "image.", is_note=True),
    _form(r"cuMem host allocations do not appear to be working", "cumem-host",
          "NCCL uses /dev/shm instead of cuMem for host memory",
          "The container runtime disables NUMA system calls; Docker does so by default.",
          "Give the container CAP_SYS_NICE (docker run --cap-add SYS_NICE), or make its /dev/shm large "
          "enough.", is_note=True),
    _form(r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory", "nvls", *_NVLS),
    _form(r"(?:Call to (?P<a>[\w.]{1,60})|(?P<c>ibv_\w{1,40}\(\))) failed with error (?P<b>.{1,60})",
          "call-failed", "{a} failed: {b}", "A system or RDMA call failed.",
          "Find this rank's first error, and check the kernel log."),
    _form(r"(?:Mismatched NCCL version|NCCL version mismatch)(?P<a>.{0,120})", "version-mismatch",
          "Ranks use different NCCL versions", "All ranks of a communicator need the same NCCL version.",
          "Use the same container or library everywhere."),
    _form(r"\[Proxy Service[^\]]{0,20}\] Failed to execute operation (?P<a>\w{1,30})", "proxy-failed",
          "The proxy thread failed in operation {a}", "A connection could not be set up.",
          "Look for the error before this line."),
    _form(r"(?:Cuda|CUDA) failure (?P<a>.{1,120})", "cuda-failure", "CUDA failure {a}",
          "A CUDA call failed in NCCL, often because of an earlier error in the program.",
          "Look for Xid errors in the kernel log, and for the first failed rank."),
    _form(r"(?:[Ss]ocketPollConnect|[Cc]onnect to|Connection (?:refused|closed|reset)|recv failed|timed out)",
          "socket", "A TCP connection between ranks failed",
          "Bootstrap or the socket transport could not reach a rank: it exited, or the interface is wrong.",
          "Check NCCL_SOCKET_IFNAME, the firewall, and whether the rank is still running."),
    _form(r"No (?:GID|valid GID|IP address)(?P<a>.{0,80})", "address", "No usable address or interface",
          "NCCL found no address of the kind that its settings require.",
          "Check NCCL_SOCKET_IFNAME, NCCL_IB_GID_INDEX and the RoCE GIDs."),
)  # fmt: skip
_TORCH_FORMS = (
    _form(r"\[Rank (?P<a>\d{1,9})\].{0,40}Watchdog caught collective operation timeout: "
          r"WorkNCCL\(SeqNum=(?P<s>\d{1,20}), OpType=(?P<b>\w{1,40})", "watchdog-timeout",
          "PyTorch: rank {a} timed out in {b}",
          "The collective did not finish in time. A rank did not take part or hangs, or its network is down.",
          "Compare the work ids of the ranks: the others wait for the rank with the lowest one."),
    _form(r"failure detected by watchdog at work sequence id: (?P<s>\d{1,20}).{0,80}?last enqueued work: "
          r"(?P<a>-?\d{1,20}), last completed work: (?P<b>-?\d{1,20})", "watchdog-failure",
          "PyTorch: the watchdog detected a failure; last completed work {b} of {a}",
          "The rank completed work {b} and did not finish the next one.",
          "Find the rank with the lowest completed work: it stopped first."),
    _form(r"watchdog thread terminated with exception", "watchdog-ended",
          "PyTorch: the watchdog terminated its process",
          "This follows from the timeout or error before this line.",
          "Look for the first rank that failed."),
    _form(r"FlightRecorder is disabled|Trace buffer.{0,40}disabled", "flight-recorder-off",
          "PyTorch: the flight recorder is disabled",
          "There is no trace of the last collectives. Tracing cannot be enabled in a running job.",
          "Set TORCH_FR_BUFFER_SIZE=2000 (older PyTorch: TORCH_NCCL_TRACE_BUFFER_SIZE) for the next run."),
    _form(r"dump(?:ing)? debug info|Finished writing|flight recorder (?:dump|trace)", "flight-recorder",
          "PyTorch: the flight recorder wrote a trace",
          "The trace shows the last collectives of each rank.",
          "Compare the traces of all ranks: gdrtop hang --dumps FILES (by default "
          "~/.cache/torch/comm_lib_trace_rank_RANK, in older PyTorch /tmp/nccl_trace_rank_RANK)."),
    _form(r"NCCL error in: ?(?P<a>.{1,120})", "torch-error", "PyTorch: NCCL reported an error",
          "An NCCL call failed.", "Look for the NCCL WARN lines of the same rank before this line."),
)  # fmt: skip


def explain_warning(text: str, source: str = "") -> Explanation:
    """Return what a WARN line means, written by a line of NCCL's source; an unknown one is still an error."""
    match = _COMPLETION.search(text)
    if match:
        number = next((int(match[group]) for group in (1, 3, 5, 6) if match[group]), None)
        if number is None:
            number = _NAMED.get((match[4] or match[2] or "").removeprefix("IBV_WC_"), 99)
        name = f"IBV_WC_{STATUSES[number]}" if number < len(STATUSES) else "unknown status"
        cause, fix = _STATUS_CAUSES.get(
            number,
            ("The NIC could not complete a request.", "Check the NICs and GPUs of both ends (gdrtop check)."),
        )
        if number == 12 and re.search(r"vendor[_ ]err[= ]129\b", text):
            cause = f"All retries are used up (vendor error 129). {cause}"
        return Explanation(f"completion-{number}", f"Completion error {number} ({name})", cause, fix)
    if source.startswith(_NVLS_SOURCE) and _NVLS_FAILURE.search(text):
        return Explanation("nvls", *_NVLS)
    return _explained(_FORMS, text) or Explanation("warning", "NCCL warning", "", "")


def explain_notice(text: str) -> Explanation:
    """Return what an ATTN line of NCCL 2.32 and later means; NCCL goes on after it."""
    explanation = explain_warning(text)
    if explanation.kind == "warning":
        return Explanation("notice", "NCCL notice", "", "", is_note=True)
    return replace(explanation, is_note=True)


def explain_torch(text: str) -> Explanation | None:
    """Return what a line of PyTorch means; None if it says nothing of an error."""
    return _explained(_TORCH_FORMS, text)


def _explained(forms: Iterable[Form], line: str) -> Explanation | None:
    """Return what the first form that a line has means; None if it has none."""
    for form in forms:
        if match := form.pattern.search(line):
            groups = {name: (text or "").strip() for name, text in match.groupdict().items()}
            groups["a"] = groups.get("a") or groups.get("c", "")
            title, cause = (text.format(**groups) for text in (form.meaning.title, form.meaning.cause))
            return replace(form.meaning, title=title, cause=cause)
    return None
