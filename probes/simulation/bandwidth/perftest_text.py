"""The lines that perftest prints, in the form of the version of 2025.

probes/bandwidth/tools/perftest_output.py names the sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probes.simulation.bandwidth.cuda import CudaDevice
from probes.simulation.bandwidth.perftest_options import Options

RULE = "-" * 87
NO_PEAK = "  WARNING: BW peak won't be measured in this run."
WAITING = ("", "*" * 36, "* Waiting for client to connect... *", "*" * 36)
NOT_CONNECTED = (
    " Unable to open file descriptor for socket connection",
    " Unable to init the socket connection",
)
PEER_GONE = (
    "Couldn't read remote address",
    " Unable to read to socket/rdma_cm",
    " Failed to exchange data between server and clients",
)
_VERBS = {"write": "RDMA_Write", "read": "RDMA_Read", "send": "Send"}
_MIB = 1 << 20


@dataclass(frozen=True)
class Card:
    """The port of one end as the table's head and the address lines name it."""

    device: str
    infiniband: bool
    mtu_bytes: int
    gid_index: int | None
    lid: int
    gid: str  # 8 groups of hexadecimal digits; "" on InfiniBand


@dataclass(frozen=True)
class Numbers:
    """What is drawn once for a process: its queue pair, sequence and key numbers, and its buffer's place."""

    pid: int
    queue_pair: int
    sequence: int
    key: int
    address: int


def head(options: Options, card: Card) -> tuple[str, ...]:
    """The test's name and settings between two rules."""
    kind = "Latency" if options.is_latency else "Bidirectional BW" if options.is_bidirectional else "BW"
    depth = 1 if options.is_latency else 128
    lines = [
        RULE,
        f"                    {_VERBS[options.verb]} {kind} Test",
        f" Dual-port       : OFF\t\tDevice         : {card.device}",
        f" Number of qps   : {options.queue_pairs}\t\tTransport type : IB",
        " Connection type : RC\t\tUsing SRQ      : OFF",
        " PCIe relax order: ON\t\tLock-free      : OFF",
        " ibv_wr* API     : ON\t\tUsing DDP      : OFF",
    ]
    if options.server is not None:
        lines.append(f" TX depth        : {depth}")
    if not options.is_latency:
        lines += [" CQ Moderation   : 100", " CQE Poll Batch  : 16"]
    lines += [
        f" Mtu             : {card.mtu_bytes}[B]",
        f" Link type       : {'IB' if card.infiniband else 'Ethernet'}",
    ]
    if card.gid_index is not None:
        lines.append(f" GID index       : {card.gid_index}")
    lines.append(" Outstand reads  : 16" if options.verb == "read" else " Max inline data : 0[B]")
    return (*lines, " rdma_cm QPs\t : OFF", " Data ex. method : Ethernet", RULE)


def addresses(which: str, options: Options, card: Card, numbers: Numbers) -> tuple[str, ...]:
    """The lines of one side, "local" or "remote", for each queue pair."""
    lines: list[str] = []
    for pair in range(options.queue_pairs):
        lid = f"0x{card.lid:02x}" if card.infiniband else "0000"
        line = (
            f" {which} address: LID {lid} QPN 0x{numbers.queue_pair + pair:04x} PSN 0x{numbers.sequence:06x}"
        )
        if options.verb != "send":
            line += f" RKey 0x{numbers.key:06x} VAddr 0x{numbers.address:014x}"
        lines.append(line)
        if card.gid:
            octets = bytes.fromhex(card.gid.replace(":", ""))
            lines.append(" GID: " + ":".join(f"{octet:02d}" for octet in octets))
    return tuple(lines)


def columns(options: Options) -> str:
    """The table's header."""
    if options.is_latency and options.duration_s:
        return " #bytes        #iterations       t_avg[usec]    tps average"
    if options.is_latency:
        return (
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
            "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
        )
    unit = "Gb/sec" if options.in_gbits else "MiB/sec"
    return f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]"


def bandwidth_row(options: Options, size: int, iterations: int, peak_gbps: float, gbps: float) -> str:
    """One row; both directions together where the test is bidirectional."""
    rate = gbps * 1e9 / 8 / size / 1e6
    peak, average = (one if options.in_gbits else one * 1e9 / 8 / _MIB for one in (peak_gbps, gbps))
    begin = f" {size:<7}    {iterations:<10}       "
    if average < 0.1:
        return f"{begin}{peak:<7.6f}            {average:<7.6f}            {rate:<7.6f}"
    return f"{begin}{peak:<7.2f}            {average:<7.2f} \t\t     {rate:<7.6f}"


def latency_row(options: Options, size: int, iterations: int, average_us: float) -> str:
    """One row of latencies around an average."""
    if options.duration_s:
        return (
            f" {size:<7}       {iterations:<10}          {average_us:<7.2f}        {1e6 / average_us:<7.2f}"
        )
    spread = (0.985, 1.9, 0.993, 1.0, 0.03, 1.045, 1.9)
    times = [average_us * one for one in spread]
    return (
        f" {size:<7} {iterations:<10}     {times[0]:<7.2f}        {times[1]:<7.2f}      {times[2]:<7.2f} \t "
        f"     {times[3]:<7.2f}     \t{times[4]:<7.2f}\t\t{times[5]:<7.2f}\t\t{times[6]:<7.2f}"
    )


def cuda_begins(devices: Sequence[CudaDevice]) -> tuple[str, ...]:
    """CUDA starts and lists what it sees."""
    listed = (f"CUDA device {one.index}: PCIe address is {one.bdf[5:10].upper()}" for one in devices)
    return ("initializing CUDA", "Listing all CUDA devices in system:", *listed, "")


def cuda_picks(device: CudaDevice, numbers: Numbers, integrated: bool) -> tuple[str, ...]:
    """One device is taken."""
    return (
        f"Picking device No. {device.index}",
        f"[pid = {numbers.pid}, dev = {device.index}] device name = [{device.name}]",
        "creating CUDA Ctx",
        "making it the current CUDA Ctx",
        f"CUDA device integrated: {int(integrated)}",
    )


def cuda_buffer(options: Options, numbers: Numbers, integrated: bool) -> tuple[str, ...]:
    """GPU memory is allocated."""
    size, place = options.buffer_bytes, f"0x{numbers.address:x}"
    exported = (
        (f"using DMA-BUF for GPU buffer address at {place} aligned at {place} with aligned size {size}",)
        if options.dmabuf
        else ()
    )
    kind = "CUDA_MEM_HOST" if integrated else "CUDA_MEM_DEVICE"
    return (*exported, f"allocated GPU buffer of a {size} address at {place} for type {kind}")


def cuda_registers(options: Options, numbers: Numbers) -> str:
    """The DMA-BUF is registered with the NIC."""
    size, place = options.buffer_bytes, numbers.address
    return f"Calling ibv_reg_dmabuf_mr(offset=0, size={size}, addr=0x{place:x}, fd=58) for QP #0"


def cuda_ends(numbers: Numbers) -> tuple[str, ...]:
    """GPU memory is given back."""
    return (f"deallocating GPU buffer {numbers.address:016x}", "destroying current CUDA Ctx")
