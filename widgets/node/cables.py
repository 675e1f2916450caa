"""Where the cables of a node's NICs end."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.grouping import grouped
from probes.base.text import join_limited
from probes.base.unknown import Maybe, Unknown
from probes.facts.rdma.cable_ends import CableEnds, PortCable, ends_of_port
from probes.facts.rdma.devices import RdmaDevice, port_name
from widgets.base.columns import Column, draw_columns
from widgets.base.lines import Line, Run, Tone, line, wrapped


def draw_cables(cables: Sequence[PortCable], width: int) -> list[Line]:
    """Draw a row a cable below a title: NIC, netdev, switch, port and how the switch describes the port."""
    lines = [line(Run("Where the cables end", Tone.TITLE))]
    if not cables:
        return [*lines, line("  no port here has a cable; those of virtual functions are their host's")]
    shown = [(cable, cable.end) for cable in cables if not isinstance(cable.end, Unknown)]
    titles = {
        "switch": [end.label for _, end in shown],
        "switch port": [end.port for _, end in shown],
        "description": [end.port_description for _, end in shown],
        "largest frame": [str(end.max_frame_bytes or "") for _, end in shown],
    }
    columns = [
        Column("  NIC", [line(f"  {port_name(cable.device, cable.port)}") for cable, _ in shown], 1),
        Column("netdev", [line(cable.netdev) for cable, _ in shown], 3),
    ]
    columns += [
        Column(title, [line(cell) for cell in cells], importance)
        for importance, (title, cells) in enumerate(titles.items(), 1)
        if any(cells)
    ]
    if shown:
        lines += draw_columns(columns, [""] * len(shown), width)
    unread = grouped(
        (cable.end.detail or cable.end.reason.value, port_name(cable.device, cable.port))
        for cable in cables
        if isinstance(cable.end, Unknown)
    )
    for why, ports in unread.items():
        names = join_limited(dict.fromkeys(ports))
        lines += wrapped(f"unknown for {names}: {why}", width, Tone.DIM, "  ", "  ")
    return lines


def cable_lines(device: RdmaDevice, ends: Maybe[CableEnds], width: int) -> list[Line]:
    """Return "cable     leaf1 swp3 (To-gpu17-eth0)" for each known cable of a NIC, as its detail has them."""
    if isinstance(ends, Unknown):
        return []
    lines: list[Line] = []
    for port in device.ports:
        of_port = ends_of_port(ends, port)
        for netdev, end in of_port.items():
            if not isinstance(end, Unknown):
                which = f" from {netdev}" if len(of_port) > 1 else ""
                text = f" ({end.port_description})" if end.port_description not in ("", end.port) else ""
                lines += wrapped(f"cable to  {end}{text}{which}", width)
    return lines
