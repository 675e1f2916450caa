"""`gdrtop forecast`: a node after a reboot, and an image without hardware."""

from __future__ import annotations

import argparse
import io
from typing import Any, Literal, TextIO, TypedDict

from probes.base.origin import Origin, Source
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.judgment import exit_status as status_of
from probes.facts.kernel import boot
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.queries.finding import Status
from probes.setup.forecast import (
    Forecast,
    ImageCheck,
    ImageKind,
    KernelForecast,
    check_image,
    exit_status,
    forecast,
)
from probes.snapshot.examination import Examination, examine
from tui.command_line.arguments import UsageError, add_arguments
from tui.command_line.options import OutputOptions, parsed
from tui.runtime.json_values import (
    ExitStatus,
    FindingObject,
    VerdictObject,
    document,
    finding_json,
    node_document,
    object_from,
    write_json,
)
from tui.runtime.open_host import open_hardware, open_host
from tui.runtime.printing import heading, print_lines, text_width
from widgets import setup as forecast_drawing
from widgets.base.lines import Line, Run, Tone
from widgets.setup import draw_image_check

# A node after its next start, and an image without hardware, as text and JSON.

_BOOT_SECONDS = 30.0


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

    answer = start_probe(host, "forecast", read).answer(_BOOT_SECONDS)
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
    return node_document("forecast", node, host.wall_clock(), content)


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


def write_image_check(image: Host, hardware: Host, out: TextIO, options: OutputOptions) -> int:
    """Print what is wrong with an image and return the exit status."""
    check = check_image(image, hardware)
    status = status_of(check.verdict)
    if options.json:
        write_json(image_json(check, image), out)
        return status
    head: Line = (Run("gdrtop  "), Run(f"IMAGE {image.origin.label}", Tone.TITLE))
    print_lines([head, *draw_image_check(check, text_width(out))], out, options.ascii)
    return status


def image_json(check: ImageCheck, image: Host) -> dict[str, Any]:
    """Return the JSON document."""
    chosen = check.forecast.chosen()
    content = object_from(
        check,
        ImageDocument,
        exit_status=status_of(check.verdict),
        assumed_hardware=check.hardware,
        kernel=None if chosen is None else chosen.release,
        kernels=[kernel_json(kernel) for kernel in check.forecast.kernels],
        findings=[finding_json(finding) for finding in check.findings if finding.status is Status.FOUND],
        checks_not_run=sum(finding.status is Status.UNKNOWN for finding in check.findings),
    )
    nobody = Unknown(Reason.NOT_THERE, "", "an image has no host name")
    origin = Origin(Source.TREE, image.origin.label)
    return document("image", nobody, origin, image.wall_clock(), content)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        {
            "--kernel RELEASE": "the kernel to show in detail (default: the one that boots next)",
            "--image DIR": "judge the image at DIR, on the hardware that --as names",
            "--as NODE": "with --image: a simulated node or a recording FILE, whose hardware the image "
            "will run on",
            "--quiet": "print nothing; the exit status is the answer",
            "--json": "print JSON (gdrtop schema forecast; with --image image)",
        },
        kernel={"default": ""},
        as_={"dest": "assumed", "default": ""},
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Show what the options ask for, and return the exit status of the node as it will be."""
    if options.quiet:
        out = io.StringIO()
    if options.image is not None:
        if not options.assumed or options.kernel:
            raise UsageError("--image needs --as, the hardware, and takes no --kernel")
        if options.image == "/" or options.demo is not None or options.replay is not None:
            raise UsageError("--image is the directory of an image, and takes no --demo and no --replay")
        options.root = options.image
        hardware = open_hardware(options.assumed, options.seed)
        return write_image_check(open_host(options), hardware, out, parsed(OutputOptions, options))
    if options.assumed:
        raise UsageError("--as needs --image, the directory of the image")
    return write_forecast(open_host(options), out, options.kernel, parsed(OutputOptions, options))
