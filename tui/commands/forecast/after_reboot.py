"""A node after its next start, and an image without hardware, as text and JSON."""

from __future__ import annotations

import argparse
from typing import Any, Literal, TextIO, TypedDict

from probes.base.origin import Origin, Source
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel import boot
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.queries.finding import Status
from probes.setup.forecast import Forecast, KernelForecast, exit_status, forecast
from probes.setup.image import ImageCheck, ImageKind, check_image
from probes.setup.image import exit_status as image_status
from probes.snapshot.examination import Examination, examine
from tui.command_line.arguments import OutputOptions, UsageError, parsed
from tui.runtime.json_values import (
    ExitStatus,
    FindingObject,
    VerdictObject,
    document,
    finding_json,
    host_name,
    object_from,
    write_json,
)
from tui.runtime.open_host import open_hardware, open_host
from tui.runtime.printing import heading, print_lines, text_width
from widgets.base.lines import Line, Run, Tone
from widgets.setup import forecast as forecast_drawing
from widgets.setup.forecast import draw_image_check

_SECONDS = 30.0


class KernelObject(TypedDict):
    """What to expect of one kernel."""

    release: str
    running: bool
    next: Maybe[bool]  # the boot loader starts it by default
    outlook: Literal["will", "at risk", "will not", "unknown", "not applicable"]  # the verdict, expected
    exit_status: ExitStatus  # as gdrtop check would end on the node started with this kernel
    verdict: VerdictObject
    findings: tuple[FindingObject, ...]  # on a copy of the node that was started with this kernel
    assumed: str  # what was taken as it is now because it could not be read; empty: nothing


class ForecastDocument(TypedDict):
    """`gdrtop forecast --json`."""

    next_kernel: Maybe[str]  # what the boot loader starts by default
    # 0 will work, 1 warnings or at risk, 2 critical findings or will not work, 3 unknown or not applicable.
    exit_status: ExitStatus
    kernel: str | None  # that decides the exit status
    not_applicable: str  # why there is nothing to forecast; empty: there is
    kernels: tuple[KernelObject, ...]
    installed: tuple[str, ...]  # all kernels; at most four are judged
    not_known: tuple[str, ...]  # before the boot


class ImageDocument(TypedDict):
    """`gdrtop forecast --image DIR --as NODE --json`."""

    exit_status: ExitStatus  # 0 fine, 1 at risk or warnings, 2 it will not work, 3 unknown
    kind: ImageKind
    assumed_hardware: str  # of a simulated or recorded node; nothing of it was measured with this image
    kernel: str | None  # that decides; null: the image has none
    kernels: tuple[KernelObject, ...]
    verdict: VerdictObject
    findings: tuple[FindingObject, ...]
    checks_not_run: int  # because they cannot run on an image
    not_known: tuple[str, ...]  # what no file says


def write_forecast(host: Host, out: TextIO, release: str, options: OutputOptions) -> int:
    """Print what a reboot brings and return the exit status; `release`: the kernel to show in detail.

    Raises:
        UsageError: the kernel is not installed.
    """
    examination = examine(host)
    found = read_forecast(host, examination, release)
    kernel = found.chosen(release)
    if kernel is None and release and found.kernels:
        installed = ", ".join(found.installed)
        raise UsageError(f"kernel {printable(release, 80)!r} is not installed; installed: {installed}")
    status = exit_status(kernel)
    if options.json:
        write_json(forecast_json(host, examination, found, kernel), out)
        return status
    drawn = forecast_drawing.draw(found, kernel, text_width(out), examination.topology.labels)
    lines = [heading(examination.node), *drawn]
    print_lines(lines, out, options.ascii)
    return status


def read_forecast(host: Host, examination: Examination, release: str = "") -> Forecast:
    """Start a copy of the node with each kernel, in at most 30 s, and judge it."""

    def read() -> Forecast:
        facts = boot.probe(host, examination.distribution, examination.node.kernel_release)
        return forecast(host, examination, facts, release)

    answer = start_probe(host, "forecast", read).answer(_SECONDS)
    return (
        Forecast((), answer, f"the next boot could not be read ({answer})")
        if isinstance(answer, Unknown)
        else answer
    )


def forecast_json(
    host: Host, examination: Examination, found: Forecast, chosen: KernelForecast | None
) -> dict[str, Any]:
    """Return the JSON document; `chosen`: the kernel that decides the exit status."""
    content = object_from(
        found,
        ForecastDocument,
        exit_status=exit_status(chosen),
        kernel=None if chosen is None else chosen.release,
        kernels=[kernel_json(kernel) for kernel in found.kernels],
    )
    node = examination.node
    return document("forecast", host_name(node), node.origin, host.wall_clock(), content)


def kernel_json(kernel: KernelForecast) -> dict[str, Any]:
    """Return one kernel's forecast."""
    return object_from(
        kernel,
        KernelObject,
        running=kernel.is_running,
        next=kernel.is_next,
        exit_status=exit_status(kernel),
        findings=[finding_json(finding) for finding in kernel.findings if finding.status is Status.FOUND],
        assumed=kernel.missing,
    )


def run_on_image(options: argparse.Namespace, out: TextIO) -> int:
    """Judge the directory tree of --root for the node of --as."""
    if options.root == "/" or options.demo is not None or options.replay is not None:
        raise UsageError("--as checks an image; give its directory with --root")
    hardware = open_hardware(options.assumed, options.seed)
    return write_image_check(open_host(options), hardware, out, parsed(OutputOptions, options))


def write_image_check(image: Host, hardware: Host, out: TextIO, options: OutputOptions) -> int:
    """Print what is wrong with an image and return the exit status."""
    check = check_image(image, hardware)
    if options.json:
        write_json(image_json(check, image), out)
        return image_status(check)
    head: Line = (Run("gdrtop  "), Run(f"IMAGE {image.origin.label}", Tone.TITLE))
    print_lines([head, *draw_image_check(check, text_width(out))], out, options.ascii)
    return image_status(check)


def image_json(check: ImageCheck, image: Host) -> dict[str, Any]:
    """Return the JSON document."""
    chosen = check.forecast.chosen()
    content = object_from(
        check,
        ImageDocument,
        exit_status=image_status(check),
        assumed_hardware=check.hardware,
        kernel=None if chosen is None else chosen.release,
        kernels=[kernel_json(kernel) for kernel in check.forecast.kernels],
        findings=[finding_json(finding) for finding in check.findings if finding.status is Status.FOUND],
        checks_not_run=sum(finding.status is Status.UNKNOWN for finding in check.findings),
    )
    nobody = Unknown(Reason.NOT_THERE, "", "an image has no host name")
    origin = Origin(Source.TREE, image.origin.label)
    return document("image", nobody, origin, image.wall_clock(), content)
