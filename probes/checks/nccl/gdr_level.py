"""NCCL variables that disable GPUDirect RDMA for a job, or limit it."""

from __future__ import annotations

from probes.base.unknown import Unknown
from probes.checks.nccl.library import versions_of
from probes.facts.jobs.processes import Process
from probes.nccl.settings import parse_level, parse_number
from probes.queries.evidence_list import SHOWN
from probes.queries.finding import Area, Evidence, Outcome, Severity, need, passed, unknown
from probes.queries.jobs import (
    NCCL_VARIABLES,
    STAGED,
    JobSettings,
    conclude,
    conclude_values,
    gpus_of,
    jobs_of,
    nearest,
    values_of,
    without_variable,
)
from probes.snapshot.examination import Examination
from probes.topology.nccl_words import ORDER, Nccl

AREA = Area("nccl")
LEVEL = "NCCL_NET_GDR_LEVEL"
_LEVEL_REFERENCE = NCCL_VARIABLES + "#nccl-net-gdr-level-formerly-nccl-ib-gdr-level"
C2C_LEVEL = "NCCL_NET_GDR_C2C"


_LOST_C2C = (
    " From 2.29 on, NCCL's default allows P2C, so the variable disables GPUDirect RDMA that works without it."
)
_FIRST_WITH_C2C, _C2C_BY_DEFAULT, _LEVEL_COMES_FIRST = (2, 26), (2, 27), (2, 29)


def _nccl_of(examination: Examination, process: Process | None) -> tuple[int, ...]:
    """Return the version of a process's NCCL, or of new jobs if it was stated; () if unknown."""
    if process is not None:
        return min((version for _, version in versions_of(process, "libnccl")), default=())
    facts = examination.processes
    return () if isinstance(facts, Unknown) else facts.new_jobs_nccl


def _ignores_level_over_c2c(settings: JobSettings, version: tuple[int, ...]) -> bool:
    """Return whether NCCL uses C2C paths at this level.

    From 2.26 to 2.28 NCCL_NET_GDR_C2C=1 makes it compare C2C instead of the distance; from 2.29 on a level
    that is set comes first (src/graph/paths.cc ncclTopoCheckGdr of v2.26.2-1, v2.28.9-1 and v2.29.2-1).
    """
    value = parse_number(settings.get(C2C_LEVEL) or "")
    is_on = version >= _C2C_BY_DEFAULT if value is None else value != 0
    return is_on and _FIRST_WITH_C2C <= version < _LEVEL_COMES_FIRST


@AREA.check(
    "nccl-gdr-level-ignored",
    Severity.WARNING,
    "NCCL_NET_GDR_LEVEL has an invalid value; NCCL silently ignores it",
    _LEVEL_REFERENCE,
    ok="NCCL_NET_GDR_LEVEL is unset or valid",
    impact="The level has no effect. NCCL uses GPUDirect RDMA up to PXB, with C2C links up to P2C.",
)
def nccl_gdr_level_ignored(examination: Examination) -> Outcome:
    """Find levels that NCCL does not have."""
    return conclude_values(
        examination,
        LEVEL,
        lambda value: None if parse_level(value) else "ignored",
        "NCCL accepts LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB and SYS in uppercase without spaces, or a"
        " number. It has no NODE; a GPU and a NIC on one NUMA node are PHB.",
        "or write PHB where nvidia-smi shows NODE, and measure",
    )


@AREA.check(
    "nccl-gdr-level-off",
    Severity.CRITICAL,
    "NCCL_NET_GDR_LEVEL disables GPUDirect RDMA for a job",
    _LEVEL_REFERENCE,
    ok="NCCL_NET_GDR_LEVEL does not disable GPUDirect RDMA",
    impact=STAGED,
    data_path=True,
)
def nccl_gdr_level_off(examination: Examination) -> Outcome:
    """Find levels below the distance of any NIC: LOC (0), NVL, NVB, C2C."""

    def wrong(value: str) -> str | None:
        level = parse_level(value)
        return f"{level.word} means never" if level and level.rank < ORDER[Nccl.PIX] else None

    return conclude_values(
        examination,
        LEVEL,
        wrong,
        "No NIC is nearer to a GPU than PIX, so NCCL never uses GPUDirect RDMA at a lower level. The value "
        "0 means LOC; it does not change ACS.",
    )


