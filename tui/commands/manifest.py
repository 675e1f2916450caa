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

from probes.base.text import did_you_mean, printable
from probes.facts.gpudirect import GdrPath
from probes.host.protocol import Host
from probes.metrics.dashboard import alert_rules, dashboard
from probes.setup.manifests.catalogue import MANIFESTS
from probes.setup.manifests.immutable_hosts import openibd_drop_in
from probes.setup.manifests.manifest_text import DriverOwner, Refused, make_request
from probes.setup.situation import read_situation
from probes.snapshot.examination import examine
from tui.command_line.arguments import EXIT_REFUSED, EXIT_WRONG_USAGE, UsageError, add_arguments
from tui.commands.consumers.checked_node import ROOTS_DIRECTORY, VERDICT_LINE
from tui.commands.watch.unit import escaped, program, quoted
from tui.files.new_file import check_new, make_directory, shown_path, write_new
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


def monitoring_files(textfile: str | None = None) -> Mapping[str, str]:
    """Return the text of each file by its name; `textfile`: what the timer writes, if not Debian's."""
    path = posixpath.abspath(textfile or _TEXTFILE)
    directory = posixpath.dirname(path)
    command = " ".join((escaped(program()), "metrics", "--textfile", escaped(path)))
    service = _SERVICE.format(directory=printable(directory), command=command, writable=quoted(directory))
    return {
        "gdrtop-metrics.service": service,
        "gdrtop-metrics.timer": _TIMER,
        "gdrtop-rules.yml": alert_rules(),
        "gdrtop-dashboard.json": dashboard(),
    }


WAIT_SECONDS = 180  # ports of a big fabric become active minutes after boot
_UNIT = """\
# Check GPUDirect RDMA once after boot, and keep the result in {directory}: {line} and check.json.
#   install -m 0644 gdrtop-boot-check.service /etc/systemd/system/
#   systemctl daemon-reload && systemctl enable gdrtop-boot-check
# Try it without a reboot: systemctl start gdrtop-boot-check; cat {directory}/{line}
# Keep a broken node out of the scheduler: see gdrtop-boot-check.conf.
[Unit]
Description=GPUDirect RDMA check after boot (gdrtop)
Documentation=man:gdrtop(1)
Wants=network-online.target
After=network-online.target systemd-modules-load.service openibd.service rdma.service
After=nvidia-persistenced.service nvidia-fabricmanager.service nvidia-imex.service opensm.service
After=opensmd.service nvidia-peermem.service

[Service]
Type=oneshot
RemainAfterExit=yes
# It checks again until nothing is critical, because ports and drivers may come later, for {wait} s at most.
ExecStart={command} check --one-line --wait {wait} --save {directory}
# Warnings, what cannot be known and an error in gdrtop (70) are no failure; critical findings (2) are.
SuccessExitStatus=1 3 70
TimeoutStartSec={timeout}
RuntimeDirectory=gdrtop
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
StateDirectory=gdrtop
StateDirectoryMode=0700
UMask=0022

NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectControlGroups=yes
PrivateTmp=yes
# NVML needs /dev/nvidia*, which PrivateDevices hides.
PrivateDevices=no

[Install]
WantedBy=multi-user.target
"""
_DROP_IN = """\
# Start the scheduler's daemon on this node only after a check without critical findings.
#   install -D -m 0644 gdrtop-boot-check.conf /etc/systemd/system/slurmd.service.d/gdrtop-boot-check.conf
# For Kubernetes, kubelet.service.d instead of slurmd.service.d. Then: systemctl daemon-reload
# After a repair: systemctl restart gdrtop-boot-check && systemctl start slurmd
# While slurmd runs, do not stop or restart gdrtop-boot-check: slurmd would stop or restart with it.
[Unit]
Requires=gdrtop-boot-check.service
After=gdrtop-boot-check.service
"""
# POSIX sh: no program is started. A file that is not there, as before the check has ended, prints nothing.
_SHOW = """\
if [ -r {path} ]; then
    IFS= read -r gdrtop_verdict < {path} && printf '%s\\n' "$gdrtop_verdict"
    unset gdrtop_verdict
fi
"""
_MOTD = """\
#!/bin/sh
# Debian and Ubuntu show this at login: install -m 0755 60-gdrtop /etc/update-motd.d/
{show}"""
_PROFILE = """\
# Other systems show this at login: install -m 0644 gdrtop.sh /etc/profile.d/
case $- in
*i*)
{show}    ;;
esac
"""


def boot_files() -> Mapping[str, str]:
    """Return the text of each file by its name."""
    unit = _UNIT.format(
        command=escaped(program()),
        directory=ROOTS_DIRECTORY,
        line=VERDICT_LINE,
        wait=WAIT_SECONDS,
        timeout=WAIT_SECONDS + 120,
    )
    show = _SHOW.format(path=f"{ROOTS_DIRECTORY}/{VERDICT_LINE}")
    return {
        "gdrtop-boot-check.service": unit,
        "gdrtop-boot-check.conf": _DROP_IN,
        "60-gdrtop": _MOTD.format(show=show),
        "gdrtop.sh": _PROFILE.format(show="".join(f"    {line}\n" for line in show.splitlines())),
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
