"""Everything about the selected process, NIC, GPU or event, with the evidence and the reason for each `?`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from probes.base.evidence import Evidence
from probes.base.text import binary_size, capitalized, join_limited, plural, printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.checks.statements import Health, rank_health
from probes.facts.jobs.processes import name_of
from probes.facts.pci.functions import words
from probes.facts.rdma.port_health import is_reordered
from probes.host.collectives import CollectiveSpeed
from probes.live.model.sample import (
    GpuSample,
    LiveEvent,
    LiveProcess,
    LiveSample,
    NicUse,
    OddOne,
    PathWord,
    PortSample,
    Role,
)
from probes.queries.jobs import AT_WORK, spread_of
from probes.queries.modules import PEERMEM_REFCNT
from probes.queries.queue_pair_makers import uncounted, unlisted
from widgets.base.figures import gibibytes, in_gbps, local_time, share, short
from widgets.base.health import TONES
from widgets.base.lines import LABEL_CELLS, Line, Run, Tone, labeled, wrapped
from widgets.live import changes, engines, gpus, nics, ranks
from widgets.live.figures import (
    COUNTER_GROUPS,
    CounterGroup,
    RankRate,
    gpu_labels,
    medians,
    memory_peers,
    per_second,
    rank_rates,
)

T = TypeVar("T")


def _field(label: str, text: str, width: int, tone: Tone = Tone.PLAIN) -> list[Line]:
    return labeled(label, (text,), width, tone)


def _evidence(evidence: Iterable[Evidence], width: int, label: str = "Evidence") -> list[Line]:
    return labeled(label, (f"{item.source}: {item.value}" for item in evidence), width)


def _shown(value: Maybe[T], text: Callable[[T], str] = str) -> str:
    """Return the text of a value, or "? (needs root)"."""
    return f"? ({value})" if isinstance(value, Unknown) else text(value)


# Processes


def of_process(process: LiveProcess, sample: LiveSample, width: int) -> list[Line]:
    """Describe a process: its path with the evidence, its NICs, rate, memory and threads."""
    path = process.path
    lines = wrapped(_title(process), width, Tone.TITLE)
    lines += engines.draw(process.serving, process.transfer, width)
    lines += _field("Path", path.text, width, TONES[_path_health(process, sample)])
    lines += _field("", _meaning(process), width, Tone.DIM)
    shown = () if process.transfer is None else process.transfer.evidence
    # The count of this moment stands in the row of nvidia_peermem.
    rest = (each for each in path.evidence if each not in shown and each.source != PEERMEM_REFCNT)
    lines += _evidence(rest, width)
    found = [odd for job in sample.jobs for odd in job.odd if odd.pid == process.pid]
    lines += _odd(found, width, path.evidence)
    rates = rank_rates(sample)
    lines += _field("Rate", _rate_text(process, sample, rates), width)
    uses = [
        f"{nic.device}: {_pairs(nic)}, "
        f"{plural(nic.regions, 'memory region')}, {gibibytes(nic.registered_bytes)} registered"
        for nic in process.nics
        if nic.queue_pairs or nic.regions
    ]
    idle = [nic.device for nic in process.nics if not nic.queue_pairs and not nic.regions]
    if idle:
        unread = "queue pairs and memory regions unknown"
        what = "no queue pairs or memory regions" if process.is_listed else unread
        uses.append(f"{what}: {', '.join(idle)}")
    queues = [each.sentence for each in process.own_queues]
    lines += labeled("Queues", (*queues, *_spread(process, sample)), width)
    lines += _bus(process, sample, width)
    used = process.used_nics
    unlisted = f"unknown: {used.detail}" if isinstance(used, Unknown) else ""
    lines += labeled("NICs", uses or [unlisted or "none"], width)
    registered, pinned = gibibytes(process.registered_bytes), _shown(process.pinned_bytes, gibibytes)
    memory = f"{registered} registered, {pinned} pinned (VmPin)"
    lines += _field("Memory", memory if process.nics else "unknown" if unlisted else "none registered", width)
    peermem = f"nvidia_peermem refcnt {_shown(sample.peermem.refcnt)}"
    peermem = "; ".join([peermem, *memory_peers(sample.peermem)])
    lines += _field("peermem", f"{peermem} (whole node)", width)
    labels = gpu_labels(sample)
    lives = {gpu.bdf: gpu for gpu in sample.gpus}
    texts = [
        labels.get(bdf, bdf) + (f": {_gpu_text(lives[bdf])}" if bdf in lives else "") for bdf in process.gpus
    ]
    lines += labeled("GPU", texts or ["none, according to NVML"], width)
    lines += _field("Threads", _shown(process.threads, lambda names: ", ".join(names) or "none"), width)
    cpu = _shown(process.cpu_percent, "{:.0f}% of one core".format)
    lines += _field("State", f"{_shown(process.state, ranks.state_word)}, CPU {cpu}", width)
    cpus = map_known(process.process.usage, lambda usage: usage.cpus)
    lines += _field("CPUs", _shown(cpus, "may run on {}".format), width)
    world = "" if isinstance(process.world_size, Unknown) else f" of {process.world_size} (from 0)"
    lines += _field("Rank", _shown(process.rank, lambda rank: f"{rank}{world}"), width)
    for label, text in _python_commands(process):
        lines += _field(label, text, width, Tone.DIM)
    return lines


def _spread(process: LiveProcess, sample: LiveSample) -> list[str]:
    """Return how NCCL spreads its traffic, and whether ports show adaptive routing at work now."""
    rates = {
        port.name: {name: known(rate, 0.0) for name, rate in port.counters.items()}
        for port in sample.ports
        if port.device in process.ready_nics
    }
    seen = [name for name, counters in rates.items() if is_reordered(counters)]
    texts = [*spread_of(process.process)]
    return [*texts, f"{AT_WORK} on {join_limited(seen)}"] if texts and seen else texts


def _path_health(process: LiveProcess, sample: LiveSample) -> Health:
    """Return how good the path between memory and NICs is, apart from that of KV caches."""
    return rank_health(replace(process, transfer=None), sample)


def _pairs(nic: NicUse) -> str:
    """Return "8 queue pairs (8 connected)"; those without a peer (UD, SRD) are named."""
    is_open = nic.open_ud + nic.open_driver
    states = f"{nic.ready} connected" + (f", {is_open} open without a peer" if is_open else "")
    return f"{plural(nic.queue_pairs, 'queue pair')} ({states})"


def stack_command(process: LiveProcess) -> str:
    """Return the command that shows the Python stacks of a rank, to copy; "" if it is not a Python rank.

    gdrtop does not run it. Source: py-spy's options.
    """
    names = known(process.process.program, ""), known(process.process.comm, "")
    if process.role is not Role.NCCL or not (names[0].endswith(".py") or names[1].startswith("python")):
        return ""
    return f"py-spy dump --nonblocking --pid {process.pid}"


def _python_commands(process: LiveProcess) -> list[tuple[str, str]]:
    """Return commands to copy that show where a Python rank is; gdrtop runs none of them.

    Source: PyTorch's ProcessGroupNCCL.hpp (DumpPipe).
    """
    command = stack_command(process)
    if not command:
        return []
    rank = "RANK" if isinstance(process.rank, Unknown) else str(process.rank)
    return [
        ("Copy (c)", command),
        ("", "shows its Python stacks without pausing it; run it as its user or as root"),
        ("", f'printf 1 > "$TORCH_NCCL_DEBUG_INFO_PIPE_FILE"{rank}.pipe'),
        ("", "makes PyTorch dump its flight recorder; use the job's value for the variable"),
    ]


def _title(process: LiveProcess) -> str:
    """Return "rank 5 · train.py (alice, Slurm job 4711, pid 4716)"."""
    name = name_of(process.process)
    return name if isinstance(process.rank, Unknown) else f"rank {process.rank} · {name}"


def _meaning(process: LiveProcess) -> str:
    word = process.path.word
    text = {
        PathWord.DMABUF: "The NIC reads and writes GPU memory directly; registered through DMA-BUF.",
        PathWord.PEERMEM: "The NIC reads and writes GPU memory directly; registered through nvidia_peermem.",
        PathWord.STAGED: "GPU memory is copied through host memory: GPUDirect RDMA is not in use.",
        PathWord.TCP: "NCCL uses sockets: neither RDMA nor GPUDirect RDMA is in use.",
        PathWord.HOST_MEMORY: "All registered memory is host memory.",
        PathWord.NO_NIC: "It has no connected queue pair: it uses TCP, stays on this node, or sends nothing.",
        PathWord.UNKNOWN: "The evidence is inconclusive.",
    }[word]
    text = f"{text} {process.path.contradiction}".rstrip()
    if not process.path.is_likely:
        return text
    doubt = f" {process.path.doubt}" if process.path.doubt else ""
    return f"{text} The evidence makes this likely, but does not prove it.{doubt}"


def _odd(found: Iterable[OddOne], width: int, shown: Collection[Evidence] = ()) -> list[Line]:
    """Draw what is odd in a rank or a NIC; `shown`: evidence that stands above."""
    lines: list[Line] = []
    for odd in found:
        lines += _field("Odd one out", f"{capitalized(odd.sentence)}.", width, Tone.WARNING)
        lines += _evidence([piece for piece in odd.evidence if piece not in shown], width, "")
    return lines


def _past(device: str, sample: LiveSample, width: int) -> list[Line]:
    """Return how a NIC or a GPU did in earlier jobs, where `gdrtop watch` has kept that."""
    text = sample.past.get(device, "")
    return _field("Earlier", text, width, Tone.WARNING) if text else []


def _rate_text(process: LiveProcess, sample: LiveSample, rates: dict[int, RankRate]) -> str:
    rate = rates.get(process.pid)
    if rate is None:
        if process.transfer is not None:
            return "nothing moves"
        outside = unlisted(process.own_queues)
        return f"unknown: queue pairs are not listed ({outside})" if outside else "no connected queue pair"
    middle = medians(sample, rates)
    part = ranks.share_of_median(process, rate, middle)
    text = f"↑{_shown(rate.sent_gbps, short)} ↓{_shown(rate.received_gbps, short)} Gb/s"
    text += " through its NICs" if process.ready_nics else f" over {process.path_text}"
    if rate.shared_with:
        text += f"; at most, because it shares {', '.join(rate.shared_with)}"
    elif part is not None:
        text += f", {part * 100:.0f}% of the median of its job ({short(middle[process.job])} Gb/s)"
    return text


def _bus(process: LiveProcess, sample: LiveSample, width: int) -> list[Line]:
    """Describe what NCCL's inspector measured, a communicator a line; nothing if the job does not load it."""
    bus = process.bus_gbps
    if isinstance(bus, Unknown):
        is_without = bus.reason is Reason.NOT_RECORDED or isinstance(process.process.environment, Unknown)
        return [] if is_without else _field("Bus", _shown(bus), width)
    texts = [_collective_text(collective) for collective in process.collectives]
    for job in sample.jobs:
        slow = job.slowest
        if slow is not None and slow.pid == process.pid:
            texts.append(
                f"slowest rank of {slow.collective} {slow.sequence}: {short(slow.bus_gbps)} GB/s, the others "
                f"{short(slow.others_gbps)} GB/s; a rank that waits for a late one also shows a low figure"
            )
    return labeled("Bus", texts, width)


