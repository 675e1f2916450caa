"""`gdrtop manifest KIND`: what a fleet of this node needs, to stdout or to a new file."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TextIO

from probes.base.text import did_you_mean
from probes.facts.gpudirect import GdrPath
from probes.host.protocol import Host
from probes.setup.manifests.catalogue import MANIFESTS
from probes.setup.manifests.immutable_hosts import openibd_drop_in
from probes.setup.manifests.manifest_text import DriverOwner, Refused, make_request
from probes.setup.situation import read_situation
from probes.snapshot.examination import examine
from tui.command_line.arguments import EXIT_REFUSED, EXIT_WRONG_USAGE, UsageError
from tui.files.new_file import NotWritten, check_new, write_new
from tui.runtime.open_host import open_host
from tui.runtime.printing import ascii_text, is_plain

KINDS = {
    **{kind: manifest.text for kind, manifest in MANIFESTS.items()},
    "boot-check": "systemd: check once after boot, with a line at login (-o: a directory)",
    "metrics": "Prometheus: systemd timer, alert rules, Grafana dashboard (-o: a directory; --textfile)",
}
_PATHS = {"dmabuf": GdrPath.DMABUF, "peermem": GdrPath.PEERMEM}
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,40}[a-z0-9])?")
_TALOS = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:\.\d.{0,30})?")
_EPILOG = """\
kinds:
{kinds}

The comments in a manifest say what it was derived from and why.

exit status:
  0    written
  2    refused: this node or path cannot use it; the message says why
  3    not applicable: GPUDirect RDMA cannot work on this node; usage error, or the file cannot be written
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = _EPILOG.format(kinds="\n".join(f"  {name:<18}{text}" for name, text in KINDS.items()))
    parser.add_argument("kind", metavar="KIND", help="what to write; the kinds are listed below")
    parser.add_argument(
        "--path", choices=tuple(_PATHS), help="path to set up (default: the recommended one for this node)"
    )
    parser.add_argument(
        "--driver",
        choices=("host", "operator"),
        help="who installs the NVIDIA driver on the fleet (default: as on this node)",
    )
    parser.add_argument(
        "--role", metavar="NAME", default="worker", help="machineconfig: the pool of nodes (default: worker)"
    )
    parser.add_argument(
        "--talos-version", metavar="N.N", help="talos: its version, such as 1.14 (default: this node's)"
    )
    parser.add_argument(
        "--drop-in", action="store_true", help="modules-load: print the drop-in for openibd.service instead"
    )
    parser.add_argument(
        "--textfile",
        metavar="FILE",
        help="metrics: the file that the timer writes, in node_exporter's textfile directory "
        "(default: /var/lib/prometheus/node-exporter/gdrtop.prom)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a new file instead of stdout")


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Write the manifest that the options name."""
    if options.kind not in KINDS:
        hint = did_you_mean(options.kind, KINDS) or f"; choose one of {', '.join(KINDS)}"
        raise UsageError(f"unknown manifest {options.kind!r}{hint}")
    if not _LABEL.fullmatch(options.role):
        raise UsageError(f"--role {options.role!r} is not a name of lowercase letters, digits and hyphens")
    if options.drop_in and options.kind != "modules-load":
        raise UsageError("--drop-in applies only to modules-load")
    if options.textfile is not None and options.kind != "metrics":
        raise UsageError("--textfile applies only to metrics")
    if options.kind == "boot-check":
        from tui.commands.manifest.systemd_files import boot_files, write_files

        return write_files(boot_files(), options.output, out)
    if options.kind == "metrics":
        from tui.commands.manifest.systemd_files import monitoring_files, write_files

        if options.textfile is not None and not options.textfile.endswith(".prom"):
            raise UsageError("--textfile: node_exporter reads only files that end in .prom")
        return write_files(monitoring_files(options.textfile), options.output, out)
    talos = _talos_version(options.talos_version)
    try:
        if options.output is not None:
            check_new(options.output)
        text = _text(open_host(options), options, talos)
        if isinstance(text, Refused):
            print(f"gdrtop: no {options.kind} manifest for this node: {text.reason}", file=sys.stderr)
            return EXIT_WRONG_USAGE if text.is_impossible else EXIT_REFUSED
        if options.output is None:
            out.write(ascii_text(text) if is_plain(out, options.ascii) else text)
        else:
            written = write_new(options.output, ascii_text(text) if options.ascii else text)
            print(f"wrote {written}", file=sys.stderr)
    except NotWritten as error:
        print(f"gdrtop: {error}", file=sys.stderr)
        return EXIT_WRONG_USAGE
    return 0


def _talos_version(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = _TALOS.fullmatch(text)
    if match is None:
        raise UsageError(f"--talos-version {text!r} is not a version such as 1.14 or v1.14.2")
    return int(match[1]), int(match[2])


def _text(host: Host, options: argparse.Namespace, talos: tuple[int, int] | None) -> str | Refused:
    """Return the manifest, or why there is none."""
    situation = read_situation(host, examine(host))
    path = None if options.path is None else _PATHS[options.path]
    driver = None if options.driver is None else DriverOwner(options.driver)
    request = make_request(situation, path, driver, options.role, talos)
    write = openibd_drop_in if options.drop_in else MANIFESTS[options.kind].write
    return request if isinstance(request, Refused) else write(request)
