"""What the ports of a node did during a job: problems first, then a row a port."""

from __future__ import annotations

from collections.abc import Callable

from probes.base.text import plural
from probes.base.unknown import Maybe, Unknown
from probes.fleet.job_counters import GrownCounter, JobDifference, PortDifference, decimal_bytes
from probes.fleet.job_differences import some_names
from widgets.base.columns import Column, cells_of, draw_columns
from widgets.base.figures import UNKNOWN_MARK, minutes
from widgets.base.lines import LazyLines, Line, Run, Tone, line, wrapped


def draw(difference: JobDifference, width: int) -> list[Line]:
    """Draw the answer, each problem with its meaning, and what every port carried."""
    seconds = difference.seconds
    lasted = f"duration unknown ({seconds})" if isinstance(seconds, Unknown) else minutes(seconds)
    lines: list[Line] = []
    note = difference.note or ("" if difference.ports else "the node has no RDMA port")
    if note:
        return wrapped(f"Job {difference.job}, {lasted}: {note}", width, Tone.WARNING)
    count = difference.problems
    notes = _notes(difference)
    clean = "no problem on the ports that can be compared" if notes else "no problem on its ports"
    answer = plural(count, "problem") if count else clean
    tone = Tone.WARNING if count or notes else Tone.TITLE
    lines += wrapped(f"Job {difference.job}, {lasted}: {answer}", width, tone)
    for text in (*_low(difference), *_high(difference), *notes):
        lines += _marked(text, width)
    return [*lines, line(), *_table(difference, width)]


def _low(difference: JobDifference) -> list[str]:
    return [f"{port.low}." for port in difference.ports if port.low]


def _high(difference: JobDifference) -> list[str]:
    """Return each counter that grew more than is normal once, for the port where it grew most."""
    by_name: dict[str, list[tuple[GrownCounter, str]]] = {}
    for port in difference.ports:
        for grown in port.grown:
            if grown.is_high:
                by_name.setdefault(grown.name, []).append((grown, port.port))
    texts, explained = [], set()
    for rows in by_name.values():
        most = max(rows, key=lambda row: row[0].by)
        others = [port for _, port in rows if port != most[1]]
        also = f"; also on {some_names(others)}" if others else ""
        grown = most[0]
        explanation = "" if grown.explanation in explained else f" {grown.explanation}"
        explained.add(grown.explanation)
        texts.append(f"{grown.sentence}: {counter_text(grown)}{also}.{explanation}")
    return texts


def _notes(difference: JobDifference) -> list[str]:
    return [f"{port.port} {port.note}." for port in difference.ports if port.note]


def _marked(text: str, width: int) -> list[Line]:
    pieces = wrapped(text, max(8, width - 2))
    return [(Run("  " if number else "▲ ", Tone.WARNING), *piece) for number, piece in enumerate(pieces)]


def counter_text(grown: GrownCounter) -> str:
    """Return "packet_seq_err +1,200", or "+1,200 or more" for a counter that wrapped or is full."""
    return f"{grown.name} +{grown.by:,}{' or more' * grown.is_lower_bound}"


def _table(difference: JobDifference, width: int) -> list[Line]:
    ports = difference.ports

    def cells(cell: Callable[[PortDifference], Run]) -> LazyLines:
        return cells_of(ports, cell)

    columns = [
        Column("port", cells(lambda port: Run(port.port, Tone.NIC)), 1),
        Column("sent", cells(lambda port: _octets(port.sent_bytes)), 2, to_right=True),
        Column("received", cells(lambda port: _octets(port.received_bytes)), 2, to_right=True),
        Column("paused", cells(_paused), 4, to_right=True),
        Column("counters that grew", cells(_grown), 3, least=18, grows=True),
    ]
    return list(draw_columns(columns, ["" for _ in ports], width))


def _octets(count: Maybe[int]) -> Run:
    return Run(UNKNOWN_MARK, Tone.DIM) if isinstance(count, Unknown) else Run(decimal_bytes(count))


def _paused(port: PortDifference) -> Run:
    share = port.pause_percent
    return Run(UNKNOWN_MARK, Tone.DIM) if isinstance(share, Unknown) else Run(f"{share:.1f}%")


def _grown(port: PortDifference) -> Run:
    texts = [counter_text(grown) for grown in port.grown]
    tone = Tone.WARNING if any(grown.is_high for grown in port.grown) else Tone.PLAIN
    return Run(", ".join(texts) or "none", tone if texts else Tone.DIM)
