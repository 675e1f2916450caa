"""`gdrtop check --root IMAGE --as NODE`: judge an image without hardware, as text and as JSON."""

from __future__ import annotations

import argparse
from typing import Any, TextIO

from probes.base.origin import Origin, Source
from probes.base.unknown import Reason, Unknown
from probes.host.protocol import Host
from probes.queries.finding import Status
from probes.setup.image import ImageCheck, check_image, exit_status
from tui.commands.after_reboot import kernel_json
from tui.commands.arguments import UsageError
from tui.commands.finding_json import finding_json
from tui.runtime.json_values import document, verdict_json, write_json
from tui.runtime.open_host import open_hardware, open_host
from tui.runtime.printing import print_lines, text_width
from widgets.base.lines import Line, Run, Tone
from widgets.doctor.forecast import draw_image_check


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Judge the directory tree of --root for the node of --as."""
    if options.root == "/" or options.demo is not None or options.replay is not None:
        raise UsageError("--as checks an image; name its directory with --root")
    hardware = open_hardware(options.assumed, options.seed)
    return write_check(open_host(options), hardware, out, options.json, options.ascii)


def write_check(
    image: Host, hardware: Host, out: TextIO, as_json: bool = False, ascii_only: bool = False
) -> int:
    """Print what is wrong with an image and return the exit status."""
    check = check_image(image, hardware)
    if as_json:
        write_json(check_json(check, image), out)
        return exit_status(check)
    head: Line = (Run("gdrtop  "), Run(f"IMAGE {image.origin.label}", Tone.TITLE))
    print_lines([head, *draw_image_check(check, text_width(out))], out, ascii_only)
    return exit_status(check)


def check_json(check: ImageCheck, image: Host) -> dict[str, Any]:
    """Return the JSON document."""
    kernel = check.forecast.chosen()
    content = {
        "exit_status": exit_status(check),
        "kind": check.kind.value,
        "assumed_hardware": check.hardware,
        "kernel": None if kernel is None else kernel.release,
        "kernels": [kernel_json(one) for one in check.forecast.kernels],
        "verdict": verdict_json(check.verdict),
        "findings": [finding_json(one) for one in check.findings if one.status is Status.FOUND],
        "checks_not_run": sum(one.status is Status.UNKNOWN for one in check.findings),
        "not_known": list(check.not_known),
    }
    nobody = Unknown(Reason.NOT_THERE, "", "an image has no host name")
    origin = Origin(Source.TREE, image.origin.label)
    return document("image", nobody, origin, image.wall_clock(), content)
