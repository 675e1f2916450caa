"""`gdrtop env`: the variables of NCCL, UCX and NVSHMEM that a node needs, explained and judged."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypedDict

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.text import did_you_mean, plural, printable
from probes.base.unknown import known
from probes.facts.node import derivation, host_name
from probes.facts.system import platform as cloud_facts
from probes.host.protocol import Host
from probes.nccl.variables.catalogue import VARIABLE_NAME, Parameter, newest, parameters, variables
from probes.setup.env.advice import FORMATS, Advice, lines_of
from probes.setup.env.assignments import LIMIT_BYTES, FileKind, Problem
from probes.setup.env.explain import Explanation, explain
from probes.setup.env.file_kind import File, named_file
from probes.setup.env.lint import FileReport, lint, worst_status
from probes.setup.env.recommend import recommend, version_of
from probes.snapshot.examination import Examination, examine
from tui.command_line.arguments import UsageError, add_arguments, named_text
from tui.command_line.options import OutputOptions, parsed
from tui.runtime.json_values import Changed, ExitStatus, node_document, object_from, write_json
from tui.runtime.open_host import open_host
from tui.runtime.printing import heading, print_lines, text_width
from widgets.base.lines import Line, line, wrapped

if TYPE_CHECKING:
    from typing_extensions import NotRequired


_VERSION = re.compile(r"v?([0-9]{1,3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?)")
_SIMILAR = 0.75  # most names share a prefix and words such as DEVICES
_WORDS = {Severity.CRITICAL: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


_RECOMMENDATION = Annotated[
    Advice,
    Changed(
        without=("version", "version_from", "is_unread"),
        nccl_version=str,
        nccl_version_from=Literal["stated", "running jobs", "assumed"],
        is_complete=bool,
    ),
]


class _Default(TypedDict):
    since: str  # the version; empty: from the first
    value: str


class _Meaning(TypedDict):
    value: str
    meaning: str


_EXPLANATION = Annotated[
    Explanation,
    Changed(
        without=("variable",),
        name=str,
        meaning=str,
        defaults=tuple[_Default, ...],
        values=tuple[_Meaning, ...],
        reference=str,
    ),
]
_PROBLEM = Annotated[Problem, Changed(line=int | None, severity=Literal["error", "warning", "note"])]


class _Lint(TypedDict):
    file: str
    kind: FileKind
    variables: int  # whose values were judged
    variables_known_at_run_time: NotRequired[int]  # whose values only the job knows; these were not judged
    not_compared: str  # why NICs and distances were not compared with this node; empty: they were
    problems: tuple[_PROBLEM, ...]


class EnvDocument(TypedDict):
    """`gdrtop env --json`."""

    exit_status: ExitStatus  # of --lint: 0 ok, 1 warnings, 2 errors, 3 no value to check; else 0
    recommendation: _RECOMMENDATION | None
    explanation: _EXPLANATION | None
    lint: _Lint | None
    more_files: NotRequired[tuple[_Lint, ...]]  # the files after the first one of --lint


def add_options(parser: argparse.ArgumentParser) -> None:
    forms = parser.add_mutually_exclusive_group()
    texts = {
        "shell": "export lines for a shell or an sbatch script (default)",
        "slurm": "a TaskProlog for slurm.conf",
        "k8s": "the env list of a container",
        "nccl-conf": "lines for /etc/nccl.conf",
    }
    for form in FORMATS:
        option = "--task-prolog" if form == "slurm" else f"--{form}"
        forms.add_argument(option, dest="form", action="store_const", const=form, help=texts[form])
    add_arguments(forms, {"--json": "print JSON (gdrtop schema env)"})
    parser.set_defaults(form="shell")
    what = {
        "--explain NAME[=VALUE]": "explain a variable, or one of its values",
        "--lint FILE ...": "check scripts, pods, Compose, operators' objects; - reads standard input",
    }
    add_arguments(parser.add_mutually_exclusive_group(), what)
    add_arguments(
        parser,
        {
            "--kind": "the type of FILE (default: detected from its name and content)",
            "--nccl VERSION": "the jobs' NCCL version, such as 2.20 (default: the oldest in a running job, "
            "else the newest)",
        },
        kind={"choices": [kind.value for kind in FileKind]},
        nccl={"type": _version},
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print what the options ask for."""
    if options.kind and options.lint is None:
        raise UsageError("--kind needs --lint")
    if (options.explain or options.lint) and options.form != "shell":
        raise UsageError(f"--{options.form} formats the recommendation; omit it with --explain or --lint")
    files = [named_file(*named_text(name, LIMIT_BYTES), options.kind) for name in options.lint or ()]
    host = open_host(options)
    asked = parsed(EnvOptions, options)
    if options.explain is not None:
        return write_explanation(host, out, options.explain, asked)
    return write_lint(host, out, files, asked) if files else write_environment(host, out, asked)


