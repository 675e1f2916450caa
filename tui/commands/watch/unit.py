"""The systemd unit of `gdrtop watch --unit`."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys

from probes.base.text import printable

_UNIT = """\
# {path}
# gdrtop watch keeps the most recent hours of this node on disk, and saves a recording around every event.
#   gdrtop watch --unit > {path}
#   systemctl daemon-reload && systemctl enable --now gdrtop-watch
#   journalctl -u gdrtop-watch; ls {directory}
[Unit]
Description=GPUDirect RDMA event recorder (gdrtop watch)
Documentation=man:gdrtop(1)

[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec=10
StateDirectory=gdrtop
StateDirectoryMode=0700
UMask=0077

# Running jobs come first.
Nice=10
CPUWeight=10
CPUQuota=50%
IOSchedulingClass=idle
MemoryMax=512M
TasksMax=64
OOMScoreAdjust=500

# Root, because other users' processes and the kernel log need it, but with these capabilities only:
# the kernel log (SYSLOG), memory and threads of processes (SYS_PTRACE), files of any user (DAC_READ_SEARCH).
CapabilityBoundingSet=CAP_SYSLOG CAP_SYS_PTRACE CAP_DAC_READ_SEARCH
AmbientCapabilities=
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectControlGroups=yes
ProtectKernelTunables=yes
ProtectHostname=yes
PrivateTmp=yes
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

# These stay off. NVML needs /dev/nvidia*, which PrivateDevices and ProtectClock hide. Events need /dev/kmsg
# (ProtectKernelLogs). Versions of modules need /usr/lib/modules (ProtectKernelModules). Jobs of other users
# need the node's /proc and network devices (ProtectProc, PrivateUsers, PrivateNetwork).
PrivateDevices=no
PrivateNetwork=no
PrivateUsers=no
ProtectClock=no
ProtectKernelLogs=no
ProtectKernelModules=no
ProtectProc=default

[Install]
WantedBy=multi-user.target
"""
_TIMES = {"h": 3600, "m": 60, "s": 1}
_SIZES = {"G": 1 << 30, "M": 1 << 20, "K": 1 << 10, "": 1}
_PATH = "/etc/systemd/system/gdrtop-watch.service"


def unit_text(options: argparse.Namespace) -> str:
    """Return the unit, which runs this gdrtop with the options given."""
    asked = None if options.dir is None else os.path.abspath(options.dir)
    directory = "%S/gdrtop/watch" if asked is None else escaped(asked)
    chosen = {
        "--dir": directory,
        "--keep": _in_units(int(options.keep), _TIMES),
        "--max-size": _in_units(options.max_size, _SIZES),
        "--freeze": options.freeze,
        "--before": _in_units(int(options.before), _TIMES),
        "--after": _in_units(int(options.after), _TIMES),
    }
    words = [escaped(program()), "watch", *(word for pair in chosen.items() for word in pair)]
    words += [option for option in ("--redact", "--json") if getattr(options, option[2:])]
    words += ["--on-event", quoted(shlex.join(options.on_event))] if options.on_event else []
    shown = shlex.quote(shown_directory(options.dir))
    text = _UNIT.format(path=_PATH, command=" ".join(words), directory=shown)
    if asked is None:
        return text
    # Without the directory, systemd does not start the unit, in which only this path can be written.
    text = text.replace("#   systemctl", f"#   install -d -m 0700 {shown}\n#   systemctl", 1)
    return text.replace("UMask=0077\n", f"UMask=0077\nReadWritePaths={quoted(asked)}\n")


def shown_directory(asked: str | None) -> str:
    """Return the directory of the ring for a person."""
    return "/var/lib/gdrtop/watch" if asked is None else printable(os.path.abspath(asked))


def program() -> str:
    """Return the absolute path of the gdrtop that runs, or else of the one on the search path."""
    if os.path.basename(sys.argv[0]) == "gdrtop" and os.path.exists(sys.argv[0]):
        return os.path.abspath(sys.argv[0])
    return shutil.which("gdrtop") or "/usr/bin/gdrtop"


def _in_units(number: int, units: dict[str, int]) -> str:
    """Return the number in the largest unit without a remainder."""
    name, unit = next((name, unit) for name, unit in units.items() if number % unit == 0)
    return f"{number // unit}{name}"


def escaped(text: str) -> str:
    """Return a word for ExecStart=, where "$" begins a variable (systemd.service(5))."""
    return quoted(text.replace("$", "$$"))


def quoted(text: str) -> str:
    """Return a word, quoted if necessary; "%" begins a specifier (systemd.unit(5))."""
    text = printable(text).replace("%", "%%")
    if any(character in text for character in " \t\"'\\;"):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text
