"""A Slurm Prolog that checks the node before each job, and drains it by the rule of `check --for slurm`.

Where the path is nvidia-peermem, it loads the module first.

Slurm's Prolog and Epilog Guide: no search path is set; a non-zero exit drains the node and requeues the
job; scripts should be short and should not call Slurm commands. slurm.conf(5), SchedMD/slurm @ 284c3b9:
Prolog for the order of scripts, enable_configless and CHANGELOG/slurm-23.11.md for what slurmctld sends to
nodes.
"""

from __future__ import annotations

import posixpath
import shlex

from probes.base.data_files import read_text
from probes.base.unknown import Maybe, Unknown, known, map_known
from probes.facts.gpudirect import GdrPath
from probes.facts.system.slurm import CONFIGLESS, SlurmFacts
from probes.plans.load_modules import peermem_options
from probes.setup.manifests.manifest_text import DriverOwner, ManifestRequest, Refused, head, note

_RUN_AT_ALLOCATION = frozenset(
    {"alloc", "contain", "x11", "runinjob", "deferbatch", "nohold", "forcerequeueonfail"}
)
"""The words of PrologFlags with which every node runs its Prolog at once: src/common/read_config.c."""


_DIRECTORY = "/etc/slurm/prolog.d"
_SCRIPT = "50-gdrtop.sh"


def _present(slurm: Maybe[SlurmFacts]) -> tuple[str, ...]:
    """Return the Prologs that slurm.conf has already, as absolute paths or patterns.

    A relative one is beside slurm.conf; slurmctld pushes it to configless nodes.
    """
    if isinstance(slurm, Unknown):
        return ()
    directory = posixpath.dirname(known(slurm.config, "/etc/slurm/slurm.conf"))
    return tuple(posixpath.join(directory, prolog) for prolog in known(slurm.prologs, ()))


def _use(present: tuple[str, ...], pattern: str, is_pushed: bool) -> list[str]:
    """Return the commands that add the script, and keep the site's own."""
    if pattern:
        directory = shlex.quote(posixpath.dirname(pattern))
        if pattern.endswith(("/*", "/*.sh")):
            return [f"install -m 0755 FILE {directory}/{_SCRIPT}"]
        return [f"install -m 0755 FILE {directory}/NAME    with a NAME that {pattern} matches"]
    if is_pushed:
        return [
            f"install -m 0755 FILE DIRECTORY/{_SCRIPT}    on slurmctld's host, beside slurm.conf",
            f"Prolog={_SCRIPT}    in slurm.conf there, on a line of its own",
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
        f"install -D -m 0755 FILE {_DIRECTORY}/{_SCRIPT}",
        f"Prolog={_DIRECTORY}/*    in slurm.conf{instead}, then: scontrol reconfigure",
    ]


def _notes(slurm: Maybe[SlurmFacts], present: tuple[str, ...], pattern: str, is_pushed: bool) -> list[str]:
    """Return what slurm.conf has already, the order of Prologs, and the limit that jobs would inherit."""
    keep = "" if pattern else f". Copy it to {_DIRECTORY} first, or it will no longer run"
    order = note("prolog-order", script=_SCRIPT)
    if is_pushed:
        keep = ". Leave that line; Slurm runs both"
        order = note("prolog-pushed")
    notes = [note("has-prolog", prologs=", ".join(present), keep=keep)] if present else []
    notes.append(order)
    excepted = known(map_known(slurm, lambda facts: facts.propagate_except), "")
    if not {"MEMLOCK", "ALL"} & set(excepted.upper().split(",")):
        notes.append(note("memlock-limit"))
    flags = known(map_known(slurm, lambda facts: facts.prolog_flags), "").lower().split(",")
    if _RUN_AT_ALLOCATION.isdisjoint(flags):
        notes.append(note("late-prolog"))
    return notes


def slurm_prolog(request: ManifestRequest) -> str | Refused:
    """Return the script; it loads nvidia_peermem first where the path needs it."""
    loads = request.path is GdrPath.PEERMEM and request.driver is not DriverOwner.OPERATOR
    first = "load nvidia_peermem if it is missing, and " if loads else ""
    slurm = request.situation.slurm
    present = _present(slurm)
    # A pattern stands for every script of a directory, this one too.
    pattern = next((prolog for prolog in present if any(sign in prolog for sign in "*?[")), "")
    # To a configless node, slurmctld sends the script.
    is_pushed = not isinstance(slurm, Unknown) and slurm.config == CONFIGLESS and not pattern
    use, notes = _use(present, pattern, is_pushed), _notes(slurm, present, pattern, is_pushed)
    lines = head(request, "slurm-prolog", notes, use, first=first)
    parts = read_text(__package__, "prolog.sh").removeprefix("#!/bin/sh\n").split("\n\n")
    options = peermem_options(request.situation.examination)
    load = " ".join(("modprobe nvidia_peermem", *options))
    script = (
        part.replace("modprobe nvidia_peermem", load) for part in parts if loads or "modprobe" not in part
    )
    return "\n".join(["#!/bin/sh", *lines, "\n\n".join(script)])
