"""Judge what a file sets: by the doctor's checks, the catalogue of variables, and the cloud's rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.text import capitalized, join_limited
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.platform import Cloud
from probes.host.protocol import NoHost
from probes.nccl.settings import parse_level, parse_number
from probes.nccl.variables.catalogue import (
    Kind,
    Variable,
    Version,
    is_known,
    newest,
    parse_version,
    similar_name,
    variables,
)
from probes.queries.jobs import SET_IN
from probes.setup.env.advice import Advice
from probes.setup.env.assignments import (
    LIMIT_BYTES,
    MAX_ASSIGNMENTS,
    Assignment,
    FileKind,
    Group,
    ParsedFile,
    Problem,
    problem_at,
    too_many,
)
from probes.setup.env.clouds import ON_EFA, PLUGIN_SETS, WITH_GIB, Stack, stack_of
from probes.setup.env.cluster_objects import problems_of_objects
from probes.setup.env.container import Network
from probes.setup.env.container_needs import problems_of
from probes.setup.env.file_kind import parse_file, recognize
from probes.setup.env.judge import conf_values, has_gpus_and_nics, judge
from probes.setup.env.nic_names import of_names
from probes.setup.env.recommend import recommend
from probes.snapshot.examination import Examination, examine

_WITH_INDEX = ("NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM")
_MAPPINGS = ("NVSHMEM_HCA_LIST", "NVSHMEM_HCA_PE_MAPPING")
_DEBUG = ("NCCL_DEBUG", "NCCL_TOPO_DUMP")
_NO_NODE = "no node was read"
_NO_CLOUD = Unknown(Reason.NOT_RECORDED, "cloud", _NO_NODE)
_MAX_UNKNOWN = 64  # names that are compared with the catalogue; comparing is slow
_ORDER = (Severity.CRITICAL, Severity.WARNING, Severity.NOTE)
_SOURCES_GIB = re.compile(r"^[^#\n]{0,400}set_nccl_env\.sh", re.MULTILINE)
# Source: NVIDIA/nccl-tests, src/Makefile, src/common.cu (what it passes to MPI).
_NCCL_TESTS = re.compile(
    r"\b(?:all_gather|all_reduce|alltoallv?|broadcast|gather|hypercube|reduce|reduce_scatter|scatter|sendrecv)_perf\b"
)


@frozen
class _Software:
    """What a file's jobs run on and run, as far as it decides about variables."""

    stack: Stack | None
    sources_gib: bool
    runs_nccl_tests: bool


@frozen
class FileReport:
    """Everything to say about one file, in the order of its lines."""

    kind: FileKind
    problems: tuple[Problem, ...]
    count: int  # variables whose values were judged
    dynamic: int  # variables whose values are known only when the job runs
    not_compared: str  # why names of NICs and distances were not compared with this node
    containers: int = 0  # with GPUs, whose devices were checked
    objects: int = 0  # of operators, and claims of devices, which were checked

    def number_of(self, severity: Severity) -> int:
        """Return how many problems have this severity."""
        return sum(problem.severity is severity for problem in self.problems)

    @property
    def exit_status(self) -> int:
        """0 ok, 1 warnings, 2 errors, 3 nothing to check."""
        if self.number_of(Severity.CRITICAL):
            return 2
        if self.number_of(Severity.WARNING):
            return 1
        return 0 if self.has_content else 3

    @property
    def has_content(self) -> bool:
        """Whether there was something to judge."""
        return bool(self.count or self.containers or self.objects)


def worst_status(reports: Sequence[FileReport]) -> int:
    """Return the exit status of several files; files that set nothing count only if all do."""
    statuses = {report.exit_status for report in reports}
    return next((status for status in (2, 1, 0) if status in statuses), 3)


def lint(
    text: str,
    kind: FileKind,
    examination: Examination,
    cloud: Maybe[Cloud],
    nccl: str = "",
    is_excerpt: bool = False,
) -> FileReport:
    """Parse a file and judge every environment in it.

    `nccl`: as in `recommend`; `is_excerpt`: as in `parse_file`.
    """
    windows = text.count("\r\n")
    parsed = parse_file(text.replace("\r\n", "\n"), kind, is_excerpt)
    advice = recommend(examination, cloud, nccl)
    stack = stack_of(examination, cloud)
    problems = list(parsed.problems)
    if windows and kind is not FileKind.POD:
        problems.append(problem_at(1, "windows-line-endings"))
    if any(len(group.assignments) >= MAX_ASSIGNMENTS for group in parsed.groups):
        problems.append(too_many())
    for container in parsed.containers:
        problems.extend(problems_of(container, examination, stack))
    problems.extend(problems_of_objects(parsed, examination))
    problems.extend(_unknown_names(parsed, stack))
    used = _Software(stack, bool(_SOURCES_GIB.search(text)), bool(_NCCL_TESTS.search(text)))
    for group in parsed.groups:
        found = _of_defaults(group, _of_group(group, parsed, examination, advice, used))
        problems.extend(_named(group, found))
    for name in dict.fromkeys(group.name for group in parsed.groups):
        same = (group.assignments for group in parsed.groups if group.name == name)
        in_group = {assignment.name for assignments in same for assignment in assignments}
        problems.extend(_named(Group(name, ()), _missing(in_group, advice, kind is FileKind.NCCL_CONF)))
    problems = sorted(
        dict.fromkeys(problems),
        key=lambda problem: (problem.line == 0, problem.line, _ORDER.index(problem.severity)),
    )
    chosen = [(group.name, each) for group in parsed.groups for each in group.effective().values()]
    judged = {(name, assignment.name) for name, assignment in chosen if assignment.value is not None}
    dynamic = {(name, assignment.name) for name, assignment in chosen} - judged
    compared = "" if has_gpus_and_nics(examination) else advice.nothing
    counts = (len(judged), len(dynamic), compared, len(parsed.containers), len(parsed.objects))
    return FileReport(parsed.kind, tuple(problems), *counts)