def _collective_text(speed: CollectiveSpeed) -> str:
    """Return "48 GB/s, AllReduce 1407 of 64 MiB, communicator 0x7f8c (8 ranks), 12:30:05"."""
    number = "" if speed.sequence is None else f" {speed.sequence}"
    size = speed.message_size if speed.message_bytes is None else binary_size(speed.message_bytes)
    text = f"{short(speed.bus_gbps)} GB/s, {speed.collective}{number}{f' of {size}' if size else ''}"
    text += f", communicator {speed.communicator}"
    if speed.ranks is not None:
        text += f" ({plural(speed.ranks, 'rank')})"
    return text if speed.at is None else f"{text}, {local_time(speed.at, '%H:%M:%S')}"


# NICs


def users_of(device: str, sample: LiveSample) -> list[LiveProcess]:
    """Return the processes that have a NIC open, in order."""
    return [
        process for process in ranks.in_order(sample) if any(nic.device == device for nic in process.nics)
    ]


def of_port(port: PortSample, sample: LiveSample, width: int) -> list[Line]:
    """Describe a port: its rates, every counter that moves, and those that could not be read."""
    netdev = f" ({known(port.netdev, '')})" if known(port.netdev, "") else ""
    lines = wrapped(f"{port.name}{netdev}", width, Tone.TITLE)
    rate = _shown(port.line_rate_gbps, lambda rate: f"{short(rate)} Gb/s")
    lines += _field("State", f"{_shown(port.state)}, line rate {rate}", width)
    for label, value in (("Sent", port.sent_gbps), ("Received", port.received_gbps)):
        percent = share(value, port.line_rate_gbps)
        of_line = f" ({percent} of line rate)" if percent else ""
        lines += _field(label, f"{_shown(value, lambda rate: f'{short(rate)} Gb/s')}{of_line}", width)
    if any(port.sent_by_priority.values()):
        sent = (f"{short(gbps)} in {each}" for each, gbps in port.sent_by_priority.items() if gbps)
        lines += _field("Priorities", f"Gb/s sent: {', '.join(sent)}", width)
    if port.rates_from:
        text = f"all traffic of interface {port.rates_from}: software RDMA has no byte counters"
        lines += _field("Rates from", text, width)
    link = map_known(
        port.pcie_gtps, lambda rate: map_known(port.pcie_width, lambda lanes: words(rate, lanes))
    )
    lines += _field("PCIe link", _shown(link), width)
    found = [odd for job in sample.jobs for odd in job.odd if port.device and odd.device == port.device]
    lines += _odd(found, width)
    lines += _past(port.device, sample, width)
    for label, value, text in (
        ("Pause", port.pause_percent, "{:.0f}% of the time paused by flow control"),
        ("PCIe stall", port.pcie_stall_percent, "{:.0f}% of the last second the NIC waited for PCIe"),
        ("Optics", port.module_celsius, "module at {:.0f} °C"),
    ):
        lines += _field(label, _shown(value, text.format), width)
    for process in ranks.in_order(sample):
        for nic in process.nics:
            if nic.device == port.device and nic.queue_pairs:
                lines += _field("Used by", f"{name_of(process.process)}: {_pairs(nic)}", width)
    for client in sample.kernel_clients.get(port.device, ()):
        lines += _field("Used by", f"{client}, in the kernel", width)
    lines += [(), (Run("Counters, events a second", Tone.TITLE),)]
    for process in users_of(port.device, sample):
        if text := uncounted(process.own_queues):
            text = f"Losses and timeouts: {text[:-1]}, {process.rank_name})"
            lines += wrapped(text, width, Tone.WARNING)
    named = {name for group in COUNTER_GROUPS for name in group.names}
    for group in COUNTER_GROUPS:
        lines += _group(group, port, width)
    rest = tuple(name for name in sorted(port.counters) if name not in named)
    if rest:
        lines += _group(CounterGroup("other", "other counters", rest, Tone.PLAIN), port, width)
    return lines


