"""`gdrtop forecast`: a node after a reboot or an upgrade of packages, and an image without hardware."""

from __future__ import annotations

import argparse
import io
from typing import TextIO

from probes.base.origin import Source
from tui.command_line.arguments import OutputOptions, UsageError, parsed
from tui.commands.forecast.after_reboot import run_on_image, write_forecast
from tui.commands.forecast.upgrade import write_advice
from tui.runtime.open_host import open_host

_STATUS_HELP = """\
examples:
  gdrtop forecast                               after the next reboot, for each installed kernel
  gdrtop forecast --upgrade 'apt-get dist-upgrade'
                                                after an upgrade of packages; it is only simulated
  gdrtop forecast --image /images/gpu --as node.tar.gz
                                                an image on the hardware of a recorded node

exit status, as for gdrtop check, of the node as it will be:
  0    GPUDirect RDMA will work
  1    warnings, or DEGRADED
  2    it will not work, or critical findings
  3    unknown, or it cannot work on this node; usage error
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _STATUS_HELP
    parser.add_argument(
        "--kernel",
        metavar="RELEASE",
        default="",
        help="the kernel to show in detail (default: the one that boots next)",
    )
    parser.add_argument(
        "--upgrade",
        metavar="COMMAND",
        help="also an upgrade of packages before the reboot, such as 'apt-get dist-upgrade'; it is only "
        "simulated. -: read the output of a simulation from stdin",
    )
    parser.add_argument(
        "--image", metavar="DIR", help="judge the image at DIR, on the hardware that --as names"
    )
    parser.add_argument(
        "--as",
        metavar="NODE",
        dest="assumed",
        default="",
        help="with --image: a simulated node or a recording FILE, whose hardware the image will run on",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing; the exit status is the answer")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON (gdrtop schema forecast; with --upgrade upgrade, with --image image)",
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Show what the options ask for, and return the exit status of the node as it will be."""
    if options.quiet:
        out = io.StringIO()
    if options.image is not None:
        if not options.assumed or options.kernel or options.upgrade is not None:
            raise UsageError("--image needs --as, the hardware, and takes no --kernel and no --upgrade")
        options.root = options.image
        return run_on_image(options, out)
    if options.assumed:
        raise UsageError("--as needs --image, the directory of the image")
    if options.kernel and options.upgrade is not None:
        raise UsageError("--upgrade shows the kernel that boots after it, and takes no --kernel")
    host = open_host(options)
    if options.upgrade is None:
        return write_forecast(host, out, options.kernel, parsed(OutputOptions, options))
    if host.origin.source is Source.TREE:
        raise UsageError("--upgrade asks the package manager of a node; --root is only a tree of files")
    return write_advice(host, options.upgrade, out, parsed(OutputOptions, options))
