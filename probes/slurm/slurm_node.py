"""A node of Slurm: whether to drain it, with which reason, and the devices of a job on it.

`scontrol update` replaces the reason of another program or admin without asking, and a failed Prolog sets
Slurm's own only where there is none (src/slurmctld/node_mgr.c). So the present one is read first, and the
node is drained before the Prolog fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from probes.base.frozen import frozen
from probes.base.plan import Plan, Step, make_plan
from probes.base.site import site
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.checks.new_jobs import nics_near
from probes.facts.system.numa import parse_list
from probes.facts.system.slurm import config_path, read_with_includes
from probes.host.protocol import Host
from probes.queries.finding import Finding
from probes.snapshot.examination import Examination

LEADER = "gdrtop:"  # reasons that begin so are gdrtop's to replace and to clear
# Those of gdrtop repair, which prolog and health check leave alone: it returns no node that is not measured.
REPAIR_LEADER = "gdrtop repair:"
PROLOG_ERROR = "Prolog error"  # Slurm's own reason, as 22.05 sets it
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_REASON_CHARACTERS = 120
_SECONDS = 5.0  # slurmctld may be busy


@frozen
class SlurmNode:
    """What slurmctld says of a node."""

    name: str
    state: str  # as sinfo prints it: "idle", "drained", "draining*"
    reason: str  # "" if there is none

    @property
    def is_draining(self) -> bool:
        """Whether no further job starts on it."""
        return self.state.startswith("drain")

    @property
    def is_out(self) -> bool:
        """Whether it is drained or down; only `State=RESUME` also returns one that is down."""
        return self.is_draining or self.state.startswith("down")

    @property
    def has_own_reason(self) -> bool:
        """Whether gdrtop has set the reason, outside a repair."""
        return self.reason.startswith(LEADER)

    def is_ours(self, in_repair: bool) -> bool:
        """Return whether gdrtop may replace and clear the reason; a repair also its own."""
        return self.has_own_reason or (in_repair and self.reason.startswith(REPAIR_LEADER))


def is_node_name(name: str) -> bool:
    """Return whether a word can be the name of a node in slurm.conf."""
    return _NODE.fullmatch(name) is not None


def read_node(host: Host, name: str) -> Maybe[SlurmNode]:
    """Ask slurmctld for the state of a node and its reason, by sinfo(1), else by scontrol(1).

    sinfo lists only nodes of partitions.
    """
    assert is_node_name(name)
    answer = _ask(host, "sinfo", "--noheader", "--nodes", name, "--format", "%T|%E")
    if isinstance(answer, Unknown):
        return answer
    if answer.strip():
        return parse_sinfo(name, answer)
    shown = host.run(("scontrol", "--oneliner", "show", "node", name), _SECONDS)
    return parse_sinfo(name, "") if isinstance(shown, Unknown) else parse_scontrol(name, shown.stdout)


def parse_sinfo(name: str, text: str) -> Maybe[SlurmNode]:
    """Parse "STATE|REASON", a line for each partition; sinfo writes "none" where there is no reason."""
    state, bar, reason = text.partition("\n")[0].partition("|")
    if not bar:
        return Unknown(Reason.NOT_THERE, "sinfo", f"Slurm has no node {name}")
    reason = printable(reason.strip(), 200)
    return SlurmNode(name, printable(state.strip(), 40), "" if reason == "none" else reason)


def parse_scontrol(name: str, text: str) -> Maybe[SlurmNode]:
    """Parse the line of `scontrol --oneliner show node`: "… State=IDLE+DRAIN … Reason=disk [root@2026-…]"."""
    state = re.search(r" State=([A-Z+*~#!%$@^_-]{1,120})", text)
    if state is None:
        return Unknown(Reason.NOT_THERE, "scontrol", f"Slurm has no node {name}")
    words = state[1].split("+")
    is_busy = words[0].startswith(("ALLOC", "MIX")) or "COMPLETING" in words
    drains = "draining" if is_busy else "drained"
    reason = re.search(r" Reason=(.{0,300}?) \[[^\[\]\s]{1,80}@[^\[\]\s]{1,40}\]", text)
    said = printable(reason[1].strip(), 200) if reason else ""
    return SlurmNode(name, drains if "DRAIN" in words else words[0].lower(), said)


def read_jobs(host: Host, name: str) -> Maybe[tuple[str, ...]]:
    """Ask squeue(1) for a node's jobs, completing ones too: "4711 (alice, RUNNING, 1:20:00 left)"."""
    assert is_node_name(name)
    return map_known(
        _ask(host, "squeue", "--noheader", "--nodes", name, "--format", "%i|%u|%T|%L"), parse_squeue
    )


def _ask(host: Host, *argv: str) -> Maybe[str]:
    """Return what a program of Slurm prints; if it fails, its first line of errors is the reason."""
    answer = host.run(argv, _SECONDS)
    if isinstance(answer, Unknown):
        return answer
    if answer.exit_status:
        return Unknown(Reason.MALFORMED, argv[0], printable(answer.stderr.strip().partition("\n")[0], 200))
    return answer.stdout


def parse_squeue(text: str) -> tuple[str, ...]:
    """Parse the lines "JOB|USER|STATE|TIME LEFT" of squeue; other lines are left out."""
    rows = [[printable(word.strip(), 40) for word in line.split("|")] for line in text.split("\n")]
    return tuple(f"{row[0]} ({row[1]}, {row[2]}, {row[3]} left)" for row in rows if len(row) == 4)


def reason_for(findings: tuple[Finding, ...]) -> str:
    """Return "gdrtop: port-down mlx5_3" for the first finding, with the number of further ones."""
    first = findings[0]
    devices = first.takes or first.devices
    more = f" +{len(findings) - 1}" if len(findings) > 1 else ""
    where = f" {devices[0]}" if devices else ""
    return printable(f"{LEADER} {first.id}{where}{more}", _REASON_CHARACTERS)


