"""`gdrtop manifest KIND`: what a fleet of this node needs, to stdout or to a new file.

Two kinds are about gdrtop's own commands, units for systemd and files beside them, not about the node:
    metrics       a systemd timer for the textfile collector, alert rules and a dashboard
    boot-check    a unit that checks once after boot, and what shows its result at login
"""

from __future__ import annotations

import argparse
import os
import posixpath
import re
import sys
from collections.abc import Mapping
from typing import TextIO

from probes.base.data_files import read_text
from probes.base.text import did_you_mean, printable
from probes.facts.gpudirect import GdrPath
from probes.host.protocol import Host
from probes.setup.manifests.catalogue import MANIFESTS
from probes.setup.manifests.immutable_hosts import openibd_drop_in
from probes.setup.manifests.manifest_text import DriverOwner, Refused, make_request
from probes.setup.situation import read_situation
from probes.snapshot.examination import examine
from tui.command_line.arguments import EXIT_REFUSED, EXIT_WRONG_USAGE, UsageError, add_arguments
from tui.commands.consumers.checked_node import ROOTS_DIRECTORY, VERDICT_LINE
from tui.commands.watch.unit import escaped, program, quoted, unit
from tui.files.new_file import check_new, make_directory, shown_path, write_new
from tui.runtime.open_host import open_host
from tui.runtime.printing import ascii_text, is_plain

KINDS = {
    **{kind: manifest.text for kind, manifest in MANIFESTS.items()},
    "boot-check": "systemd: check once after boot, with a line at login (-o: a directory)",
    "metrics": "Prometheus: systemd timer, alert rules, Grafana dashboard (-o: a directory; --textfile)",
}
_ELSEWHERE = {
    **dict.fromkeys(("daemonset", "npd"), "gdrtop's Helm chart has replaced it: gdrtop help kubernetes"),
    "nfd": "use gdrtop check --for nfd, or gdrtop's Helm chart: gdrtop help kubernetes",
    **dict.fromkeys(("container", "dra"), "gdrtop help kubernetes has an example"),
    "gres": "gdrtop help slurm has an example",
}
"""What replaces kinds of gdrtop 0.2."""
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
    parser.epilog = _EPILOG.format(kinds="\n".join(f"  {name:<18}{text}" for name, text in KINDS.items()))
    add_arguments(
        parser,
        {
            "KIND": "what to write; the kinds are listed below",
            "--path": "path to set up (default: the recommended one for this node)",
            "--driver": "who installs the NVIDIA driver on the fleet (default: as on this node)",
            "--role NAME": "machineconfig: the pool of nodes (default: worker)",
            "--talos-version N.N": "talos: its version, such as 1.14 (default: this node's)",
            "--drop-in": "modules-load: print the drop-in for openibd.service instead",
            "--textfile FILE": "metrics: the file that the timer writes, in node_exporter's textfile "
            "directory (default: /var/lib/prometheus/node-exporter/gdrtop.prom)",
            "-o --output FILE": "write to a new file instead of stdout",
        },
        path={"choices": tuple(_PATHS)},
        driver={"choices": ("host", "operator")},
        role={"default": "worker"},
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Write the manifest that the options name."""
    if options.kind in _ELSEWHERE:
        raise UsageError(f"there is no manifest {options.kind} any more; {_ELSEWHERE[options.kind]}")
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
        return write_files(boot_files(), options.output, out)
    if options.kind == "metrics":
        if options.textfile is not None and not options.textfile.endswith(".prom"):
            raise UsageError("--textfile: node_exporter reads only files that end in .prom")
        return write_files(monitoring_files(options.textfile), options.output, out)
    talos = _talos_version(options.talos_version)
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


# Debian's directory; others have no default.
_TEXTFILE = "/var/lib/prometheus/node-exporter/gdrtop.prom"


def monitoring_files(textfile: str | None = None) -> Mapping[str, str]:
    """Return the text of each file by its name; `textfile`: what the timer writes, if not Debian's."""
    path = posixpath.abspath(textfile or _TEXTFILE)
    directory = posixpath.dirname(path)
    command = " ".join((escaped(program()), "metrics", "--textfile", escaped(path)))
    values = {"directory": printable(directory), "command": command, "writable": quoted(directory)}
    return {
        "gdrtop-metrics.service": unit("gdrtop-metrics.service", **values),
        "gdrtop-metrics.timer": unit("gdrtop-metrics.timer"),
        "gdrtop-rules.yml": read_text("probes.metrics", "alert_rules.yaml"),
        "gdrtop-dashboard.json": read_text("probes.metrics", "dashboard.json"),
    }


WAIT_SECONDS = 180  # ports of a big fabric become active minutes after boot


def boot_files() -> Mapping[str, str]:
    """Return the text of each file by its name."""
    checked = unit(
        "gdrtop-boot-check.service",
        command=escaped(program()),
        directory=ROOTS_DIRECTORY,
        line=VERDICT_LINE,
        wait=WAIT_SECONDS,
        timeout=WAIT_SECONDS + 120,
    )
    # No program is started. A file that is not there, as before the check has ended, prints nothing.
    show = unit("show-verdict.sh", path=f"{ROOTS_DIRECTORY}/{VERDICT_LINE}")
    return {
        "gdrtop-boot-check.service": checked,
        "gdrtop-boot-check.conf": unit("gdrtop-boot-check.conf"),
        "60-gdrtop": unit("60-gdrtop", show=show),
        "gdrtop.sh": unit("gdrtop.sh", show="".join(f"    {line}\n" for line in show.splitlines())),
    }


def write_files(files: Mapping[str, str], directory: str | None, out: TextIO) -> int:
    """Write new files in a directory, or print them one after another; return the exit status, 0."""
    if directory is None:
        for name, text in files.items():
            out.write(f"# ==> {name} <==\n{text}\n")
        return 0
    paths = {os.path.join(directory, name): text for name, text in files.items()}
    make_directory(directory)
    for path in paths:
        check_new(path)
    for path, text in paths.items():
        write_new(path, text)
    print(f"wrote {', '.join(files)} in {shown_path(directory)}", file=sys.stderr)
    return 0
