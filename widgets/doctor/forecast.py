"""Draw a forecast: what a reboot brings, the conditions of one kernel, and all installed kernels."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.unknown import Unknown
from probes.facts.gpudirect import GdrPath
from probes.queries.finding import Evidence
from probes.setup.forecast.model import Forecast, ForecastRow, KernelForecast, Outlook
from widgets.base.columns import Column, draw_columns
from widgets.base.lines import Line, Run, Tone, fit, line, sentence, wrapped

_MARKS = {
    Outlook.WILL: Run("✓", Tone.GOOD),
    Outlook.RISK: Run("▲", Tone.WARNING),
    Outlook.UNKNOWN: Run("?", Tone.DIM),
    Outlook.WILL_NOT: Run("✗", Tone.BAD),
}
_WORDS = {
    Outlook.WILL: "will work",
    Outlook.RISK: "is at risk",
    Outlook.UNKNOWN: "unknown",
    Outlook.WILL_NOT: "will not work",
}
_VIA = {
    GdrPath.DMABUF: "via DMA-BUF",
    GdrPath.PEERMEM: "via nvidia-peermem",
    GdrPath.EFA: "via EFA's own peer memory",
    GdrPath.CXI: "via libfabric",
}
_TITLE_CELLS = 24


def draw(forecast: Forecast, kernel: KernelForecast | None, width: int) -> list[Line]:
    """Draw one kernel's conditions, then all kernels, then what no file shows."""
    if kernel is None:
        return wrapped(sentence(forecast.not_applicable or "no installed kernel was found"), width)
    lines = [
        *draw_outlook(kernel, "After a reboot into", width),
        *wrapped(_place(kernel, forecast), width, Tone.DIM, "  "),
        (),
        *draw_rows(kernel.rows, kernel.deciding, width),
    ]
    lines.extend([(), *draw_kernels(forecast, kernel.release, width)])
    return [*lines, (), *draw_not_known(forecast.not_known, width)]


def draw_rows(rows: Sequence[ForecastRow], deciding: Sequence[ForecastRow], width: int) -> list[Line]:
    """Draw conditions; those that do not decide, because another path is expected, are dim."""
    return [line for row in rows for line in _row(row, row not in deciding, width)]


def draw_not_known(limits: Sequence[str], width: int) -> list[Line]:
    """Name what no file shows."""
    return wrapped(f"Not known from files: {'; '.join(limits)}.", width, Tone.DIM) if limits else []


def mark_of(outlook: Outlook) -> Run:
    """Return `✓` will, `▲` at risk, `?` unknown, `✗` will not."""
    return _MARKS[outlook]


def draw_outlook(kernel: KernelForecast, opening: str, width: int) -> list[Line]:
    """Draw the title "After a reboot into 6.8.0: GPUDirect RDMA will work (via DMA-BUF)", and why."""
    outlook, via = kernel.outlook, _VIA.get(kernel.path) if kernel.path else None
    word = {Outlook.UNKNOWN: "it is unknown whether GPUDirect RDMA will work"}.get(
        outlook, f"GPUDirect RDMA {_WORDS[outlook]}"
    )
    by = f" ({via})" if via and outlook in (Outlook.WILL, Outlook.RISK) else ""
    title = f"{opening} {kernel.release}: {word}{by}"
    first, *rest = wrapped(title, width - 2, Tone.TITLE)
    lines = [(_MARKS[outlook], Run(" "), *first), *((Run("  "), *part) for part in rest)]
    for reason in kernel.reasons:
        lines.extend(wrapped(sentence(reason), width, Tone.PLAIN, "  "))
    return lines


def _place(kernel: KernelForecast, forecast: Forecast) -> str:
    """Return "running now; the boot loader starts it next"."""
    parts = ["running now" if kernel.is_running else "installed, not running"]
    if isinstance(kernel.is_next, Unknown):
        parts.append(f"the boot loader's next kernel is unknown ({kernel.is_next})")
    elif kernel.is_next:
        parts.append("the boot loader starts it next")
    else:
        parts.append(f"the boot loader starts {forecast.next_kernel} next")
    return "; ".join(parts)


def _row(row: ForecastRow, is_spare: bool, width: int) -> list[Line]:
    """Draw a condition with its evidence; that of a path that is not needed is dim and has none."""
    mark = Run("–", Tone.DIM) if is_spare else _MARKS[row.outlook]
    tone = Tone.DIM if is_spare else Tone.PLAIN
    spare = "not needed" if row.outlook is Outlook.WILL else f"not used: {row.reason}"
    reason = spare if is_spare else row.reason
    indent = " " * (_TITLE_CELLS + 2)
    first, *rest = wrapped(reason, max(20, width - _TITLE_CELLS - 2), tone)
    title = fit((Run(row.title, tone),), _TITLE_CELLS - 1)
    lines: list[Line] = [(mark, Run(" "), *title, Run(" "), *first)]
    lines.extend((Run(indent), *part) for part in rest)
    if is_spare or row.outlook is Outlook.WILL:
        return lines
    for evidence in row.evidence:
        lines.extend(_evidence(evidence, width, indent))
    return lines


def _evidence(evidence: Evidence, width: int, indent: str) -> list[Line]:
    return wrapped(f"{evidence.source}: {evidence.value}", width, Tone.DIM, indent)


def draw_kernels(forecast: Forecast, selected: str, width: int) -> list[Line]:
    """Draw a row for each installed kernel, then why each other kernel may not work."""
    kernels = forecast.kernels

    def cells(texts: list[str]) -> list[Line]:
        return [line(text) for text in texts]

    states = [_WORDS[kernel.outlook] for kernel in kernels]
    columns = [
        Column("KERNEL", [line(_MARKS[kernel.outlook], f" {kernel.release}") for kernel in kernels], 1),
        Column("", cells([_when(kernel) for kernel in kernels]), 2),
        Column("GPUDIRECT RDMA", cells(states), 1),
        Column("PATH", cells([kernel.path.value if kernel.path else "–" for kernel in kernels]), 3),
    ]
    lines = list(draw_columns(columns, ["" for _ in kernels], width, selected))
    for kernel in kernels:
        if kernel.reason and kernel.release != selected:  # that of the selected kernel is shown above
            lines.extend(wrapped(f"{kernel.release}: {kernel.reason}", width, Tone.DIM, "  "))
    return lines


def _when(kernel: KernelForecast) -> str:
    words = ["running"] * kernel.is_running + ["next"] * (kernel.is_next is True)
    return ", ".join(words)
