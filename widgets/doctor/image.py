"""Draw what an image will and will not do on the assumed hardware."""

from __future__ import annotations

from probes.base.text import plural
from probes.queries.finding import Status
from probes.setup.image import ImageCheck, ImageKind
from widgets.base.lines import Line, Tone, sentence, wrapped
from widgets.doctor.forecast import draw_found, draw_kernels, draw_not_known, draw_outlook


def draw(check: ImageCheck, width: int) -> list[Line]:
    """Draw the assumption, the headline, the findings and the kernels of the image."""
    assumed = f"{check.kind.value}; the hardware is assumed: {check.hardware}, {check.product}"
    lines: list[Line] = [*wrapped(sentence(assumed), width), ()]
    kernel = check.forecast.chosen()
    opening = "Programs in this image" if kernel is None else f"Booted with {kernel.release}"
    if kernel is None and check.kind is ImageKind.SYSTEM:
        lines += wrapped(sentence(check.forecast.not_applicable), width)
    else:
        lines += draw_outlook(check.verdict, opening, width)
    lines += draw_found(check.findings, width)
    if len(check.forecast.kernels) > 1 and kernel is not None:
        lines += [(), *draw_kernels(check.forecast, kernel.release, width)]
    unanswered = sum(one.status is Status.UNKNOWN for one in check.findings)
    rest = wrapped(f"{plural(unanswered, 'check')} could not run on an image.", width, Tone.DIM)
    return [*lines, (), *(rest if unanswered else ()), *draw_not_known(check.not_known, width)]
