"""NCCL variables by which a job does without GPUDirect RDMA, or with less of it."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, passed, unsure
from probes.checks.jobs import Settings, gpus_of, jobs_of, nearest, settle, values_of, without_variable
from probes.checks.references import NCCL_VARIABLES
from probes.checks.wording import SHOWN, few
from probes.examination import Examination
from probes.nccl_paths import ORDER, Nccl
from probes.nccl_settings import parse_level, parse_number
from probes.unknown import Unknown

AREA = Area("nccl")
_LEVEL = "NCCL_NET_GDR_LEVEL"


def _is(value: str, *numbers: int) -> bool:
    return parse_number(value) in numbers


@AREA.check(
    "nccl-gdr-level-ignored",
    Severity.WARNING,
    "NCCL_NET_GDR_LEVEL has a value that NCCL does not know, and ignores without a word",
    NCCL_VARIABLES + "#nccl-net-gdr-level-formerly-nccl-ib-gdr-level",
)
def nccl_gdr_level_ignored(examination: Examination) -> Outcome:
    """Values of NCCL_NET_GDR_LEVEL that are no word of NCCL's and no number."""
    evidence = values_of(examination, _LEVEL, lambda _, value: None if parse_level(value) else "ignored")
    return settle(
        jobs_of(examination),
        evidence,
        "only LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, in capitals and without blanks, or a number"
        " are known; there is no NODE: the GPU and NIC of one NUMA node are PHB",
        fix=without_variable(_LEVEL, "or write PHB where nvidia-smi says NODE, and measure"),
    )


@AREA.check(
    "nccl-gdr-level-off",
    Severity.CRITICAL,
    "NCCL_NET_GDR_LEVEL switches GPUDirect RDMA off for a job",
    NCCL_VARIABLES + "#nccl-net-gdr-level-formerly-nccl-ib-gdr-level",
)
def nccl_gdr_level_off(examination: Examination) -> Outcome:
    """Levels nearer than any NIC can be: LOC (0), NVL, NVB, C2C."""

    def wrong(_: Settings, value: str) -> str | None:
        level = parse_level(value)
        return f"{level.word}: never" if level and level.rank < ORDER[Nccl.PIX] else None

    return settle(
        jobs_of(examination),
        values_of(examination, _LEVEL, wrong),
        "no NIC is nearer to a GPU than PIX: with a level below that NCCL always copies through host memory."
        " 0 is LOC, never; it has nothing to do with ACS",
        fix=without_variable(_LEVEL),
    )


@AREA.check(
    "nccl-gdr-level-too-low",
    Severity.WARNING,
    "NCCL_NET_GDR_LEVEL is lower than the distance between a GPU and its nearest NIC",
    NCCL_VARIABLES + "#nccl-net-gdr-level-formerly-nccl-ib-gdr-level",
)
def nccl_gdr_level_too_low(examination: Examination) -> Outcome:
    """The level, against the nearest NIC of each GPU of the process."""
    topology = examination.topology
    jobs = jobs_of(examination)
    unplaced = [end for end in topology.gpus if topology.nics and nearest(topology, end.id) is None]
    if unplaced and any(one.get(_LEVEL) is not None for one in jobs.settings):
        return unsure(f"how far {unplaced[0].label} is from the NICs, which is not known")

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
        return f"{level.word}, but {', '.join(far[:SHOWN])}" if far else None

    return settle(
        jobs_of(examination),
        values_of(examination, _LEVEL, wrong),
        "the level is the largest distance at which NCCL uses GPUDirect RDMA; these GPUs are farther away and"
        " go through host memory",
        fix=without_variable(_LEVEL, "or name the distance that is shown, and measure"),
    )


@AREA.check(
    "nccl-gdr-level-number",
    Severity.NOTE,
    "NCCL_NET_GDR_LEVEL is a number, which is easily misread",
    NCCL_VARIABLES + "#nccl-net-gdr-level-formerly-nccl-ib-gdr-level",
)
def nccl_gdr_level_number(examination: Examination) -> Outcome:
    """Levels given by number, and the word that each means."""

    def wrong(_: Settings, value: str) -> str | None:
        level = parse_level(value)
        return f"means {level.word}" if level and value[:1].isdigit() else None

    return settle(
        jobs_of(examination),
        values_of(examination, _LEVEL, wrong),
        "0 is LOC, 1 PIX, 2 PXB, 3 PHB, 4 and more SYS: other numbers than the distances in NCCL's log, which"
        " differ from version to version",
        fix=without_variable(_LEVEL, "or write the word"),
    )


@AREA.check(
    "nccl-gdr-read-off",
    Severity.WARNING,
    "NCCL_NET_GDR_READ=0: a job sends from host memory",
    NCCL_VARIABLES + "#nccl-net-gdr-read",
)
def nccl_gdr_read_off(examination: Examination) -> Outcome:
    """NCCL_NET_GDR_READ=0."""
    name = "NCCL_NET_GDR_READ"
    evidence = values_of(examination, name, lambda _, value: "off" if _is(value, 0) else None)
    return settle(
        jobs_of(examination),
        evidence,
        "what a GPU sends is copied to host memory first; only the receiving side uses GPUDirect RDMA",
        fix=without_variable(name),
    )


@AREA.check(
    "nccl-gdr-c2c-off",
    Severity.WARNING,
    "NCCL_NET_GDR_C2C=0: NICs behind the CPU's own link to the GPU are not used for GPUDirect RDMA",
    NCCL_VARIABLES + "#nccl-net-gdr-c2c",
)
def nccl_gdr_c2c_off(examination: Examination) -> Outcome:
    """NCCL_NET_GDR_C2C=0 on a node whose GPUs have C2C links."""
    name = "NCCL_NET_GDR_C2C"
    gpus = examination.node.gpus
    evidence = few(values_of(examination, name, lambda _, value: "off" if _is(value, 0) else None))
    links = [] if isinstance(gpus, Unknown) else [gpu.c2c_links for gpu in gpus.gpus]
    if evidence and (isinstance(gpus, Unknown) or any(isinstance(one, Unknown) for one in links)):
        return unsure("the number of C2C links, which NVML tells", *evidence)
    if evidence and not any(one for one in links if not isinstance(one, Unknown)):
        return passed(Evidence("NVML", "no GPU has a C2C link: the variable means nothing here"))
    return settle(
        jobs_of(examination),
        evidence,
        "on these GPUs the NICs are reached over C2C and the CPU (P2C), which this variable forbids",
        fix=without_variable(name),
    )