@frozen
class EnvOptions(OutputOptions):
    """What is printed, and how."""

    form: str = "shell"  # one of FORMATS
    nccl: str | None = None  # the jobs' version


def write_environment(host: Host, out: TextIO, options: EnvOptions) -> int:
    """Print the variables that jobs of the node need."""
    examination = examine(host)
    advice = recommend(examination, cloud_facts.probe_cloud(host), options.nccl or "")
    if options.json:
        write_json(_document(host, examination, recommendation=advice_json(advice)), out)
    else:
        name = known(host_name(examination.node), "this node")
        # A line of a script is never broken.
        lines = lines_of(advice, printable(name, 64), options.form, derivation(examination.node))
        print_lines([line(text) for text in lines], out, options.ascii)
    return 0


def write_explanation(host: Host, out: TextIO, text: str, options: EnvOptions) -> int:
    """Print what a variable or a value means."""
    examination = examine(host)
    found = explain(text, examination, version_of(examination, options.nccl or "")[0])
    if found is None:
        parameter = _parameter(text)
        content, texts = _undocumented_json(parameter, text), _undocumented(parameter)
    else:
        rows = {
            "defaults": [{"since": since, "value": value} for since, value in found.variable.defaults],
            "values": [{"value": value, "meaning": text} for value, text in found.values],
        }
        content, texts = object_from(found, _EXPLANATION, found.variable, **rows), _explanation(found)
    if options.json:
        write_json(_document(host, examination, explanation=content), out)
    else:
        print_lines([heading(examination.node)], out, options.ascii)
        _print(texts, out, options.ascii)
    return 0


def _parameter(text: str) -> Parameter:
    """Return the variable of NCCL's source that gdrtop does not explain; UsageError: there is none."""
    name = text.partition("=")[0]
    hint = did_you_mean(name.upper(), variables(), _SIMILAR)
    if not hint and not VARIABLE_NAME.fullmatch(name.upper()):
        raise UsageError(f"{name!r} is not an NCCL, UCX, NVSHMEM or libfabric variable")
    parameter = None if name.upper() in variables() else parameters().get(name.upper())
    if parameter is None:
        raise UsageError(f"{name!r} is not in gdrtop's list of variables{hint}")
    return parameter


def _undocumented(parameter: Parameter) -> Iterator[str]:
    """Yield what NCCL's source shows of a variable that gdrtop does not explain."""
    yield parameter.name
    yield ""
    is_current = parameter.last == newest()
    reads = "reads this variable" if is_current else f"read this variable up to {parameter.last}"
    yield f"NCCL {reads}. gdrtop has no explanation of it."
    yield _versions(parameter)
    changes = (f"{value} since {since}" for since, value in parameter.defaults)
    yield f"Default in the source: {', '.join(changes) or 'none'}."


def _versions(parameter: Parameter) -> str:
    ends = " and newer" if parameter.last == newest() else f" to {parameter.last}"
    return f"Versions: {parameter.first}{ends} (of those up to {newest()})."


def _undocumented_json(parameter: Parameter, text: str) -> dict[str, Any]:
    """Return the same as an explanation; the texts that gdrtop does not have are empty."""
    _, equals, value = text.partition("=")
    return {
        "name": parameter.name,
        "value": printable(value, 256) if equals else None,
        "meaning": "",
        "of_value": [],
        "defaults": [{"since": since, "value": default} for since, default in parameter.defaults],
        "values": [],
        "notes": [_versions(parameter)],
        "on_this_node": [],
        "reference": "",
    }


def write_lint(host: Host, out: TextIO, files: Sequence[File], options: EnvOptions) -> int:
    """Print what is wrong in files, line by line; return 0 ok, 1 warnings, 2 errors, 3 nothing to check."""
    examination = examine(host)
    cloud = cloud_facts.probe_cloud(host)
    reports = [lint(file.text, file.kind, examination, cloud, options.nccl or "") for file in files]
    status = worst_status(reports)
    if options.json:
        content = [_report_json(report, file.name) for report, file in zip(reports, files, strict=True)]
        write_json(_document(host, examination, status, lint=content[0], more_files=content[1:]), out)
        return status
    print_lines([heading(examination.node)], out, options.ascii)
    for report, file in zip(reports, files, strict=True):
        _print(report_lines(report, file.name), out, options.ascii)
    reason = next((report.not_compared for report in reports if report.not_compared), "")
    if reason:
        _print([f"NICs and distances were not compared: {reason}."], out, options.ascii)
    return status


