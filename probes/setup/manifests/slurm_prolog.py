"""A Slurm Prolog that checks the node before each job, and never drains it because of a warning.

Where the path is nvidia-peermem, it loads the module first.

Slurm's Prolog and Epilog Guide: no search path is set; a non-zero exit drains the node and requeues the job;
scripts should be short and should not call Slurm commands.
"""

from __future__ import annotations

import posixpath
import shlex

from probes.base.unknown import Unknown, known
from probes.facts.gpudirect import GdrPath
from probes.plans.load_modules import peermem_options
from probes.setup.manifests.manifest_text import head
from probes.setup.manifests.request import DriverOwner, ManifestRequest, Refused

_DIRECTORY = "/etc/slurm/prolog.d"
LIMIT_SECONDS = 20  # a check takes less than a second; a hanging tool must not hold the job
_SETTINGS = f"""\
PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin
export PATH

# "log": write critical findings to the system log and let the job start.
# "fail": also exit with 1, so that Slurm drains this node and requeues the job.
# Warnings, unknown results and a missing gdrtop never stop a job.
ON_CRITICAL=log
LIMIT_SECONDS={LIMIT_SECONDS}

say() {{
    logger -t gdrtop-prolog -- "job ${{SLURM_JOB_ID:-?}}: $1" 2>/dev/null || :
}}
"""
_CHECK = """\
if ! command -v gdrtop >/dev/null 2>&1; then
    say "gdrtop is not installed in $PATH"
    exit 0
fi

# timeout ends a check that hangs in a driver; -k kills one that ignores the signal.
verdict=$(timeout -k 2 "$LIMIT_SECONDS" gdrtop check --one-line --ascii </dev/null 2>/dev/null)
status=$?

case $status in
    0) ;;
    1) say "warning: $verdict" ;;
    2)
        say "critical: $verdict"
        if [ "$ON_CRITICAL" = fail ]; then
            exit 1
        fi
        ;;
    124|137) say "gdrtop check did not finish within $LIMIT_SECONDS s" ;;
    *) say "gdrtop check has no result (exit status $status): $verdict" ;;
esac
exit 0
"""


def _present(request: ManifestRequest) -> str:
    """Return the Prolog that slurm.conf has already; "" for none."""
    slurm = request.situation.slurm
    return "" if isinstance(slurm, Unknown) else known(slurm.prolog, "")


def _has_pattern(prolog: str) -> bool:
    """Return whether a Prolog runs every script of a directory (slurm.conf(5)), this one too."""
    return prolog.startswith("/") and prolog.endswith(("/*", "/*.sh"))


def _use(present: str) -> list[str]:
    """Return the commands that add the script, and keep the site's own."""
    if _has_pattern(present):
        return [f"install -m 0755 FILE {shlex.quote(posixpath.dirname(present))}/50-gdrtop.sh"]
    own = [f"install -D -m 0755 {shlex.quote(present)} {_DIRECTORY}/site.sh"] if present else []
    return [
        *own,
        f"install -D -m 0755 FILE {_DIRECTORY}/50-gdrtop.sh",
        f"Prolog={_DIRECTORY}/*    in slurm.conf, then: scontrol reconfigure",
    ]


def _notes(request: ManifestRequest) -> list[str]:
    """Return what slurm.conf has already, and the limit that jobs would inherit."""
    slurm = request.situation.slurm
    present = _present(request)
    excepted = "" if isinstance(slurm, Unknown) else known(slurm.propagate_except, "")
    notes = []
    if present:
        keep = "" if _has_pattern(present) else f". Copy it to {_DIRECTORY} first, or it will no longer run"
        notes.append(f"this node's slurm.conf already has a Prolog: {present}{keep}")
    if not {"MEMLOCK", "ALL"} & set(excepted.upper().split(",")):
        notes.append(
            "jobs get the memlock limit of the submitting shell unless slurm.conf has"
            " PropagateResourceLimitsExcept=MEMLOCK"
        )
    return notes


def slurm_prolog(request: ManifestRequest) -> str | Refused:
    """Return the script; it loads nvidia_peermem first where the path needs it."""
    loads = request.path is GdrPath.PEERMEM and request.driver is not DriverOwner.OPERATOR
    first = "load nvidia_peermem if it is missing, and " if loads else ""
    title = f"Slurm Prolog: {first}check GPUDirect RDMA before each job"
    lines = head(request, title, _use(_present(request)), _notes(request))
    parts = ["#!/bin/sh", *lines, "", _SETTINGS]
    if loads:
        options = "".join(f" {option}" for option in peermem_options(request.situation.examination))
        parts.append(
            "# Nothing but this and modules-load.d loads it; a restart of openibd unloads it.\n"
            "if [ ! -e /sys/module/nvidia_peermem ]; then\n"
            f"    timeout -k 2 10 modprobe nvidia_peermem{options} >/dev/null 2>&1 ||\n"
            '        say "nvidia_peermem could not be loaded"\n'
            "fi\n"
        )
    return "\n".join([*parts, _CHECK])
