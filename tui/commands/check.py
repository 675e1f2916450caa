"""`gdrtop check`: the findings, as text for a ticket and as JSON."""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypedDict

from probes.base.frozen import frozen
from probes.base.origin import Source
from probes.base.text import did_you_mean, plural
from probes.base.unknown import Maybe, Unknown
from probes.checks.judgment import Judgment, exit_status, judge
from probes.checks.live.ports import NOT_LONG_ENOUGH, WATCH_SECONDS
from probes.checks.new_jobs import DEFAULTS, Action
from probes.checks.nic.optics import NOT_ASKED
from probes.checks.registry import CHECKS
from probes.facts.node import Node
from probes.facts.system.site_checks import DIRECTORY, PREFIX
from probes.host.protocol import Host
from probes.live.job_examination import examine_with_jobs
from probes.queries.finding import Finding, Status
from probes.queries.jobs import without_jobs
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import Verdict
from tui.bandwidth.slow_results import with_slow_results
from tui.command_line.arguments import EXIT_WRONG_USAGE, UsageError, add_arguments, duration
from tui.command_line.options import OutputOptions, parsed
from tui.commands.consumers.checked_node import (
    ONE_LINE_BYTES,
    CheckedNode,
    one_line,
    save_check,
    write_actions,
)
from tui.files.since_ok import SinceOk, since_ok
from tui.runtime.json_values import (
    Changed,
    ExitStatus,
    FindingObject,
    SilenceObject,
    Time,
    VerdictObject,
    finding_json,
    node_document,
    object_from,
    plain_value,
    silence_json,
    time_json,
    write_json,
)
from tui.runtime.open_host import open_host
from tui.runtime.printing import heading, print_lines, text_width
from widgets.base.lines import Line, Run, Tone, line, wrapped
from widgets.doctor.findings import Entry, counted, draw_entries, draw_entry, entries_of, needs_text, title_of
from widgets.node import verdict as verdict_drawing

if TYPE_CHECKING:
    from typing_extensions import NotRequired

_MOST_NAMED = 4  # skipped checks
_MOST_SECONDS = 3600
_WATCH = f" --seconds {WATCH_SECONDS}"
_PAUSE_SECONDS = 5.0  # between two checks of --wait
FLEET = "fleet"  # what `gdrtop fleet check --from` takes
LABELS = "nfd"  # a feature file for Node Feature Discovery
# Without the contracts themselves, which --help does not need.
CONSUMERS = {
    "nagios": "Nagios and Icinga",
    "npd": "Node Problem Detector",
    "nhc": "Node Health Check",
    "slurm": "Slurm",
}
_DRAINING = ("nhc", "slurm")  # they act on what --severity-map says
# They are about the node. What a job has set itself keeps no other job away.
_WITHOUT_JOBS = (*_DRAINING, "npd", LABELS)


@frozen
class CheckOptions(OutputOptions):
    """What of the checks is printed, and how."""

    only: Collection[str] = ()
    skip: Collection[str] = ()
    all: bool = False  # print passed checks, too
    ids: Collection[str] = ()  # print only these, whatever their outcome
    seconds: int = 0  # watch the node first
    one_line: bool = False  # print the verdict only
    read_only: bool = False  # save no facts of a node that works
    consumer: str = ""  # print what this one of CONSUMERS expects
    severity_map: Mapping[str, Action] | None = None  # None: it is not given
    wait: int = 0  # seconds: check again while a finding is critical
    save: str = ""  # directory of the saved verdict
    profile: str = ""  # answer the criteria of this audit, by its name or file


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        {
            "--json": "print JSON (gdrtop schema check)",
            "--one-line": f"print only the verdict, with its reason, in at most {ONE_LINE_BYTES} bytes",
            "--wait TIME": "while a finding is critical, check again for up to this time, as after boot",
            "--save DIR": "also save the line of --one-line in DIR/verdict and the JSON in DIR/check.json",
            "--for": "print what another program expects, and exit as it expects (gdrtop help consumers)",
            "--severity-map [NAME=ACTION,…]": "print what automation should do: isolate, reset, watch or "
            "none; NAME is a check, critical, warning, note, unknown or not-applicable",
            "--profile PROFILE": "answer the criteria of an audit or of a file (gdrtop help consumers)",
            "-q --quiet": "print nothing; only exit",
            "--only ID,…": "run only these checks",
            "--skip ID,…": "do not run these checks",
            "--all": "also list checks that are ok; with --json, all details of each",
            "--seconds TIME": "watch the node for so long first: slow NICs, congestion and stalled jobs "
            "appear only over time",
            "[ID ...]": "show only these checks, with all details",
        },
        wait={"type": duration(1, _MOST_SECONDS), "default": 0},
        save={"default": ""},
        for_={"dest": "consumer", "choices": (*CONSUMERS, FLEET, LABELS), "default": ""},
        severity_map={"type": severity_map, "const": {}},
        profile={"default": ""},
        only={"type": _ids, "default": ()},
        skip={"type": _ids, "default": ()},
        seconds={"type": duration(1, _MOST_SECONDS), "default": 0},
        id={"dest": "ids", "type": _id, "default": ()},
    )


