"""The logs of Fabric Manager and IMEX, and the state of an IMEX domain."""

from __future__ import annotations

import re
from dataclasses import replace

from probes.base.text import plural, printable
from probes.messages.catalogue import catalogue, explain
from probes.messages.message import Weight
from probes.nccl.log.facts import Place
from probes.read.findings import as_check
from probes.read.reading import Parsed, Section, Statement, statement_of

LOG_SIGN = r"\[\w{3} [ \d]\d \d{4} \d\d:\d\d:\d\d\] \[[A-Z]{4,8}\] \[tid \d"
DOMAIN_SIGN = r"\s*(?:Connectivity Table Legend:|Domain State:\s*\w+)"
_LINE = re.compile(r"\[[^\]]{11,24}\] \[(\w+)\] \[tid \d{1,10}\] (.*)")
_SERIOUS = ("ERROR", "CRITICAL", "ALERT", "FATAL")
_MISMATCH = re.compile(r"(?:version|interface).{0,80}(?:mismatch|do(?:es)?n'?t match|does not match)", re.I)
_STATE = re.compile(r"\s*Domain State:\s*(\w{2,20})")


def read_log(section: Section) -> Parsed:
    """Read fabricmanager.log or nvidia-imex.log; lines without a head belong to the one before."""
    first: dict[str, tuple[str, Place]] = {}
    errors = read = 0
    for number, line in enumerate(section.lines):
        read += bool(line.strip())
        match = _LINE.match(line)
        if match is None or match[1] not in _SERIOUS:
            continue
        errors += 1
        kind = "version" if _MISMATCH.search(match[2]) else "error"
        if "non-fatal" in match[2].casefold():
            kind = "non-fatal"
        place = Place(section.place.file, section.place.line + number)
        first.setdefault(kind, (printable(match[2], 300), place))
    statements: list[Statement] = []
    if "version" in first:
        text, place = first["version"]
        statements.append(as_check("fabric-manager-down-version", text, place))
    elif first:
        text, place = first.get("error", first.get("non-fatal", ("", section.place)))
        found = catalogue("cuda").find(text)
        statements.append(
            replace(statement_of(explain(found), text, place), count=errors)
            if found is not None and "error" in first
            else Statement(
                "fabric-manager-error",
                "Fabric Manager",
                Weight.WARNING if "error" in first else Weight.NOTE,
                "Fabric Manager or IMEX logged an error",
                "The line names it. An error of Fabric Manager may end CUDA programs with error 802; one of"
                " IMEX affects only NVLink between nodes.",
                "Check that nvidia-smi -q shows Fabric State: Completed. For IMEX, compare nodes_config.cfg"
                " with ip addr, and run nvidia-imex-ctl -N.",
                text=text,
                place=place,
                count=errors,
            )
        )
    shows = "" if errors else f"{plural(read, 'line')} of Fabric Manager or IMEX without an error."
    return Parsed(read, tuple(statements), shows=shows)


def read_domain(section: Section) -> Parsed:
    """Read nvidia-imex-ctl -N."""
    read = sum(bool(line.strip()) for line in section.lines)
    for number, line in enumerate(section.lines):
        match = _STATE.match(line)
        if match is None:
            continue
        if match[1] == "UP":
            return Parsed(read, shows="The IMEX domain is up.")
        down = Statement(
            "imex-domain-not-up",
            "nvidia-imex-ctl",
            Weight.WARNING,
            f"The IMEX domain is {match[1]}",
            "Multi-node NVLink (MNNVL) does not work until all nodes of the domain are connected.",
            "The table shows which nodes are not connected: check nvidia-imex there, and that all nodes have"
            " the same"
            " /etc/nvidia-imex/nodes_config.cfg.",
            text=line.strip(),
            place=Place(section.place.file, section.place.line + number),
        )
        return Parsed(read, (down,))
    return Parsed(read)