def _version(text: str) -> str:
    match = _VERSION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an NCCL version such as 2.20")
    return match[1]


def _print(texts: Iterable[str], out: TextIO, ascii_only: bool) -> None:
    """Print texts; a long one is broken at words, and its further lines are indented like the text."""
    width = text_width(out)
    lines: list[Line] = []
    for text in texts:
        indent = text[: len(text) - len(text.lstrip(" "))]
        words = text[len(indent) :]
        hanging = "  " if words.startswith("- ") or not indent else ""
        lines += wrapped(words, max(width, len(indent) + 20), indent=indent, hanging=hanging)
    print_lines(lines, out, ascii_only)


def _explanation(found: Explanation) -> Iterator[str]:
    variable = found.variable
    yield variable.name if found.value is None else f"{variable.name}={found.value}"
    yield from (f"  {text}" for text in found.of_value)
    yield ""
    yield f"What it sets: {variable.meaning}."
    yield f"Default: {', '.join(found.defaults) if found.defaults else 'unset'}."
    if parameter := parameters().get(variable.name):
        yield _versions(parameter)
    if found.values:
        yield "Values:"
        longest = max(len(value) for value, _ in found.values)
        yield from (f"  {value:<{longest}}  {text}".rstrip() for value, text in found.values)
    if found.notes:
        yield "Versions and mistakes:"
        yield from (f"  - {note}" for note in found.notes)
    if found.on_this_node:
        yield "On this node:"
        yield from (f"  - {text}" for text in found.on_this_node)
    yield f"More: {variable.reference}"


def report_lines(report: FileReport, name: str) -> Iterator[str]:
    """Yield what is wrong in a file, line by line, and a summary."""
    for problem in report.problems:
        yield from _problem(problem, name)
    if report.problems:
        yield ""
    counts = [
        f"{count} {word}{'s' * (count != 1)}"
        for severity, word in _WORDS.items()
        if (count := report.number_of(severity))
    ]
    kind = {FileKind.NCCL_CONF: "nccl.conf", FileKind.POD: "YAML"}.get(report.kind, report.kind.value)
    found = f"{report.count} variable{'s' * (report.count != 1)} checked"
    if report.dynamic:
        found += f", {report.dynamic} known only when the job runs"
    elif not report.count:
        found = "no variable found"
    if report.containers:
        found += f", {plural(report.containers, 'container')} with GPUs"
    if report.objects:
        found += f", {plural(report.objects, 'object')}"
    result = ", ".join(counts) or ("ok" if report.has_content else "nothing was checked")
    yield f"{name} ({kind}, {found}): {result}"


def _problem(problem: Problem, name: str) -> Iterator[str]:
    place = f"{name}:{problem.line}" if problem.line else name
    yield f"{place}: {_WORDS[problem.severity]}: {problem.title}"
    if problem.detail:
        yield f"    {problem.detail}"
    if problem.fix:
        yield f"    Fix: {problem.fix}"


def _document(host: Host, examination: Examination, exit_status: int = 0, **given: object) -> dict[str, Any]:
    """Return the document; `given`: one of its parts, and the further files of --lint."""
    parts = dict.fromkeys(("recommendation", "explanation", "lint"))
    content = {"exit_status": exit_status, **parts, "more_files": [], **given}
    return node_document("env", examination.node, host.wall_clock(), content)


def advice_json(advice: Advice) -> dict[str, Any]:
    """Return a recommendation as JSON."""
    version = ".".join(map(str, advice.version))
    return object_from(advice, _RECOMMENDATION, nccl_version=version, nccl_version_from=advice.version_from)


def _report_json(report: FileReport, name: str) -> dict[str, Any]:
    problems = [
        object_from(problem, _PROBLEM, line=problem.line or None, severity=_WORDS[problem.severity])
        for problem in report.problems
    ]
    counts = {"variables": report.count, "variables_known_at_run_time": report.dynamic}
    return object_from(report, _Lint, file=name, problems=problems, **counts)
