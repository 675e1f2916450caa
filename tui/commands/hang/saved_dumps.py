"""`gdrtop hang --dumps`: compare flight-recorder dumps of a job that may have ended, from files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from probes.base.origin import Origin, Source
from probes.base.text import plural, printable
from probes.base.unknown import Reason, Unknown
from probes.nccl.flight_recorder.dump import MOST_BYTES, Dump, parse_dump, rank_in_name
from probes.nccl.flight_recorder.verdict import DumpVerdict, verdict_of
from tui.command_line.arguments import EXIT_WRONG_USAGE, OutputOptions, UsageError
from tui.files.new_file import shown_path
from tui.files.read_file import read_small
from tui.runtime.json_values import document, object_of, write_json
from tui.runtime.printing import print_lines, text_width
from widgets.nccl.hang import draw_dumps


def compare_dumps(
    names: Sequence[str], out: TextIO, errors: TextIO, at: float, options: OutputOptions
) -> int:
    """Compare the dumps in these files, and return the exit status; `at`: seconds since 1970."""
    dumps = _read(names, errors)
    if not dumps:
        return EXIT_WRONG_USAGE
    verdict = verdict_of(dumps)
    status = _status_of(verdict)
    if options.json:
        node = Unknown(Reason.NOT_THERE, "", "dumps can be of several nodes")
        content = {"exit_status": status, "jobs": [], "flight_recorder": verdict, "unanswered": {}}
        write_json(document("hang", node, Origin(Source.RECORDED), at, object_of(content)), out)
    else:
        drawn = draw_dumps(verdict, sum(dump.point_to_point for dump in dumps), text_width(out))
        print_lines(drawn, out, options.ascii)
    return status


def _status_of(verdict: DumpVerdict) -> int:
    if verdict.culprits or verdict.suspected:
        return 2
    return 1 if verdict.groups else 0


def _read(names: Sequence[str], errors: TextIO) -> list[Dump]:
    """Return the dumps that can be read; print why others cannot."""
    found: dict[int, Dump] = {}
    for name in names:
        rank = rank_in_name(os.path.basename(name))
        if rank is None:
            raise UsageError(f"{shown_path(name)} does not end with a rank, such as nccl_trace_rank_5")
        if rank in found:
            raise UsageError(f"{shown_path(name)} and {found[rank].file} are both of rank {rank}")
        try:
            dump = parse_dump(read_small(name, MOST_BYTES, "a dump"), rank, name)
        except OSError as error:
            print(
                f"gdrtop: {shown_path(name)} cannot be read: {printable(error.strerror or str(error))}",
                file=errors,
            )
            continue
        if isinstance(dump, Unknown):
            print(f"gdrtop: {shown_path(name)} cannot be used: {dump}", file=errors)
            continue
        found[rank] = dump
    if len(found) < len(names):
        print(f"gdrtop: {plural(len(names) - len(found), 'file')} not used", file=errors)
    return [found[rank] for rank in sorted(found)]
