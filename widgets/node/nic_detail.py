"""A NIC or a GPU in detail: its model, role and counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probes.base.unknown import Maybe, Unknown, known, map_known
from probes.facts.gpu.gpus import COMPLETED, NOT_SUPPORTED, Gpu
from probes.facts.node import Node
from probes.facts.rdma.bit_errors import rate_since_load, rate_text
from probes.facts.rdma.devices import RdmaDevice, port_name
from probes.facts.rdma.port_health import CounterValue, PortHealth, PortHealthFacts, counter_values
from probes.host.component_history import SOURCE, ComponentHistory
from probes.host.nvml import NvmlLive
from probes.live.reliability import day_text, past_by_device
from probes.queries.ports import key_texts
from probes.snapshot.examination import Examination
from probes.snapshot.nic_roles import NicRole
from probes.snapshot.rates import PortRate
from widgets.base.figures import UNKNOWN_MARK, gbps, gibibytes, short
from widgets.base.lines import Line, Run, Tone, wrapped
from widgets.node.cables import cable_lines
from widgets.node.optics import sensor_lines

_SHORT_COUNTERS = 3


def role_line(role: NicRole, width: int) -> list[Line]:
    """Return "storage NIC: mounts /data (nfs4), 100 Gb/s Ethernet"."""
    return wrapped(f"{role.role.value} NIC: {', '.join(role.reasons)}", width, Tone.DIM)


def counter_lines(examination: Examination | None, device: RdmaDevice, width: int, full: bool) -> list[Line]:
    """Draw the error counters of a NIC that are not 0, by port, and their rises since the check before."""
    if examination is None or isinstance(examination.port_health, Unknown):
        return [(Run("error counters: not read yet", Tone.DIM),)]
    earlier, at = examination.earlier_port_health, examination.earlier_at
    before = earlier.ports if isinstance(earlier, PortHealthFacts) else {}
    seconds = None if at is None else examination.reading.at - at
    counters = {
        health.port: counter_values(health, before.get((device.name, health.port)))
        for health in _healths(examination, device)
    }
    rows: list[tuple[str, CounterValue]] = []
    left_out = 0
    for port, values in counters.items():
        shown = values if full else values[:_SHORT_COUNTERS]
        prefix = f"port {port} " if len(counters) > 1 else ""
        rows.extend((f"{prefix}{value.name}", value) for value in shown)
        left_out += len(values) - len(shown)
    if not rows:
        return [(Run("error counters: all 0", Tone.DIM),)]
    names = max(len(name) for name, _ in rows)
    lines: list[Line] = wrapped("error counters since the last reset", width, Tone.TITLE)
    lines.extend(_counter_line(f"{name:<{names}}", value, seconds) for name, value in rows)
    if left_out:
        lines.append((Run(f"… {left_out} more: Enter shows all", Tone.DIM),))
    return lines


def fec_lines(ports: Sequence[PortHealth]) -> list[Line]:
    """Draw FEC mode of each port, and what it repairs since the driver was loaded, where that is known."""
    rows = []
    for port in ports:
        mode = known(map_known(port.fec, lambda fec: fec.mode), "")
        rate = known(map_known(rate_since_load(port.link_counts), rate_text), "")
        shown = ", ".join(filter(None, (mode, f"repairs {rate} of the bits" * bool(rate))))
        if shown:
            rows.append((f"FEC {port.port}" if len(ports) > 1 else "FEC", shown))
    return _facts(rows)


def _counter_line(name: str, value: CounterValue, seconds: float | None) -> Line:
    rise = f"  +{value.rise} in {seconds:.0f} s" if value.rise and seconds is not None else ""
    full = "  at its maximum" if value.is_full else ""
    return (Run(f" {name} {value.value}"), Run(rise, Tone.WARNING), Run(full, Tone.WARNING))


def draw_nic(
    device: RdmaDevice,
    role: NicRole | None,
    width: int,
    netdevs: Mapping[str, PortRate] | None = None,
    examination: Examination | None = None,
) -> list[Line]:
    """Describe a NIC, port by port, and what the last check has read of its links.

    `netdevs`: TCP/IP traffic by network interface.
    """
    keys = {} if examination is None else key_texts(examination)
    lines: list[Line] = [(Run(device.name, Tone.TITLE), Run(f"  {known(device.bdf, '')}", Tone.DIM))]
    if role is not None:
        lines.extend(role_line(role, width))
    facts = (("type", device.hca_type), ("firmware", device.firmware), ("board", device.board_id))
    lines.extend(_facts([(name, known(value, UNKNOWN_MARK)) for name, value in facts]))
    for port in device.ports:
        state = f"{known(port.state, UNKNOWN_MARK)}, {known(port.physical_state, UNKNOWN_MARK)}"
        kind = (
            f"{short(port.rate_gbps)} Gb/s {known(port.link_layer, '')} {known(port.rate_text, '')}".rstrip()
        )
        if port.bond is not None:
            members = " and ".join(
                member.netdev if member in port.bond.up else f"{member.netdev} (down)"
                for member in port.bond.members
            )
            kind = f"{short(port.rate_gbps)} Gb/s, {known(port.bond.mode, 'a')} bond of {members}"
        netdev = known(port.netdev, "")
        where = f"  netdev {netdev}" if netdev else ""
        lines.extend(wrapped(f"port {port.number}    {state}, {kind}{where}", width))
        if text := keys.get(port_name(device.name, port.number)):
            lines.extend(wrapped(f"P_Keys    {text}", width))
        rate = (netdevs or {}).get(netdev)
        if rate is not None:
            traffic = f"↑ {gbps(rate.sent_gbps)}  ↓ {gbps(rate.received_gbps)}"
            lines.append((Run("TCP/IP    ", Tone.DIM), Run(traffic), Run("  without RDMA", Tone.DIM)))
    if examination is None:
        return lines
    lines += [*cable_lines(device, examination.cable_ends, width), *fec_lines(_healths(examination, device))]
    lines += past_lines(examination.component_history, examination.node, device.name, width)
    return [*lines, *sensor_lines(examination.temperatures, device.bdf, width)]


def _healths(examination: Examination, device: RdmaDevice) -> list[PortHealth]:
    ports = known(map_known(examination.port_health, lambda facts: facts.ports), {})
    return [health for (name, _), health in ports.items() if name == device.name]


def past_lines(history: Maybe[ComponentHistory], node: Node, device: str, width: int) -> list[Line]:
    """Return how often a NIC (by name) or a GPU (by BDF) was slow or failed, where that is known."""
    text = "" if isinstance(history, Unknown) else past_by_device(history, node).get(device, "")
    if isinstance(history, Unknown) or not text:
        return []
    return wrapped(f"{text} ({SOURCE}, since {day_text(history.since)})", width, Tone.WARNING)


def draw_gpu(
    gpu: Gpu, now: NvmlLive | None, width: int, examination: Examination | None = None
) -> list[Line]:
    """Describe a GPU, and its state unless `now` is None; `examination`: of the last check."""
    lines: list[Line] = [(Run(f"GPU{gpu.index}", Tone.TITLE), Run(f"  {gpu.bdf}", Tone.DIM))]
    total = gibibytes(gpu.memory_total_bytes)
    used = f"{gibibytes(now.memory_used_bytes)} of {total} in use" if now else total
    facts = [("model", gpu.name), ("memory", used), ("BAR1", gibibytes(gpu.bar1_total_bytes))]
    if now is not None:
        celsius = known(now.temperature_celsius, UNKNOWN_MARK)
        facts.append(("state", f"{celsius}°C, {short(now.power_watts)} W"))
    if not isinstance(gpu.nvlinks, Unknown) and gpu.nvlinks:
        facts.append(("NVLinks", str(gpu.nvlinks)))
    lines += _facts([*facts, *_fabric(gpu)])
    if examination is not None:
        lines += past_lines(examination.component_history, examination.node, gpu.bdf, width)
    return lines


def _fabric(gpu: Gpu) -> list[tuple[str, str]]:
    """Return the GPU's place in the NVLink fabric; nothing where there is none."""
    fabric = gpu.fabric
    if isinstance(fabric.state, Unknown) or fabric.state == NOT_SUPPORTED:
        return []
    state = "registered" if fabric.state == COMPLETED else fabric.state
    clique = "" if isinstance(fabric.clique, Unknown) else f", clique {fabric.clique}"
    facts = [("fabric", f"{state}{clique}")]
    if not isinstance(fabric.cluster, Unknown):
        facts.append(("cluster", fabric.cluster))
    problems = known(fabric.problems, ())
    return [*facts, ("health", "; ".join(problems))] if problems else facts


def _facts(facts: Sequence[tuple[str, str]]) -> list[Line]:
    return [(Run(f"{name:<9} ", Tone.DIM), Run(value)) for name, value in facts]
