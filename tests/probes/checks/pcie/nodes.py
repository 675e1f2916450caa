"""Simulated nodes with PCIe facts changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.pci.config_space import Acs, ConfigSpace, ConfigSpaceFacts, acs_flags
from probes.facts.pci.functions import PciFacts, PciFunction, PciKind
from probes.facts.system.platform import Environment, PlatformFacts
from probes.queries.finding import Finding
from probes.snapshot.examination import Examination
from tests.support.doctor import examination_of

DENIED = Unknown(Reason.NEEDS_ROOT, "/sys/bus/pci/devices/0000:15:01.0/config", "PCI config beyond 64 bytes")
ABSENT = Unknown(Reason.NOT_THERE, "a file")
SLOW = Unknown(Reason.TIMED_OUT, "a probe", "no answer for 10 s")


def healthy(name: str = "hgx-h100") -> Examination:
    return examination_of(name)


def finding(examination: Examination, name: str) -> Finding:
    (finding,) = findings(examination, only=[name])
    return finding


def said(finding: Finding) -> str:
    return " ".join((finding.cause, *(f"{part.source} {part.value}" for part in finding.evidence)))


def spaces(examination: Examination) -> dict[str, Any]:
    assert isinstance(examination.config_space, ConfigSpaceFacts)
    return dict(examination.config_space.functions)


def with_spaces(examination: Examination, changed: dict[str, Any]) -> Examination:
    return replace(examination, config_space=ConfigSpaceFacts({**spaces(examination), **changed}))


def with_acs(examination: Examination, control: int) -> Examination:
    """The node with that ACS control register in every port that has one."""
    changed = {}
    for bdf, space in spaces(examination).items():
        if isinstance(space, ConfigSpace) and isinstance(space.acs, Acs):
            changed[bdf] = replace(space, acs=replace(space.acs, on=acs_flags(control), control=control))
    return with_spaces(examination, changed)


def with_functions(examination: Examination, **facts: Any) -> Examination:
    """The node with those facts in every GPU and NIC."""
    pci = examination.node.pci
    assert isinstance(pci, PciFacts)
    functions = {
        bdf: replace(function, **facts) if function.kind in (PciKind.GPU, PciKind.NIC) else function
        for bdf, function in pci.functions.items()
    }
    return with_node(examination, pci=replace(pci, functions=functions))


def with_function(examination: Examination, bdf: str, **facts: Any) -> Examination:
    pci = examination.node.pci
    assert isinstance(pci, PciFacts)
    functions = {**pci.functions, bdf: replace(pci.functions[bdf], **facts)}
    return with_node(examination, pci=replace(pci, functions=functions))


def with_node(examination: Examination, **facts: Any) -> Examination:
    return replace(examination, node=replace(examination.node, **facts))


def as_guest(examination: Examination) -> Examination:
    platform = examination.node.platform
    assert isinstance(platform, PlatformFacts)
    guest = replace(platform, environment=Environment.VIRTUAL_MACHINE, hypervisor="KVM")
    return with_node(examination, platform=guest)


def first(examination: Examination, kind: PciKind) -> PciFunction:
    pci = examination.node.pci
    assert isinstance(pci, PciFacts)
    return next(function for function in pci.functions.values() if function.kind is kind)
