"""Files that change what NCCL does: topology, graph and configuration."""

from __future__ import annotations

from probes.base.evidence import Evidence, first_distinct
from probes.base.plan import instruction, make_plan
from probes.base.unknown import Reason, Unknown, first_unread, is_there
from probes.facts.jobs.nccl_conf import NCCL_CONF, NcclConf
from probes.nccl.topology_file import VARIABLE, VIRTUAL, TopologyFile
from probes.queries.finding import PCI_FUNCTIONS, Area, Outcome, found, need, passed, unknown
from probes.queries.jobs import NCCL_VARIABLES, affected, conclude, conclude_values, jobs_of, without_variable
from probes.snapshot.examination import Examination

AREA = Area("nccl")


@AREA.warning(
    "nccl-topo-file-missing",
    "NCCL_TOPO_FILE points to a missing file",
    NCCL_VARIABLES + "#nccl-topo-file",
    ok="Every NCCL_TOPO_FILE exists",
    impact="NCCL reads sysfs instead. On a virtual machine it may then choose distant NICs.",
)
def nccl_topo_file_missing(examination: Examination) -> Outcome:
    """Look for the file from the point of view of the process, and for the one that nccl.conf names."""
    facts = need(examination.topology_files, "the topology files")
    missing = [
        Evidence(file.path, "not found" if file.pid is not None else "not found, but nccl.conf refers to it")
        for file in facts.files
        if (file.pid is not None or file.path != VIRTUAL) and is_there(file.endpoints) is False
    ]
    return conclude(
        jobs_of(examination),
        missing,
        "NCCL does not report the missing file. In a container the path must exist inside the container.",
        fix=without_variable(VARIABLE, "or mount the file into the container"),
    )


@AREA.warning(
    "nccl-topo-file-stale",
    "NCCL's topology file describes another machine",
    NCCL_VARIABLES + "#nccl-topo-file",
    ok="NCCL's topology file matches this machine, or there is none",
    impact="NCCL chooses the wrong NICs, or fails with “Could not find real path of /sys/class/pci_bus/…”.",
    data_path=True,
)
def nccl_topo_file_stale(examination: Examination) -> Outcome:
    """Compare the bus ids of GPUs and NICs in the file with the PCI bus."""
    facts = need(examination.topology_files, "the topology files")
    pci = need(examination.node.pci, PCI_FUNCTIONS)
    here = {bdf.rpartition(".")[0] for bdf in pci.functions}
    evidence: list[Evidence] = []
    unread: TopologyFile | None = None
    read = 0
    for file in facts.files:
        if isinstance(file.endpoints, Unknown):
            unread = unread if file.endpoints.reason is Reason.NOT_THERE else file
            continue
        read += 1
        missing = [bus for bus in file.endpoints if bus.partition(".")[0] not in here]
        if missing:
            shown = f"{', '.join(missing[:4])}: {len(missing)} of {len(file.endpoints)} are not on this node"
            evidence.append(Evidence(file.path, shown))
    if evidence:
        default = [line for line in evidence if line.source == VIRTUAL]
        step = instruction("Generate the file again for this machine, or remove it (bare metal needs none)")
        fix = make_plan("Replace the topology file", step, note="Jobs read the file when they start.")
        return found(
            f"{affected(jobs_of(examination), default + evidence)}: NCCL takes the paths between GPUs and"
            " NICs from this file instead of sysfs.",
            *first_distinct(default + evidence),
            fix=fix,
        )
    if unread is not None:
        need(unread.endpoints, unread.path)
    jobs = jobs_of(examination)
    if jobs.not_known:
        return unknown(jobs.not_known)
    return passed(Evidence(VIRTUAL, f"{read} read, all on this node" if read else "not found"))


@AREA.note(
    "nccl-graph-file-left",
    "NCCL_GRAPH_FILE overrides NCCL's rings and trees",
    NCCL_VARIABLES,
    ok="No job sets NCCL_GRAPH_FILE",
    impact="NCCL does not look for the best rings and trees itself.",
)
def nccl_graph_file_left(examination: Examination) -> Outcome:
    """Find NCCL_GRAPH_FILE."""
    return conclude_values(
        examination,
        "NCCL_GRAPH_FILE",
        lambda value: "" if value else None,
        "NCCL reads its rings and trees from a file. The variable is usually left over from an experiment.",
    )


@AREA.warning(
    "nccl-conf-ignored-lines",
    "NCCL ignores lines in nccl.conf",
    NCCL_VARIABLES + " (configuration files)",
    ok="Every line of nccl.conf sets a variable",
    impact="These settings have no effect, and NCCL does not warn about them.",
)
def nccl_conf_ignored_lines(examination: Examination) -> Outcome:
    """Find lines with a leading blank, "export", or blanks around the “=”."""
    facts = need(examination.processes, "the processes")
    confs = [(NCCL_CONF, facts.nccl_conf)]
    for process in facts.processes:
        if process.nccl_conf != facts.nccl_conf:
            confs.append((f"/proc/{process.pid}/root{NCCL_CONF}", process.nccl_conf))
    read = [(path, conf) for path, conf in confs if isinstance(conf, NcclConf)]
    evidence = [Evidence(path, line) for path, conf in read for line in conf.ignored]
    if evidence:
        return found(
            "NCCL treats spaces and the word “export” as part of the variable's name, so these lines set"
            " nothing.",
            *first_distinct(evidence),
            fix=make_plan(
                "Correct the lines",
                "Write NAME=value, without spaces and without “export”",
                note="Jobs read the file when they start.",
            ),
        )
    jobs = jobs_of(examination)
    need(first_unread((facts.nccl_conf,)), NCCL_CONF)
    if jobs.unseen:
        return unknown(jobs.unseen)
    there = not isinstance(facts.nccl_conf, Unknown)
    return passed(Evidence(NCCL_CONF, "every line sets a variable" if there else "not found"))
