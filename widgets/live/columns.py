"""The columns of Live's tables: their names in the configuration, and what they mean.

It imports nothing of the probes, because the configuration is checked before the first screen.
"""

from __future__ import annotations

from collections.abc import Iterable

from probes.base.frozen import frozen


@frozen
class TableColumn:
    """A column that there may be: without its figures, or without room, it is not drawn."""

    title: str
    meaning: str
    name: str = ""  # in the configuration, if the title cannot be typed
    is_fixed: bool = False  # it identifies the row, so it is always shown

    @property
    def key(self) -> str:
        """Return the name in the configuration."""
        return self.name or self.title


COLUMNS: dict[str, tuple[TableColumn, ...]] = {
    "ranks": (
        TableColumn("GPU", "the GPUs of the process", is_fixed=True),
        TableColumn("rank", "its rank in the job"),
        TableColumn("pid", "its process ID", is_fixed=True),
        TableColumn("program", "its program"),
        TableColumn("path", "GDR (DMA-BUF), GDR (peermem), staged, TCP, …"),
        TableColumn("NICs", "NICs with connected queue pairs, and how many"),
        TableColumn("Gb/s", "through these NICs, in the busier direction"),
        TableColumn("share", "of the median of the job's ranks"),
        TableColumn("registered", "memory regions of all NICs together"),
        TableColumn("NCCL", "NCCL's threads, and the transport they show"),
        TableColumn("state", "running, sleeping, stopped, …"),
        TableColumn("CPU", "share of one CPU"),
        TableColumn("bus GB/s", "of the newest collective; needs NCCL's inspector"),
        TableColumn("last event", "the newest event of the process"),
    ),
    "nics": (
        TableColumn("NIC", "the port", is_fixed=True),
        TableColumn("state", "ACTIVE, DOWN, …"),
        TableColumn("line", "line rate"),
        TableColumn("↑Gb/s", "sent, and the share of the line rate", "sent"),
        TableColumn("↓Gb/s", "received, and the share of the line rate", "received"),
        TableColumn("CNP/s", "congestion notifications and ECN marks"),
        TableColumn("retrans/s", "packets lost, out of sequence or sent again"),
        TableColumn("RNR/s", "times a receiver had no buffer posted"),
        TableColumn("discards/s", "packets dropped at the port"),
        TableColumn("errors/s", "bit errors, link errors and failed requests"),
        TableColumn("wait/s", "ticks without credits (InfiniBand)"),
        TableColumn("pause", "share of the time stopped by flow control"),
        TableColumn("PCIe stall", "share of the time the NIC waited for PCIe"),
        TableColumn("used by", "ranks with connected queue pairs"),
        TableColumn("2 min, █ = line rate", "the busier direction, as a graph", "graph"),
    ),
    "gpus": (
        TableColumn("GPU", "the GPU", is_fixed=True),
        TableColumn("use", "utilization"),
        TableColumn("↑PCIe", "sent over PCIe, Gb/s", "PCIe sent"),
        TableColumn("↓PCIe", "received over PCIe, Gb/s", "PCIe received"),
        TableColumn("↑NVLink", "sent over NVLink, Gb/s", "NVLink sent"),
        TableColumn("↓NVLink", "received over NVLink, Gb/s", "NVLink received"),
        TableColumn("memory", "used memory"),
        TableColumn("BAR1", "used BAR1"),
        TableColumn("°C", "temperature", "temperature"),
        TableColumn("W", "power", "power"),
        TableColumn("SM MHz", "clock of the SMs"),
        TableColumn("throttled", "why the clocks are lowered"),
    ),
}


def names_in(text: str) -> list[str]:
    """Return the names in a setting: "CNP/s, RNR/s"."""
    return [name for part in text.split(",") if (name := part.strip())]


def titles_of(table: str, names: Iterable[str]) -> frozenset[str]:
    """Return the titles of columns that these names hide; those that identify a row stay."""
    wanted = frozenset(names)
    return frozenset(
        column.title for column in COLUMNS[table] if column.key in wanted and not column.is_fixed
    )
