"""The logs of Fabric Manager and IMEX, and the state of an IMEX domain."""

from __future__ import annotations

import re

from probes.base.text import plural, printable
from probes.messages.message import Weight
from probes.nccl.log.facts import Place
from probes.read.findings import statement
from probes.read.reading import Parsed, Section

LOG_SIGN = r"\[\w{3} [ \d]\d \d{4} \d\d:\d\d:\d\d\] \[[A-Z]{4,8}\] \[tid \d"
DOMAIN_SIGN = r"\s*(?:Connectivity Table Legend:|Domain State:\s*\w+)"
_LINE = re.compile(r"\[[^\]]{11,24}\] \[(\w+)\] \[tid \d{1,10}\] (.*)")
_SERIOUS = ("ERROR", "CRITICAL", "ALERT", "FATAL")
_MISMATCH = re.compile(r"(?:version|interface).{0,80}(?:mismatch|do(?:es)?n'?t match|does not match)", re.I)
_STATE = re.compile(r"\s*Domain State:\s*(\w{2,20})")


def read_log(section: Section) -> Parsed:
    """Read fabricmanager.log or nvidia-imex.log; lines without a head belong to the one before."""
    first: dict[str, tuple[str, Place]] = {}
    errors = 0
    for number, line in enumerate(section.lines):
        match = _LINE.match(line)
        if match is None or match[1] not in _SERIOUS:
            continue
        errors += 1
        kind = "version" if _MISMATCH.search(match[2]) else "error"
        if "non-fatal" in match[2].casefold():
            kind = "non-fatal"
        first.setdefault(kind, (printable(match[2], 300), section.at(number)))
    lines = plural(section.filled, "line")
    if not first:
        return Parsed(section.filled, shows=f"{lines} of Fabric Manager or IMEX without an error.")
    kind = next(kind for kind in ("version", "error", "non-fatal") if kind in first)
    text, place = first[kind]
    if kind == "version":
        said = statement("fabric-manager-down-version", place, cause=text)
    else:
        weight = Weight.NOTE if kind == "non-fatal" else None
        said = statement("fabric-manager-error", place, weight=weight, text=text, count=errors)
    return Parsed(section.filled, (said,))


def read_domain(section: Section) -> Parsed:
    """Read nvidia-imex-ctl -N."""
    for number, line in enumerate(section.lines):
        if match := _STATE.match(line):
            if match[1] == "UP":
                return Parsed(section.filled, shows="The IMEX domain is up.")
            place, text = section.at(number), line.strip()
            down = statement("imex-domain-not-up", place, text=text, state=match[1])
            return Parsed(section.filled, (down,))
    return Parsed(section.filled)
