"""What each event means, and what to do about it."""

from __future__ import annotations

from probes.base.evidence import Severity
from probes.facts.rdma.port_health import Harm
from probes.live.model.sample import EventKind, LiveEvent, PathWord

EXPLANATIONS = {
    EventKind.PROCESS_STARTED: "The process has created queue pairs, so it can use RDMA from now on.",
    EventKind.PROCESS_ENDED: "Its queue pairs are gone. If the job should still run, look at its log first: "
    "the other ranks fail with completion error 12 after about a minute.",
    EventKind.PROCESS_STOPPED: "A signal (SIGSTOP, SIGTSTP) or a debugger has stopped it. All ranks of the "
    "job wait for it. Run kill -CONT PID to resume it.",
    EventKind.PROCESS_RESUMED: "It is running again, and the job continues.",
    EventKind.PEERMEM_IN_USE: "A process has registered GPU memory through nvidia_peermem. The module "
    "cannot be unloaded now.",
    EventKind.PEERMEM_RELEASED: "No memory region uses nvidia_peermem now. If a job is running, it uses "
    "DMA-BUF or copies through host memory.",
    EventKind.PORT_RATE: "The link was retrained at a different speed. A lower rate is often a bad cable or "
    "optic: run mlxlink -d BDF -m -c -e.",
    EventKind.LINK_RETRAINED: "The PCIe link changed under load. Look for PCIe errors (AER) in the kernel "
    "log, then reseat the card or its riser. Idle GPUs lower their link speed by design; this one was "
    "busy.",
    EventKind.RATE_FELL: "The traffic fell below half the rate of the last minute while the queue pairs "
    "stayed connected. Look for a stopped rank, a slow peer, pauses and retransmits.",
    EventKind.RATE_RECOVERED: "The traffic is back.",
    EventKind.PAUSE: "The switch or the NIC stops the sender with PFC pause frames: a receiver or the "
    "network is congested. Check which switch port sends them, and whether ECN is configured.",
    EventKind.THROTTLED: "The GPU lowers its clocks, and the whole job waits for the slowest GPU. Check "
    "cooling and power: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER.",
    EventKind.GPU_LOST: "The driver can no longer reach the GPU, and jobs on it have died. Drain the node "
    "and reboot it, or power-cycle it. Replace the GPU if it happens again.",
    EventKind.MODULE_LOADED: "A module that GPUDirect RDMA depends on was loaded.",
    EventKind.MODULE_UNLOADED: "A module that GPUDirect RDMA depends on was unloaded. New jobs cannot use "
    "what it provides.",
    EventKind.RAS_PEER: "NCCL's RAS service reports it. A process that does not respond is stopped or "
    "has exited, or its network is down. gdrtop ras shows which ranks are affected.",
    EventKind.RAS_EVENTS: "The job reports RAS events only while gdrtop is connected to it. In Live, RAS "
    "events connects or disconnects.",
    EventKind.SAMPLES_MISSED: "gdrtop took no samples during this time: it was suspended, the node was "
    "overloaded, or a read took long. Rates are averages over the gap, and short events in it are "
    "missing.",
}
"""By kind; the tables below have those that differ within a kind."""


def explained(at: float, kind: EventKind, severity: Severity, subject: str, text: str) -> LiveEvent:
    """Return an event with what its kind means; `at`: seconds since 1970."""
    return LiveEvent(at, kind, severity, subject, text, EXPLANATIONS[kind])


PORT_DOWN = (
    "The port is down. The doctor shows why: no signal, disabled, or kept down while its link is up. Jobs on "
    "the port fail with completion error 12 after about a minute."
)
PORT_UP = "The port works again. A job that failed in the meantime has to be restarted."
PORT_WAITS = (
    "The cable is connected, but the port is not active yet. On InfiniBand the subnet manager activates it."
)
PORT_FLAPPING = (
    "A link that goes down and up again has a bad cable, optic or switch port. Clean, reseat or replace it."
)
PORT_GONE = (
    "The RDMA device is gone: its driver was unloaded or reset, or the device moved to another namespace."
)
NIC_PCIE_LINK = (
    "The NIC's PCIe link was retrained. Look for PCIe errors (AER) in the kernel log, then reseat "
    "the card or its riser. A NIC does not slow its link down while it is idle."
)
XID_UNKNOWN = "Look up the number in NVIDIA's Xid catalog: https://docs.nvidia.com/deploy/xid-errors/"
CANNOT_EXPLAIN = "A kernel message about GPUs, NICs or what connects them."

PATHS = {
    PathWord.DMABUF: "NICs access GPU memory directly, via DMA-BUF.",
    PathWord.PEERMEM: "NICs access GPU memory directly, via nvidia_peermem.",
    PathWord.STAGED: "GPU memory is copied through host memory, at about half the bandwidth. Run the "
    "doctor, check NCCL_NET_GDR_LEVEL, and look for GDRDMA in the job's log.",
    PathWord.TCP: "The job uses TCP instead of RDMA, at a fraction of the port rate. Check NCCL_IB_DISABLE, "
    "NCCL_NET and the devices in its container.",
    PathWord.HOST_MEMORY: "Only host memory is registered with the NICs.",
}

_LOSS = (
    "Packets are lost in the network and sent again, which slows the job down. Check drops and "
    "pause frames on the switch ports, and compare ECN, PFC and traffic class on hosts and switches."
)
ERRORS = {
    Harm.SIGNAL: "The cable, connector or optic is marginal. Run mlxlink -d BDF -m -c -e, then clean, "
    "reseat or replace it.",
    Harm.TIMEOUT: "A peer did not acknowledge in time: it died, its link flaps, or packets are lost. Check "
    "the peers first. When the retries are used up, the job fails with completion error 12.",
    Harm.LOSS: _LOSS,
    Harm.DISCARDS: _LOSS,
    Harm.REORDERED: _LOSS,
    Harm.RETRY: "The NIC has given up on a peer, and the job fails with completion error 12. Check the "
    "peer: an Xid, a reboot or a link down at this time.",
    Harm.RECEIVER: "A receiver had no buffer ready, so the sender waits. The receiving program is too slow, "
    "or its host is overloaded.",
    Harm.CORRUPT: "RoCE packets arrive damaged. A cable or a switch on the path changes or corrupts them.",
    Harm.CONGESTION: "Switches report congestion (ECN), and senders slow down. Some congestion is normal; "
    "this much costs bandwidth. Look for several senders to one receiver.",
    Harm.FLAP: PORT_FLAPPING,
}
