"""Which GPUs the numbers of SLURM_JOB_GPUS mean: places in the list of GPUs that slurmd made at its start.

Without AutoDetect, the list has the order of gres.conf. With it, slurmd sorts the GPUs by device file, then
by NVLinks if it has read them (nvml does, nvidia does not), which is the order of PCI addresses. No file says
which. SchedMD/slurm 22.05 to 26.05: _merge_system_gres_conf of src/plugins/gres/gpu/gres_gpu.c,
gres_common_prep_set_env of src/plugins/gres/common/gres_common.c; gres.conf(5).
"""

from __future__ import annotations

import re

from probes.base.cluster_places import cluster_places
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.system.numa import parse_list
from probes.facts.system.slurm import config_path, read_with_includes
from probes.host.protocol import Host
from probes.snapshot.examination import Examination

_FIELD = re.compile(r"([A-Za-z]{1,40})\s*=\s*(\"[^\"]*\"|[^\s\"]+)")
_ITEMS = re.compile(r",(?![^\[\]]*\])")  # commas in brackets separate ranges
_RANGES = re.compile(r"\[([0-9,-]{1,4096})\]")
_FILE = re.compile(r"/[^\[\],]{0,200}nvidia(?:([0-9]{1,4})|\[([0-9,-]{1,400})\])")


@frozen
class GpuOrder:
    """What gres.conf says of the GPUs of a node."""

    minors: tuple[int, ...]  # N of each /dev/nvidiaN, in its order; (): it names none
    is_detected: bool  # slurmd sorts what it finds


def read_gpu_order(host: Host, node: str) -> Maybe[GpuOrder]:
    """Read gres.conf, which is beside slurm.conf."""
    named = known(host.environment("SLURM_CONF"), "") or cluster_places().slurm_conf
    path = named if named.startswith("/") else config_path(host)
    if isinstance(path, Unknown):
        return path
    text = read_with_includes(host, f"{path.rpartition('/')[0]}/gres.conf")
    return text if isinstance(text, Unknown) else parse_gpu_order(text, node)


def parse_gpu_order(text: str, node: str) -> Maybe[GpuOrder]:
    """Parse gres.conf for a node; MALFORMED: its GPUs have no usual device files, as MIG instances."""
    minors: list[int] = []
    general: set[str] = set()  # AutoDetect of all nodes
    own: set[str] = set()  # of this node, or of a line
    for line in re.sub(r"\\\r?\n", " ", text).split("\n"):
        fields = {key.lower(): value.strip('"') for key, value in _FIELD.findall(line.partition("#")[0])}
        nodes = fields.get("nodename", "")
        if nodes and not is_among(node, nodes):
            continue
        if "autodetect" in fields:
            (own if nodes or "name" in fields else general).add(fields["autodetect"].lower())
        if fields.get("name", "").lower() != "gpu":
            continue
        if "multiplefiles" in fields:
            return Unknown(Reason.MALFORMED, "gres.conf", "GPUs with MultipleFiles")
        for item in _ITEMS.split(fields["file"]) if "file" in fields else ():
            found = _FILE.fullmatch(item)
            numbers = parse_list(found[1] or found[2]) if found else None
            if numbers is None:
                return Unknown(Reason.MALFORMED, "gres.conf", "GPUs with other files than /dev/nvidiaN")
            minors += numbers
    is_detected = bool((own or general) - {"off"})
    if not minors and not is_detected:
        return Unknown(Reason.NOT_THERE, "gres.conf", f"no GPUs of {node or 'this node'}")
    return GpuOrder(tuple(minors), is_detected)


def is_among(name: str, nodes: str) -> bool:
    """Return whether a set of nodes such as "gpu[001-016,20],login1" has a node."""
    for item in _ITEMS.split(nodes):
        parts = _RANGES.split(item)  # text, ranges, text
        found = re.fullmatch("([0-9]{1,9})".join(map(re.escape, parts[::2])), name)
        if found and all(map(_is_in, found.groups(), parts[1::2])):
            return True
    return False


def _is_in(number: str, ranges: str) -> bool:
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        width = len(first) if first.startswith("0") else len(str(int(number)))
        is_alike = first and len(number) == max(width, len(str(int(number))))
        if is_alike and int(first) <= int(number) <= int(last or first):
            return True
    return False


def gpus_meant(number: int, examination: Examination, order: Maybe[GpuOrder]) -> tuple[str, ...]:
    """Return the ids of the GPUs that a number of SLURM_JOB_GPUS can mean; () for none of this node."""
    gpus = sorted(gpu.id for gpu in examination.topology.gpus)  # in the order of PCI addresses
    facts = examination.node.gpus
    rows = facts.gpus if isinstance(facts, GpuFacts) else ()
    minors = {gpu.bdf: minor for gpu in rows if not isinstance(minor := gpu.minor, Unknown)}
    if not isinstance(order, Unknown) and not order.is_detected:
        if number >= len(order.minors):
            return ()
        file = order.minors[number]
        exact = tuple(gpu for gpu in gpus if minors.get(gpu) == file)
        return exact or tuple(gpu for gpu in gpus if gpu not in minors)
    if any(not isinstance(gpu.nvml, Unknown) and gpu.nvml.mig is True for gpu in rows):
        return tuple(gpus)  # the list has an entry for each instance
    if not isinstance(order, Unknown) and order.minors and len(minors) == len(gpus):
        gpus = [gpu for gpu in gpus if minors[gpu] in order.minors]
    by_file = sorted(gpus, key=lambda gpu: minors.get(gpu, 0)) if len(minors) >= len(gpus) else gpus
    return tuple(dict.fromkeys(places[number] for places in (gpus, by_file) if number < len(places)))