def judge_text(
    text: str, examination: Examination | None = None, cloud: Maybe[Cloud] = _NO_CLOUD, nccl: str = ""
) -> FileReport | None:
    """Judge a text as the file that it is; None: it is none. Without a node, nothing is compared with one."""
    kind = recognize(text)
    if kind is None:
        return None
    if examination is not None:
        return lint(text[:LIMIT_BYTES], kind, examination, cloud, nccl, is_excerpt=True)
    report = lint(text[:LIMIT_BYTES], kind, examine(NoHost()), cloud, nccl, is_excerpt=True)
    return replace(report, not_compared=_NO_NODE)


def _named(group: Group, problems: Iterator[Problem]) -> Iterator[Problem]:
    """Name the container where a file has several."""
    for problem in problems:
        yield replace(problem, title=f"{problem.title} ({group.name})") if group.name else problem


def _of_defaults(group: Group, problems: Iterator[Problem]) -> Iterator[Problem]:
    """Say that a value is only a default: ${NAME:-value}."""
    unless = {(each.name, each.line): each.unless_set for each in group.assignments if each.unless_set}
    for problem in problems:
        if caller := unless.get((problem.variable, problem.line)):
            text = f"This is the default, unless the caller sets {caller}."
            problem = replace(problem, detail=f"{problem.detail} {text}".strip())
        yield problem


def _of_group(
    group: Group, parsed: ParsedFile, examination: Examination, advice: Advice, used: _Software
) -> Iterator[Problem]:
    is_conf = parsed.kind is FileKind.NCCL_CONF
    chosen = {
        name: assignment
        for name, assignment in group.effective(first_wins=is_conf).items()
        if assignment.is_exported or is_conf
    }
    values = {name: assignment.value for name, assignment in chosen.items() if assignment.value is not None}
    broken = {problem.variable for problem in parsed.problems if problem.severity is Severity.CRITICAL}
    conf = {} if is_conf else conf_values(examination)
    advised = {(setting.name, setting.value) for setting in advice.settings}
    judged: set[str] = set()
    for judgment in judge(examination, {**conf, **values}, advice.version):
        if judgment.variable in values:
            judged.add(judgment.variable)
            line = chosen[judgment.variable].line
            problem = replace(judgment, line=line, fix=judgment.fix.replace(SET_IN, f"line {line}"))
            if used.runs_nccl_tests and judgment.variable.startswith("UCX_"):
                detail = "nccl-tests passes only host memory to MPI; its GPU traffic is NCCL's, not UCX's."
                problem = replace(problem, severity=Severity.NOTE, detail=detail)
            yield problem
    for name, assignment in chosen.items():
        value = assignment.value
        if name not in broken:
            yield from _of_name(assignment, advice.version, name in judged)
            yield from _of_stack(assignment, used)
            if value is not None and name not in judged and (name, value) not in advised:
                yield from _of_value(variables().get(name), value, assignment.line, advice.version)
            if name in conf and value not in (None, conf[name]):
                yield problem_at(assignment.line, "overrides-conf", name, value=conf[name])
    yield from _of_pairs(chosen, values)
    if used.stack is not Stack.EFA:
        own = [container.network is not Network.HOST for container in parsed.containers]
        # gIB is in images of containers, whose interfaces are their own.
        is_of_host = not used.sources_gib and (not any(own) if own else parsed.kind is not FileKind.POD)
        yield from of_names(chosen, examination, is_of_host)


def _unknown_names(parsed: ParsedFile, stack: Stack | None) -> Iterator[Problem]:
    """Find names that are almost those of variables, and names that NCCL does not read."""
    unknown: dict[str, Assignment] = {}
    for group in parsed.groups:
        for assignment in group.assignments:
            if not is_known(assignment.name) and len(unknown) < _MAX_UNKNOWN:
                unknown.setdefault(assignment.name, assignment)
    for name, assignment in unknown.items():
        if near := similar_name(name):
            yield problem_at(assignment.line, "name-similar", name, near=near)
        # gIB has names of its own.
        elif name.startswith("NCCL_") and assignment.is_exported and stack is not Stack.GIB:
            yield problem_at(assignment.line, "name-not-read", name, newest=newest())


