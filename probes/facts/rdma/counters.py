"""The counters of RDMA ports that gdrtop knows: where they are, how wide, and what it means if they rise.

Everything that reads, judges, draws or redacts counters takes them from PORT_COUNTERS.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from functools import cache

from probes.base.frozen import frozen


class Place(Enum):
    """Where a counter is read."""

    STANDARD = "counters"  # Documentation/ABI/stable/sysfs-class-infiniband
    HARDWARE = "hw_counters"  # names of the driver
    ETHTOOL = "ethtool -S"  # of the port's netdev
    TELEMETRY = "device/telemetry"  # of a Slingshot NIC, which has no port in sysfs


class CounterColumn(Enum):
    """Counters that mean the same, which the Live screen adds up in one column."""

    CONGESTION = "CNP"
    RETRANSMITS = "retrans"
    RECEIVER = "RNR"
    DISCARDS = "discards"
    ERRORS = "errors"
    WAIT = "wait"


class Harm(Enum):
    """What goes wrong while a counter rises."""

    SIGNAL = "signal"
    FLAP = "flap"
    DISCARDS = "discards"
    TIMEOUT = "timeout"
    RETRY = "retry"
    LOSS = "loss"
    REORDERED = "reordered"  # normal with adaptive routing, unless a counter that shows a loss rises too
    CORRUPT = "corrupt"
    RECEIVER = "receiver"
    CONGESTION = "congestion"


@frozen
class Rise:
    """What a port does whose counter rises faster than is normal."""

    harm: Harm
    sentence: str  # after the port's name: "has signal errors"
    limits: tuple[tuple[float, float], ...]  # more than so many events in so many seconds
    shows_loss: bool = False  # packets out of order were lost, not only overtaken by others

    @property
    def per_hour(self) -> float:
        """The lowest of the limits as events in an hour."""
        return min(events * 3600 / seconds for events, seconds in self.limits)


@frozen
class PortCounter:
    """One counter of a port."""

    name: str
    place: Place
    column: CounterColumn | None = None  # None: among the others
    rise: Rise | None = None  # None: a rise alone means nothing
    bits: int | None = None  # it stops at its maximum; None: it wraps, or is wider than 32 bits
    is_sampled: bool = True  # by the live view, each second or two
    is_expected: bool = False  # every sample has it, with a reason where the NIC has none of that name


def _standard(
    name: str,
    bits: int,
    column: CounterColumn | None = None,
    rise: Rise | None = None,
    is_expected: bool = False,
    is_sampled: bool = True,
) -> PortCounter:
    return PortCounter(name, Place.STANDARD, column, rise, bits, is_sampled, is_expected)


def _mlx5(
    name: str, column: CounterColumn, rise: Rise | None = None, is_expected: bool = True
) -> PortCounter:
    return PortCounter(name, Place.HARDWARE, column, rise, is_expected=is_expected)


def _other(name: str, rise: Rise | None = None, column: CounterColumn | None = None) -> PortCounter:
    return PortCounter(name, Place.HARDWARE, column, rise)


def _ethtool(name: str, column: CounterColumn | None = None, rise: Rise | None = None) -> PortCounter:
    return PortCounter(name, Place.ETHTOOL, column, rise)


def _telemetry(name: str, column: CounterColumn | None = None) -> PortCounter:
    return PortCounter(name, Place.TELEMETRY, column)


# Limits per second, minute and hour: NVIDIA NVSentinel, NIC health monitor. It has none for congestion
# notifications and retransmits: those here are far above what adaptive routing and small incasts cause.
_SIGNAL_ERRORS = Rise(Harm.SIGNAL, "has signal errors", ((100, 10), (120, 3600)))
_RECOVERIES = Rise(Harm.SIGNAL, "recovers from link errors", ((5, 60),))
_DAMAGED = Rise(Harm.SIGNAL, "receives damaged packets", ((100, 10),))
_INTEGRITY = Rise(Harm.SIGNAL, "has link integrity errors", ((0, 60),))
_OVERRUNS = Rise(Harm.DISCARDS, "has buffer overruns", ((0, 60),))
_LINK_LOST = Rise(Harm.FLAP, "lost its link", ((0, 60),))
_DISCARDED = Rise(Harm.DISCARDS, "discards packets", ((1000, 10),))
_DISCARDED_RECEIVED = Rise(Harm.DISCARDS, "discards received packets", ((1000, 10),))
_ACK_TIMEOUTS = Rise(Harm.TIMEOUT, "has ACK timeouts", ((10, 10),))
_GIVEN_UP = Rise(Harm.RETRY, "has given up on a peer", ((0, 60),))
_SLOW_RESTARTS = Rise(Harm.LOSS, "restarts slowly after losses", ((100, 10),))
_RESENT = Rise(Harm.LOSS, "retransmits packets", ((100, 10),))
_OUT_OF_ORDER = Rise(Harm.REORDERED, "loses packets", ((100, 10),))
_CORRUPT = Rise(Harm.CORRUPT, "receives corrupt RoCE packets", ((10, 10),))
_WAITS_FOR_RECEIVERS = Rise(Harm.RECEIVER, "waits for receivers", ((10, 10),))
_NO_BUFFERS = Rise(Harm.RECEIVER, "runs out of receive buffers", ((1000, 10),))
_SLOWED = Rise(Harm.CONGESTION, "is slowed down by congestion", ((5_000, 10),))
_CONGESTED = Rise(Harm.CONGESTION, "receives from a congested network", ((5_000, 10),))
_NO_CREDITS = Rise(Harm.CONGESTION, "waits for credits from the switch", ((1_000_000, 10),))
_LOST_AND_RESENT = replace(_RESENT, shows_loss=True)
_LOST_ACKS = replace(_ACK_TIMEOUTS, shows_loss=True)

_CNP, _RETRANS, _RNR = CounterColumn.CONGESTION, CounterColumn.RETRANSMITS, CounterColumn.RECEIVER
_DISCARDS, _ERRORS = CounterColumn.DISCARDS, CounterColumn.ERRORS

# Units of four octets (IBTA PortCounters; Documentation/ABI/stable/sysfs-class-infiniband).
PORT_DATA = SENT, RECEIVED = "port_xmit_data", "port_rcv_data"
OCTETS_A_UNIT = 4
PORT_COUNTERS = (
    # Widths: drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR.
    _standard("symbol_error", 16, _ERRORS, _SIGNAL_ERRORS, is_expected=True),
    _standard("link_error_recovery", 8, _ERRORS, _RECOVERIES),
    _standard("link_downed", 8, _ERRORS, _LINK_LOST, is_expected=True),
    _standard("port_rcv_errors", 16, _ERRORS, _DAMAGED, is_expected=True),
    _standard("port_rcv_remote_physical_errors", 16, is_sampled=False),
    _standard("port_rcv_switch_relay_errors", 16, is_sampled=False),
    _standard("port_xmit_discards", 16, _DISCARDS, _DISCARDED, is_expected=True),
    _standard("port_xmit_constraint_errors", 8, is_sampled=False),
    _standard("port_rcv_constraint_errors", 8, is_sampled=False),
    _standard("local_link_integrity_errors", 4, _ERRORS, _INTEGRITY),
    _standard("excessive_buffer_overrun_errors", 4, _ERRORS, _OVERRUNS),
    _standard("VL15_dropped", 16, is_sampled=False),
    _standard("port_xmit_wait", 32, CounterColumn.WAIT, _NO_CREDITS, is_expected=True),  # ticks
    # hw/mlx5/counters.c; most of them are 32 bits wide.
    _mlx5("np_cnp_sent", _CNP, _CONGESTED),
    _mlx5("rp_cnp_handled", _CNP, _SLOWED),
    _mlx5("rp_cnp_ignored", _CNP, is_expected=False),
    _mlx5("np_ecn_marked_roce_packets", _CNP),
    _mlx5("packet_seq_err", _RETRANS, _LOST_AND_RESENT),
    _mlx5("implied_nak_seq_err", _RETRANS, _RESENT, is_expected=False),
    _mlx5("out_of_sequence", _RETRANS, _OUT_OF_ORDER),
    _mlx5("local_ack_timeout_err", _RETRANS, _LOST_ACKS),
    _mlx5("roce_adp_retrans", _RETRANS, _LOST_AND_RESENT),
    _mlx5("roce_slow_restart", _RETRANS, _SLOW_RESTARTS),
    _mlx5("rnr_nak_retry_err", _RNR, _WAITS_FOR_RECEIVERS),
    _mlx5("out_of_buffer", _RNR, _NO_BUFFERS),
    _mlx5("rx_icrc_encapsulated", _ERRORS, _CORRUPT),
    _mlx5("req_transport_retries_exceeded", _ERRORS, _GIVEN_UP, is_expected=False),
    # sw/rxe/rxe_hw_counters.c
    _other("out_of_seq_request", _OUT_OF_ORDER),
    _other("rcvd_seq_err", _LOST_AND_RESENT),
    _other("rcvd_rnr_err", _WAITS_FOR_RECEIVERS),
    _other("retry_exceeded_err", _GIVEN_UP),
    _other("link_downed", _LINK_LOST, _ERRORS),
    # hw/bnxt_re/hw_counters.c
    _other("to_retransmits", _RESENT),
    _other("seq_err_naks_rcvd", _RESENT),
    _other("rnr_naks_rcvd", _WAITS_FOR_RECEIVERS),
    _other("max_retry_exceeded", _GIVEN_UP),
    _other("rx_ecn_marked_pkts"),
    _other("tx_cnp_pkts", _CONGESTED),
    _other("rx_cnp_pkts", _SLOWED),
    # hw/efa/efa_verbs.c
    _other("retrans_pkts", _RESENT),
    _other("retrans_timeout_events", _ACK_TIMEOUTS),
    _other("unresponsive_remote_events"),
    _other("impaired_remote_conn_events"),
    _other("rx_drops"),
    # Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst
    _ethtool("rx_discards_phy", _DISCARDS, _DISCARDED_RECEIVED),
    _ethtool("tx_discards_phy", _DISCARDS),
    _ethtool("link_down_events_phy", _ERRORS, _LINK_LOST),
    _ethtool("outbound_pci_buffer_overflow"),
    # HPE's texts in open-mpi/ompi, ompi/runtime/ompi_hwpc_cxi_constants.c, which has no limits.
    _telemetry("hni_pcs_uncorrected_cw", _ERRORS),
    _telemetry("pct_retry_srb_requests", _RETRANS),
    _telemetry("pct_sct_timeouts"),
    _telemetry("pct_spt_timeouts"),
    _telemetry("pct_no_tct_nacks"),
    _telemetry("pct_no_trs_nacks"),
)

ERROR_COUNTER_BITS = {counter.name: counter.bits for counter in PORT_COUNTERS if counter.bits is not None}
"""The standard counters, which all count trouble → their width in bits."""


@cache
def sampled(place: Place, is_expected: bool = False) -> tuple[str, ...]:
    """Return the names that the live view reads there; with `is_expected`, those that every sample has."""
    return tuple(
        counter.name
        for counter in PORT_COUNTERS
        if counter.place is place and counter.is_sampled and counter.is_expected >= is_expected
    )
