"""The kinds of `gdrtop manifest` that run commands of gdrtop: units for systemd, and files beside them.

metrics       a systemd timer for the textfile collector, alert rules and a dashboard
boot-check    a unit that checks once after boot, and what shows its result at login
"""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Mapping
from typing import TextIO

from probes.base.text import printable
from probes.metrics.alert_rules import RULES
from probes.metrics.dashboard import dashboard
from tui.command_line.arguments import EXIT_WRONG_USAGE
from tui.commands.consumers.checked_node import ROOTS_DIRECTORY, VERDICT_LINE
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


def monitoring_files(textfile: str | None = None) -> Mapping[str, str]:
    """Return the text of each file by its name; `textfile`: what the timer writes, if not Debian's."""
    path = posixpath.abspath(textfile or _TEXTFILE)
    directory = posixpath.dirname(path)
    command = " ".join((escaped(program()), "metrics", "--textfile", escaped(path)))
    service = _SERVICE.format(directory=printable(directory), command=command, writable=quoted(directory))
    return {
        "gdrtop-metrics.service": service,
        "gdrtop-metrics.timer": _TIMER,
        "gdrtop-rules.yml": RULES,
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
