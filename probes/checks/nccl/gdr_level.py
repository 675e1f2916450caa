"""NCCL variables that disable GPUDirect RDMA for a job, or limit it."""

from __future__ import annotations

from probes.base.unknown import Unknown
from probes.nccl.settings import parse_level, parse_number
from probes.queries.evidence_list import SHOWN
from probes.queries.finding import Area, Evidence, Outcome, Severity, needs, passed, unknown
from probes.queries.jobs import (
    STAGED,
    Settings,
    gpus_of,
    jobs_of,
    nearest,
    settle,
    values_of,
    without_variable,
)
from probes.queries.references import NCCL_VARIABLES
from probes.snapshot.examination import Examination
from probes.topology.nccl_words import ORDER, Nccl

AREA = Area("nccl")
_LEVEL = "NCCL_NET_GDR_LEVEL"


def _is(value: str, *numbers: int) -> bool:
    return parse_number(value) in numbers


@AREA.check(
    "nccl-gdr-level-ignored",
    Severity.WARNING,
    "NCCL_NET_GDR_LEVEL has an invalid value; NCCL silently ignores it",
    NCCL_VARIABLES + "#nccl-net-gdr-level-formerly-nccl-ib-gdr-level",
    ok="NCCL_NET_GDR_LEVEL is unset or valid",
    impact="The level has no effect. NCCL uses GPUDirect RDMA up to PXB, with C2C links up to P2C.",
)
def nccl_gdr_level_ignored(examination: Examination) -> Outcome:
    """Find values of NCCL_NET_GDR_LEVEL that are neither a word of NCCL's nor a number."""
    evidence = values_of(examination, _LEVEL, lambda _, value: None if parse_level(value) else "ignored")
    return settle(
        jobs_of(examination),
        evidence,
        "NCCL accepts LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB and SYS in capitals without blanks, or a"
        " number. It has no NODE; a GPU and a NIC of one NUMA node are PHB.",
        fix=without_variable(_LEVEL, "or write PHB where nvidia-smi shows NODE, and measure"),
    )


@AREA.check(
    "nccl-gdr-level-off",
    Severity.CRITICAL,
    "NCCL_NET_GDR_LEVEL disables GPUDirect RDMA for a job",
    NCCL_VARIABLES + "#nccl-net-gdr-level-formerly-nccl-ib-gdr-level",
    ok="NCCL_NET_GDR_LEVEL does not disable GPUDirect RDMA",
    impact=STAGED,
    data_path=True,
)
def nccl_gdr_level_off(examination: Examination) -> Outcome:
    """Find levels below any distance that a NIC can have: LOC (0), NVL, NVB, C2C."""

    def wrong(_: Settings, value: str) -> str | None:
        level = parse_level(value)
        return f"{level.word} means never" if level and level.rank < ORDER[Nccl.PIX] else None

    return settle(
        jobs_of(examination),
        values_of(examination, _LEVEL, wrong),
        "No NIC is nearer to a GPU than PIX, so NCCL never uses GPUDirect RDMA at a lower level. The value 0"
        " means LOC; it does not change ACS.",
        fix=without_variable(_LEVEL),
    )


@AREA.check(
    "nccl-gdr-level-too-low",
    Severity.WARNING,
    "NCCL_NET_GDR_LEVEL is lower than the distance between a GPU and its nearest NIC",
    NCCL_VARIABLES + "#nccl-net-gdr-level-formerly-nccl-ib-gdr-level",
    ok="NCCL_NET_GDR_LEVEL allows each GPU's nearest NIC",
    impact="The named GPUs copy through host memory.",
    data_path=True,
)
def nccl_gdr_level_too_low(examination: Examination) -> Outcome:
    """Compare the level with the nearest NIC of each GPU of the process."""
    topology = examination.topology
    jobs = jobs_of(examination)
    unplaced = [end for end in topology.gpus if topology.nics and nearest(topology, end.id) is None]
    if unplaced and any(one.get(_LEVEL) is not None for one in jobs.settings):
        return unknown("needs the PCIe paths between GPUs and NICs, which this machine does not show")

    def wrong(settings: Settings, value: str) -> str | None:
        level = parse_level(value)
        if level is None or level.rank < ORDER[Nccl.PIX]:
            return None
        far = [
            f"{end.label} is {word.value} from its nearest NIC"
            for end in topology.gpus
            if end.id in gpus_of(examination, settings.process)
            and (word := nearest(topology, end.id)) is not None
            and ORDER[word] > level.rank
        ]
        return f"but {', '.join(far[:SHOWN])}" if far else None

    return settle(
        jobs_of(examination),
        values_of(examination, _LEVEL, wrong),
        "The level is the largest distance at which NCCL uses GPUDirect RDMA. These GPUs are farther from"
        " every NIC.",
        fix=without_variable(_LEVEL, "or set it to the distance shown, and measure"),
    )


@AREA.check(
    "nccl-gdr-level-number",
    Severity.NOTE,
    "NCCL_NET_GDR_LEVEL is a number, which is easily misread",
    NCCL_VARIABLES + "#nccl-net-gdr-level-formerly-nccl-ib-gdr-level",
    ok="NCCL_NET_GDR_LEVEL is not a number",
    impact="None, if the number means what was intended.",
)
def nccl_gdr_level_number(examination: Examination) -> Outcome:
    """Find levels given by number, and show the word that each means."""

    def wrong(_: Settings, value: str) -> str | None:
        level = parse_level(value)
        return f"means {level.word}" if level and value[:1].isdigit() else None

    return settle(
        jobs_of(examination),
        values_of(examination, _LEVEL, wrong),
        "0 is LOC, 1 PIX, 2 PXB, 3 PHB, 4 and more SYS. The distances in NCCL's log use other numbers, which"
        " change between versions.",
        fix=without_variable(_LEVEL, "or write the word"),
        part_of=("nccl-gdr-level-off", "nccl-gdr-level-too-low"),
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
    name = "NCCL_NET_GDR_READ"
    evidence = values_of(
        examination, name, lambda _, value: "sends from host memory" if _is(value, 0) else None
    )
    return settle(
        jobs_of(examination),
        evidence,
        "With NCCL_NET_GDR_READ=0 only the receiving side uses GPUDirect RDMA.",
        fix=without_variable(name),
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
    name = "NCCL_NET_GDR_C2C"
    gpus = examination.node.gpus
    evidence = tuple(values_of(examination, name, lambda _, value: "disables C2C" if _is(value, 0) else None))
    if evidence:
        if isinstance(gpus, Unknown):
            return unknown(needs("the GPUs", gpus), *evidence)
        for gpu in gpus.gpus:
            if isinstance(gpu.c2c_links, Unknown):
                return unknown(needs(f"NVML for GPU{gpu.index}", gpu.c2c_links), *evidence)
        if not any(gpu.c2c_links for gpu in gpus.gpus):
            return passed(Evidence("NVML", "no GPU has C2C links, so the variable has no effect"))
    return settle(
        jobs_of(examination),
        evidence,
        "These GPUs reach the NICs over C2C and the CPU (P2C). The variable forbids that path.",
        fix=without_variable(name),
    )
