"""`gdrtop manifest metrics`: a systemd timer for the textfile collector, alert rules and a dashboard."""

from __future__ import annotations

import argparse
import os
import posixpath
import sys
from collections.abc import Mapping
from typing import TextIO

from probes.base.text import printable
from probes.metrics.dashboard import alert_rules, dashboard
from tui.command_line.arguments import EXIT_WRONG_USAGE
from tui.commands.watch.unit import escaped, program, quoted
from tui.files.new_file import NotWritten, check_new, make_directory, shown_path, write_new

# Debian's directory; others have no default.
_TEXTFILE = "/var/lib/prometheus/node-exporter/gdrtop.prom"
_SERVICE = """\
# Write the metrics of this node for node_exporter's textfile collector.
#   install -m 0644 gdrtop-metrics.service gdrtop-metrics.timer /etc/systemd/system/
#   systemctl daemon-reload && systemctl enable --now gdrtop-metrics.timer
# node_exporter has to run with --collector.textfile.directory={directory}
[Unit]
Description=GPUDirect RDMA metrics (gdrtop metrics)
Documentation=man:gdrtop(1)

[Service]
Type=oneshot
ExecStart={command}
# A check takes less than a second; a device that does not answer delays it until its time limit.
TimeoutStartSec=90
UMask=0022

# Running jobs come first.
Nice=10
CPUQuota=20%
IOSchedulingClass=idle
MemoryMax=512M

NoNewPrivileges=yes
ProtectSystem=strict
# "-": if the directory is missing, gdrtop says so, which is clearer than systemd's NAMESPACE.
ReadWritePaths=-{writable}
ProtectHome=read-only
ProtectControlGroups=yes
ProtectKernelTunables=yes
PrivateTmp=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6
# NVML needs /dev/nvidia*, which PrivateDevices hides. Jobs of other users need the node's /proc and network.
PrivateDevices=no
PrivateNetwork=no
ProtectProc=default
"""
_TIMER = """\
[Unit]
Description=GPUDirect RDMA metrics every minute
Documentation=man:gdrtop(1)

[Timer]
OnBootSec=2min
OnUnitInactiveSec=60s
RandomizedDelaySec=10s
AccuracySec=5s

[Install]
WantedBy=timers.target
"""


def monitoring_files(textfile: str) -> Mapping[str, str]:
    """Return the text of each file by its name; `textfile`: what the timer writes."""
    path = posixpath.abspath(textfile)
    directory = posixpath.dirname(path)
    command = " ".join((escaped(program()), "metrics", "--textfile", escaped(path)))
    service = _SERVICE.format(directory=printable(directory), command=command, writable=quoted(directory))
    return {
        "gdrtop-metrics.service": service,
        "gdrtop-metrics.timer": _TIMER,
        "gdrtop-rules.yml": alert_rules(),
        "gdrtop-dashboard.json": dashboard(),
    }


def write_monitoring_files(options: argparse.Namespace, out: TextIO) -> int:
    """Write the files to new ones in the directory that -o names, or print them."""
    return write_files(monitoring_files(options.textfile or _TEXTFILE), options.output, out)


def write_files(files: Mapping[str, str], directory: str | None, out: TextIO) -> int:
    """Write new files in a directory, or print them one after another; return the exit status."""
    if directory is None:
        for name, text in files.items():
            out.write(f"# ==> {name} <==\n{text}\n")
        return 0
    paths = {os.path.join(directory, name): text for name, text in files.items()}
    try:
        make_directory(directory)
        for path in paths:
            check_new(path)
        for path, text in paths.items():
            write_new(path, text)
    except NotWritten as error:
        print(f"gdrtop: {error}", file=sys.stderr)
        return EXIT_WRONG_USAGE
    print(f"wrote {', '.join(files)} in {shown_path(directory)}", file=sys.stderr)
    return 0
