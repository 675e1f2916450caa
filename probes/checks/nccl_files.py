"""The files that steer NCCL: topology, graph and configuration."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.jobs import jobs_of, settle, values_of, without_variable
from probes.checks.references import NCCL_VARIABLES
from probes.checks.wording import few
from probes.examination import Examination
from probes.nccl_conf import NCCL_CONF, NcclConf
from probes.plan import Plan, instruction
from probes.topology_files import VARIABLE, VIRTUAL, TopologyFile
from probes.unknown import Reason, Unknown

AREA = Area("nccl")


@AREA.check(
    "nccl-topo-file-missing",
    Severity.WARNING,
    "NCCL_TOPO_FILE names a file that is not there",
    NCCL_VARIABLES + "#nccl-topo-file",
)
def nccl_topo_file_missing(examination: Examination) -> Outcome:
    """The file, as the process sees it."""
    facts = examination.topology_files
    if isinstance(facts, Unknown):
        return unsure(f"the topology files: {facts}")
    gone = [
        Evidence(file.path, "not there")
        for file in facts.files
        if file.pid is not None
        and isinstance(file.endpoints, Unknown)
        and file.endpoints.reason is Reason.NOT_THERE
    ]
    return settle(
        jobs_of(examination),
        gone,
        "NCCL goes on without it, by sysfs; on a virtual machine that may show another tree than the real"
        " one",
        fix=without_variable(VARIABLE, "or bring the file into the container"),
    )


@AREA.check(
    "nccl-topo-file-stale",
    Severity.WARNING,
    "NCCL's topology file describes another machine",
    NCCL_VARIABLES + "#nccl-topo-file",
)
def nccl_topo_file_stale(examination: Examination) -> Outcome:
    """The bus ids of GPUs and NICs in the file, against the PCI bus."""
    facts, pci = examination.topology_files, examination.node.pci
    if isinstance(facts, Unknown) or isinstance(pci, Unknown):
        return unsure(f"the topology files and the PCI bus: {facts if isinstance(facts, Unknown) else pci}")
    here = {bdf.rpartition(".")[0] for bdf in pci.functions}
    evidence: list[Evidence] = []
    unread: TopologyFile | None = None
    read = 0
    for file in facts.files:
        if isinstance(file.endpoints, Unknown):
            unread = unread if file.endpoints.reason is Reason.NOT_THERE else file
            continue
        read += 1
        strange = [bus for bus in file.endpoints if bus.partition(".")[0] not in here]
        if strange:
            told = f"{', '.join(strange[:4])}: {len(strange)} of {len(file.endpoints)} are not on this node"
            evidence.append(Evidence(file.path, told))
    if evidence:
        default = [one for one in evidence if one.source == VIRTUAL]
        step = instruction("renew the file for this machine, or remove it: bare metal needs none")
        fix = Plan("Renew the topology file", (step,), disturbs="jobs read the file when they start")
        return found(
            "NCCL takes the file's word for the way between GPUs and NICs: it chooses wrong NICs, or fails"
            " with “Could not find real path of /sys/class/pci_bus/…”",
            *few(default + evidence),
            fix=fix,
        )
    if unread is not None and isinstance(unread.endpoints, Unknown):
        return unsure(f"{unread.endpoints}: {unread.path}")
    jobs = jobs_of(examination)
    if jobs.unseen or jobs.unread:
        return unsure(jobs.unseen or jobs.unread)
    told = f"{read} read, all of this node" if read else "not there: NCCL reads sysfs"
    return passed(Evidence(VIRTUAL, told))


@AREA.check(
    "nccl-graph-file-left",
    Severity.NOTE,
    "NCCL_GRAPH_FILE makes NCCL take its rings and trees from a file",
    NCCL_VARIABLES,
)
def nccl_graph_file_left(examination: Examination) -> Outcome:
    """NCCL_GRAPH_FILE."""
    name = "NCCL_GRAPH_FILE"
    return settle(
        jobs_of(examination),
        values_of(examination, name, lambda _, value: "set" if value else None),
        "NCCL does not search for the best use of the links; mostly this is left behind by an experiment",
        fix=without_variable(name),
    )


@AREA.check(
    "nccl-conf-ignored-lines",
    Severity.WARNING,
    "lines of nccl.conf set nothing",
    NCCL_VARIABLES + " (configuration files)",
)
def nccl_conf_ignored_lines(examination: Examination) -> Outcome:
    """Lines with a blank in front, "export", or blanks around the “=”."""
    facts = examination.processes
    if isinstance(facts, Unknown):
        return unsure(f"the processes and {NCCL_CONF}: {facts}")
    confs = [(NCCL_CONF, facts.nccl_conf)]
    for process in facts.processes:
        if process.nccl_conf != facts.nccl_conf:
            confs.append((f"/proc/{process.pid}/root{NCCL_CONF}", process.nccl_conf))
    evidence = [
        Evidence(path, line) for path, conf in confs if isinstance(conf, NcclConf) for line in conf.ignored
    ]
    if evidence:
        return found(
            "NCCL takes what stands before the “=” as the name and what stands behind it as the value, blanks"
            " included: these lines name no variable of NCCL",
            *few(evidence),
            fix=Plan(
                "Correct the lines",
                (instruction("write NAME=value, without blanks and without “export”"),),
                note="jobs read the file when they start",
            ),
        )
    jobs = jobs_of(examination)
    if isinstance(facts.nccl_conf, Unknown) and facts.nccl_conf.reason is not Reason.NOT_THERE:
        return unsure(f"{facts.nccl_conf.reason.value}: {NCCL_CONF}")
    if jobs.unseen:
        return unsure(jobs.unseen)
    there = not isinstance(facts.nccl_conf, Unknown)
    return passed(Evidence(NCCL_CONF, "every line sets a variable" if there else "not there"))