def _id(text: str) -> str:
    known = {check.id for check in CHECKS}
    if text not in known and not text.startswith(PREFIX):  # the node has those of its site
        hint = did_you_mean(text, known) or "; gdrtop check --all lists them"
        raise argparse.ArgumentTypeError(f"unknown check {text!r}{hint}")
    return text


def _ids(text: str) -> tuple[str, ...]:
    return tuple(_id(name.strip()) for name in text.split(","))


def severity_map(text: str) -> dict[str, Action]:
    """Parse "critical=isolate,port-down=watch", for argparse; "" is the default map."""
    actions = {action.value: action for action in Action}
    names = {*DEFAULTS, *(check.id for check in CHECKS)}
    chosen = {}
    for part in text.split(",") if text else ():
        name, equals, word = (piece.strip() for piece in part.partition("="))
        if not equals or word not in actions:
            expected = f"NAME=ACTION; the actions are {', '.join(actions)}"
            raise argparse.ArgumentTypeError(f"{part.strip()!r} is not {expected}")
        if name not in names and not name.startswith(PREFIX):
            hint = did_you_mean(name, names) or f"; besides checks there are {', '.join(DEFAULTS)}"
            raise argparse.ArgumentTypeError(f"no check or severity {name!r}{hint}")
        chosen[name] = actions[word]
    return chosen


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Check the node that the options name and return its exit status."""
    _refuse_conflicts(options)
    if options.quiet:
        out = io.StringIO()
    host = open_host(options)
    is_still = host.origin.source in (Source.TREE, Source.RECORDED)
    if options.seconds and is_still:
        raise UsageError("--seconds needs a running node; a recording is judged at --at TIME")
    if options.wait and is_still:
        raise UsageError("--wait needs a running node, which may change")
    return write_check(host, out, parsed(CheckOptions, options))


def _refuse_conflicts(options: argparse.Namespace) -> None:
    """Raise UsageError where two options want different output."""
    forms = {
        "--for": options.consumer,
        "--one-line": options.one_line,
        "--json": options.json,
        "--severity-map": options.severity_map is not None and options.consumer not in _DRAINING,
        "--profile": bool(options.profile) and not options.json,
    }
    chosen = [form for form, is_chosen in forms.items() if is_chosen]
    if len(chosen) > 1:
        hint = (
            "" if chosen != ["--for", "--severity-map"] else f"; only {' and '.join(_DRAINING)} use the map"
        )
        raise UsageError(f"{' and '.join(chosen)} exclude each other{hint}")
    if chosen and chosen != ["--json"] and (options.all or options.ids):
        raise UsageError(f"{chosen[0]} takes no ID and no --all")
    if options.profile and (options.only or options.skip):
        raise UsageError("--profile takes no --only and no --skip: what was left out is not shown")


def write_check(
    host: Host, out: TextIO, options: CheckOptions, wait: Callable[[float], object] = time.sleep
) -> int:
    """Check the node, print the findings, and return the exit status of the checks that ran."""

    def examined(before: Examination | None = None) -> Examination:
        found = examine_host(host, options.seconds, before)
        is_for_node = options.consumer in _WITHOUT_JOBS or options.severity_map is not None
        return without_jobs(found) if is_for_node else found

    profile = None
    if options.profile:
        from tui.commands.consumers.profile import read_profile, write_profile

        profile = read_profile(options.profile)
    began = host.monotonic()
    examination = examined()
    judgment = judge(examination, only=options.only, skip=options.skip)
    while judgment.verdict.critical and host.monotonic() - began < options.wait:
        wait(_PAUSE_SECONDS)
        examination = examined(examination)
        judgment = judge(examination, only=options.only, skip=options.skip)
    verdict, found, skipped = judgment.verdict, judgment.findings, judgment.skipped
    here = {*skipped, *(finding.id for finding in found)}
    if missing := next((name for name in (*options.only, *options.ids) if name not in here), ""):
        raise UsageError(f"no check {missing} in {DIRECTORY} of this node{did_you_mean(missing, here)}")
    since = since_ok(examination, judgment, options.read_only)
    node, at = examination.node, host.wall_clock()
    if options.save:
        content = check_json(node, at, verdict, found, skipped, since=since)
        if failure := save_check(options.save, content, judgment, node.origin, at):
            print(f"gdrtop: {failure}", file=sys.stderr)
            if not options.consumer:  # whose exit status is about the node
                return EXIT_WRONG_USAGE
    if profile is not None:
        return write_profile(
            profile, examination, judgment, at, out, as_json=options.json, ascii_only=options.ascii
        )
    if options.consumer == FLEET:
        from tui.commands.consumers.fleet_node import write_fleet_node

        write_fleet_node(examination, judgment, out)
        return 0  # the line says what the node is like
    if options.consumer == LABELS:
        from tui.commands.consumers.node_labels import write_labels

        return write_labels(examination, judgment, out)
    if options.consumer:
        from tui.commands.consumers.contracts import write_for

        checked = CheckedNode(judgment, node.origin, options.severity_map or {})
        return write_for(options.consumer, checked, out)
    if options.json:
        shown = [finding for finding in found if not options.ids or finding.id in options.ids]
        in_full = options.all or bool(options.ids)
        write_json(check_json(node, at, verdict, shown, skipped, in_full, since), out)
    elif options.one_line:
        print_lines([one_line(judgment, node.origin)], out, options.ascii)
    elif options.severity_map is not None:
        write_actions(judgment, options.severity_map, out)
    else:
        lines = _text(examination, judgment, text_width(out), options, since)
        print_lines(lines, out, options.ascii)
    return exit_status(verdict)


def examine_host(host: Host, seconds: int = 0, before: Examination | None = None) -> Examination:
    """Return one moment of the node with its saved slow results.

    A recording, or a node that is watched for some `seconds`, is examined with what the time before shows.
    `before`: the examination before, of the same command.
    """
    if host.origin.source is not Source.RECORDED and not seconds:
        examination = examine_with_jobs(host, before=before)
    else:
        from tui.runtime.snapshot import take_snapshot, watch_for

        examination = (watch_for(host, seconds) if seconds else take_snapshot(host)).examination
    return with_slow_results(host, examination)


def _left_out(skipped: Sequence[str], only: Collection[str], skip: Collection[str]) -> str:
    """Return "1 check skipped (acs-redirect-enabled)"; "" if every check has run."""
    if not skipped:
        return ""
    if only:
        options = "--only, --skip" if skip else "--only"
        return f"{plural(len(skipped), 'check')} skipped ({options})"
    more = [f"{len(skipped) - _MOST_NAMED} more"] if len(skipped) > _MOST_NAMED else []
    return f"{plural(len(skipped), 'check')} skipped ({', '.join((*skipped[:_MOST_NAMED], *more))})"


_SILENCED = Annotated[
    Finding,
    Changed(
        only=("id", "severity", "title", "devices"), silence=SilenceObject, schema_name="SilencedFinding"
    ),
]
_CHECK = Annotated[
    FindingObject, Changed("id", "status", "severity", "title", "cause", schema_name="CheckResult")
]


class _Change(TypedDict):
    fact: str
    label: str
    slots: tuple[str, ...]  # devices, or names of settings; empty: the node itself
    before: str
    now: str


class _SinceOk(TypedDict):
    time: Time  # of the last check at which the node was READY or ACTIVE, with zone (RFC 3339)
    state: Literal["READY", "ACTIVE"]
    changes: tuple[_Change, ...]  # what decides the path first


class CheckDocument(TypedDict):
    """`gdrtop check --json`."""

    verdict: VerdictObject
    exit_status: ExitStatus  # 0 fine, 1 warnings, 2 critical, 3 unknown or not applicable
    skipped: tuple[str, ...]  # ids of the checks that --only or --skip left out, also of the verdict
    # Null: the node is READY or ACTIVE, it never was, or it is another machine.
    since_ok: NotRequired[Maybe[_SinceOk | None]]
    findings: tuple[Annotated[FindingObject, Changed(status=Literal["found"])], ...]  # the most severe first
    silenced: tuple[_SILENCED, ...]
    # Every check that ran. With --all or an ID, all details; the title is the outcome.
    checks: tuple[_CHECK, ...]


def check_json(
    node: Node,
    at: float,
    verdict: Verdict,
    ran: Sequence[Finding],
    skipped: Sequence[str] = (),
    in_full: bool = False,
    since: SinceOk = None,
) -> dict[str, Any]:
    """Return the JSON document: findings in full, and a short row for each check that ran.

    `at`: seconds since 1970; `skipped`: ids of the checks that were left out; `in_full`: with all details
    of every check; `since`: what has changed since the node last worked.
    """
    content = {
        "verdict": plain_value(verdict),
        "exit_status": exit_status(verdict),
        "skipped": list(skipped),
        "since_ok": _since_json(since),
        "findings": [finding_json(finding) for finding in ran if finding.status is Status.FOUND],
        "silenced": [
            object_from(finding, _SILENCED, silence=silence_json(finding.silence, is_expired=False))
            for finding in ran
            if finding.status is Status.SILENCED and finding.silence is not None
        ],
        "checks": [_check_row_json(finding, in_full) for finding in ran],
    }
    if isinstance(since, Unknown):
        content["unknown"] = {"since_ok": str(since)}
    return node_document("check", node, at, content)


def _since_json(since: SinceOk) -> dict[str, Any] | None:
    if since is None or isinstance(since, Unknown):
        return None
    return {
        "time": time_json(since.before.taken_at),
        "state": since.before.verdict.state.value,
        "changes": [
            object_from(change, _Change, fact=change.fact.id, label=change.fact.label)
            for change in since.changes
        ],
    }


def _check_row_json(finding: Finding, in_full: bool) -> dict[str, Any]:
    """Return a check that ran; its title says the outcome, as on screen."""
    outcome = {
        "id": finding.id,
        "status": finding.status.value,
        "severity": finding.severity.value,
        "title": title_of(finding),
        "cause": finding.cause,
    }
    return {**finding_json(finding), **outcome} if in_full else outcome


def _text(
    examination: Examination, judgment: Judgment, width: int, options: CheckOptions, since: SinceOk
) -> list[Line]:
    verdict, found, with_passed = judgment.verdict, judgment.findings, options.all
    note = _left_out(judgment.skipped, only=options.only, skip=options.skip)
    names = examination.topology.labels
    lines: list[Line] = [heading(examination.node), verdict_drawing.draw(verdict)]
    lines.extend(wrapped(note, width, Tone.WARNING, "  ") if note else ())
    lines.extend(wrapped(verdict.reason, width, Tone.PLAIN, "  "))
    if since is not None:
        from widgets.fleet.differences import draw_wrapped

        lines.extend(draw_wrapped(since, width, "  "))
    if options.ids:
        for finding in found:
            if finding.id in options.ids:
                lines.extend([(), *draw_entry(Entry(finding.id, (finding,)), width, names)])
                if finding.cause == NOT_LONG_ENOUGH:
                    lines.append((Run(f"gdrtop check {finding.id}{_WATCH}", Tone.DIM),))
        return lines
    lines.append(line(counted(found)))
    is_fine = not any(finding.status is Status.FOUND for finding in found)
    entries = entries_of([finding for finding in found if with_passed or _is_listed(finding, is_fine)])
    if entries:
        lines.append(())
        for entry, drawn in zip(entries, draw_entries(entries, width, names), strict=True):
            is_unknown = entry.first.status is Status.UNKNOWN  # its reason is all that it says
            lines += wrapped(f"? {needs_text(entry)}", width, Tone.DIM, "", "  ") if is_unknown else [drawn]
    for entry in entries:
        # What has the cause of another finding has its fix, too: it is in the list above.
        is_detailed = entry.is_found and not entry.depth
        if is_detailed or (with_passed and entry.first.status is not Status.PASSED):
            lines.extend([(), *draw_entry(entry, width, names)])
    hint = "gdrtop check ID shows one check in detail"
    is_shortened = any(entry.depth for entry in entries if entry.is_found) and not with_passed
    hint += "" if with_passed else "; --all also lists checks that are ok"
    hint += ", and details of what has the same cause" if is_shortened else ""
    hint += f";{_WATCH} watches for so long" if any(each.cause == NOT_LONG_ENOUGH for each in found) else ""
    return [*lines, (), (Run(hint, Tone.DIM),)]


def _is_listed(finding: Finding, is_fine: bool) -> bool:
    """Return whether a finding is listed without --all; `is_fine`: nothing is wrong on the node."""
    return finding.status is not Status.PASSED and not (is_fine and finding.cause == NOT_ASKED)