@AREA.check(
    "nccl-gdr-level-too-low",
    Severity.WARNING,
    "NCCL_NET_GDR_LEVEL is lower than the distance between a GPU and its nearest NIC",
    _LEVEL_REFERENCE,
    ok="NCCL_NET_GDR_LEVEL allows each GPU's nearest NIC",
    impact="These GPUs copy through host memory.",
    data_path=True,
)
def nccl_gdr_level_too_low(examination: Examination) -> Outcome:
    """Compare the level with the nearest NIC of each GPU of the process."""
    topology = examination.topology
    jobs = jobs_of(examination)
    distances = {gpu.id: nearest(topology, gpu.id) for gpu in topology.gpus}
    is_set = any(settings.get(LEVEL) is not None for settings in jobs.settings)
    if is_set and topology.nics and None in distances.values():
        return unknown("needs the PCIe paths between GPUs and NICs, which this machine does not show")

    def wrong(settings: JobSettings, value: str) -> str | None:
        level = parse_level(value)
        if level is None or level.rank < ORDER[Nccl.PIX]:
            return None
        own = gpus_of(examination, settings.process)
        ignores_level = _ignores_level_over_c2c(settings, _nccl_of(examination, settings.process))
        far = [
            f"{gpu.label} is {word.value} from its nearest NIC"
            for gpu in topology.gpus
            if gpu.id in own and (word := distances[gpu.id]) is not None and ORDER[word] > level.rank
            if ORDER[word] <= ORDER[Nccl.P2C]  # farther ones are beyond the default too
            if not (word is Nccl.P2C and ignores_level)
        ]
        return f"but {', '.join(far[:SHOWN])}" if far else None

    return conclude(
        jobs,
        values_of(examination, LEVEL, wrong),
        "The level is the largest distance at which NCCL uses GPUDirect RDMA. These GPUs are farther from"
        f" every NIC.{_LOST_C2C if Nccl.P2C in distances.values() else ''}",
        fix=without_variable(LEVEL, "or set it to the distance shown, and measure"),
    )


@AREA.check(
    "nccl-gdr-level-number",
    Severity.NOTE,
    "NCCL_NET_GDR_LEVEL is a number, which is easily misread",
    _LEVEL_REFERENCE,
    ok="NCCL_NET_GDR_LEVEL is not a number",
    impact="None, if the number means what was intended.",
    part_of=("nccl-gdr-level-off", "nccl-gdr-level-too-low"),
)
def nccl_gdr_level_number(examination: Examination) -> Outcome:
    """Find levels that are numbers."""

    def wrong(value: str) -> str | None:
        level = parse_level(value)
        return f"means {level.word}" if level and value[:1].isdigit() else None

    return conclude_values(
        examination,
        LEVEL,
        wrong,
        "0 is LOC, 1 PIX, 2 PXB, 3 PHB, 4 and above SYS. The distances in NCCL's log use other numbers, "
        "which change between versions.",
        "or use the level's name",
    )


@AREA.check(
    "nccl-gdr-read-off",
    Severity.WARNING,
    "NCCL_NET_GDR_READ=0 makes a job send from host memory",
    NCCL_VARIABLES + "#nccl-net-gdr-read",
    ok="No job disables sending from GPU memory",
    impact="Everything that the job sends is copied to host memory first.",
    data_path=True,
)
def nccl_gdr_read_off(examination: Examination) -> Outcome:
    """Find NCCL_NET_GDR_READ=0."""
    return conclude_values(
        examination,
        "NCCL_NET_GDR_READ",
        lambda value: "sends from host memory" if parse_number(value) == 0 else None,
        "With NCCL_NET_GDR_READ=0 only the receiving side uses GPUDirect RDMA.",
    )


@AREA.check(
    "nccl-gdr-c2c-off",
    Severity.WARNING,
    "NCCL_NET_GDR_C2C=0 disables GPUDirect RDMA over C2C for a job",
    NCCL_VARIABLES + "#nccl-net-gdr-c2c",
    ok="No job disables GPUDirect RDMA over C2C",
    impact="The job copies through host memory for every NIC that is attached to the CPU.",
    data_path=True,
)
def nccl_gdr_c2c_off(examination: Examination) -> Outcome:
    """Find NCCL_NET_GDR_C2C=0 on a node whose GPUs have C2C links."""
    off = values_of(
        examination, C2C_LEVEL, lambda _, value: "disables C2C" if parse_number(value) == 0 else None
    )
    evidence = tuple(off)
    if evidence:
        gpus = need(examination.node.gpus, "the GPUs", *evidence).gpus
        links = [need(gpu.c2c_links, f"NVML for GPU{gpu.index}", *evidence) for gpu in gpus]
        if not any(links):
            return passed(Evidence("NVML", "no GPU has C2C links, so the variable has no effect"))
    return conclude(
        jobs_of(examination),
        evidence,
        "These GPUs reach the NICs over C2C and the CPU (P2C). The variable forbids that path.",
        fix=without_variable(C2C_LEVEL),
    )
