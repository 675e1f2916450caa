"""Slurm on the node: its daemon and its configuration."""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, first_known, first_unread, map_known, parse_known
from probes.facts.system.packages import packages_of
from probes.facts.system.services import unit_setting
from probes.host.protocol import Host


@frozen
class SlurmFacts:
    """What Slurm's files say; NOT_THERE inside: the file or the line is absent."""

    version: Maybe[str]
    config: Maybe[str]  # "/etc/slurm/slurm.conf"; on configless nodes CONFIGLESS
    prologs: Maybe[tuple[str, ...]]  # of all lines, in their order
    propagate_except: Maybe[str]  # PropagateResourceLimitsExcept
    prolog_flags: Maybe[str] = Unknown(Reason.NOT_THERE, "slurm.conf", "no PrologFlags")


UNIT = "slurmd.service"
_PROGRAM = "/usr/sbin/slurmd"
# The last one is on nodes without their own file (configless): what slurmctld sent (slurm.conf(5)).
CONFIGLESS = "/run/slurm/conf/slurm.conf"
_CONFIGS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", CONFIGLESS)
_OPTION = re.compile(r"\s-f\s+(/[\w./-]{1,200})")
_FILE_LIMIT_BYTES = 256 * 1024  # a big cluster lists its nodes in it
_MAX_INCLUDES = 8
_MAX_LINES = 16  # of one setting
# Lines that are read; slurm.conf(5): names and their "=" in any case.
_SETTING = re.compile(
    r"\s*(prolog(?:flags)?|propagateresourcelimitsexcept)\s*=\s*([^\s#]{1,256})", re.IGNORECASE
)
_INCLUDE = re.compile(r"\s*include\s+([\w./-]{1,200})\s*", re.IGNORECASE)
_RELEASE = re.compile(r"(?:[0-9]+:)?([0-9]{1,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?)")


def probe(host: Host) -> Maybe[SlurmFacts]:
    """Read slurm.conf, slurmd's unit and its package's version; NOT_THERE: no Slurm here."""
    config = config_path(host)
    limit = unit_setting(host, UNIT, "Service", "LimitMEMLOCK")
    has_unit = not (isinstance(limit, Unknown) and limit.detail == "no such unit")
    program = host.size(_PROGRAM)
    has_program = not isinstance(program, Unknown)
    unread = first_unread((limit, config, program))
    if not has_program and isinstance(config, Unknown) and (unread is not None or not has_unit):
        return Unknown(Reason.NOT_THERE, UNIT, "no Slurm on this node") if unread is None else unread
    text = config if isinstance(config, Unknown) else read_with_includes(host, config)
    return SlurmFacts(
        version=_version(host) if has_program else Unknown(Reason.NOT_THERE, _PROGRAM),
        config=config,
        prologs=map_known(text, lambda lines: parse_settings(lines, "Prolog")),
        propagate_except=map_known(text, lambda lines: parse_setting(lines, "PropagateResourceLimitsExcept")),
        prolog_flags=map_known(text, lambda lines: parse_setting(lines, "PrologFlags")),
    )


def config_path(host: Host) -> Maybe[str]:
    """Return the path of slurm.conf: slurmd's option -f, a usual place, or what slurmctld sent."""
    start = unit_setting(host, UNIT, "Service", "ExecStart")
    option = None if isinstance(start, Unknown) else _OPTION.search(start.value)
    paths = (*((option[1],) if option else ()), *_CONFIGS)
    sizes = ((printable(path, 256), host.size(path)) for path in paths)
    return first_known((size if isinstance(size, Unknown) else path for path, size in sizes), _CONFIGS[0])


def read_with_includes(host: Host, path: str) -> Maybe[str]:
    """Return the lines of slurm.conf and of the files that it includes, one level deep."""
    text = host.read(path, _FILE_LIMIT_BYTES)
    if isinstance(text, Unknown):
        return text
    directory = path.rpartition("/")[0]
    parts = [text]
    for name in included_files(text):
        part = host.read(name if name.startswith("/") else f"{directory}/{name}", _FILE_LIMIT_BYTES)
        parts += [] if isinstance(part, Unknown) else [part]
    return "\n".join(parts)


def included_files(text: str) -> tuple[str, ...]:
    """Parse the files of the lines "Include FILE" (slurm.conf(5))."""
    matches = (_INCLUDE.fullmatch(line) for line in text.split("\n"))
    return tuple(match[1] for match in matches if match)[:_MAX_INCLUDES]


def parse_setting(text: str, name: str) -> Maybe[str]:
    """Parse a setting of slurm.conf(5), the last one if it has several lines; NOT_THERE: not set."""
    return map_known(parse_settings(text, name), lambda values: values[-1])


def parse_settings(text: str, name: str) -> Maybe[tuple[str, ...]]:
    """Parse all lines of a setting, as Prolog may have; NOT_THERE: it has none."""
    matches = (_SETTING.match(line) for line in text.split("\n"))
    values = tuple(
        printable(match[2], 256) for match in matches if match and match[1].lower() == name.lower()
    )
    return values[:_MAX_LINES] or Unknown(Reason.NOT_THERE, "slurm.conf", f"no {name}")


def _version(host: Host) -> Maybe[str]:
    version = map_known(packages_of(host, [_PROGRAM])[_PROGRAM], lambda package: package.version)
    return map_known(parse_known(version, _RELEASE.match, _PROGRAM), lambda match: match[1])
