"""What the node's own checks find in a text, or would find on the node that it shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import reduce
from typing import Any

from probes.base.data_files import read_toml_once
from probes.base.evidence import Severity
from probes.base.plan import Plan
from probes.base.unknown import Maybe, Unknown, known
from probes.checks.judgment import judge
from probes.checks.registry import CHECKS
from probes.facts.pci.functions import PciKind
from probes.facts.pci.nic_families import EFA, SLINGSHOT
from probes.facts.system.platform import in_container, is_guest
from probes.host.nvml import NvmlFacts, NvmlGpu
from probes.messages.message import Proof, Weight
from probes.nccl.log.facts import Place
from probes.queries.finding import Finding
from probes.queries.pcie_paths import is_gb10
from probes.read.pasted_host import PLACEHOLDER, PastedHost
from probes.read.reading import Parsed, Statement
from probes.snapshot.examination import Examination, examine
from probes.snapshot.verdict import Verdict

_WEIGHTS = {severity.value: Weight(severity.value) for severity in Severity}
_NVML = ("nvml",)
_CHECKS = {check.id: check for check in CHECKS}


def judged(tables: Iterable[Parsed]) -> list[tuple[Statement, tuple[str, ...]]]:
    """Return what the checks find for which these tables suffice, with the lines that it is found by.

    Of equal answers the last one counts.
    """
    tables = tuple(tables)
    answers: dict[tuple[str, ...], Any] = {}
    checks: frozenset[str] = frozenset()
    for parsed in tables:
        both = [facts for facts in (answers.get(_NVML), parsed.answers.get(_NVML)) if facts is not None]
        answers.update(parsed.answers)
        if both:
            answers[_NVML] = reduce(_joined, both)
        checks |= parsed.checks
    if not checks:
        return []
    examination = examine(PastedHost(answers))
    return [
        (_of_finding(finding, tables), tuple(evidence.value for evidence in finding.evidence))
        for finding in judge(examination, only=checks).found
    ]


def judged_node(examination: Examination) -> tuple[Verdict, list[Statement]]:
    """Return the verdict of a node that is known as a whole, and what all checks find."""
    judgment = judge(examination)
    return judgment.verdict, [_of_finding(finding) for finding in judgment.found]


def _joined(known: NvmlFacts, more: NvmlFacts) -> NvmlFacts:
    """Return the facts of two outputs of one node: each GPU with what either of them shows."""
    gpus: dict[str, Maybe[NvmlGpu]] = {}
    for gpu in (*known.gpus, *more.gpus):
        bdf = gpu.source if isinstance(gpu, Unknown) else gpu.bdf
        before = gpus.get(bdf)
        if before is None or isinstance(gpu, Unknown):
            gpus[bdf] = gpu
        elif not isinstance(before, Unknown):
            new = {each.name: getattr(gpu, each.name) for each in fields(gpu)}
            gpus[bdf] = replace(
                before, **{name: value for name, value in new.items() if not isinstance(value, Unknown)}
            )
    driver = known.driver_version if isinstance(more.driver_version, Unknown) else more.driver_version
    cuda = known.cuda_version if isinstance(more.cuda_version, Unknown) else more.cuda_version
    return NvmlFacts(driver, cuda, tuple(gpus.values()))


def _of_finding(finding: Finding, tables: Sequence[Parsed] = ()) -> Statement:
    """Return what a finding says, and where the last table begins that shows it."""
    evidence = finding.evidence[0] if finding.evidence else None
    file = ("file", "" if evidence is None else evidence.source)
    place = next((table.place for table in reversed(tables) if file in table.answers), None)
    return Statement(
        finding.id,
        "node",
        _WEIGHTS[finding.severity.value],
        finding.title,
        finding.cause,
        "" if finding.fix is None else fix_text(finding.fix),
        text=""
        if evidence is None or PLACEHOLDER in evidence.source
        else f"{evidence.source}: {evidence.value}",
        place=place,
        source=finding.reference,
    )


def statement(
    name: str,
    place: Place | None,
    *,
    weight: Weight | None = None,
    proves: Proof | None = None,
    cause: str = "",
    fix: str = "",
    text: str = "",
    count: int = 1,
    **words: object,
) -> Statement:
    """Return a row of statements.toml, with these words in its texts, as what a text says.

    Of a check, where a text shows the fault and not the facts behind it, the check itself gives the most.
    """
    row = read_toml_once(__package__, "statements.toml").get(name, {})
    title, cause, fix = (
        given or row.get(key, "").format(**words)
        for key, given in (("title", ""), ("cause", cause), ("fix", fix))
    )
    program, source = row.get("program", "node"), row.get("source", "")
    check = _CHECKS.get(row.get("id", name))
    if check is not None and not title:
        texts = check.texts()
        title, source = texts.title, texts.source
        weight = weight or _WEIGHTS[check.severity.value]
        cause = cause if row.get("is_without_impact") else f"{cause} {texts.impact}".strip()
    return Statement(
        row.get("id", name),
        program,
        weight or Weight(row["weight"]),
        title,
        cause,
        fix,
        proves or Proof(row.get("proves", "")),
        text,
        place,
        count,
        source,
    )


def fix_text(plan: Plan) -> str:
    """Return what to do; a command that names what only stands for a device is said in words."""
    steps = (
        step.why if step.is_instruction or PLACEHOLDER in step.command else step.command
        for step in plan.steps
    )
    return f"{plan.title}: {'; '.join(step.rstrip('.') for step in steps)}."


# What is known of the node on which a text was written.

_LAYERS = {"InfiniBand": "infiniband", "Ethernet": "roce"}


def words_about(examination: Examination) -> frozenset[str]:
    """Return the words of the catalogue (NODE_WORDS) that are true of a node."""
    return frozenset(_words(examination))


def _words(examination: Examination) -> Iterator[str]:
    node = examination.node
    for device in node.rdma_devices:
        for port in device.ports:
            yield from filter(None, (_LAYERS.get(known(port.link_layer, "")),))
    functions = () if isinstance(node.pci, Unknown) else node.pci.functions.values()
    drivers = {known(function.driver, "") for function in functions}
    yield from (
        word for word, family in (("efa", EFA), ("slingshot", SLINGSHOT)) if drivers & set(family.pci_drivers)
    )
    if any(function.kind is PciKind.NVSWITCH for function in functions):
        yield "nvswitch"
    if is_gb10(examination):
        yield "gb10"
    if is_guest(node.platform) is True:
        yield "vm"
    if in_container(node.platform):
        yield "container"