def drain_plan(node: SlurmNode, reason: str) -> Plan | str:
    """Return the plan that drains a node, or why it stays as it is."""
    is_ours = node.is_ours(reason.startswith(REPAIR_LEADER))
    if node.is_draining and not is_ours:
        return f"{node.name} is {node.state} already, with the reason “{node.reason or 'none'}”"
    if node.reason and not is_ours:
        return f"{node.name} has another reason already: “{node.reason}”"
    if node.is_draining and node.reason == reason:
        return f"{node.name} is {node.state} already, with this reason"
    step = Step(
        f"Let no further job start on {node.name}",
        ("scontrol", "update", f"NodeName={node.name}", "State=DRAIN", f"Reason={reason}"),
        undo=("scontrol", "update", f"NodeName={node.name}", "State=UNDRAIN"),
    )
    return make_plan(f"Drain {node.name}", step)


def resume_plan(node: SlurmNode, in_repair: bool = False) -> Plan | str:
    """Return the plan that lets jobs start again, or why the node stays as it is.

    After a repair, RESUME also returns a node that is down since a reboot (scontrol(1)).
    """
    if not (node.is_out if in_repair else node.is_draining):
        return f"{node.name} is not drained"
    if not node.is_ours(in_repair):
        return f"{node.name} was not drained by gdrtop: “{node.reason or 'no reason'}”"
    step = Step(
        f"Let jobs start on {node.name} again",
        ("scontrol", "update", f"NodeName={node.name}", f"State={'RESUME' if in_repair else 'UNDRAIN'}"),
        undo=("scontrol", "update", f"NodeName={node.name}", "State=DRAIN", f"Reason={node.reason}"),
    )
    return make_plan(f"Resume {node.name}", step)


# The GPUs of a Slurm job on this node, and the NICs near them.

# Which GPUs the numbers of SLURM_JOB_GPUS mean: places in the list of GPUs that slurmd made at its start.
#
# Without AutoDetect, the list has the order of gres.conf. With it, slurmd sorts the GPUs by device file,
# then by NVLinks if it has read them (nvml does, nvidia does not), which is the order of PCI addresses. No
# file says which. SchedMD/slurm 22.05 to 26.05: _merge_system_gres_conf of src/plugins/gres/gpu/gres_gpu.c,
# gres_common_prep_set_env of src/plugins/gres/common/gres_common.c; gres.conf(5).

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
    named = known(host.environment("SLURM_CONF"), "") or site().places.slurm_conf
    path = named if named.startswith("/") else config_path(host)
    text = map_known(path, lambda found: read_with_includes(host, f"{found.rpartition('/')[0]}/gres.conf"))
    return map_known(text, lambda found: parse_gpu_order(found, node))


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
    rows = examination.node.known_gpus
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


_MOST_GPUS = 256
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}")
_JOB = re.compile(r"[0-9]{1,10}")


@frozen
class SlurmJob:
    """What slurmd says of a job to its Prolog and Epilog (prolog_epilog.shtml, environment variables)."""

    id: str  # "" if slurmd has not said it
    gpus: tuple[str, ...]  # "0", or a UUID where gres.conf has Flags=env_uuid; () for a job without GPUs
    unreadable: str = ""  # what could not be read of the list of GPUs


@frozen
class JobDevices:
    """The devices of a job on this node."""

    gpus: tuple[str, ...]  # BDFs
    nics: tuple[str, ...]  # RDMA device names: the nearest of each GPU
    unplaced: tuple[str, ...]  # GPUs of the job that this node does not have, or MIG instances
    unsure: str = ""  # why `gpus` has more than the job's: all that its numbers can mean


def parse_job(environment: Mapping[str, str]) -> SlurmJob:
    """Return the job; numbers in SLURM_JOB_GPUS are places in slurmd's list of GPUs."""
    job = environment.get("SLURM_JOB_ID", "")
    text = environment.get("SLURM_JOB_GPUS") or environment.get("CUDA_VISIBLE_DEVICES") or ""
    gpus: list[str] = []
    unreadable = ""
    for word in text[:4096].split(","):
        numbers = parse_list(word)
        if numbers is not None:
            gpus += map(str, numbers)
        elif _UUID.fullmatch(word.strip()):
            gpus.append(word.strip())
        elif word.strip() != "NoDevFiles":  # Slurm's word for a job without GPUs
            unreadable = unreadable or printable(word, 40)
    own = tuple(dict.fromkeys(gpus[:_MOST_GPUS]))
    return SlurmJob(job if _JOB.fullmatch(job) else "", own, unreadable)


def devices_of(job: SlurmJob, examination: Examination, order: Maybe[GpuOrder]) -> JobDevices:
    """Return the GPUs of the job and the NICs near them; of equally near NICs, all.

    If the order of slurmd's list is unknown, a broken GPU counts that the job can have got.
    """
    uuids = {known(gpu.uuid, ""): gpu.bdf for gpu in examination.node.known_gpus}
    meant = {name: gpus_meant(int(name), examination, order) if name.isdecimal() else () for name in job.gpus}
    meant |= {name: (uuids[name],) for name in job.gpus if name in uuids}
    found = tuple(dict.fromkeys(gpu for places in meant.values() for gpu in places))
    unplaced = tuple(name for name in job.gpus if not meant[name])
    why = f"gres.conf: {order}" if isinstance(order, Unknown) else "AutoDetect orders them in two ways"
    unsure = why if len(found) > len(job.gpus) - len(unplaced) else ""
    return JobDevices(found, nics_near(examination.topology, found), unplaced, unsure)
