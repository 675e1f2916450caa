"""Slurm: the lines of gres.conf(5) for the GPUs and NICs of this node, and a Prolog that checks it.

SchedMD/slurm @ 284c3b9: doc/man/man5/gres.conf.5; the names of types are those of src/plugins/gpu/nvml
(gpu_common_underscorify_tolower).
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections import Counter

from probes.base.text import plural
from probes.base.unknown import Maybe, Unknown, known, map_known
from probes.facts.gpu.gpus import Gpu
from probes.facts.gpudirect import GdrPath
from probes.facts.node import host_name
from probes.facts.system.slurm import CONFIGLESS, SlurmFacts
from probes.plans.load_modules import peermem_options
from probes.setup.manifests.manifest_text import (
    DriverOwner,
    ManifestRequest,
    Refused,
    command_line,
    comment_lines,
    compute_nics,
    head,
)
from probes.snapshot.path_verdict import usable_gpus
from probes.topology.paths import Topology

_RUN_AT_ALLOCATION = frozenset(
    {"alloc", "contain", "x11", "runinjob", "deferbatch", "nohold", "forcerequeueonfail"}
)
"""The words of PrologFlags with which every node runs its Prolog at once: src/common/read_config.c."""
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", re.ASCII)
_TYPE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)


def gres(request: ManifestRequest) -> str | Refused:
    """Return the lines for this node; the explicit ones of GPUs are comments."""
    examination = request.situation.examination
    gpus = sorted(usable_gpus(examination.node), key=lambda gpu: gpu.bdf)
    if not gpus:
        return Refused("this node's GPUs are unknown, or all of them are passed to virtual machines")
    name, count = _node_name(request), len(compute_nics(request.situation))
    node = f"NodeName={name} " if name else ""
    nics = f",nic:{count}" if count else ""
    use = [
        f"GresTypes=gpu{',nic' if count else ''}    in slurm.conf",
        f"NodeName={name or 'NODE'} … Gres={_asked(gpus)}{nics}    in slurm.conf",
        "slurmd -G    on the node prints what slurmd would use, and exits",
        "drain the node, then: scontrol reconfigure",
    ]
    notes = []
    if any(not isinstance(gpu.nvml, Unknown) and gpu.nvml.mig is True for gpu in gpus):
        notes.append("MIG is enabled on a GPU: the explicit lines do not describe its instances")
    lines = head(request, "Slurm: lines of gres.conf for this node", use, notes)
    lines += comment_lines(
        "Slurm finds device files, cores and NVLinks itself. Its slurmd must be built with NVML; since "
        "24.11, AutoDetect=nvidia needs no library but finds no NVLinks and no MIG instances."
    )
    lines.append(f"{node}AutoDetect=nvml")
    lines += _explicit(gpus, examination.topology, node)
    if count:
        lines += comment_lines(
            "Slurm only counts the NICs. Without File=, jobs that request none can still use them: with "
            "ConstrainDevices=yes in cgroup.conf, File= would take the device files from those jobs. No "
            "line ties a GPU to its NIC; NCCL chooses the near one."
        )
        lines.append(f"{node}Name=nic Count={count} Flags=CountOnly")
    return "\n".join(lines) + "\n"


def _node_name(request: ManifestRequest) -> str:
    """Return the short host name, which Slurm takes for the node's name; "" if it is none."""
    short = known(host_name(request.situation.examination.node), "").partition(".")[0]
    return short if _HOST_NAME.fullmatch(short) else ""


def _type(gpu: Gpu) -> str:
    """Return a GPU's type as AutoDetect=nvml names it; "" if it is no word."""
    name = gpu.name.lower().replace(" ", "_")
    return name if _TYPE.fullmatch(name) else ""


def _asked(gpus: list[Gpu]) -> str:
    """Return the value of Gres= in slurm.conf: "gpu:nvidia_h100_80gb_hbm3:8"."""
    counts = Counter(map(_type, gpus))
    return ",".join(f"gpu:{kind}:{count}" if kind else f"gpu:{count}" for kind, count in counts.items())


