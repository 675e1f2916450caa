"""`gdrtop manifest boot-check`: a unit that checks once after boot, and what shows its result at login."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TextIO

from tui.commands.manifest.monitoring_files import write_files
from tui.commands.watch.unit import escaped, program
from tui.files.verdict_file import ROOTS_DIRECTORY, VERDICT_LINE

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


def write_boot_files(options: argparse.Namespace, out: TextIO) -> int:
    """Write the files to new ones in the directory that -o names, or print them."""
    return write_files(boot_files(), options.output, out)