def _group(group: CounterGroup, port: PortSample, width: int) -> list[Line]:
    """Draw a group: its sum and meaning, each counter, and in one line those that are 0."""
    total = group.rate(port.counters)
    head: Line = (Run(f"{group.title:<{LABEL_CELLS}}"), per_second(total, group.tone))
    lines: list[Line] = [(*head, Run(f"  {group.meaning}", Tone.DIM))]
    quiet: list[str] = []
    for name in group.names:
        value = port.counters.get(name)
        if value is None:
            continue
        if isinstance(value, Unknown) or value:
            reason = f"  {value}" if isinstance(value, Unknown) else ""
            figure = per_second(value, group.tone)
            lines.append((Run(f"  {printable(name, 60)}  "), figure, Run(reason, Tone.DIM)))
        else:
            quiet.append(printable(name, 60))
    if quiet:
        lines += wrapped(f"0: {', '.join(quiet)}", width, Tone.DIM, "  ")
    if isinstance(total, Unknown) and not any(name in port.counters for name in group.names):
        lines += wrapped("This port has none of these counters.", width, Tone.DIM, "  ")
    return lines


# GPUs


def of_gpu(gpu: GpuSample, sample: LiveSample, width: int) -> list[Line]:
    """Describe a GPU: every figure, with the reason for each that is unknown."""
    title = f"{gpu_labels(sample)[gpu.bdf]} ({gpu.bdf})"
    lines = wrapped(title, width, Tone.TITLE)
    lines += _past(gpu.bdf, sample, width)
    live = gpu.live
    if isinstance(live, Unknown):
        return [*lines, *_field("NVML", _shown(live), width, Tone.BAD)]

    def figure(label: str, value: Maybe[float], unit: str) -> None:
        lines.extend(_field(label, _shown(value, lambda figure: f"{short(figure)}{unit}"), width))

    figure("Use", live.utilization_percent, "% of the time")
    figure("PCIe ↑", in_gbps(live.pcie_tx_bytes_per_second), " Gb/s from the GPU")
    figure("PCIe ↓", in_gbps(live.pcie_rx_bytes_per_second), " Gb/s to the GPU")
    generation, lanes = live.link_generation, live.link_width
    link = map_known(generation, lambda number: map_known(lanes, lambda count: f"Gen{number} x{count}"))
    lines += _field("PCIe link", _shown(link), width)
    figure("NVLink ↑", in_gbps(live.nvlink_tx_bytes_per_second), " Gb/s, all links")
    figure("NVLink ↓", in_gbps(live.nvlink_rx_bytes_per_second), " Gb/s, all links")
    for label, size in (("Memory", live.memory_used_bytes), ("BAR1", live.bar1_used_bytes)):
        lines += _field(label, _shown(size, lambda used: f"{gibibytes(used)} used"), width)
    figure("Temperature", live.temperature_celsius, " °C")
    figure("Power", live.power_watts, " W")
    figure("SM clock", live.sm_clock_mhz, " MHz")
    reasons = live.throttle_reasons
    tone = Tone.WARNING if known(reasons, ()) else Tone.PLAIN
    lines += _field("Throttled", _shown(reasons, lambda each: ", ".join(each) or "no"), width, tone)
    for process in ranks.in_order(sample):
        if gpu.bdf in process.gpus:
            lines += _field("Used by", _title(process), width)
    return lines


