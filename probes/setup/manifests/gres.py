"""gres.conf(5) of Slurm: the GPUs of this node, and its NICs as a count.

SchedMD/slurm @ 284c3b9: doc/man/man5/gres.conf.5; the names of types are those of src/plugins/gpu/nvml
(gpu_common_underscorify_tolower).
"""

from __future__ import annotations

import re

from probes.base.text import plural
from probes.base.unknown import Unknown, known
from probes.facts.gpu.gpus import Gpu
from probes.facts.system.platform import PlatformFacts
from probes.setup.manifests.manifest_text import (
    ManifestRequest,
    Refused,
    command_line,
    comment_lines,
    compute_nics,
    head,
)
from probes.snapshot.path_verdict import usable_gpus
from probes.topology.paths import Topology

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", re.ASCII)
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
    platform = request.situation.examination.node.platform
    hostname = known(platform.hostname, "") if isinstance(platform, PlatformFacts) else ""
    short = hostname.partition(".")[0]
    return short if _NAME.fullmatch(short) else ""


def _type(gpu: Gpu) -> str:
    """Return a GPU's type as AutoDetect=nvml names it; "" if it is no word."""
    name = gpu.name.lower().replace(" ", "_")
    return name if _TYPE.fullmatch(name) else ""


def _asked(gpus: list[Gpu]) -> str:
    """Return the value of Gres= in slurm.conf: "gpu:nvidia_h100_80gb_hbm3:8"."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        counts[_type(gpu)] = counts.get(_type(gpu), 0) + 1
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