def _of_name(assignment: Assignment, version: Version, is_judged: bool) -> Iterator[Problem]:
    """Find names that the library no longer reads, or not yet."""
    variable = variables().get(assignment.name)
    if variable is None or not assignment.name.startswith("NCCL_") or is_judged:
        return
    name, line = assignment.name, assignment.line
    if variable.removed and parse_version(variable.removed) <= version:
        instead = f"Use {variable.instead}" if variable.instead else "Remove it"
        yield problem_at(line, "name-removed", name, since=variable.removed, instead=instead)
    elif variable.since and parse_version(variable.since) > version:
        shown = ".".join(map(str, version))
        yield problem_at(line, "name-too-new", name, since=variable.since, version=shown)


def _of_value(variable: Variable | None, value: str, line: int, version: Version) -> Iterator[Problem]:
    if variable is None:
        return
    name = variable.name
    problem = partial(problem_at, line, variable=name, value=value)
    number = parse_number(value) if variable.kind is Kind.NUMBER else None
    if variable.kind is Kind.NUMBER and number is None:
        yield problem("value-is-no-number")
    elif number is not None and variable.limits and not variable.limits[0] <= number <= variable.limits[1]:
        low, high = variable.limits
        yield problem("value-outside", low=low, high=high, meaning=variable.meaning_sentence)
    elif variable.kind is Kind.LEVEL and parse_level(value) is None:
        yield problem("value-is-no-level")
    elif words := variable.unknown_words(value):
        known = join_limited((word for word, _ in variable.values), len(variable.values))
        yield problem("value-unknown", word=words[0], known=known)
    elif name == "NCCL_SOCKET_IFNAME" and value.startswith("^") and not _excludes_loopback(value[1:]):
        yield problem("interfaces-with-loopback")
    elif value and variable.default(version) == value:
        yield problem("value-is-default")
    elif name == "NCCL_CUMEM_ENABLE" and number == 0:
        yield problem("cumem-off")
    elif variable.for_debugging:
        yield problem("for-debugging")


def _excludes_loopback(names: str) -> bool:
    """Return whether a list has lo, or a prefix of it (src/misc/socket.cc)."""
    if names.startswith("="):
        return "lo" in names[1:].split(",")
    return any("lo".startswith(name) for name in names.split(",") if name)


def _of_stack(assignment: Assignment, used: _Software) -> Iterator[Problem]:
    """Find what is stacked on a cloud's own settings."""
    name, line = assignment.name, assignment.line
    if used.stack is Stack.EFA and name.startswith("NCCL_IB_"):
        yield problem_at(line, "infiniband-on-efa", name)
    elif used.stack is Stack.EFA and name in PLUGIN_SETS:
        yield problem_at(line, "overrides-efa", name)
    elif used.stack is Stack.EFA and name in ON_EFA:
        yield problem_at(line, ON_EFA[name], name)
    elif used.stack is Stack.GIB and name.startswith("NCCL_") and is_known(name):
        if name.startswith(_DEBUG) or (used.sources_gib and name in WITH_GIB):
            return
        source = "" if used.sources_gib else " and source the script"
        yield problem_at(line, "overrides-gib", name, source=source)


def _of_pairs(chosen: dict[str, Assignment], values: dict[str, str]) -> Iterator[Problem]:
    """Find variables that another one disables."""
    index = parse_number(values.get("NCCL_IB_GID_INDEX", ""))
    for name in _WITH_INDEX:
        if index is not None and index >= 0 and name in chosen:
            yield problem_at(chosen[name].line, "unused-with-index", name)
    for name in _MAPPINGS:
        if name in chosen and not parse_number(values.get("NVSHMEM_ENABLE_NIC_PE_MAPPING", "")):
            yield problem_at(chosen[name].line, "unused-without-mapping", name)
    is_off = parse_number(values.get("NCCL_CUMEM_ENABLE", "")) == 0
    if is_off and parse_number(values.get("NCCL_MNNVL_ENABLE", "")) == 1:
        yield problem_at(chosen["NCCL_CUMEM_ENABLE"].line, "mnnvl-without-cumem", "NCCL_CUMEM_ENABLE")


def _missing(chosen: set[str], advice: Advice, is_conf: bool) -> Iterator[Problem]:
    """Name what this node needs and the file does not set, if it sets anything."""
    for setting in advice.settings if chosen else ():
        if setting.name not in chosen and (setting.name.startswith("NCCL_") or not is_conf):
            reason = capitalized(setting.reason)
            yield problem_at(0, "also-needed", name=setting.name, value=setting.value, reason=reason)
