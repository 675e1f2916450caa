"""Simulated nodes with facts about modules changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.kernel.log import parse_log
from probes.queries.finding import Finding
from probes.snapshot.examination import Examination

NEEDS_ROOT = Unknown(Reason.NEEDS_ROOT, "somewhere")
NOT_THERE = Unknown(Reason.NOT_THERE, "somewhere")


def says(examination: Examination, name: str) -> Finding:
    """Return the finding of one check."""
    return findings(examination, only=(name,))[0]


def log(text: str) -> Any:
    return parse_log("<6>[    0.000000] Linux version\n" + text, "dmesg --raw --kernel")


def without_dmabuf(examination: Examination) -> Examination:
    """Return the node as if its driver were the proprietary one."""
    direct = examination.node.gpudirect
    assert not isinstance(direct, Unknown)
    closed = replace(direct, dmabuf=replace(direct.dmabuf, usable=False))
    return replace(examination, node=replace(examination.node, gpudirect=closed))


HGX = "hgx-h100"
