"""Slurm: the lines of gres.conf(5) for the GPUs and NICs of this node, and a Prolog that checks it.

SchedMD/slurm @ 284c3b9: doc/man/man5/gres.conf.5; the names of types are those of src/plugins/gpu/nvml
(gpu_common_underscorify_tolower).
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections import Counter

from probes.base.data_files import read_text
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
    comment,
    compute_nics,
    head,
    note,
    refused,
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
        return refused("gpus-unknown")
    name, count = _node_name(request), len(compute_nics(request.situation))
    node = f"NodeName={name} " if name else ""
    notes = []
    if any(not isinstance(gpu.nvml, Unknown) and gpu.nvml.mig is True for gpu in gpus):
        notes.append(note("mig"))
    asked = f"{_asked(gpus)}{f',nic:{count}' if count else ''}"
    types = ",nic" if count else ""
    lines = head(request, "gres", notes, name=name or "NODE", types=types, asked=asked)
    lines += comment("gres-detected")
    lines.append(f"{node}AutoDetect=nvml")
    lines += _explicit(gpus, examination.topology, node)
    if count:
        lines += comment("gres-nics")
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
        return comment("gres-no-lines", gpus=count, why=unread[0].minor)
    links = [_links(gpu, gpus, topology) for gpu in gpus]
    lines = comment("gres-without-nvml")
    for number, (gpu, link) in enumerate(zip(gpus, links, strict=True)):
        kind = f" Type={_type(gpu)}" if _type(gpu) else ""
        detect = "AutoDetect=off " if number == 0 else ""
        joined = f" Links={link}" if link else ""
        flags = f"File=/dev/nvidia{gpu.minor}{joined} Flags=nvidia_gpu_env"
        lines.append(command_line(f"{node}{detect}Name=gpu{kind} {flags}"))
    if not all(links):
        lines += comment("gres-no-links")
    lines += comment("gres-cores")
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
