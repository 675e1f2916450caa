"""`gdrtop check --root IMAGE --as NODE`: judge an image without hardware, as text and as JSON."""

from __future__ import annotations

import argparse
from typing import Any, TextIO

from probes.base.origin import Origin, Source
from probes.base.unknown import Reason, Unknown
from probes.host.protocol import Host
from probes.setup.image_lint import ImageLint, exit_status, lint_image
from tui.commands.after_reboot import kernel_json
from tui.commands.arguments import UsageError
from tui.commands.finding_json import finding_json
from tui.runtime.json_values import document, plain_value, write_json
from tui.runtime.open_host import open_host, open_simulated
from tui.runtime.printing import print_lines, text_width
from widgets.base.lines import Line, Run, Tone
from widgets.doctor.image import draw


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Judge the directory tree of --root for the node of --as."""
    if options.root == "/" or options.demo is not None or options.replay is not None:
        raise UsageError("--as checks an image; name its directory with --root")
    assumed = open_simulated(options.assumed, options.seed)
    return write_lint(open_host(options), assumed, out, options.json, options.ascii)


def write_lint(
    image: Host, assumed: Host, out: TextIO, as_json: bool = False, ascii_only: bool = False
) -> int:
    """Print what is wrong with an image and return the exit status."""
    lint = lint_image(image, assumed)
    if as_json:
        write_json(lint_json(lint, image), out)
        return exit_status(lint)
    head: Line = (Run("gdrtop  "), Run(f"IMAGE {image.origin.label}", Tone.TITLE))
    print_lines([head, *draw(lint, text_width(out))], out, ascii_only)
    return exit_status(lint)


def lint_json(lint: ImageLint, image: Host) -> dict[str, Any]:
    """Return the JSON document."""
    kernel = lint.forecast.chosen()
    content = {
        "exit_status": exit_status(lint),
        "kind": lint.kind.value,
        "assumed_hardware": lint.hardware,
        "kernel": None if kernel is None else kernel.release,
        "kernels": [kernel_json(one) for one in lint.forecast.kernels],
        "conditions": [plain_value(row) for row in lint.rows],
        "findings": [finding_json(finding) for finding in lint.findings],
        "checks_not_run": lint.unanswered,
        "not_known": list(lint.not_known),
    }
    nobody = Unknown(Reason.NOT_THERE, "", "an image has no host name")
    origin = Origin(Source.TREE, image.origin.label)
    return document("image", nobody, origin, image.wall_clock(), content)
