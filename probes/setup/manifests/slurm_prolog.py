"""A Slurm Prolog that checks the node before each job, and drains it by the rule of `check --for slurm`.

Where the path is nvidia-peermem, it loads the module first.

Slurm's Prolog and Epilog Guide: no search path is set; a non-zero exit drains the node and requeues the job;
scripts should be short and should not call Slurm commands. slurm.conf(5), SchedMD/slurm @ 284c3b9: Prolog for
the order of scripts, enable_configless and CHANGELOG/slurm-23.11.md for what slurmctld sends to nodes.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable

from probes.base.unknown import Maybe, Unknown, known
from probes.facts.gpudirect import GdrPath
from probes.facts.system.slurm import CONFIGLESS, SlurmFacts
from probes.plans.load_modules import peermem_options
from probes.setup.manifests.manifest_text import DriverOwner, ManifestRequest, Refused, head

_DIRECTORY = "/etc/slurm/prolog.d"
_NAME = "50-gdrtop.sh"
LIMIT_SECONDS = 60  # gdrtop ends after 20; loading a module takes longer
_SETTINGS = f"""\
PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin
export PATH

# --log-only: write what would stop the job to the system log, and let it start.
# Without it, gdrtop drains the node and the job is requeued. --heal: first load missing modules.
# Other warnings than a GPU that asks for a reset, unknown results and a missing gdrtop never stop a job.
OPTIONS=--log-only
LIMIT_SECONDS={LIMIT_SECONDS}

say() {{
    logger -t gdrtop -- "prolog, job ${{SLURM_JOB_ID:-?}}: $1" 2>/dev/null || :
}}
"""
_CHECK = """\
if ! command -v gdrtop >/dev/null 2>&1; then
    say "gdrtop is not installed in $PATH"
    exit 0
fi

# gdrtop has a time limit of its own; timeout ends one that hangs all the same, and -k kills it.
timeout -k 2 "$LIMIT_SECONDS" gdrtop prolog $OPTIONS </dev/null
status=$?

# gdrtop ends with 1 only if the job must not start, but so does a Python that cannot start.
if [ "$status" = 1 ] && ! gdrtop --version >/dev/null 2>&1; then
    status="1: it cannot start"
fi

case $status in
    0) ;;
    1) exit 1 ;;
    124) say "gdrtop prolog did not finish within $LIMIT_SECONDS s" ;;
    137) say "gdrtop prolog was killed (SIGKILL): memory ran out, or it hung and timeout killed it" ;;
    *) say "gdrtop prolog has no result (exit status $status)" ;;
esac
exit 0
"""


def _present(slurm: Maybe[SlurmFacts]) -> tuple[str, ...]:
    """Return the Prologs that slurm.conf has already, as absolute paths or patterns.

    A relative one is beside slurm.conf; slurmctld pushes it to configless nodes.
    """
    if isinstance(slurm, Unknown):
        return ()
    directory = posixpath.dirname(known(slurm.config, "/etc/slurm/slurm.conf"))
    return tuple(posixpath.join(directory, prolog) for prolog in known(slurm.prologs, ()))


def _pattern(present: Iterable[str]) -> str:
    """Return a Prolog that stands for every script of a directory, this one too; "" for none."""
    return next((prolog for prolog in present if any(sign in prolog for sign in "*?[")), "")


def _is_configless(slurm: Maybe[SlurmFacts]) -> bool:
    return not isinstance(slurm, Unknown) and slurm.config == CONFIGLESS


def _use(slurm: Maybe[SlurmFacts]) -> list[str]:
    """Return the commands that add the script, and keep the site's own."""
    present = _present(slurm)
    if pattern := _pattern(present):
        directory = shlex.quote(posixpath.dirname(pattern))
        if pattern.endswith(("/*", "/*.sh")):
            return [f"install -m 0755 FILE {directory}/{_NAME}"]
        return [f"install -m 0755 FILE {directory}/NAME    with a NAME that {pattern} matches"]
    if _is_configless(slurm):
        return [
            f"install -m 0755 FILE DIRECTORY/{_NAME}    on slurmctld's host, beside slurm.conf",
            f"Prolog={_NAME}    in slurm.conf there, on a line of its own",
            "scontrol reconfigure && scontrol show config | grep Prolog",
        ]
    own = [
        f"install -D -m 0755 {shlex.quote(prolog)} {_DIRECTORY}/{shlex.quote(posixpath.basename(prolog))}"
        for prolog in present
        if posixpath.dirname(prolog) != _DIRECTORY
    ]
    instead = " in place of the other Prolog lines" if present else ""
    return [
        *own,
        f"install -D -m 0755 FILE {_DIRECTORY}/{_NAME}",
        f"Prolog={_DIRECTORY}/*    in slurm.conf{instead}, then: scontrol reconfigure",
    ]


def _notes(slurm: Maybe[SlurmFacts]) -> list[str]:
    """Return what slurm.conf has already, the order of Prologs, and the limit that jobs would inherit."""
    present = _present(slurm)
    excepted = "" if isinstance(slurm, Unknown) else known(slurm.propagate_except, "")
    notes = []
    keep = ""
    if _is_configless(slurm) and not _pattern(present):
        keep = ". Leave that line; Slurm runs both"
    elif not _pattern(present):
        keep = f". Copy it to {_DIRECTORY} first, or it will no longer run"
    if present:
        notes.append(f"this node's slurm.conf already has a Prolog: {', '.join(present)}{keep}")
    if _is_configless(slurm) and not _pattern(present):
        notes.append(
            "this node is configless: slurmctld (23.11 or newer) sends it only Prologs that are named without"
            " a path, and no pattern"
        )
    else:
        notes.append(
            f"Slurm runs the scripts of a pattern in reverse alphabetical order, 9 to 0 last: {_NAME} runs"
            " after scripts whose names begin with a letter"
        )
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
    slurm = request.situation.slurm
    trial = ["gdrtop prolog --dry-run    shows what would be done on this node, and does nothing"]
    lines = head(request, title, [*trial, *_use(slurm)], _notes(slurm))
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
