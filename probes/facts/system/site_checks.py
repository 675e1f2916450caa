"""The checks that a site has added to this node: programs and rules in checks.d, and what they answer.

Programs are plugins for monitoring (Monitoring Plugins' development guidelines, "Plugin Return Codes"), or
print JSON. A rule compares files of the kernel.
"""

from __future__ import annotations

import re
import time
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from functools import partial
from math import inf

from probes.base.codec import Bounds, Codec, CodecError
from probes.base.data_files import parse_toml
from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.text import did_you_mean, parse_json, printable, text_of
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.host.protocol import CommandOutput, Host
from probes.host.trusted_path import NOT_STARTED

DIRECTORY = "/etc/gdrtop/checks.d"
PREFIX = "site-"
"""How the ids of these checks begin; what follows is the name of the file."""
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,62})(?:\.(?:toml|sh|py|pl))?")
STATUSES = ("ok", "warning", "critical", "unknown")
"""In the order of the exit statuses."""
_UNPRIVILEGED = "nobody"
_WILD = re.compile(r"[*?[]")
_RULE_FILES = ("/sys/", "/proc/sys/", "/proc/driver/")
_DEFINITION_BYTES, _FILE_BYTES = 1 << 14, 4096
_MOST_CHECKS, _MOST_FILES, _MOST_DEVICES = 50, 256, 64
_ALL_SECONDS = 30.0  # then no further one starts
_TEXT = 300
_BOUNDS = {"": Bounds(_TEXT, _MOST_DEVICES), "command": Bounds(4096, 64), "timeout": Bounds(least=1, most=20)}
_CODEC = Codec(clean=printable, bounds=_BOUNDS)


@frozen
class Definition:
    """What a file of the site says of a check; a program without one has the defaults."""

    title: str = ""
    severity: Severity = Severity.WARNING  # the most that it reports
    ok: str = ""  # the title where it passes
    impact: str = ""
    data_path: bool = False  # as in Check
    takes: bool = False  # the devices that it names cannot use GPUDirect RDMA
    fix: str = ""
    command: tuple[str, ...] = ()
    user: str = ""  # whom root becomes for the command; "": nobody
    timeout: float = 5.0
    file: str = ""  # of the kernel; "*" stands for any part of a name
    equals: str | None = None
    matches: str = "*"  # with "*", "?" and "[…]"
    at_least: float = -inf
    at_most: float = inf

    @property
    def has_limits(self) -> bool:
        """Whether a rule compares numbers."""
        return (self.at_least, self.at_most) != (-inf, inf)

    @property
    def expected(self) -> str:
        """What a rule expects; "" without one."""
        parts = (
            "" if self.equals is None else repr(self.equals),
            "" if self.matches == "*" else f"like {self.matches!r}",
            "" if self.at_least == -inf else f"at least {self.at_least:g}",
            "" if self.at_most == inf else f"at most {self.at_most:g}",
        )
        return " and ".join(filter(None, parts))


@frozen
class Result:
    """What a check has found; also what a program may print as JSON."""

    status: str = ""  # one of STATUSES
    cause: str = ""
    evidence: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()  # by any name: "mlx5_0", "GPU0", a BDF


@frozen
class SiteCheck:
    """One check, and what it has found."""

    id: str
    source: str  # its file
    definition: Definition
    result: Maybe[Result]


def run_site_checks(host: Host) -> Maybe[tuple[SiteCheck, ...]]:
    """Run all checks of the site, one after the other."""
    names = host.names(DIRECTORY)
    if isinstance(names, Unknown):
        return names
    found: dict[str, list[str]] = {}  # a program and a TOML file of the same name are one check
    for match in filter(None, map(_NAME.fullmatch, sorted(names, key=lambda name: name.endswith(".toml")))):
        found.setdefault(match[1], []).append(f"{DIRECTORY}/{match[0]}")
    if len(found) > _MOST_CHECKS:
        return Unknown(Reason.MALFORMED, DIRECTORY, f"more than {_MOST_CHECKS} checks")
    until = time.monotonic() + _ALL_SECONDS
    return tuple(_site_check(host, f"{PREFIX}{name}", files, until) for name, files in sorted(found.items()))


def _site_check(host: Host, name: str, files: list[str], until: float) -> SiteCheck:
    source, said = files[-1], Definition()
    try:
        if source.endswith(".toml"):
            content = host.trusted_bytes(source)
            if isinstance(content, Unknown):
                return SiteCheck(name, source, said, content)
            if len(content) > _DEFINITION_BYTES:
                raise ValueError(f"it is larger than {_DEFINITION_BYTES >> 10} KiB")
            said = parse_definition(content.decode("utf-8-sig"))
        if not said.file and not said.command:
            said = replace(said, command=(files[0],))
            if files[0].endswith(".toml"):
                raise ValueError("it needs a file, a command, or a program of the same name beside it")
    except (ValueError, RecursionError) as error:
        detail = printable(str(error) or "too deep", _TEXT)
        return SiteCheck(name, source, said, Unknown(Reason.MALFORMED, source, detail))
    return SiteCheck(name, source, said, _result(host, source, said, until))


