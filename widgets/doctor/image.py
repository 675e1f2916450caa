"""Draw what an image will and will not do on the assumed hardware."""

from __future__ import annotations

from probes.base.text import plural
from probes.setup.image_lint import ImageKind, ImageLint
from widgets.base.lines import Line, Run, Tone, sentence, wrapped
from widgets.doctor.findings import draw_entries, draw_entry, entries_of
from widgets.doctor.forecast import draw_kernels, draw_not_known, draw_outlook, draw_rows


def draw(lint: ImageLint, width: int) -> list[Line]:
    """Draw the assumption, the kernel's forecast, the rows about programs, and the findings."""
    assumed = f"{lint.kind.value}; the hardware is assumed: {lint.hardware}, {lint.product}"
    lines: list[Line] = [*wrapped(sentence(assumed), width), ()]
    kernel = lint.forecast.chosen()
    if kernel is not None:
        lines += [*draw_outlook(kernel, "Booted with", width), ()]
        lines += draw_rows(kernel.rows, kernel.deciding, width)
    elif lint.kind is ImageKind.SYSTEM:
        lines += wrapped(sentence(lint.forecast.not_applicable), width)
    lines += draw_rows(lint.rows, lint.rows, width)
    if len(lint.forecast.kernels) > 1 and kernel is not None:
        lines += [(), *draw_kernels(lint.forecast, kernel.release, width)]
    entries = entries_of(lint.findings)
    count = plural(len(entries), "finding")
    lines += [(), (Run(f"{count} in the files of the image", Tone.TITLE),), *draw_entries(entries, width)]
    for entry in entries:
        lines += [(), *draw_entry(entry, width)]
    unanswered = f"{plural(lint.unanswered, 'check')} of the doctor need the running node"
    return [*lines, (), *wrapped(f"{unanswered}.", width, Tone.DIM), *draw_not_known(lint.not_known, width)]
