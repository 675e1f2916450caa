"""The columns of Live's tables: their names in the configuration, what they mean, and the order of the rows.

It imports nothing of the probes, because the configuration is checked before the first screen.
"""

from __future__ import annotations

from collections.abc import Iterable

from probes.base.frozen import frozen
from widgets.base.columns import HEAD


@frozen
class TableColumn:
    """A column that there may be: without its figures, or without room, it is not drawn."""

    title: str
    letter: str  # sorts the rows by it, after `o`
    meaning: str
    name: str = ""  # in the configuration, if the title cannot be typed
    is_fixed: bool = False  # it identifies the row, so it is always shown

    @property
    def key(self) -> str:
        """Return the name in the configuration."""
        return self.name or self.title


COLUMNS: dict[str, tuple[TableColumn, ...]] = {
    "ranks": (
        TableColumn("GPU", "g", "the GPUs of the process", is_fixed=True),
        TableColumn("rank", "r", "its rank in the job"),
        TableColumn("pid", "p", "its process ID", is_fixed=True),
        TableColumn("program", "m", "its program"),
        TableColumn("path", "a", "GDR (DMA-BUF), GDR (peermem), staged, TCP, …"),
        TableColumn("NICs", "n", "NICs with connected queue pairs, and how many"),
        TableColumn("Gb/s", "b", "through these NICs, in the busier direction"),
        TableColumn("share", "s", "of the median of the job's ranks"),
        TableColumn("registered", "e", "memory regions of all NICs together"),
        TableColumn("NCCL", "t", "NCCL's threads, and the transport they show"),
        TableColumn("state", "d", "running, sleeping, stopped, …"),
        TableColumn("CPU", "c", "share of one CPU"),
        TableColumn("bus GB/s", "u", "of the newest collective; needs NCCL's inspector"),
        TableColumn("last event", "l", "the newest event of the process"),
    ),
    "nics": (
        TableColumn("NIC", "n", "the port", is_fixed=True),
        TableColumn("state", "a", "ACTIVE, DOWN, …"),
        TableColumn("line", "l", "line rate"),
        TableColumn("↑Gb/s", "s", "sent, and the share of the line rate", "sent"),
        TableColumn("↓Gb/s", "r", "received, and the share of the line rate", "received"),
        TableColumn("CNP/s", "c", "congestion notifications and ECN marks"),
        TableColumn("retrans/s", "t", "packets lost, out of sequence or sent again"),
        TableColumn("RNR/s", "x", "times a receiver had no buffer posted"),
        TableColumn("discards/s", "d", "packets dropped at the port"),
        TableColumn("errors/s", "e", "bit errors, link errors and failed requests"),
        TableColumn("wait/s", "w", "ticks without credits (InfiniBand)"),
        TableColumn("pause", "p", "share of the time stopped by flow control"),
        TableColumn("PCIe stall", "i", "share of the time the NIC waited for PCIe"),
        TableColumn("used by", "u", "ranks with connected queue pairs"),
        TableColumn("2 min", "h", "the busier direction; █ is the line rate", "graph"),
    ),
    "gpus": (
        TableColumn("GPU", "g", "the GPU", is_fixed=True),
        TableColumn("use", "u", "utilization"),
        TableColumn("↑PCIe", "s", "sent over PCIe, Gb/s", "PCIe sent"),
        TableColumn("↓PCIe", "r", "received over PCIe, Gb/s", "PCIe received"),
        TableColumn("↑NVLink", "n", "sent over NVLink, Gb/s", "NVLink sent"),
        TableColumn("↓NVLink", "v", "received over NVLink, Gb/s", "NVLink received"),
        TableColumn("memory", "m", "used memory"),
        TableColumn("BAR1", "b", "used BAR1"),
        TableColumn("°C", "t", "temperature", "temperature"),
        TableColumn("W", "p", "power", "power"),
        TableColumn("SM MHz", "c", "clock of the SMs"),
        TableColumn("throttled", "l", "why the clocks are lowered"),
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


def order_text(sort: str) -> str:
    """Return an order of the configuration as shown: "problems first", "by share", "by share, reversed"."""
    if not sort:
        return "problems first"
    name = sort.removeprefix("-")
    return f"by {name}{', reversed' if sort.startswith('-') else ''}"


def changed_order(sort: str, name: str) -> str:
    """Return the order after a column was chosen; the same column again reverses it, "" is worst first."""
    return f"-{name}" if name and sort == name else name


def sort_clicked(table: str, head: str) -> str:
    """Return the name of the column whose head has this id, "" if it is no head."""
    title = head.removeprefix(HEAD) if head.startswith(HEAD) else None
    return next((column.key for column in COLUMNS[table] if column.title == title), "")


def sorted_title(table: str, sort: str) -> str:
    """Return the title of the column that a table is sorted by; "" for none."""
    name = sort.removeprefix("-")
    return next((column.title for column in COLUMNS[table] if column.key == name), "")
