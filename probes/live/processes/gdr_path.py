"""The path between a process's memory and the network, judged from what every user can read.

The kernel charges host memory that is registered with a NIC to VmPin, and GPU memory registered by
nvidia-peermem too, but no DMA-BUF: what a process has registered beyond VmPin is DMA-BUF. The other direction
is weaker, because queues and other pinned memory are charged without being regions. So "DMA-BUF" is at most
likely without root, which can read the devices that are attached to GPU memory, and "all host memory" needs
bounds for the rest. Rules and traps:
tests/probes/live/processes/test_gdr_path.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property

from probes.base.evidence import Evidence
from probes.base.frozen import frozen
from probes.base.text import capitalized, plural
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpudirect_probe import BUFINFO
from probes.facts.pci.nic_families import NO_DMABUF_LENGTH
from probes.facts.rdma.roce import MLX5
from probes.live.model.sample import PathJudgment, PathWord, Role
from probes.live.processes.ownership import LARGE, PAGE, RdmaUse
from probes.queries.modules import PEERMEM_REFCNT

DMABUF_THRESHOLD = 1 << 20  # bytes; less may be a region that appeared between two readings
QUEUE_BYTES = 256 << 10  # at most pinned for the ring of a queue pair or a completion queue (an estimate)
LARGEST_PAGE = 64 << 10  # of kernels on Arm
TRACKS_DMABUF = (5, 15)  # the first kernel that lists DMA-BUF regions (RDMA/uverbs, f6018cc46026)
SOCKET_THREAD = "NCCL Sock"  # NCCL's socket transport (net_socket.cc)
VERBS_THREAD = "NCCL IbAsync"  # NCCL's InfiniBand and RoCE transport (net_ib/init.cc)
_NOT_READ = Unknown(Reason.NEEDS_ROOT, BUFINFO)
_SETTLES = f"Root can settle it if nothing else on the node uses DMA-BUF ({BUFINFO})."
_PEERMEM_DOUBT = (
    "nvidia_peermem counts the regions of all processes together; the kernel does not list whose they are."
)
_ELSEWHERE = "root on the host can see them"
_ROOT = "Root on the host can settle it, unless they are of a process that has exited."
_WHOSE_PAIRS = "NCCL sends through sockets; the kernel does not list which library has the queue pairs."
_UNNAMED = "NCCL before 2.14 does not name its threads, which would show how it sends."
_INHERITED = "Threads that have exited made some of its regions, so these may be another process's."
_TRUSTS_USE = "gdrtop trusts the use, and doubts what it has read of the requirement."
_TRUSTS_NODE = (
    "gdrtop trusts the requirement: on-demand paging and other devices' memory leave such regions, too."
)
_LIKELY_SHARE = 10  # at most a tenth of a rank's large regions may be DMA-BUF


@frozen
class ProcessEvidence:
    """What is known of one process."""

    pid: int
    role: Role
    use: Maybe[RdmaUse]
    pinned: Maybe[int]  # VmPin in bytes
    threads: Maybe[tuple[str, ...]]
    has_gpu: Maybe[bool]
    is_settled: bool = True  # False: its regions changed while they were read
    libraries: frozenset[str] = frozenset()  # those that are known
    is_far: bool = False  # its NICs are on other NUMA nodes than its GPUs
    gpu_may_post: bool = False  # to queue pairs that the kernel does not list

    @cached_property
    def has_sockets(self) -> bool:
        """Whether NCCL sends through sockets."""
        return _has_thread(self, SOCKET_THREAD)

    @cached_property
    def shown(self) -> tuple[Evidence, ...]:
        """What was read of the process itself, as evidence of every judgment."""
        return _evidence(self)


@frozen
class NodeEvidence:
    """What is known of the node at the same moment."""

    peermem_regions: Maybe[int] = 0  # refcnt of nvidia_peermem; 0 if it is not loaded
    peermem_candidates: frozenset[int] = frozenset()  # processes with regions that may have a GPU
    candidates_share_job: bool = False
    other_peermem: tuple[str, ...] = ()  # loaded modules whose use cannot be read: "efa_nv_peermem"
    unowned_regions: int = 0
    unowned_queue_pairs: int = 0
    is_hidden: bool = False  # devices or their objects may be in other network namespaces
    kernel: Maybe[tuple[int, int]] = (6, 8)
    dmabuf_usable: Maybe[bool] = True
    no_dmabuf: Mapping[str, str] = field(default_factory=dict)  # why a device cannot: "DMA-BUF needs …"
    no_peermem: str = ""  # why nvidia_peermem cannot work on this node; "": it can, or that is unknown
    # RDMA devices that are attached to GPU memory as a DMA-BUF
    dmabuf_attached: Maybe[frozenset[str]] = _NOT_READ
    has_no_dmabuf: bool = False  # no device is attached to any, since the regions last changed
    # processes with more regions than VmPin, and the devices with their regions
    dmabuf_candidates: Mapping[int, frozenset[str]] = field(default_factory=dict)
    drivers: Mapping[str, Maybe[str]] = field(default_factory=dict)  # by RDMA device
    has_small_pages: bool = True  # 4 KiB, as always on x86
    numa_nodes: Mapping[str, int] = field(default_factory=dict)  # of GPUs by BDF and RDMA devices by name


def uncharged_bytes(use: RdmaUse, pinned: int) -> int:
    """Return the registered bytes that VmPin does not count, with those of ended threads if that matters."""
    sure = use.own.bytes - pinned
    return sure if sure >= DMABUF_THRESHOLD else sure + use.inherited.bytes


def judge(process: ProcessEvidence, node: NodeEvidence) -> PathJudgment:
    """Return the path of a process."""
    if isinstance(process.use, Unknown):
        if process.has_sockets and not _has_thread(process, VERBS_THREAD):
            return _judged(PathWord.TCP, process, doubt=f"Its queue pairs are unknown ({process.use}).")
        why = _unread(process.use, "the kernel does not list RDMA resources", "RDMA resources")
        return _unknown(process, why)
    use = process.use
    if not use.queue_pairs:
        return _without_queue_pairs(process, use, node)
    if not use.active:
        if not any(nic.merely_open for nic in use.nics):
            return _unknown(process, "no queue pair is connected (RTS)")
        if process.has_sockets and not _has_thread(process, VERBS_THREAD):
            return _judged(PathWord.TCP, process)
        return _without_connection(process, node)
    if process.has_sockets:
        if _has_thread(process, VERBS_THREAD):
            return _unknown(process, "NCCL has both socket and InfiniBand threads")
        return _judged(PathWord.TCP, process, doubt=_WHOSE_PAIRS)
    if not process.is_settled:
        return _unknown(process, "its memory regions changed while they were read")
    return _with_regions(process, use, node)


def _unread(why: Unknown, absent: str, what: str) -> str:
    """Return why something could not be read; `absent`: if it is not there."""
    if why.reason is Reason.NEEDS_ROOT:
        return "needs root"
    return absent if why.reason is Reason.NOT_THERE else f"cannot read {what} ({why})"


def _without_queue_pairs(process: ProcessEvidence, use: RdmaUse, node: NodeEvidence) -> PathJudgment:
    has_rdma = bool(use.contexts or use.own.total or use.inherited.total)
    if node.is_hidden and not has_rdma:
        return _unknown(process, f"its RDMA devices may be in another network namespace; {_ELSEWHERE}")
    if node.unowned_queue_pairs:
        if process.has_sockets and not _has_thread(process, VERBS_THREAD):
            return _judged(PathWord.TCP, process, doubt=f"Some queue pairs have no visible owner. {_ROOT}")
        return _unknown(process, "some queue pairs on this node have no visible owner")
    if process.has_sockets:
        return _judged(PathWord.TCP, process)
    if isinstance(process.threads, Unknown):
        return _unknown(process, f"cannot read its threads ({process.threads})")
    if use.own.total or use.inherited.total:
        return _without_connection(process, node)
    if has_rdma and process.gpu_may_post:
        return _unknown(process, "GPUs may post to DEVX queues, which the kernel does not list")
    if process.role is Role.NCCL and _has_plugin(process):
        return _unknown(process, "NCCL uses a network plugin, whose connections are not visible")
    # Old NCCL versions do not name their threads.
    unnamed = process.role is Role.NCCL and not any(name.startswith("NCCL") for name in process.threads)
    return _judged(PathWord.NO_NIC, process, doubt=_UNNAMED if unnamed else "")


_REGISTERED = {
    PathWord.NO_NIC: "it has no memory region",
    PathWord.DMABUF: "it registers GPU memory (DMA-BUF)",
    PathWord.PEERMEM: "it registers GPU memory (peermem)",
    PathWord.HOST_MEMORY: "it registers host memory only",
}
_NOT_LISTED = "RC queue pairs are not listed (DEVX)"


def _without_connection(process: ProcessEvidence, node: NodeEvidence) -> PathJudgment:
    """Name the memory that it has registered: what carries its data is not visible in queue pairs.

    UCX makes RC queue pairs by DEVX on mlx5, which the kernel does not list, and UD ones on every port,
    whatever transport it then uses (openucx/ucx, ib_md.c and ucp_context.c).
    """
    memory = judge_memory(process, node)
    registered = _REGISTERED.get(memory.word, "it has memory regions")
    has_devx = any(node.drivers.get(nic.device) == MLX5 for nic in known(process.use, RdmaUse()).nics)
    signs = memory.evidence[len(process.shown) :]
    if has_devx:
        signs = (*signs, Evidence("rdma resource show qp", _NOT_LISTED))
    return _unknown(process, f"{registered}, but no listed queue pair has a peer", *signs)


def judge_memory(process: ProcessEvidence, node: NodeEvidence) -> PathJudgment:
    """Return which memory a process has registered, as a path: DMA-BUF, nvidia-peermem, host memory."""
    use = process.use
    if isinstance(use, Unknown):
        return _unknown(process, _unread(use, "the kernel does not list RDMA resources", "RDMA resources"))
    if not process.is_settled:
        return _unknown(process, "its memory regions changed while they were read")
    if not (use.own.total or use.inherited.total):
        return _judged(PathWord.NO_NIC, process)
    # Whether NCCL has these queue pairs does not matter here: the engine may be of a NCCL rank.
    return _with_regions(replace(process, role=Role.OTHER), use, node)


def _with_regions(process: ProcessEvidence, use: RdmaUse, node: NodeEvidence) -> PathJudgment:
    if unreported := {*use.own.without_length, *use.inherited.without_length}:
        return _without_length(process, sorted(unreported), node)
    if isinstance(process.pinned, Unknown):
        absent = "its pinned memory is not readable: it is exiting, or hidden (hidepid)"
        return _unknown(process, _unread(process.pinned, absent, "its pinned memory"))
    if uncharged_bytes(use, process.pinned) >= DMABUF_THRESHOLD:
        return _dmabuf(process, node)
    if not (use.own.bytes or use.inherited.bytes):
        return _unknown(process, "it has no memory region")
    peermem = _peermem(process, node)
    return _host_memory(process, use, process.pinned, node) if peermem is None else peermem


def _without_length(process: ProcessEvidence, devices: list[str], node: NodeEvidence) -> PathJudgment:
    drivers = {known(node.drivers.get(device, ""), "") for device in devices}
    if not drivers <= NO_DMABUF_LENGTH:
        return _unknown(process, f"the driver of {devices[0]} does not report the length of a region")
    sign = Evidence(
        "rdma resource show mr",
        f"length 0 on {', '.join(devices)}: a DMA-BUF, size not reported by {', '.join(sorted(drivers))}",
    )
    return _dmabuf(process, node, sign)


def _dmabuf(process: ProcessEvidence, node: NodeEvidence, *signs: Evidence) -> PathJudgment:
    if process.has_gpu is False:
        return _unknown(process, "it has DMA-BUF regions but no GPU", *signs)
    proof = _attached_alone(process, node)
    used = [nic.device for nic in known(process.use, RdmaUse()).nics if nic.regions]
    if used and all(device in node.no_dmabuf for device in used):
        return _against_node(process, node, node.no_dmabuf[used[0]], proof, *signs)
    if isinstance(proof, str):
        return _judged(PathWord.DMABUF, process, *signs, doubt=proof)
    return _judged(PathWord.DMABUF, process, *signs, proof)


def _against_node(
    process: ProcessEvidence, node: NodeEvidence, lack: str, proof: Evidence | str, *signs: Evidence
) -> PathJudgment:
    """Judge DMA-BUF where the node cannot have it: a NIC that is attached refutes the requirement."""
    signs = (*signs, Evidence("requirements of DMA-BUF", lack))
    why = "its regions look like DMA-BUF, which this node cannot use"
    text = f"{capitalized(why)}: {lack}."
    if isinstance(proof, Evidence):
        judged = _judged(PathWord.DMABUF, process, proof, *signs)
    elif known(node.dmabuf_attached, frozenset()):  # the path works here, if not for this process
        judged = _judged(PathWord.DMABUF, process, *signs, doubt=proof)
    else:
        return replace(_unknown(process, why, *signs), contradiction=f"{text} {_TRUSTS_NODE} {proof}")
    return replace(judged, contradiction=f"{text} {_TRUSTS_USE}")


def _attached_alone(process: ProcessEvidence, node: NodeEvidence) -> Evidence | str:
    """Return the proof that a process has registered GPU memory, or why there is none.

    The kernel lists which devices are attached to the GPU driver's buffers, but not for which process. So one
    of them must be a device on which no other process has DMA-BUF regions.
    """
    attached = node.dmabuf_attached
    if isinstance(attached, Unknown):
        if attached.reason is Reason.NEEDS_ROOT:
            return f"Root can settle it: {BUFINFO} lists the NICs that are attached to GPU memory."
        if attached.reason is Reason.NOT_THERE:
            return f"Only {BUFINFO} could settle it, and it is missing: is debugfs mounted?"
        return f"{BUFINFO} could settle it, but is unknown ({attached})."
    if isinstance(process.has_gpu, Unknown):
        return _gpu_doubt(process)
    if node.unowned_regions:  # a NIC is in one namespace: what is hidden there does not use this one
        return f"Regions without a visible owner may be DMA-BUFs on the same NICs. {_ROOT}"
    mine = node.dmabuf_candidates.get(process.pid, frozenset()) & attached
    others = {
        device for pid, devices in node.dmabuf_candidates.items() if pid != process.pid for device in devices
    }
    if not mine:
        return f"{BUFINFO} lists none of its NICs as attached to GPU memory."
    if not mine - others:
        return "Others have DMA-BUF regions on the same NICs, and the kernel does not list whose they are."
    return Evidence(BUFINFO, f"{min(mine - others)} is attached to GPU memory, for this process alone")


def _peermem(process: ProcessEvidence, node: NodeEvidence) -> PathJudgment | None:
    """Return the judgment if regions through nvidia-peermem exist; they are charged like host memory."""
    regions = node.peermem_regions
    source = PEERMEM_REFCNT
    if isinstance(regions, Unknown):
        return _unknown(process, f"cannot tell whether nvidia_peermem is in use ({regions})")
    if node.other_peermem:
        return _unknown(process, f"{node.other_peermem[0]} does not report its regions")
    if regions <= 0 or process.pid not in node.peermem_candidates:
        return None
    sign = Evidence(source, f"{regions}")
    count = len(node.peermem_candidates)
    if node.is_hidden:
        return _unknown(
            process,
            f"nvidia_peermem is in use, maybe by processes in another network namespace; {_ELSEWHERE}",
            sign,
        )
    if node.unowned_regions:
        return _unknown(
            process, "nvidia_peermem is in use, but not all memory regions have a visible owner", sign
        )
    text = f"It uses nvidia_peermem, which should not work on this node: {node.no_peermem}. {_TRUSTS_USE}"
    uses = replace(_judged(PathWord.PEERMEM, process, sign), contradiction=text if node.no_peermem else "")
    if count == 1:
        doubt = _gpu_doubt(process)
        return replace(uses, is_likely=bool(doubt), doubt=doubt)
    if process.is_far:  # NCCL's default level does not reach so far
        return _unknown(process, "its NIC and its GPU are on different NUMA nodes", sign)
    if node.candidates_share_job and process.role is Role.NCCL and regions >= count:
        return replace(uses, is_likely=True, doubt=_PEERMEM_DOUBT)
    return _unknown(process, f"one of {count} processes uses nvidia_peermem", sign)


def _host_memory(process: ProcessEvidence, use: RdmaUse, pinned: int, node: NodeEvidence) -> PathJudgment:
    """Judge regions that VmPin covers. A bound for what else it counts shows which are host memory."""
    if not node.has_no_dmabuf and (obstacle := _obstacle(node)):
        return _unknown(process, obstacle)
    count = use.own.count + use.inherited.count
    other = count * (PAGE if node.has_small_pages else LARGEST_PAGE + PAGE)
    other += (use.queue_pairs + use.completion_queues) * QUEUE_BYTES
    bound = use.own.bytes + use.inherited.bytes - pinned + other  # of DMA-BUF bytes
    bound = 0 if node.has_no_dmabuf else bound
    if bound < 0:
        return _unknown(process, f"{size_text(pinned)} is pinned, but not only by RDMA, which hides DMA-BUF")
    large = use.own.large_bytes + use.inherited.large_bytes
    shortest = min(filter(None, (use.own.shortest_large, use.inherited.shortest_large)), default=0)
    if not large:
        return _unknown(process, f"all its memory regions are smaller than {size_text(LARGE)}")
    sign = Evidence("regions through nvidia_peermem", f"{known(node.peermem_regions, 0)}")
    most = Evidence("rdma resource show", f"at most {size_text(bound)} of the regions may be DMA-BUF")
    if node.has_no_dmabuf:
        most = Evidence(BUFINFO, "no device is attached to a DMA-BUF")
    is_proven = shortest > bound
    inherited = _INHERITED if use.inherited.count else ""
    if process.role is not Role.NCCL:
        if not is_proven:
            return _unknown(process, f"up to {size_text(bound)} of its memory regions may be DMA-BUF", sign)
        return _judged(PathWord.HOST_MEMORY, process, sign, most, doubt=inherited)
    if not is_proven and bound * _LIKELY_SHARE > large:
        return _unknown(process, f"up to {size_text(bound)} of its memory regions may be DMA-BUF", sign)
    if not _has_thread(process, VERBS_THREAD) and not _has_plugin(process):
        return _unknown(process, f"no {VERBS_THREAD} thread: another library may have the queue pairs", sign)
    doubts = (
        f"Up to {size_text(bound)} of its regions may be DMA-BUF. {_SETTLES}" if not is_proven else "",
        _gpu_doubt(process),
        "" if _has_thread(process, VERBS_THREAD) else "The buffers of NCCL's network plugin are not visible.",
        inherited,
    )
    return _judged(PathWord.STAGED, process, sign, most, doubt=next(filter(None, doubts), ""))


def _gpu_doubt(process: ProcessEvidence) -> str:
    if isinstance(process.has_gpu, Unknown):
        return f"Whether it uses a GPU is unknown ({process.has_gpu})."
    return "" if process.has_gpu else "No GPU of the process is visible."


def _obstacle(node: NodeEvidence) -> str:
    """Return why DMA-BUF regions may be missing from the list; "": they are not."""
    if node.unowned_regions:
        return f"{plural(node.unowned_regions, 'memory region')} on this node without a visible owner"
    is_unusable = not isinstance(node.dmabuf_usable, Unknown) and not node.dmabuf_usable
    if isinstance(node.kernel, Unknown):
        return "" if is_unusable else f"cannot read the kernel version ({node.kernel})"
    # Distributions add newer RDMA code to older kernels: a listed region is the proof.
    if node.kernel < TRACKS_DMABUF and not is_unusable and not node.dmabuf_candidates:
        return f"kernel {node.kernel[0]}.{node.kernel[1]} does not list DMA-BUF regions"
    return ""


def has_verbs_thread(process: ProcessEvidence) -> bool:
    """Return whether NCCL uses InfiniBand or RoCE in a process."""
    return _has_thread(process, VERBS_THREAD)


def _has_thread(process: ProcessEvidence, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in known(process.threads, ()))


def _has_plugin(process: ProcessEvidence) -> bool:
    return any(name.startswith("libnccl-net") for name in process.libraries)


def _judged(word: PathWord, process: ProcessEvidence, *signs: Evidence, doubt: str = "") -> PathJudgment:
    """Return a judgment; only a likely one has a doubt, a sentence on what would settle it."""
    return PathJudgment(word, bool(doubt), evidence=(*process.shown, *signs), doubt=doubt)


def _unknown(process: ProcessEvidence, why: str, *signs: Evidence) -> PathJudgment:
    return PathJudgment(PathWord.UNKNOWN, why=why, evidence=(*process.shown, *signs))


def _evidence(process: ProcessEvidence) -> tuple[Evidence, ...]:
    lines: list[Evidence] = []
    use = process.use
    if isinstance(use, Unknown):
        lines.append(Evidence("rdma resource show", f"{use}"))
    else:
        active = ", ".join(nic.device for nic in use.nics if nic.is_active)
        opened = 0 if use.ready == use.queue_pairs else sum(nic.merely_open for nic in use.nics)
        pairs = f"{plural(use.queue_pairs, 'queue pair')}, {use.active} in RTS"
        pairs += f": {active}" if active else ""
        pairs += f"; {opened} open without a peer (UD, SRD)" if opened else ""
        lines.append(Evidence("rdma resource show qp", pairs))
        lines.extend(_region_lines(process, use))
    if names := [name for name in known(process.threads, ()) if name.startswith("NCCL")]:
        lines.append(Evidence(f"/proc/{process.pid}/task/*/comm", ", ".join(names[:8])))
    return tuple(lines)


def _region_lines(process: ProcessEvidence, use: RdmaUse) -> list[Evidence]:
    if not (use.own.total or use.inherited.total):
        return []
    registered = use.own.bytes + use.inherited.bytes
    text = f"{plural(use.own.total + use.inherited.total, 'memory region')}, {size_text(registered)}"
    if use.inherited.total:
        text += f" ({size_text(use.inherited.bytes)} by threads that have exited)"
    if use.own.on_demand + use.inherited.on_demand:
        text += f" without {use.own.on_demand + use.inherited.on_demand} on-demand regions"
    lines = [Evidence("rdma resource show mr", text)]
    if isinstance(process.pinned, Unknown):
        lines.append(Evidence(f"/proc/{process.pid}/status", f"VmPin unknown: {process.pinned}"))
    else:
        difference = registered - process.pinned
        less = f"{size_text(abs(difference))} {'less' if difference > 0 else 'more'} than the regions"
        pinned = f"VmPin {size_text(process.pinned)}, {less if difference else 'same as the regions'}"
        lines.append(Evidence(f"/proc/{process.pid}/status", pinned))
    return lines


def size_text(count: int) -> str:
    """Return bytes as "312 MiB"."""
    value, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.1f} {unit}"
