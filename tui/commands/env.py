"""`gdrtop env`: the variables of NCCL, UCX and NVSHMEM that a node needs, explained and judged."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from probes.base.frozen import frozen
from probes.base.text import did_you_mean, printable
from probes.base.unknown import known
from probes.facts.node import derivation
from probes.facts.system import cloud as cloud_facts
from probes.host.protocol import Host
from probes.nccl.variables.catalogue import CATALOGUE, Parameter, newest, parameters
from probes.nccl.variables.variable import VARIABLE_NAME
from probes.queries.finding import Severity
from probes.setup.environment.advice import Advice
from probes.setup.environment.assignments import LIMIT_BYTES, FileKind, Problem
from probes.setup.environment.explain import Explanation, explain
from probes.setup.environment.formats import FORMATS, lines_of
from probes.setup.environment.lint import FileReport, kind_of, lint, worst_status
from probes.setup.environment.recommend import recommend, version_of
from probes.snapshot.examination import Examination, examine
from tui.commands.arguments import UsageError, accept_earlier
from tui.files.log_files import STDIN, UnreadableLog, chunks_of_log
from tui.files.new_file import shown_path
from tui.runtime.json_values import document, host_name, object_of, write_json
from tui.runtime.open_host import open_host
from tui.runtime.printing import heading, print_lines, text_width
from widgets.base.lines import Line, line, wrapped

_HELP = """\
examples:
  gdrtop env > nccl.env; . ./nccl.env          the variables as shell commands
  gdrtop env --nccl-conf                       for /etc/nccl.conf
  gdrtop env --explain NCCL_NET_GDR_LEVEL=5    what a value means, by version and on this node
  gdrtop env --lint job.sbatch pods/*.yaml     check scripts, YAML or nccl.conf; - is stdin

exit status of --lint, the worst of all files:
  0  ok    1  warnings    2  errors    3  no value to check in any file, a file cannot be read, or usage error
"""
_VERSION = re.compile(r"v?([0-9]{1,3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?)")
_SIMILAR = 0.75  # most names share a prefix and words such as DEVICES
_WORDS = {Severity.CRITICAL: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


@frozen
class File:
    """One file to check."""

    name: str  # as shown
    text: str
    kind: FileKind


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _HELP
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
    accept_earlier(parser, "--task-prolog", "--slurm")
    forms.add_argument("--json", action="store_true", help="print JSON (gdrtop schema env)")
    parser.set_defaults(form="shell")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--explain", metavar="NAME[=VALUE]", help="explain a variable, or one of its values")
    what.add_argument(
        "--lint", metavar="FILE", nargs="+", help="check what files set; - reads standard input"
    )
    parser.add_argument(
        "--kind",
        choices=[kind.value for kind in FileKind],
        help="the type of FILE (default: detected from its name and first lines)",
    )
    parser.add_argument(
        "--nccl",
        metavar="VERSION",
        type=_version,
        help="the jobs' NCCL version, such as 2.20 (default: the oldest in a running job, else the newest)",
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print what the options ask for."""
    if options.kind and options.lint is None:
        raise UsageError("--kind needs --lint")
    if (options.explain or options.lint) and options.form != "shell":
        raise UsageError(f"--{options.form} formats the recommendation; omit it with --explain or --lint")
    files = [environment_file(name, options.kind) for name in options.lint or ()]
    host = open_host(options)
    nccl = options.nccl or ""
    if options.explain is not None:
        return write_explanation(host, out, options.explain, nccl, options.json, options.ascii)
    if files:
        return write_lint(host, out, files, nccl, options.json, options.ascii)
    return write_environment(host, out, options.form, nccl, options.json, options.ascii)


def write_environment(
    host: Host,
    out: TextIO,
    form: str = "shell",
    nccl: str = "",
    as_json: bool = False,
    ascii_only: bool = False,
) -> int:
    """Print the variables that jobs of the node need, in one of FORMATS or as JSON."""
    examination = examine(host)
    advice = recommend(examination, cloud_facts.probe(host), nccl)
    if as_json:
        write_json(_document(host, examination, recommendation=advice_json(advice)), out)
    else:
        name = known(host_name(examination.node), "this node")
        # A line of a script is never broken.
        lines = lines_of(advice, printable(name, 64), form, derivation(examination.node))
        print_lines([line(text) for text in lines], out, ascii_only)
    return 0


def write_explanation(
    host: Host, out: TextIO, text: str, nccl: str = "", as_json: bool = False, ascii_only: bool = False
) -> int:
    """Print what a variable or a value means."""
    examination = examine(host)
    found = explain(text, examination, version_of(examination, nccl)[0])
    if found is None:
        name = text.partition("=")[0]
        hint = did_you_mean(name.upper(), CATALOGUE, _SIMILAR)
        if not hint and not VARIABLE_NAME.fullmatch(name.upper()):
            raise UsageError(f"{name!r} is not an NCCL, UCX, NVSHMEM or libfabric variable")
        parameter = None if name.upper() in CATALOGUE else parameters().get(name.upper())
        if parameter is None:
            raise UsageError(f"{name!r} is not in gdrtop's list of variables{hint}")
        if as_json:
            content = _undocumented_json(parameter, text)
            write_json(_document(host, examination, explanation=content), out)
        else:
            print_lines([heading(examination.node)], out, ascii_only)
            _print(_undocumented(parameter), out, ascii_only)
        return 0
    if as_json:
        write_json(_document(host, examination, explanation=_explanation_json(found)), out)
    else:
        print_lines([heading(examination.node)], out, ascii_only)
        _print(_explanation(found), out, ascii_only)
    return 0


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


def write_lint(
    host: Host,
    out: TextIO,
    files: Sequence[File],
    nccl: str = "",
    as_json: bool = False,
    ascii_only: bool = False,
) -> int:
    """Print what is wrong in files, line by line; return 0 ok, 1 warnings, 2 errors, 3 nothing to check."""
    examination = examine(host)
    cloud = cloud_facts.probe(host)
    reports = [lint(file.text, file.kind, examination, cloud, nccl) for file in files]
    status = worst_status(reports)
    if as_json:
        content = [_report_json(report, file.name) for report, file in zip(reports, files, strict=True)]
        write_json(_document(host, examination, status, lint=content[0], more_files=content[1:]), out)
        return status
    print_lines([heading(examination.node)], out, ascii_only)
    for report, file in zip(reports, files, strict=True):
        _print(_report(report, file.name), out, ascii_only)
    reason = next((report.not_compared for report in reports if report.not_compared), "")
    if reason:
        _print([f"NICs and distances were not compared: {reason}."], out, ascii_only)
    return status


def _version(text: str) -> str:
    match = _VERSION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an NCCL version such as 2.20")
    return match[1]


def environment_file(name: str, kind: str | None = None) -> File:
    """Read a file that sets variables, or raise UsageError."""
    text = _read(name)
    shown = "stdin" if name == STDIN else shown_path(name)
    return File(shown, text, FileKind(kind) if kind else kind_of(name, text))


def _read(name: str) -> str:
    """Return a file's text, at most LIMIT_BYTES of it."""
    content = b""
    try:
        for chunk in chunks_of_log(name):
            content += chunk
            if len(content) > LIMIT_BYTES:
                raise UsageError(f"{shown_path(name)} is larger than {LIMIT_BYTES >> 20} MiB")
    except UnreadableLog as error:
        raise UsageError(f"{shown_path(name)} cannot be read: {error}") from None
    return content.decode("utf-8-sig", "replace")


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


def _report(report: FileReport, name: str) -> Iterator[str]:
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
    result = ", ".join(counts) or ("ok" if report.count or report.containers else "nothing was checked")
    yield f"{name} ({kind}, {found}): {result}"


def _problem(problem: Problem, name: str) -> Iterator[str]:
    place = f"{name}:{problem.line}" if problem.line else name
    yield f"{place}: {_WORDS[problem.severity]}: {problem.title}"
    if problem.detail:
        yield f"    {problem.detail}"
    if problem.fix:
        yield f"    Fix: {problem.fix}"


def _document(
    host: Host,
    examination: Examination,
    exit_status: int = 0,
    recommendation: dict[str, Any] | None = None,
    explanation: dict[str, Any] | None = None,
    lint: dict[str, Any] | None = None,
    more_files: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    content = {
        "exit_status": exit_status,
        "recommendation": recommendation,
        "explanation": explanation,
        "lint": lint,
        "more_files": list(more_files),
    }
    return document("env", host_name(examination.node), host.origin, host.wall_clock(), content)


def advice_json(advice: Advice) -> dict[str, Any]:
    """Return a recommendation as JSON."""
    return object_of(
        {
            "nccl_version": ".".join(map(str, advice.version)),
            "nccl_version_from": advice.version_from,
            "vendor": advice.vendor,
            "source_script": advice.source_script,
            "nothing": advice.nothing,
            "is_complete": advice.is_complete,
            "settings": advice.settings,
            "notes": advice.notes,
        }
    )


def _explanation_json(found: Explanation) -> dict[str, Any]:
    return {
        "name": found.variable.name,
        "value": found.value,
        "meaning": found.variable.meaning,
        "of_value": list(found.of_value),
        "defaults": [{"since": since, "value": value} for since, value in found.variable.defaults],
        "values": [{"value": value, "meaning": text} for value, text in found.values],
        "notes": list(found.notes),
        "on_this_node": list(found.on_this_node),
        "reference": found.variable.reference,
    }


def _report_json(report: FileReport, name: str) -> dict[str, Any]:
    return {
        "file": name,
        "kind": report.kind.value,
        "variables": report.count,
        "variables_known_at_run_time": report.dynamic,
        "not_compared": report.not_compared,
        "problems": [
            {
                "line": problem.line or None,
                "severity": _WORDS[problem.severity],
                "variable": problem.variable,
                "title": problem.title,
                "detail": problem.detail,
                "fix": problem.fix,
            }
            for problem in report.problems
        ],
    }
