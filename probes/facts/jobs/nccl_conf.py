"""NCCL's configuration file, parsed in the same way as NCCL does.

src/misc/param.cc, setEnvFile: a line that begins with # is a comment. Everything before the first = is the
name, everything after it the value, including blanks and later #. Variables of the environment take
precedence, then NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf.
"""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.text import printable, printable_lines
from probes.base.unknown import Maybe, map_known
from probes.host.protocol import Host

NCCL_CONF = "/etc/nccl.conf"
_MAX_VARIABLES = 128
_VALUE_LIMIT = 1024  # NCCL_IB_HCA of 32 NICs has 400 characters


@frozen
class NcclConf:
    """The variables of one file."""

    values: dict[str, str]  # NCCL_… variables, with the blanks of their values
    ignored: tuple[str, ...]  # lines that set no variable: " NCCL_DEBUG=INFO", "NCCL_DEBUG = INFO"


def read_nccl_conf(host: Host, path: str = NCCL_CONF) -> Maybe[NcclConf]:
    """Read the file's variables; NOT_THERE: there is no such file."""
    content = host.read_bytes(path)
    text = map_known(content, lambda found: printable_lines(found.decode("utf-8", "replace")))
    return map_known(text, parse_nccl_conf)


def parse_nccl_conf(text: str) -> NcclConf:
    """Parse the NAME=value lines; the first value of a name is used, as setenv does not overwrite it."""
    values: dict[str, str] = {}
    ignored: list[str] = []
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if line.startswith("#") or "NCCL_" not in name:
            continue
        if equals and re.fullmatch(r"NCCL_[A-Za-z0-9_]{1,60}", name):
            if len(values) < _MAX_VARIABLES:
                values.setdefault(name, printable(value, _VALUE_LIMIT))
        elif re.match(r"\s*(?:export\s+)?NCCL_", name) and len(ignored) < _MAX_VARIABLES:
            ignored.append(printable(line, _VALUE_LIMIT))
    return NcclConf(values, tuple(ignored))
