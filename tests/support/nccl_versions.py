"""Logs of each version of NCCL."""

# ruff: noqa: E501 - long lines are quoted whole

from tests.support.nccl_logs import HEADER

TAGS = (
    *("2.18.1", "2.18.5", "2.19.3", "2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.24.3", "2.25.1", "2.26.2"),
    *("2.27.3", "2.27.5", "2.27.7", "2.28.3", "2.28.9", "2.29.2", "2.29.7", "2.30.3", "2.30.7"),
)


def since(tag: str, first: str) -> bool:
    """Whether a version is as new as another one."""
    return TAGS.index(tag) >= TAGS.index(first)


def prefix(tag: str, kind: str, place: str = "graph/paths.cc:393") -> str:
    """The prefix of that version; warnings have a time from 2.26 on, and a function in 2.30."""
    if kind == "INFO":
        return HEADER
    time = "[2026-05-05 06:16:47] " if since(tag, "2.26.2") else ""
    function = " (ncclIbTest)" if since(tag, "2.30.3") else ""
    return f"\n{time}node1:100:200 [0] {place}{function} NCCL WARN "


def log_of(tag: str) -> str:
    """A log in the forms of a version: one channel each way with GPUDirect RDMA, one without, one by PXN."""
    ids = ("1b000", "2b000") if tag == "2.18.1" else ("0", "1")
    pci = "(PCI)" if since(tag, "2.26.2") else ""
    hca = "0" if not since(tag, "2.21.5") else "1f"
    lines = [f"NCCL version {tag}+cuda12.4", "Using network IB", "DMA-BUF is available on GPU device 0"]
    lines.append("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>")
    lines.append("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'")
    limit = {"2.27.3": 5}.get(tag, 5 if since(tag, "2.26.2") else 4)
    if not since(tag, "2.24.3"):
        lines.append(f"GPU Direct RDMA Disabled for GPU 1b000 / HCA {hca} (distance {limit + 2} > {limit})")
        lines.append(
            f"GPU Direct RDMA Enabled for GPU 1b000 / HCA {hca} (distance {limit} <= {limit}), read 1"
        )
    elif not since(tag, "2.29.2"):
        mode = " mode Default" if since(tag, "2.26.2") else ""
        lines.append(f"GPU Direct RDMA Disabled for GPU 4 / HCA {hca} (distance {limit + 2} > {limit})")
        lines.append(
            f"GPU Direct RDMA Enabled for GPU 4 / HCA {hca} (distance {limit} <= {limit}), read 1{mode}"
        )
    elif not since(tag, "2.30.3"):  # later only in TRACE builds
        pair = "GPU/0-1b000 (rank 0) - NET/0-0"
        lines.append(f"GPU Direct RDMA Disabled for {pair} (distance {limit + 2} > {limit})")
        via = " using PXN via GPU/0-2b000, "
        lines.append(
            f"GPU Direct RDMA Enabled for {pair} ({via}distance {limit} <= {limit}, read 1, mode Default)"
        )
    rings = ", use ring PXN 1 GDR 0" if since(tag, "2.24.3") else ""
    lines += [
        f"Channel 00/0 : 0[{ids[0]}] -> 8[{ids[1]}] [send] via NET/IB/0/GDRDMA{pci}/Shared",
        f"Channel 01/0 : 8[{ids[0]}] -> 0[{ids[1]}] [receive] via NET/IB/0/GDRDMA{pci}",
        f"Channel 01/0 : 0[{ids[0]}] -> 8[{ids[1]}] [send] via NET/IB/1",
        f"Channel 02/0 : 0[{ids[0]}] -> 8[{ids[1]}] [send] via NET/IB/1(3)/GDRDMA{pci}",
        f"Channel 00/0 : 0[{ids[0]}] -> 1[{ids[1]}] via P2P/CUMEM/read",
        f"Connected all rings{rings}",
        "Connected all trees",
        "NCCL_NET_GDR_LEVEL set by environment to PXB",
        "NCCL_IB_GID_INDEX set by environment to 3.",
    ]
    if tag == "2.18.1":
        lines.append("comm 0x55aa rank 0 nranks 16 cudaDev 0 busId 1b000 commId 0x1 - Init COMPLETE")
    else:
        function = {False: "", True: "ncclCommInitRank "}[since(tag, "2.21.5")]
        rank = "[Rank 0] " if since(tag, "2.29.2") else ""
        start = "comm 0x55aa rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1 - Init"
        lines += [f"{rank}{function}{start} START", f"{function}{start} COMPLETE"]
        split = (
            "parent 0x5 splitCount 1 color 0 key 0" if since(tag, "2.24.3") else "parent 0x5 color 0 key 0"
        )
        if since(tag, "2.23.4"):
            lines.append(
                f"ncclCommSplit comm 0x55ab rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 {split}- Init START"
            )
    if since(tag, "2.20.5"):
        lines.append("comm 0x55aa rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0")
    return "".join(f"{prefix(tag, 'INFO')}{line}\n" for line in lines)


def completion(tag: str) -> str:
    """The line of a failed work request."""
    if not since(tag, "2.20.5"):
        return "NET/IB : Got completion from peer 10.0.0.2<4> with error 12, opcode 0, len 0, vendor err 129 (Recv)"
    if not since(tag, "2.22.3"):
        return "NET/IB : Got completion from peer 10.0.0.2<4> with status=12 opcode=0 len=0 vendor err 129 (Recv)"
    if not since(tag, "2.28.9"):
        return "NET/IB: Got completion from peer 10.0.0.2<4> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_0"
    return (
        "NET/IB: Got completion from peer 10.0.0.2<4> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0)"
        " vendor_err=129 Recv hca mlx5_0"
    )