def parse_definition(text: str) -> Definition:
    """Return the definition in a TOML file; ValueError says what is wrong."""
    row = parse_toml(text)
    keys = [field.name for field in fields(Definition)]
    if key := next((key for key in row if key not in keys), ""):
        hint = did_you_mean(key, keys, 0.6, most=1, otherwise=f"; the keys are {', '.join(keys)}")
        raise ValueError(f"unknown key {printable(key, 40)!r}{hint}")
    said: Definition = _CODEC.decode(Definition, row)
    if said.file and said.command:
        raise ValueError("it has both a command and a file")
    if bool(said.file) == (said.expected == ""):
        raise ValueError("a rule needs a file and equals, matches, at_least or at_most")
    if said.command and said.command[0][:1] != "/":
        raise ValueError(f"command: {said.command[0]!r} is not an absolute path")
    if said.file and (not said.file.startswith(_RULE_FILES) or "/../" in said.file):
        raise ValueError(f"file: it must be below {', '.join(_RULE_FILES)}; for others, use a command")
    return said


def _result(host: Host, source: str, said: Definition, until: float) -> Maybe[Result]:
    if said.file:
        return _compare(host, said)
    if said.user and not host.is_root():
        return Unknown(Reason.NEEDS_ROOT, source, f"it runs as {said.user}")
    if time.monotonic() > until:
        return Unknown(Reason.TIMED_OUT, source, f"not run: the others have taken {_ALL_SECONDS:g} s")
    output = host.run_trusted(said.command, said.timeout, said.user or _UNPRIVILEGED)
    return map_known(output, lambda answer: read_result(answer, source))


# Rules


def _compare(host: Host, rule: Definition) -> Maybe[Result]:
    """Compare the files that match; a wrong one counts more than one that cannot be read."""
    contents = {path: map_known(host.read_bytes(path, _FILE_BYTES), text_of) for path in _paths(host, rule)}
    answers = {path: map_known(text, partial(_is_right, path, rule)) for path, text in contents.items()}
    wrong = [path for path, is_right in answers.items() if is_right is False]
    for answer in () if wrong else answers.values():
        if isinstance(answer, Unknown):
            return answer
    shown = (f"{path} is {known(contents[path], '')}" for path in wrong or answers)
    evidence = tuple(printable(text, _TEXT) for text in shown) or (f"there is no {rule.file}",)
    names = tuple(part for path in wrong for part in path.split("/"))
    status = STATUSES[2 if wrong else 0]
    return Result(status, f"{rule.file} should be {rule.expected}.", evidence, names)


def _paths(host: Host, rule: Definition) -> list[str]:
    """Return the paths that match; one without "*", "?" or "[" whether it exists or not."""
    found = [""]
    for part in rule.file.strip("/").split("/"):
        if _WILD.search(part):
            pairs = ((path, name) for path in found for name in known(host.names(path or "/"), ()))
            found = [f"{path}/{name}" for path, name in pairs if fnmatchcase(name, part)][:_MOST_FILES]
        else:
            found = [f"{path}/{part}" for path in found]
    return found


def _is_right(path: str, rule: Definition, text: str) -> Maybe[bool]:
    number = 0.0
    if rule.has_limits:
        try:
            number = float(text.split()[0])
        except (ValueError, IndexError):
            return Unknown(Reason.MALFORMED, printable(path), f"{printable(text, 40)!r} is not a number")
    is_in_limits = not rule.has_limits or rule.at_least <= number <= rule.at_most
    return is_in_limits and rule.equals in (None, text) and fnmatchcase(text, rule.matches)


# Programs


def read_result(output: CommandOutput, source: str) -> Maybe[Result]:
    """Return the result of a program; MALFORMED: it neither exits nor prints as a plugin."""
    text, exited = output.stdout.strip(), output.exit_status
    by_exit = STATUSES[exited] if exited in range(len(STATUSES)) else ""
    printed = parse_json(text) if text[:1] == "{" else None
    if isinstance(printed, dict):
        try:
            found: Result = _CODEC.decode(Result, printed)
        except CodecError as error:
            return Unknown(Reason.MALFORMED, source, printable(str(error), _TEXT))
        found = replace(found, status=found.status or by_exit)
        if exited != 0 and found.status != by_exit:
            by_exit = ""
    elif text[:1] == "{":
        found = Result()
    else:
        first, *others = text.splitlines() or [""]
        cause, _, figures = (part.strip() for part in first.partition("|"))
        lines = (printable(line, _TEXT) for line in (figures, *others) if line.strip(" |"))
        found = Result(by_exit, printable(cause, _TEXT), tuple(lines))
    if found.status in STATUSES and by_exit and (found.cause or found.status == STATUSES[0]):
        return found
    said = printable((output.stderr.strip() or text or "nothing").splitlines()[-1], 160)
    detail = said if said.startswith(NOT_STARTED) else f"it exits with {exited}, and prints {said}"
    return Unknown(Reason.MALFORMED, source, detail)
