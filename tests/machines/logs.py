"""Logs of NCCL and of the kernel, against a count of their lines."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from probes.facts.kernel.log import LogKind, parse_log, recognize
from probes.nccl.log.facts import State
from probes.nccl.log.verdict import verdict_of
from tests.machines.compared import Compared, compare
from tests.support.nccl_logs import read

# How a line begins, behind the kernel's time and a host's name, and what it is to gdrtop.
_KERNEL = {
    r"NVRM: Xid \(PCI:": LogKind.XID,
    r"nvidia-nvswitch\d+: SXid \(": LogKind.SXID,
    r"nvidia-peermem nv_get_p2p_free_callback": LogKind.PEERMEM,
    r"NVRM: GPU [0-9a-f:.]+: GPU has fallen off the bus": LogKind.GPU_LOST,
}
_BEFORE = r"^(?:// )?(?:\d+,\d+,\d+,-;|(?:<\d+>)?\[[^\]]+\] ?(?:\S+ kernel: )?)?"


def nccl_log(path: Path) -> Compared:
    """Compare channels over the network, those with GPUDirect RDMA, and the answer with the log's lines."""
    text = path.read_text(errors="replace")
    facts = read(path.read_bytes())
    all_channels = text.count("] via NET/")
    # One line is cut inside its /GDRDMA by another rank's.
    with_gdr = len(re.findall(r"\] via NET/[^\n]*?/GDRD", text))
    if not all_channels:
        state = State.UNKNOWN
    else:
        state = State.ALL if with_gdr == all_channels else State.PARTLY if with_gdr else State.NONE
    truth = {"channels over the network": all_channels, "with GPUDirect RDMA": with_gdr, "answer": state.name}
    ours = {
        "channels over the network": facts.channels.total,
        "with GPUDirect RDMA": facts.channels.gdr,
        "answer": verdict_of(facts).state.name,
    }
    return compare(truth, ours)


def kernel_log(path: Path) -> Compared:
    """Compare each line about Xids, SXids, nvidia-peermem and lost GPUs with what gdrtop takes it for."""
    text = path.read_text(errors="replace")
    result = Compared(0)
    for number, line in enumerate(text.splitlines(), 1):
        kind = next((kind for begin, kind in _KERNEL.items() if re.match(_BEFORE + begin, line)), None)
        if kind is None:
            continue
        message = recognize(re.sub(_BEFORE, "", line), 0.0)
        xid = re.search(r"Xid \(PCI:[0-9a-fA-F:.]+\): (\d+)", line)
        truth = kind.value, int(xid[1]) if xid else None
        ours = (message.kind.value, message.number if xid else None) if message else ("nothing", None)
        result += compare({f"line {number}": truth}, {f"line {number}": ours})
    return result


def xids(path: Path) -> Compared:
    """Compare how often each Xid is in a whole log with a count of the lines."""
    text = path.read_text(errors="replace")
    facts = parse_log(text)
    counted = Counter(re.findall(r"NVRM: Xid \(PCI:[0-9a-f:]+\): (\d+)", text))
    seen = {message.number for message in facts.messages if message.kind is LogKind.XID}
    return compare(
        {"Xid lines": sum(counted.values()), "Xids": set(map(int, counted))},
        {"Xid lines": facts.counts.get(LogKind.XID, 0), "Xids": seen},
    )