def _gpu_text(gpu: GpuSample) -> str:
    live = gpu.live
    if isinstance(live, Unknown):
        return _shown(live)
    sent, received = (
        short(in_gbps(value)) for value in (live.pcie_tx_bytes_per_second, live.pcie_rx_bytes_per_second)
    )
    return f"{_shown(live.utilization_percent, '{}%'.format)} busy, PCIe ↑{sent} ↓{received} Gb/s"


# Events


def of_event(
    event: LiveEvent,
    sample: LiveSample | None,
    before: LiveSample | None,
    width: int,
    others: Sequence[LiveEvent] = (),
) -> list[Line]:
    """Describe an event: what it means, and the figures of that moment and of a sample before.

    `others`: of the same change.
    """
    lines = changes.heading(event, width)
    when = local_time(event.at, "%Y-%m-%d %H:%M:%S %Z")
    lines += _field("When", when, width)
    lines += _field("Subject", printable(event.subject), width)
    lines += _field("Kind", f"{event.kind.value} ({event.severity.value})", width)
    if event.explanation:
        lines += _field("Meaning", event.explanation, width)
    lines += labeled("Also", (other.text for other in others), width)
    if sample is None:
        lines += [(), *wrapped("The figures for that moment are no longer in memory.", width, Tone.DIM)]
        return lines
    for shown in (sample, before):
        figures = _figures_of(event, shown, width) if shown is not None else []
        if figures and shown is not None:
            lines += [(), (Run(f"Figures at {local_time(shown.taken_at)}", Tone.TITLE),), *figures]
    return lines


def _figures_of(event: LiveEvent, sample: LiveSample, width: int) -> Sequence[Line]:
    """Return the figures of the event's subject: a port, a process or a GPU; of other subjects all ports."""
    pid = re.search(r"\bpid (\d{1,10})\b", event.subject)
    if any(event.subject == port.name for port in sample.ports):
        return nics.draw(sample, width, only=event.subject)
    if pid is not None:
        return ranks.draw(sample, width, only=int(pid[1]))
    bdf = {label: bdf for bdf, label in gpu_labels(sample).items()}.get(event.subject, event.subject)
    if any(gpu.bdf == bdf for gpu in sample.gpus):
        return gpus.draw(sample, width, only=bdf)
    return nics.draw(sample, width)