def _explicit(gpus: list[Gpu], topology: Topology, node: str) -> list[str]:
    """Return the lines for a Slurm without NVML as comments, and what they leave out."""
    unread = [gpu for gpu in gpus if isinstance(gpu.minor, Unknown)]
    if unread:
        count = plural(len(unread), "GPU")
        return comment_lines(
            f"No explicit lines: the device files of {count} are unknown ({unread[0].minor})."
        )
    links = [_links(gpu, gpus, topology) for gpu in gpus]
    lines = comment_lines(
        "For a Slurm without NVML, use these in place of the line above. AutoDetect=off is part of the first "
        "line: with AutoDetect=nvml, a value that differs from what Slurm finds drains the node."
    )
    for number, (gpu, link) in enumerate(zip(gpus, links, strict=True)):
        kind = f" Type={_type(gpu)}" if _type(gpu) else ""
        detect = "AutoDetect=off " if number == 0 else ""
        joined = f" Links={link}" if link else ""
        flags = f"File=/dev/nvidia{gpu.minor}{joined} Flags=nvidia_gpu_env"
        lines.append(command_line(f"{node}{detect}Name=gpu{kind} {flags}"))
    if not all(links):
        lines += comment_lines("Links= is left out, because the NVLinks are unknown.")
    lines += comment_lines(
        "Cores= is left out: it takes logical core numbers (L# of lstopo -l), of whole sockets only, or of "
        "whole NUMA nodes with SlurmdParameters=numa_node_as_socket. After a change of Cores=, restart "
        "slurmctld. Where the GPUs are:"
    )
    for gpu in gpus:
        near = topology.best_nic.get(gpu.bdf, "")
        word = topology.path(gpu.bdf, near).nccl if near else None
        path = "" if word is None or isinstance(word, Unknown) else f" ({word.value})"
        numa = "unknown" if isinstance(gpu.numa_node, Unknown) else gpu.numa_node
        nic = f", nearest NIC {near}{path}" if near else ""
        lines.append(command_line(f"/dev/nvidia{gpu.minor}  {gpu.bdf}, NUMA node {numa}{nic}"))
    return lines


def _links(gpu: Gpu, gpus: list[Gpu], topology: Topology) -> str:
    """Return a GPU's NVLinks to each GPU in the order of PCI addresses, -1 for itself; "": unknown."""
    if any(isinstance(each.nvlink_peers, Unknown) for each in gpus):
        return ""
    return ",".join(
        "-1" if other is gpu else str(topology.path(gpu.bdf, other.bdf).nvlinks) for other in gpus
    )


# A Slurm Prolog that checks the node before each job, and drains it by the rule of `check --for slurm`.
#
# Where the path is nvidia-peermem, it loads the module first.
#
# Slurm's Prolog and Epilog Guide: no search path is set; a non-zero exit drains the node and requeues the
# job; scripts should be short and should not call Slurm commands. slurm.conf(5), SchedMD/slurm @ 284c3b9:
# Prolog for the order of scripts, enable_configless and CHANGELOG/slurm-23.11.md for what slurmctld sends to
# nodes.

_DIRECTORY = "/etc/slurm/prolog.d"
_SCRIPT = "50-gdrtop.sh"
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
    order = (
        f"Slurm runs the scripts of a pattern in reverse alphabetical order, 9 to 0 last: {_SCRIPT} runs"
        " after scripts whose names begin with a letter"
    )
    if is_pushed:
        keep = ". Leave that line; Slurm runs both"
        order = (
            "this node is configless: slurmctld (23.11 or newer) sends it only Prologs that are named without"
            " a path, and no pattern"
        )
    notes = [f"this node's slurm.conf already has a Prolog: {', '.join(present)}{keep}"] if present else []
    notes.append(order)
    excepted = known(map_known(slurm, lambda facts: facts.propagate_except), "")
    if not {"MEMLOCK", "ALL"} & set(excepted.upper().split(",")):
        notes.append(
            "jobs get the memlock limit of the submitting shell unless slurm.conf has"
            " PropagateResourceLimitsExcept=MEMLOCK"
        )
    flags = known(map_known(slurm, lambda facts: facts.prolog_flags), "").lower().split(",")
    if _RUN_AT_ALLOCATION.isdisjoint(flags):
        notes.append(
            "without PrologFlags=Alloc in slurm.conf, a node runs its Prolog only with the job's first step"
            " there: it is checked late, or never"
        )
    return notes


def slurm_prolog(request: ManifestRequest) -> str | Refused:
    """Return the script; it loads nvidia_peermem first where the path needs it."""
    loads = request.path is GdrPath.PEERMEM and request.driver is not DriverOwner.OPERATOR
    first = "load nvidia_peermem if it is missing, and " if loads else ""
    title = f"Slurm Prolog: {first}check GPUDirect RDMA before each job"
    slurm = request.situation.slurm
    present = _present(slurm)
    # A pattern stands for every script of a directory, this one too.
    pattern = next((prolog for prolog in present if any(sign in prolog for sign in "*?[")), "")
    # To a configless node, slurmctld sends the script.
    is_pushed = not isinstance(slurm, Unknown) and slurm.config == CONFIGLESS and not pattern
    trial = "gdrtop prolog --dry-run    shows what would be done on this node, and does nothing"
    use, notes = _use(present, pattern, is_pushed), _notes(slurm, present, pattern, is_pushed)
    lines = head(request, title, [trial, *use], notes)
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
